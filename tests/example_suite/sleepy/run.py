"""Measure a sleep."""

import time

from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import prepare
from runner.schema.suite import TaskSpec


def run(task: TaskSpec, report: Report) -> TaskFailure | None:
    """Measure how long a sleep takes; return a failure, or None."""
    recorder = Recorder(task, report, prepare(task.device))
    duration_s = task.number("duration_ms") / 1e3
    samples_ms = []
    for sample in range(20):
        report.event("measure", sample, 20, task.case)
        started = time.perf_counter()
        time.sleep(duration_s)  # what this suite measures
        samples_ms.append((time.perf_counter() - started) * 1e3)
    recorder.add(Result("nap_ms", samples_ms, "host clock"), knobs=task.identity())
    return None
