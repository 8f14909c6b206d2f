"""Is the compiled result right? Compares both results with a float64 reference, before any clock runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runner.launch.failures import TaskFailure

# As torch._dynamo.utils.same for half-precision results: 3 times eager's own error, plus a tenth of 1e-3.
_FACTOR = 3.0
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Accuracy:
    """Relative errors ‖result - reference‖ / ‖reference‖."""

    compiled: float
    eager: float


def check(compiled: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> Accuracy:
    """Return both errors. Raise TaskFailure (wrong) if eager's rounding does not explain the compiled one."""
    if compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        forms = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (compiled, eager)]
        reason = f"compiled gives {forms[0]}, eager {forms[1]}: not the same function"
        raise TaskFailure("wrong", "shape", reason)
    found = Accuracy(*(float(relative_error(result, reference)) for result in (compiled, eager)))
    if not found.compiled <= bound(found.eager):  # NaN is never within the bound
        errors = f"{found.compiled:.2e} compiled, {found.eager:.2e} eager"
        raise TaskFailure("wrong", "fail_accuracy", f"relative error {errors}, against float64")
    return found


def bound(eager_error: float) -> float:
    """Return the largest relative error of a compiled result that eager's own error explains."""
    return _FACTOR * eager_error + _TOLERANCE


def relative_error(result: torch.Tensor, reference: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Return ‖result - reference‖ / ‖reference‖ over all elements, or along `dim`."""
    difference = torch.linalg.vector_norm(result.double() - reference, dim=dim)
    return difference / torch.linalg.vector_norm(reference, dim=dim)
