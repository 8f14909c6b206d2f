"""Run one cell of PyTorch/XLA's experiment matrix.

The timed runs are as in its own runner: no warm-up, the first repeat holds the compilation, every repeat is a
sample. Unlike there, one task both verifies and measures, in two stages.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from pathlib import Path
from typing import cast

import torch

from runner.formats.xla import ON_XLA
from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure.forked import run_stage
from runner.measure.state.device import prepare
from runner.schema.records import Json
from runner.schema.suite import TaskSpec
from runner.suites.xla import verify
from runner.suites.xla.measure import Rows, Timed
from runner.suites.xla.verify import NOT_ASKED, Verification

_VERIFY_SHARE = 0.4  # of the time limit
_HLO, _IR = "hlo", "ir"  # kinds of artifacts that XLA itself writes


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Verify if asked, measure, record. A wrong result withholds the times. Return the failure, if any."""
    os.environ["TORCH_WARM_POOL"] = "0"  # no compile workers in this process: stages are forked from it
    checked = NOT_ASKED
    try:
        if spec.setting("verify"):
            report.event("accuracy", 0, 2, spec.case)
            checked = Verification(**_stage(spec, report, "verify"))
        report.event("measure", 1, 2, spec.case)
        samples = _stage(spec, report, "measure")
    except Exception as error:  # noqa: BLE001 - a cell that fails is a row too
        failure = failure_of(error)
        if spec.setting("verify") and checked is NOT_ASKED:
            checked = Verification("VERIFIER_DIDNT_RUN", True, "not_run", str(failure))
        Rows(spec, report).failed(failure, checked)
        return failure
    report.event("finished", 2, 2)
    return Rows(spec, report).measured(samples, checked)


def _stage(spec: TaskSpec, report: Report, name: str) -> Json:
    artifacts = report.folder / "artifacts"
    variables, share = _variables(spec), _VERIFY_SHARE
    if name == "measure":
        variables, share = variables | _dumps(spec, artifacts), 1 - _VERIFY_SHARE

    def work() -> Json:
        prepare(spec.device)
        torch.set_float32_matmul_precision(str(spec.setting("matmul_precision") or "high"))  # its runner's
        if name == "verify":
            return dataclasses.asdict(verify.verify(spec))
        timed = Timed(spec, artifacts)
        repeats = cast("int", spec.setting("repeat"))
        timed.run(repeats, lambda repeat: report.event("measure", repeat, repeats, spec.case))
        return timed.samples

    try:
        timeout_s = spec.timeout_s * share
        return run_stage(name, work, folder=report.folder, variables=variables, timeout_s=timeout_s)
    finally:
        # of XLA's dump only the texts: object files and LLVM's own are many times as large
        for path in (artifacts / _HLO).glob("*"):
            if path.suffix != ".txt" or "buffer-assignment" in path.name or "memory-usage" in path.name:
                path.unlink()


def _variables(spec: TaskSpec) -> dict[str, str]:
    """Return the environment variables that must be set before torch_xla is imported. Raise TaskFailure
    (unsupported) if it is not installed."""
    if spec.backend not in ON_XLA:
        return {}
    if importlib.util.find_spec("torch_xla") is None:
        reason = f"torch_xla is not installed beside torch {torch.__version__}"
        raise TaskFailure("unsupported", "no_torch_xla", f"{reason}: take an interpreter that has it")
    functional = spec.setting("enable_functionalization")
    return {
        "PJRT_DEVICE": spec.device.upper(),
        "XLA_DISABLE_FUNCTIONALIZATION": "0" if functional else "1",
    }


def _dumps(spec: TaskSpec, artifacts: Path) -> dict[str, str]:
    """Return the environment variables that make XLA keep its HLO and IR."""
    found: dict[str, str] = {}
    if spec.backend not in ON_XLA:
        return found
    if spec.setting("dump_hlo"):
        (artifacts / _HLO).mkdir(parents=True, exist_ok=True)
        found["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={artifacts / _HLO}".strip()
    if form := spec.setting("save_ir_format"):
        (artifacts / _IR).mkdir(parents=True, exist_ok=True)
        found["XLA_SAVE_TENSORS_FMT"] = str(form)
        found["XLA_SAVE_TENSORS_FILE"] = str(artifacts / _IR / f"ir.{form}")
    return found
