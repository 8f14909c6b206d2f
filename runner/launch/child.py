"""`python -m runner.launch.child`: run one task in a fresh process.

It reads `spec.json` in the current folder and leaves results, events and `outcome.json` there. Its standard
input is a lifeline: when it ends, whoever started this process is gone, and the whole group goes too.
(`runner/launch/launch.py` starts it, and has the kernel kill it as well.)
"""

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure import turns
from runner.measure.forked import ASK_NVML
from runner.schema.compilations import PINNED_VARIABLE
from runner.schema.suite import TaskSpec
from runner.suites import suite_of


def main() -> int:
    """Run the task of the current folder; return 0 if its outcome is ok."""
    threading.Thread(target=_watch_lifeline, name="lifeline", daemon=True).start()
    report = Report(Path.cwd())
    turns.begin()
    os.environ[ASK_NVML] = "1"  # before torch is imported: stages are forked from this process
    try:
        spec = TaskSpec.from_json(json.loads((report.folder / "spec.json").read_text()))
        report.event("import")
        if os.environ.get(PINNED_VARIABLE):
            importlib.import_module("runner.measure.kernels.pinning").pin_if_asked()
        suite = importlib.import_module(suite_of(spec.suite).module)
        failure: TaskFailure | None = suite.run(spec, report) or report.not_finite
    except Exception as error:  # noqa: BLE001 - whatever a benchmark raises becomes an outcome
        traceback.print_exc()
        failure = failure_of(error)
    if failure is None:
        report.outcome("ok")
        return 0
    report.outcome(failure.status, failure.code, failure.reason)
    return 1


def _watch_lifeline() -> None:
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
