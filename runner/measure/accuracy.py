"""Is the compiled result right? Both results against a float64 reference, before any clock runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from runner.failures import TaskFailure

# As torch._dynamo.utils.same for half-precision results: 3 times eager's own error, plus a tenth of 1e-3.
_FACTOR = 3.0
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Accuracy:
    """Relative errors ‖result - reference‖ / ‖reference‖."""

    compiled: float
    eager: float


def check(compiled: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> Accuracy:
    """Raises TaskFailure (wrong) where the compiled result is worse than eager's rounding explains."""
    if compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        raise TaskFailure(
            "wrong", "shape", f"compiled gives {_form(compiled)}, eager {_form(eager)}: not the same function"
        )
    found = Accuracy(_relative_error(compiled, reference), _relative_error(eager, reference))
    if not found.compiled <= bound(found.eager):  # NaN is never within the bound
        raise TaskFailure(
            "wrong",
            "fail_accuracy",
            f"relative error {found.compiled:.2e} compiled, {found.eager:.2e} eager, against float64",
        )
    return found


def bound(eager_error: float) -> float:
    """The largest relative error of a compiled result that eager's own explains."""
    return _FACTOR * eager_error + _TOLERANCE


def _relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    difference = torch.linalg.vector_norm(result.double() - reference)
    return float(difference / torch.linalg.vector_norm(reference))


def _form(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
