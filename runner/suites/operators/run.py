"""operatorbench: each operator over the shapes that models call it with, eager against inductor.

Many small calls share one process, a stage. A call that takes the device or the process down is a row with
its status, and the calls after it run in a fresh stage.
"""

import importlib
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure import turns
from runner.measure.compiler.bisection import explained
from runner.measure.forked import run_stage
from runner.measure.kernels.produced import keep_code
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import SEED, device_state, prepare, warning
from runner.measure.timing import call_time, graph_replay
from runner.measure.timing.gpu_active_time import keep_trace
from runner.schema.compilations import EXPLAINABLE
from runner.schema.options import EXPLAIN
from runner.schema.records import Json, worst_quality
from runner.schema.statistics import QUANTILES, quantiles
from runner.schema.suite import TaskSpec
from runner.suites.operators import METRICS_CUDA, call_metrics, inputs, inputs_name
from runner.suites.operators.inputs import BadInputs, Call
from runner.suites.operators.one import UPSTREAM_CLOCK, again, measure

_STAGE_S = 240.0  # for a stage's start and its first compilation
_CALL_S = 30.0  # and for each of its calls
_MOST_STAGES = 40
_EXPLAIN_SHARE = 0.8  # of the time that is left after the last call
_ENDS = ("crashed",)  # after these the device cannot be trusted: a fresh stage goes on
Lost = tuple[TaskFailure, dict[str, Json]]  # why a call has no numbers, and facts for its records
# The progress of a call: that it began, its numbers with their qualities, or its failure.
Mark = dict[str, Any]


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Measure every chosen call and the quantiles over them; return the first failure."""
    os.environ["TORCH_WARM_POOL"] = "0"  # no compile workers in this process, which forks the stages
    importlib.import_module("torch._inductor.compile_fx")  # once, and not in every stage
    try:
        calls = inputs.calls_of_task(spec, os.environ)
    except (BadInputs, OSError) as error:
        raise TaskFailure("unsupported", "no_inputs", str(error)) from error
    if not calls:
        raise TaskFailure("unsupported", "no_inputs", f"no call of {spec.case} is recorded there")
    started = turns.clock_s()
    work = _Work(spec, report, calls)
    work.run(until=started + spec.timeout_s)
    work.explain(until=started + spec.timeout_s)
    report.event("summary", len(calls), len(calls))
    # only now: a process that has asked for the device cannot be forked
    return summarise(spec, report, calls, work.lost, work.marks())


class _Work:
    """The calls of one task; what is done is noted in a file that survives its stage."""

    def __init__(self, spec: TaskSpec, report: Report, calls: list[Call]) -> None:
        self._spec = spec
        self._report = report
        self._calls = calls
        self._path = report.folder / "marks.jsonl"
        self.lost: dict[int, Lost] = {}
        for place, call in enumerate(calls):  # one that cannot be read becomes a row, the others are measured
            try:
                inputs.parse(call.text)
            except BadInputs as error:  # noqa: PERF203 - few calls
                self.lost[place] = TaskFailure("failed", "bad_inputs", str(error)), {}

    def run(self, *, until: float) -> None:
        """Run stage after stage until every call has its row or the time is over."""
        for number in range(_MOST_STAGES):
            waiting = self._waiting()
            left_s = until - turns.clock_s()
            if not waiting or left_s < 1:
                break
            try:
                run_stage(
                    f"calls_{number}",
                    partial(measure_all, self._spec, self._report, self._calls, waiting, self._path),
                    folder=self._report.folder,
                    timeout_s=min(left_s, _STAGE_S + _CALL_S * len(waiting)),
                )
            except TaskFailure as failure:
                still = self._waiting()
                begun = [mark["place"] for mark in self.marks() if "began" in mark and mark["place"] in still]
                if not begun:  # not even the first call was reached
                    raise
                self.lost[begun[-1]] = failure, {}  # the call under way when its stage ended
        for place in self._waiting():
            self.lost[place] = TaskFailure("not_run", "no_time", "the task's time was over"), {}

    def explain(self, *, until: float) -> None:
        """Find the part of the compiler at fault for the calls that failed, where the option asks for it,
        and leave all of them to be recorded by `summarise`. They share the option's seconds."""
        asked_s = self._spec.number(EXPLAIN)
        if not asked_s:
            return
        now = turns.clock_s()
        ends = now + min(asked_s, _EXPLAIN_SHARE * (until - now))
        begun = {mark["place"] for mark in self.marks() if "began" in mark}
        failed = {place: failure for place, (failure, _facts) in self.lost.items() if place in begun}
        failed |= {
            mark["place"]: TaskFailure(*mark["failure"])
            for mark in self.marks()
            if "failure" in mark and mark["failure"][0] in EXPLAINABLE
        }
        for place, failure in failed.items():
            call = self._calls[place]

            def repeat(left_s: float, call: Call = call) -> str:
                work = partial(again, self._spec, call)
                return run_stage("again", work, folder=self._report.folder, timeout_s=left_s)

            self._report.event("explain", place, len(self._calls), f"{call.operator} {call.label}")
            self.lost[place] = explained(failure, repeat, max(0.0, ends - turns.clock_s()))

    def _waiting(self) -> list[int]:
        done = {mark["place"] for mark in self.marks() if "began" not in mark} | set(self.lost)
        return [place for place in range(len(self._calls)) if place not in done]

    def marks(self) -> list[Mark]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]


