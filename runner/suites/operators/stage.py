"""The work of the stages: measure and record calls one by one, then the quantiles over them."""

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure.ceilings import gbps
from runner.measure.kernels.produced import keep_code
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import SEED, Device, device_state, prepare, warning
from runner.measure.timing import call_time, graph_replay
from runner.schema.compilations import EXPLAINABLE
from runner.schema.options import EXPLAIN
from runner.schema.records import Json, MeasurementWarning, worst_quality
from runner.schema.statistics import QUANTILES, quantiles
from runner.schema.suite import TaskSpec
from runner.suites.operators import METRICS_CUDA, call_metrics, inputs_name
from runner.suites.operators.inputs import Call
from runner.suites.operators.one import UPSTREAM_CLOCK, Times, compile_and_check, measure

OPERATORBENCH_MS = "operatorbench_ms"  # eager and compiled by its clock; read by the writer of its files
_ENDS = ("crashed",)  # after these the device cannot be trusted: a fresh stage goes on
Lost = tuple[TaskFailure, dict[str, Json]]  # why a call has no numbers, and facts for its records


def measure_all(
    spec: TaskSpec, report: Report, calls: Sequence[Call], waiting: Sequence[int], marks: Path
) -> Json:
    """Measure the calls at the places `waiting` and record each at once. Raise if this process must end."""
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
                times = measure(call, spec, device)
        except Exception as error:  # a call that fails is a row too
            failure = failure_of(error)
            if failure.status in _ENDS:
                raise
            if not (spec.setting(EXPLAIN) and failure.status in EXPLAINABLE):  # else `summarise` writes it
                rows.failed(call, failure)
            _mark(marks, {"place": place, "failure": [failure.status, failure.code, failure.reason]})
        else:
            states.append(device_state(device))
            disturbed = warning(states)
            rows.measured(call, times, disturbed)
            numbers: dict[str, Json] = {"call": times.call.speedup, "quality": disturbed.quality}
            numbers["call_quality"] = call_time.warning(times.call).quality
            if times.upstream_ms:
                numbers["upstream"] = times.upstream_ms
            if times.device:
                numbers["device"] = times.device.speedup
            _mark(marks, {"place": place, **numbers, "at": time.time()})
            if times.no_device and times.no_device.status in _ENDS:
                raise times.no_device
        device.release()
    keep_code(report, rows.code, f"-{waiting[0]}")
    return None


def again(spec: TaskSpec, call: Call) -> Json:
    """Compile and check once more a call that failed; return ok, or raise."""
    device = prepare(spec.device)
    torch.manual_seed(SEED)
    with torch.no_grad():
        compile_and_check(call, spec, device)
    return "ok"


def _mark(marks: Path, mark: dict[str, Json]) -> None:
    """Note the progress of a call in a file that survives this process."""
    with marks.open("a") as file:
        file.write(json.dumps(mark) + "\n")


class _Rows:
    """Writes the records of calls."""

    def __init__(self, spec: TaskSpec, report: Report, device: Device) -> None:
        self._spec = spec
        self.recorder = Recorder(spec, report, device)
        self.code: dict[str, str] = {}  # of kernels, by binary
        others = {name: value for name, value in spec.identity().items() if name != "shape"}
        # of the experiment over all shapes of the operator
        self.knobs = {**others, "inputs": inputs_name(str(spec.setting("inputs")), os.environ)}

    def measured(self, call: Call, times: Times, warning: MeasurementWarning) -> None:
        """Write all results of a call; `warning` says what disturbed the device meanwhile."""
        results = list(times.results)
        self.code |= times.code
        if times.device:
            clock = graph_replay.CLOCK
            bandwidth = gbps(times.moved_bytes, times.device.compiled)
            facts = {"moved_bytes": times.moved_bytes, **times.device.facts}
            results += [
                Result("eager_device_latency_ms", times.device.eager, clock),
                Result("device_latency_ms", times.device.compiled, clock, facts=facts),
                Result("device_bandwidth_gbps", bandwidth, clock, facts=facts),
                Result("device_speedup", [times.device.speedup], clock, n=len(times.device.compiled)),
            ]
        knobs = {**self.knobs, "shape": call.label}
        about = {
            "inputs": call.text[:1000],
            "calls_in_models": call.count,
            "first_call_s": times.compile_s,
            **({OPERATORBENCH_MS: list(times.upstream_ms)} if times.upstream_ms else {}),
        }
        for result in results:
            described = dataclasses.replace(result, facts={**result.facts, **about})
            self.recorder.add(described, knobs=knobs, warning=warning)
        if times.no_device:
            self.recorder.missing(METRICS_CUDA, times.no_device, knobs=knobs)

    def failed(
        self, call: Call, failure: TaskFailure, facts: Mapping[str, Json] = MappingProxyType({})
    ) -> None:
        knobs = {**self.knobs, "shape": call.label}
        self.recorder.missing(call_metrics(self._spec), failure, facts, knobs=knobs)


