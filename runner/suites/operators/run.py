"""operatorbench: each operator over the shapes that models call it with, eager against inductor.

Many small calls share one process, a stage. A call that takes the device or the process down is a row with
its status, and the calls after it run in a fresh stage.
"""

import importlib
import json
import os
import time
from functools import partial
from typing import cast

from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure.compiler.bisection import explained
from runner.measure.forked import run_stage
from runner.schema.compilations import EXPLAINABLE
from runner.schema.options import EXPLAIN
from runner.schema.records import Json
from runner.schema.suite import TaskSpec
from runner.suites.operators import inputs, stage
from runner.suites.operators.inputs import BadInputs, Call

_STAGE_S = 240.0  # for a stage's start and its first compilation
_CALL_S = 30.0  # and for each of its calls
_MOST_STAGES = 40
_EXPLAIN_SHARE = 0.8  # of the time that is left after the last call


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
    started = time.monotonic()
    work = _Work(spec, report, calls)
    work.run(until=started + spec.timeout_s)
    work.explain(until=started + spec.timeout_s)
    report.event("summary", len(calls), len(calls))
    return work.summarise()


class _Work:
    """The calls of one task; what is done is noted in a file that survives its stage."""

    def __init__(self, spec: TaskSpec, report: Report, calls: list[Call]) -> None:
        self._spec = spec
        self._report = report
        self._calls = calls
        self._marks = report.folder / "marks.jsonl"
        self._lost: dict[int, stage.Lost] = {}
        for place, call in enumerate(calls):  # one that cannot be read becomes a row, the others are measured
            try:
                inputs.parse(call.text)
            except BadInputs as error:  # noqa: PERF203 - few calls
                self._lost[place] = TaskFailure("failed", "bad_inputs", str(error)), {}

    def run(self, *, until: float) -> None:
        """Run stage after stage until every call has its row or the time is over."""
        for number in range(_MOST_STAGES):
            waiting = self._waiting()
            left_s = until - time.monotonic()
            if not waiting or left_s < 1:
                break
            try:
                run_stage(
                    f"calls_{number}",
                    partial(stage.measure_all, self._spec, self._report, self._calls, waiting, self._marks),
                    folder=self._report.folder,
                    timeout_s=min(left_s, _STAGE_S + _CALL_S * len(waiting)),
                )
            except TaskFailure as failure:
                still = self._waiting()
                begun = [mark["place"] for mark in self._read() if "began" in mark and mark["place"] in still]
                if not begun:  # not even the first call was reached
                    raise
                self._lost[begun[-1]] = failure, {}  # the call under way when its stage ended
        for place in self._waiting():
            self._lost[place] = TaskFailure("not_run", "no_time", "the task's time was over"), {}

    def explain(self, *, until: float) -> None:
        """Find the part of the compiler at fault for the calls that failed, where the option asks for it,
        and leave all of them to be recorded by `summarise`. They share the option's seconds."""
        asked_s = cast("int", self._spec.setting(EXPLAIN))
        if not asked_s:
            return
        now = time.monotonic()
        ends = now + min(asked_s, _EXPLAIN_SHARE * (until - now))
        begun = {mark["place"] for mark in self._read() if "began" in mark}
        failed = {place: failure for place, (failure, _facts) in self._lost.items() if place in begun}
        failed |= {
            mark["place"]: TaskFailure(*mark["failure"])
            for mark in self._read()
            if "failure" in mark and mark["failure"][0] in EXPLAINABLE
        }
        for place, failure in failed.items():
            call = self._calls[place]

            def again(left_s: float, call: Call = call) -> str:
                work = partial(stage.again, self._spec, call)
                return str(run_stage("again", work, folder=self._report.folder, timeout_s=left_s))

            self._report.event("explain", place, len(self._calls), f"{call.operator} {call.label}")
            self._lost[place] = explained(failure, again, max(0.0, ends - time.monotonic()))

    def summarise(self) -> TaskFailure | None:
        """Record lost calls and quantiles; return the first failure."""
        run_stage(
            "summary",
            lambda: stage.summarise(self._spec, self._report, self._calls, self._lost, self._read()),
            folder=self._report.folder,
            timeout_s=_STAGE_S,
        )
        failed = [TaskFailure(*mark["failure"]) for mark in self._read() if "failure" in mark]
        return next(iter([*(failure for failure, _facts in self._lost.values()), *failed]), None)

    def _waiting(self) -> list[int]:
        done = {mark["place"] for mark in self._read() if "began" not in mark} | set(self._lost)
        return [place for place in range(len(self._calls)) if place not in done]

    def _read(self) -> list[dict[str, Json]]:
        if not self._marks.exists():
            return []
        return [json.loads(line) for line in self._marks.read_text().splitlines()]