def measure_all(
    spec: TaskSpec, report: Report, calls: Sequence[Call], waiting: Sequence[int], marks: Path
) -> None:
    """Measure the calls at the places `waiting` and record each at once. Raise if this process must end."""
    device = prepare(spec.device)
    recorder = Recorder(spec, report, device)
    states = [device_state(device)]
    code: dict[str, str] = {}  # of kernels, by binary
    for place in waiting:
        call = calls[place]
        knobs = _knobs(spec, call)
        began = turns.clock_s()
        _mark(marks, {"place": place, "began": True})
        report.event("measure", place, len(calls), f"{call.operator} {call.label}")
        torch.manual_seed(SEED)
        try:
            with torch.no_grad():
                measured = measure(call, spec, device)
        except Exception as error:  # a call that fails is a row too
            failure = failure_of(error)
            if failure.status in _ENDS:
                raise
            if not (spec.setting(EXPLAIN) and failure.status in EXPLAINABLE):  # else `summarise` writes it
                recorder.missing(call_metrics(spec), failure, knobs=knobs)
            _mark(marks, {"place": place, "failure": [failure.status, failure.code, failure.reason]})
        else:
            states.append(device_state(device))
            disturbed = warning(states)
            code |= measured.code
            keep_trace(report, measured.trace, f"-{place}")
            recorder.add(*measured.results, knobs=knobs, warning=disturbed)
            numbers = {**measured.numbers, "quality": disturbed.quality, "count": call.count}
            _mark(marks, {"place": place, **numbers, "elapsed_s": turns.clock_s() - began})
            if measured.no_device:
                recorder.missing(METRICS_CUDA, measured.no_device, knobs=knobs)
                if measured.no_device.status in _ENDS:
                    raise measured.no_device
        device.release()
    keep_code(report, code, f"-{waiting[0]}")


def compile_all(spec: TaskSpec) -> None:
    """Compile every call, for who watches torch.compile."""
    for call in inputs.calls_of_task(spec, os.environ):
        again(spec, call)


def _mark(marks: Path, mark: Mark) -> None:
    """Note the progress of a call in a file that survives this process."""
    with marks.open("a") as file:
        file.write(json.dumps(mark) + "\n")


def _knobs(spec: TaskSpec, call: Call | None = None) -> dict[str, Json]:
    """Return the knobs in the records of a call; without one, of the experiment over all calls."""
    knobs = {**spec.identity(), "inputs": inputs_name(str(spec.setting("inputs")), os.environ)}
    knobs.pop("shape", None)
    return {**knobs, "shape": call.label} if call else knobs


def summarise(
    spec: TaskSpec, report: Report, calls: Sequence[Call], lost: Mapping[int, Lost], marks: Sequence[Mark]
) -> TaskFailure | None:
    """Record the calls that no stage has recorded, then the quantiles over those with results. Return the
    first failure."""
    device = prepare(spec.device)
    recorder, knobs = Recorder(spec, report, device), _knobs(spec)
    for place, (failure, facts) in sorted(lost.items()):
        recorder.missing(call_metrics(spec), failure, facts, knobs=_knobs(spec, calls[place]))
    measured = [mark for mark in marks if "call" in mark and not spec.setting("shape")]
    if measured:
        recorder.add(*_over_calls(measured, tried=len(calls), device=device.type), knobs=knobs)
        if not spec.compilation:
            of_eager = Recorder(spec, report, device, backend="eager")
            of_eager.add(_mean_ms(measured, 0, device.type), knobs=knobs)
    failed = [TaskFailure(*mark["failure"]) for mark in marks if "failure" in mark]
    return next(iter([*(failure for failure, _facts in lost.values()), *failed]), None)


def _over_calls(marks: Sequence[Mark], *, tried: int, device: str) -> list[Result]:
    """Return upstream's metrics by its clock, where it ran, and ours by each clock, plain and weighted by
    frequency, over the calls that were measured, of those that were tried. Each carries the worst quality of
    the calls."""
    n = len(marks)
    shapes = {"shapes": n, "shapes_tried": tried, **_quality(marks, "quality")}
    found: list[Result] = []
    upstream = [mark["upstream"][0] / mark["upstream"][1] for mark in marks if "upstream" in mark]
    if upstream:
        found = [
            *(
                Result(f"{percent}th", [value], UPSTREAM_CLOCK[device], n=n, facts=shapes)
                for percent, value in zip(QUANTILES, quantiles(upstream), strict=True)
            ),
            _mean_ms(marks, 1, device),
            Result("elapsed", [sum(mark["elapsed_s"] for mark in marks)], n=n, facts=shapes),
        ]
    for kind, clock in (("call", call_time.CLOCK), ("device", graph_replay.CLOCK)):
        timed = [mark for mark in marks if kind in mark]
        if not timed:
            continue
        values, weights = [mark[kind] for mark in timed], [mark["count"] for mark in timed]
        facts = {**shapes, "shapes": len(timed), **_quality(marks, "quality", f"{kind}_quality")}
        named = {kind: quantiles(values), f"weighted_{kind}": quantiles(values, weights)}
        found += [
            Result(f"{name}_{percent}th", [value], clock, n=len(timed), facts=facts)
            for name, at_percents in named.items()
            for percent, value in zip(QUANTILES, at_percents, strict=True)
        ]
    return found


def _mean_ms(marks: Sequence[Mark], side: int, device: str) -> Result:
    """Return upstream's mean over shapes; side 0 is eager, 1 the configuration."""
    mean = statistics.fmean(mark["upstream"][side] for mark in marks)
    return Result("abs", [mean], UPSTREAM_CLOCK[device], n=len(marks), facts=_quality(marks, "quality"))


def _quality(marks: Sequence[Mark], *names: str) -> dict[str, Json]:
    found = worst_quality(mark.get(name) for mark in marks for name in names)
    return {"quality": found} if found else {}