def summarise(
    spec: TaskSpec,
    report: Report,
    calls: Sequence[Call],
    lost: Mapping[int, Lost],
    marks: Sequence[dict[str, Any]],
) -> Json:
    """Record the calls that no stage has recorded, then the quantiles over those with results."""
    device = prepare(spec.device)
    rows = _Rows(spec, report, device)
    for place, (failure, facts) in sorted(lost.items()):
        rows.failed(calls[place], failure, facts)
    if spec.setting("shape"):
        return None
    began = {mark["place"]: mark["began"] for mark in marks if "began" in mark}
    done = {mark["place"]: mark for mark in marks if "call" in mark}
    good = [place for place in range(len(calls)) if place in done]
    if good:
        elapsed_s = sum(done[place]["at"] - began[place] for place in good)
        counts = [calls[place].count for place in good]
        measured = _Operator([done[place] for place in good], counts, elapsed_s, len(calls))
        for result in measured.results(device.type):
            rows.recorder.add(result, knobs=rows.knobs)
        if not spec.compilation:
            of_eager = Recorder(spec, report, device, backend="eager")
            of_eager.add(measured.mean_ms(0, device.type), knobs=rows.knobs)
    return None


@dataclasses.dataclass(frozen=True)
class _Operator:
    """The measured calls of one operator."""

    marks: list[dict[str, Any]]  # their numbers, and the qualities of these
    counts: list[int]
    elapsed_s: float
    tried: int  # calls, measured or not

    def results(self, device: str) -> list[Result]:
        """Return upstream's metrics by its clock, where it ran, and ours by each clock, plain and weighted by
        frequency. Each carries the worst quality of the calls."""
        shapes = {"shapes": len(self.marks), "shapes_tried": self.tried, **self._quality("quality")}
        n = len(self.marks)
        found: list[Result] = []
        upstream = [mark["upstream"][0] / mark["upstream"][1] for mark in self.marks if "upstream" in mark]
        if upstream:
            found = [
                *(
                    Result(f"{percent}th", [value], UPSTREAM_CLOCK[device], n=n, facts=shapes)
                    for percent, value in zip(QUANTILES, quantiles(upstream), strict=True)
                ),
                self.mean_ms(1, device),
                Result("elapsed", [self.elapsed_s], n=n, facts=shapes),
            ]
        for kind, clock in (("call", call_time.CLOCK), ("device", graph_replay.CLOCK)):
            counted = zip(self.marks, self.counts, strict=True)
            pairs = [(mark[kind], count) for mark, count in counted if kind in mark]
            if not pairs:
                continue
            values, weights = [value for value, _count in pairs], [count for _value, count in pairs]
            facts = {**shapes, "shapes": len(pairs), **self._quality("quality", f"{kind}_quality")}
            named = {kind: quantiles(values), f"weighted_{kind}": quantiles(values, weights)}
            found += [
                Result(f"{name}_{percent}th", [value], clock, n=len(pairs), facts=facts)
                for name, at_percents in named.items()
                for percent, value in zip(QUANTILES, at_percents, strict=True)
            ]
        return found

    def mean_ms(self, side: int, device: str) -> Result:
        """Return upstream's mean over shapes; side 0 is eager, 1 the configuration."""
        mean = statistics.fmean(mark["upstream"][side] for mark in self.marks)
        facts = self._quality("quality")
        return Result("abs", [mean], UPSTREAM_CLOCK[device], n=len(self.marks), facts=facts)

    def _quality(self, *names: str) -> dict[str, Json]:
        found = worst_quality(mark.get(name) for mark in self.marks for name in names)
        return {"quality": found} if found else {}
