"""Run one cell of PyTorch/XLA's experiment matrix.

The timed runs are as in its own runner: no warm-up, the first repeat holds the compilation, every repeat is a
sample. Unlike there, one task both verifies and measures, in two stages.
"""

from __future__ import annotations

import dataclasses
import os
from typing import cast

from runner.formats.xla import Cell, cell_of
from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure.forked import run_stage
from runner.schema.records import Json
from runner.schema.suite import TaskSpec
from runner.suites.xla import machine, verify
from runner.suites.xla.measure import Rows, Timed
from runner.suites.xla.verify import NOT_ASKED, Verification

_VERIFY_SHARE = 0.4  # of the time limit


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Verify if asked, measure, record. A wrong result withholds the times. Return the failure, if any."""
    cell = cell_of(spec)
    os.environ["TORCH_WARM_POOL"] = "0"  # no compile workers in this process: stages are forked from it
    checked = NOT_ASKED
    try:
        machine.check(cell)
        if spec.setting("verify"):
            report.event("accuracy", 0, 2, spec.case)
            checked = Verification(**_stage(spec, report, "verify", cell))
        report.event("measure", 1, 2, spec.case)
        samples = _stage(spec, report, "measure", cell)
    except Exception as error:  # noqa: BLE001 - a cell that fails is a row too
        failure = failure_of(error)
        if spec.setting("verify") and checked is NOT_ASKED:
            checked = Verification("VERIFIER_DIDNT_RUN", True, "not_run", str(failure))
        Rows(spec, report).failed(failure, checked)
        return failure
    report.event("finished", 2, 2)
    return Rows(spec, report).measured(samples, checked)


def _stage(spec: TaskSpec, report: Report, name: str, cell: Cell) -> Json:
    artifacts = report.folder / "artifacts"
    variables, share = machine.variables(spec, cell), _VERIFY_SHARE
    if name == "measure":
        variables, share = variables | machine.dumps(spec, cell, artifacts), 1 - _VERIFY_SHARE

    def work() -> Json:
        machine.set_precision(spec)
        if name == "verify":
            return dataclasses.asdict(verify.verify(spec, cell))
        timed = Timed(spec, cell, artifacts)
        repeats = cast("int", spec.setting("repeat"))
        timed.run(repeats, lambda repeat: report.event("measure", repeat, repeats, spec.case))
        return timed.samples

    try:
        timeout_s = spec.timeout_s * share
        return run_stage(name, work, folder=report.folder, variables=variables, timeout_s=timeout_s)
    finally:
        machine.keep_readable(artifacts)
