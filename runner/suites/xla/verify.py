"""Verify that a cell computes what eager does, by PyTorch/XLA's procedure and with its codes."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, cast

import torch
from torch._dynamo.utils import same
from torch.utils import _pytree as pytree

from runner.launch.failures import failure_of
from runner.schema.suite import TaskSpec
from runner.suites.xla import models
from runner.suites.xla.models import Machine, compiled

TOLERANCE = {("cuda", "training"): 1e-3, ("cpu", "inference"): 1e-2, ("cuda", "inference"): 1e-2}
_OTHER_TOLERANCE = 1e-4


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
