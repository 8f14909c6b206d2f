"""Run one cell of PyTorch/XLA's experiment matrix.

The timed runs are as in its own runner: no warm-up, the first repeat holds the compilation, every repeat is a
sample. Unlike there, one task both verifies and measures, in two stages. Verification is by its procedure and
with its codes.
"""

import copy
import dataclasses
import importlib.util
import os
from pathlib import Path
from typing import Any, cast

import torch
from torch._dynamo.utils import same
from torch.utils import _pytree as pytree

from runner.formats.readers.xla import ON_XLA
from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure.forked import run_stage
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import host_state, prepare, warning
from runner.schema.records import NO_WARNING, Json, MeasurementWarning
from runner.schema.suite import TaskSpec
from runner.suites.xla import METRICS, SUITE, models
from runner.suites.xla.measure import Samples, Timed
from runner.suites.xla.models import Machine, compiled

_VERIFY_SHARE = 0.4  # of the time limit
_HLO, _IR = "hlo", "ir"  # kinds of artifacts that XLA itself writes
TOLERANCE = {("cuda", "training"): 1e-3, ("cpu", "inference"): 1e-2, ("cuda", "inference"): 1e-2}
_OTHER_TOLERANCE = 1e-4
_CLOCK = "host clock around all iterations, the first run with compilation"
_STATUS = {"passed": "ok", "failed": "wrong", "cannot_tell": "cannot_tell", "not_run": "not_run"}


@dataclasses.dataclass(frozen=True)
class Verification:
    """`code` is PyTorch/XLA's word; `requested`, `status` and `reason` say which of its meanings holds."""

    code: str
    requested: bool
    status: str  # passed, failed, cannot_tell, not_run
    reason: str = ""

    def facts(self) -> dict[str, Any]:
        facts = {"check_requested": self.requested, "check_status": self.status}
        return {**facts, "reason": self.reason} if self.reason else facts


NOT_ASKED = Verification("VERIFIER_SKIPPED", False, "not_run", "--verify was not given")


def run(spec: TaskSpec, report: Report) -> TaskFailure | None:
    """Verify if asked, measure, record. A wrong result withholds the times. Return the failure, if any."""
    os.environ["TORCH_WARM_POOL"] = "0"  # no compile workers in this process: stages are forked from it
    checked = NOT_ASKED
    try:
        if spec.setting("verify"):
            report.event("accuracy", 0, 2, spec.case)
            checked = Verification(**_stage(spec, report, "verify"))
        report.event("measure", 1, 2, spec.case)
        before = host_state(spec.device)
        samples = _stage(spec, report, "measure")
        disturbed = warning([before, host_state(spec.device)])
    except Exception as error:  # noqa: BLE001 - a cell that fails is a row too
        failure = failure_of(error)
        if spec.setting("verify") and checked is NOT_ASKED:
            code = "VERIFIER_SKIPPED" if failure.status == "unsupported" else "VERIFIER_DIDNT_RUN"
            checked = Verification(code, True, "not_run", str(failure))
        return record(spec, report, checked, {}, failure=failure)
    report.event("finished", 2, 2)
    return record(spec, report, checked, samples, warning=disturbed)


def _stage(spec: TaskSpec, report: Report, name: str) -> Json:
    artifacts = report.folder / "artifacts"
    variables, share = _variables(spec), _VERIFY_SHARE
    if name == "measure":
        variables, share = variables | _dumps(spec, artifacts), 1 - _VERIFY_SHARE

    def work() -> Json:
        prepare(spec.device)
        torch.set_float32_matmul_precision(str(spec.setting("matmul_precision") or "high"))  # its runner's
        if name == "verify":
            return dataclasses.asdict(verify(spec))
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
    return {"PJRT_DEVICE": spec.device.upper(), "XLA_DISABLE_FUNCTIONALIZATION": "0" if functional else "1"}


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


def verify(spec: TaskSpec) -> Verification:
    """Run eager twice without XLA, eager in float64, then the cell itself, each from the same weights."""
    Machine(spec)  # autograd counts the devices at a process's first backward pass: XLA's has to be there
    plain = dataclasses.replace(spec, backend="eager")
    dtype = getattr(torch, spec.dtype)
    try:
        first, second = (_outputs(plain, dtype) for _ in range(2))
    except Exception as error:  # noqa: BLE001 - whatever eager raises is the answer
        return Verification("EAGER_FAILED", True, "not_run", str(failure_of(error)))
    if not _same(first, second, tolerance=0.0):
        reason = "two eager runs from the same seed differ"
        return Verification("NONDETERMINISTIC_EAGER_RUN", True, "cannot_tell", reason)
    try:
        exact = _outputs(plain, torch.float64)
    except Exception:  # noqa: BLE001 - then results are compared by their cosine, as there
        exact = None
    try:
        result = _outputs(spec, dtype)
        tolerance = TOLERANCE.get((spec.device, spec.mode), _OTHER_TOLERANCE)
        good = _same(first, result, exact=exact, tolerance=tolerance)
    except Exception as error:  # noqa: BLE001 - so does PyTorch/XLA
        return Verification("EXCEPTION_RAISED", True, "not_run", str(failure_of(error)))
    if good:
        return Verification("PASS", True, "passed")
    reason = f"differs from eager by more than its rounding explains (tolerance {tolerance:g})"
    return Verification("FAIL", True, "failed", reason)


def _outputs(spec: TaskSpec, dtype: torch.dtype) -> Any:
    """Return the output of the last step, on the CPU; in training the model's whole state."""
    machine = Machine(spec)
    model = models.build(spec, machine, dtype)
    step = compiled(model.step, spec)
    inputs = copy.deepcopy(model.inputs)
    steps = cast("int", spec.setting("verify_iterations"))
    output = None
    with torch.set_grad_enabled(spec.mode == "training"):
        for number in range(steps):
            output = step(inputs, full_output=number == steps - 1)
            machine.launch()
        machine.wait()
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu().clone(), output)


def _same(reference: Any, result: Any, *, tolerance: float, exact: Any = None) -> bool:
    cosine = exact is None and tolerance > 0
    return bool(same(reference, result, exact, cos_similarity=cosine, tol=tolerance, equal_nan=True))


def record(
    spec: TaskSpec,
    report: Report,
    checked: Verification,
    samples: Samples,
    *,
    warning: MeasurementWarning = NO_WARNING,
    failure: TaskFailure | None = None,
) -> TaskFailure | None:
    """Record the verifier's code and the samples, or why there are none; return the failure, if any. Of a
    wrong result the times are withheld, the counts are not. Call it after the last stage: it starts torch's
    threads."""
    recorder = Recorder(spec, report, prepare(spec.device))
    (experiment,) = SUITE.expected(spec, {})
    knobs, status = experiment.knobs, _STATUS[checked.status]
    if checked.requested and status == "not_run" and not checked.code.startswith("VERIFIER_"):
        status = "failed"  # it was asked for and broke down
    recorder.status("verification_code", status, checked.code, checked.facts(), knobs=knobs)
    if failure:
        recorder.missing(METRICS, failure, knobs=knobs)
    elif status in {"wrong", "failed"}:
        failure = TaskFailure(status, checked.code, checked.reason)
    for metric, values in samples.items():
        if failure and failure.status == "wrong" and metric.endswith("_time"):
            recorder.missing([metric], failure, knobs=knobs)
        else:
            clock = _CLOCK if metric in METRICS else ""
            recorder.add(Result(metric, values, clock), knobs=knobs, warning=warning)
    return failure
