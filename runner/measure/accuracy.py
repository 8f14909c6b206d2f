"""Is the compiled result right? Compares both results with a float64 reference, before any clock runs."""

import torch

from runner.launch.failures import TaskFailure

# As torch._dynamo.utils.same for half-precision results: 3 times eager's own error, plus a tenth of 1e-3.
_FACTOR = 3.0
_TOLERANCE = 1e-4


def check(compiled: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor) -> dict[str, float]:
    """Return both relative errors. Raise TaskFailure (wrong) where eager's does not explain compiled's."""
    if compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        forms = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in (compiled, eager)]
        reason = f"compiled gives {forms[0]}, eager {forms[1]}: not the same function"
        raise TaskFailure("wrong", "shape", reason)
    of_compiled, of_eager = (float(relative_error(result, reference)) for result in (compiled, eager))
    if not of_compiled <= bound(of_eager):  # NaN is never within the bound
        errors = f"{of_compiled:.2e} compiled, {of_eager:.2e} eager"
        raise TaskFailure("wrong", "fail_accuracy", f"relative error {errors}, against float64")
    return {"relative_error_compiled": of_compiled, "relative_error_eager": of_eager}


def bound(eager_error: float) -> float:
    """Return the largest relative error of a compiled result that eager's own error explains."""
    return _FACTOR * eager_error + _TOLERANCE


def relative_error(result: torch.Tensor, reference: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Return ‖result - reference‖ / ‖reference‖ over all elements, or along `dim`."""
    difference = torch.linalg.vector_norm(result.double() - reference, dim=dim)
    return difference / torch.linalg.vector_norm(reference, dim=dim)
