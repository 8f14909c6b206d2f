"""What happens inside a stage: calls are measured and recorded one by one, then quantiles over them."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch

from runner.catalog import KnobValue, TaskSpec
from runner.catalog.always import operator_metrics
from runner.failures import TaskFailure, failure_of
from runner.measure import graph_replay, timing_confidence
from runner.measure.device import SEED, Device, prepare
from runner.measure.device_state import device_state, warning
from runner.measure.environment import environment
from runner.measure.recorder import Recorder, Result
from runner.records import Json
from runner.report import Report
from runner.suites.operators.inputs import Call, named
from runner.suites.operators.one import CALL_CLOCK, UPSTREAM_CLOCK, Times, measure
from runner.summary import QUANTILES, median, quantiles

OPERATORBENCH_MS = "operatorbench_ms"  # eager and compiled, by its clock; the writer of its files reads it
_ENDS = ("crashed",)  # after these the device is not to be trusted: a fresh stage goes on
_DEVICE_METRICS = ("device_latency_ms", "device_speedup")


def measure_all(
    spec: TaskSpec, report: Report, calls: Sequence[Call], waiting: Sequence[int], marks: Path
) -> Json:
    """Every waiting call, each with its rows at once. Raises TaskFailure where this process must end."""
    device = prepare(spec.device)
    rows = _Rows(spec, report, device)
    states = [device_state(device)]
    for place in waiting:
        call = calls[place]
        _mark(marks, {"place": place, "began": time.time()})
        report.event("measure", place, len(calls), f"{call.operator} {call.label}")
        torch.manual_seed(SEED)
        try:
            with torch.no_grad():
                times = measure(
                    call,
                    spec.backend,
                    getattr(torch, spec.dtype),
                    device,
                    at_least=cast("int", spec.setting("repeat")),
                    graph_replay_too=bool(spec.setting("graph_replay")),
                    channels_last=bool(spec.setting("channels_last")),
                )
        except Exception as error:  # a call that fails is a row too
            failure = failure_of(error)
            if failure.status in _ENDS:
                raise
            rows.failed(call, failure)
            _mark(marks, {"place": place, "failure": [failure.status, failure.code, failure.reason]})
        else:
            states.append(device_state(device))
            rows.measured(call, times, warning(states))
            _mark(marks, {"place": place, **_numbers(times)})
            if times.no_device and times.no_device.status in _ENDS:
                raise times.no_device
        device.release()
    return None


def _mark(marks: Path, said: dict[str, Json]) -> None:
    with marks.open("a") as file:
        file.write(json.dumps(said) + "\n")


def _numbers(times: Times) -> dict[str, Json]:
    """What the quantiles need."""
    said: dict[str, Json] = {
        "upstream": [times.upstream_eager_ms, times.upstream_compiled_ms],
        "call": times.paired.speedup,
        "at": time.time(),
    }
    if times.device:
        said["device"] = median(times.device.eager) / median(times.device.compiled)
    return said


class _Rows:
    """The records of calls."""

    def __init__(self, spec: TaskSpec, report: Report, device: Device) -> None:
        self._spec = spec
        self._report = report
        self._device = device
        self._found = environment(device)

    def recorder(self, operator: str, backend: str = "") -> Recorder:
        """Records of an operator, also where the task is many of them."""
        spec = dataclasses.replace(self._spec, case=operator)
        return Recorder(spec, self._report, self._device, known_environment=self._found, backend=backend)

    def measured(self, call: Call, times: Times, warning: str) -> None:
        """`warning` is of the device while this call was measured."""
        known, pairs = timing_confidence.facts(times.paired), len(times.paired.eager)
        results = [
            Result("eager_latency_ms", times.paired.eager, CALL_CLOCK),
            Result("compiled_latency_ms", times.paired.compiled, CALL_CLOCK),
            Result("speedup", [times.paired.speedup], CALL_CLOCK, n=pairs, facts=known),
            Result("kernel_count", [float(times.kernel_count)], facts=times.facts),
        ]
        if times.device:
            clock = graph_replay.CLOCK
            facts = {"moved_bytes": times.moved_bytes, **times.device.facts}
            ratio = median(times.device.eager) / median(times.device.compiled)
            gbps = [times.moved_bytes / (ms * 1e6) for ms in times.device.compiled]
            results += [
                Result("eager_device_latency_ms", times.device.eager, clock),
                Result("device_latency_ms", times.device.compiled, clock, facts=facts),
                Result("device_bandwidth_gbps", gbps, clock, facts=facts),
                Result("device_speedup", [ratio], clock, n=len(times.device.compiled)),
            ]
        writer, knobs = self.recorder(call.operator), shape_knobs(self._spec, call)
        told = {
            "inputs": call.text[:1000],
            "calls_in_models": call.count,
            "first_call_s": times.compile_s,
            OPERATORBENCH_MS: [times.upstream_eager_ms, times.upstream_compiled_ms],
        }
        for result in results:
            whole = dataclasses.replace(result, facts={**result.facts, **told})
            writer.add(whole, knobs=knobs, warning=warning)
        if times.no_device:
            for metric in _DEVICE_METRICS:
                writer.missing(metric, times.no_device, knobs=knobs)

    def failed(self, call: Call, failure: TaskFailure) -> None:
        writer, knobs = self.recorder(call.operator), shape_knobs(self._spec, call)
        for metric in operator_metrics(self._spec):
            writer.missing(metric, failure, knobs=knobs)


def plain_knobs(spec: TaskSpec) -> dict[str, KnobValue]:
    """Whose calls they are, and what else makes another experiment."""
    others = {name: value for name, value in spec.identity().items() if name != "shape"}
    return {**others, "inputs": named(spec)}


def shape_knobs(spec: TaskSpec, call: Call) -> dict[str, KnobValue]:
    return {**plain_knobs(spec), "shape": call.label}


def summarise(
    spec: TaskSpec,
    report: Report,
    calls: Sequence[Call],
    lost: Mapping[int, TaskFailure],
    marks: Sequence[dict[str, Any]],
) -> Json:
    """Rows of the calls that no stage could record; then, for each operator with results, its quantiles."""
    device = prepare(spec.device)
    rows = _Rows(spec, report, device)
    for place, failure in sorted(lost.items()):
        rows.failed(calls[place], failure)
    if spec.setting("shape"):
        return None
    began = {mark["place"]: mark["began"] for mark in marks if "began" in mark}
    done = {mark["place"]: mark for mark in marks if "upstream" in mark}
    for operator in dict.fromkeys(call.operator for call in calls):
        places = [place for place, call in enumerate(calls) if call.operator == operator]
        good = [place for place in places if place in done]
        if good:
            elapsed_s = sum(done[place]["at"] - began[place] for place in good)
            counts = [calls[place].count for place in good]
            one = _Operator([done[place] for place in good], counts, elapsed_s, len(places))
            writer = rows.recorder(operator)
            for result in one.results(device.type):
                writer.add(result, knobs=plain_knobs(spec))
            beside = rows.recorder(operator, backend="eager")
            beside.add(one.mean_ms(0, device.type), knobs=plain_knobs(spec))
    return None


@dataclasses.dataclass(frozen=True)
class _Operator:
    """The calls of one operator that were measured."""

    marks: list[dict[str, Any]]
    counts: list[int]
    elapsed_s: float
    recorded: int  # calls that were tried

    def results(self, device: str) -> list[Result]:
        """Upstream's names by upstream's clock; ours, by clock, unweighted and weighted by how often."""
        said = {"shapes": len(self.marks), "shapes_tried": self.recorded}
        n = len(self.marks)
        upstream = [mark["upstream"][0] / mark["upstream"][1] for mark in self.marks]
        found = [
            Result(f"{percent}th", [value], UPSTREAM_CLOCK[device], n=n, facts=said)
            for percent, value in zip(QUANTILES, quantiles(upstream), strict=True)
        ]
        for kind, clock in (("call", CALL_CLOCK), ("device", graph_replay.CLOCK)):
            pairs = [
                (mark[kind], count)
                for mark, count in zip(self.marks, self.counts, strict=True)
                if kind in mark
            ]
            if not pairs:
                continue
            values, weights = [value for value, _count in pairs], [count for _value, count in pairs]
            facts = {**said, "shapes": len(pairs)}
            for name, found_values in (
                (kind, quantiles(values)),
                (f"weighted_{kind}", quantiles(values, weights)),
            ):
                found += [
                    Result(f"{name}_{percent}th", [value], clock, n=len(pairs), facts=facts)
                    for percent, value in zip(QUANTILES, found_values, strict=True)
                ]
        return [*found, self.mean_ms(1, device), Result("elapsed", [self.elapsed_s], n=n, facts=said)]

    def mean_ms(self, side: int, device: str) -> Result:
        """Over shapes, as there: 0 is eager, 1 the configuration."""
        mean = statistics.fmean(mark["upstream"][side] for mark in self.marks)
        return Result("abs", [mean], UPSTREAM_CLOCK[device], n=len(self.marks))
