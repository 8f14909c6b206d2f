"""Compare two results tensor by tensor by the harness's rule, and measure their errors.

The rule is `torch._dynamo.utils.same`: two tensors are the same if every element is within the tolerance, or
else if the result's error against the reference is not much larger than eager's own.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.utils import same

from runner.suites.torchdynamo.rules import AccuracyRules

_SEQUENCES = (list, tuple, deque)


EXACT = AccuracyRules(tolerance=0.0)


@dataclass
class ErrorStats:
    """Errors of the floating-point and complex tensors of two results, where both are finite.

    `rmse_ratio` is the error against the reference, compiled over eager (infinite where eager has none),
    `cosine` that of compiled to eager. Both take each part of the results (logits, gradients, …) as one
    vector, and the worst part. `not_finite` of the `numbers` elements are NaN or infinite on a side, `lost`
    on the compiled side alone.
    """

    rmse_ratio: float | None = None
    cosine: float | None = None
    numbers: int = 0
    not_finite: int = 0
    lost: int = 0


@dataclass
class Comparison:
    same: bool
    reason: str = ""  # the first tensor that differs, and how
    errors: ErrorStats = field(default_factory=ErrorStats)


def compare(
    eager: Any, result: Any, reference: Any, rules: AccuracyRules, *, measured: bool = False
) -> Comparison:
    """Compare `result` with `eager`, part by part; `measured` also fills in the errors.

    `reference` is None, or the same structure in higher precision. Raise TypeError for values that are
    neither tensors nor plain.
    """
    found = Comparison(same=True)
    sums = _ErrorSums()
    for place, eager_part, part, reference_part in _walk("", eager, result, reference):
        problem = _difference(eager_part, part, reference_part, rules)
        if problem and found.same:
            found.same, found.reason = False, f"{place or 'the output'}: {problem}"
        if measured and not isinstance(part, _Missing):
            sums.add(place, eager_part, part, reference_part)
    found.errors = sums.stats()
    return found


@dataclass
class _Missing:
    """A part of eager's result that the compiled one lacks, or has as something of another kind."""

    reason: str


def _walk(place: str, eager: Any, result: Any, reference: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield the leaves of both results and of the reference, each with its path."""
    if isinstance(eager, _SEQUENCES):
        if not isinstance(result, _SEQUENCES) or len(result) != len(eager):
            length = len(result) if isinstance(result, _SEQUENCES) else f"a {type(result).__name__}"
            yield place, eager, _Missing(f"eager has {len(eager)} parts, compiled {length}"), None
            return
        eager, result = dict(enumerate(eager)), dict(enumerate(result))
        reference = None if reference is None else dict(enumerate(reference))
    if not isinstance(eager, dict):
        yield place, eager, result, reference
        return
    if not isinstance(result, dict) or set(result) != set(eager):
        names = sorted(map(str, result)) if isinstance(result, dict) else type(result).__name__
        yield place, eager, _Missing(f"eager has {sorted(map(str, eager))}, compiled {names}"), None
        return
    for name, part in eager.items():
        below = f"{place}.{name}" if place else str(name)
        yield from _walk(below, part, result[name], None if reference is None else reference[name])


def _difference(eager: Any, result: Any, reference: Any, rules: AccuracyRules) -> str:
    """Return how the result differs, or ''."""
    if isinstance(result, _Missing):
        return result.reason
    if isinstance(eager, (torch.Tensor, float, complex)):
        eager, result = (torch.tensor(v) if isinstance(v, (float, complex)) else v for v in (eager, result))
        return _tensor_difference(eager, result, reference, rules)
    if eager is None or isinstance(eager, (str, int, torch.device, torch.dtype)):
        return "" if eager == result else f"eager has {eager!r}, compiled {result!r}"
    raise TypeError(f"results of type {type(eager).__name__} cannot be compared")


def _tensor_difference(eager: torch.Tensor, result: Any, reference: Any, rules: AccuracyRules) -> str:
    if not isinstance(result, torch.Tensor) or eager.dtype != result.dtype or eager.shape != result.shape:
        return f"eager gives {_form(eager)}, compiled {_form(result)}"
    eager, result = _plain(eager), _plain(result)
    if rules.cosine:
        eager, result = _as_real(eager), _as_real(result)
    precise = (
        isinstance(reference, torch.Tensor)
        and eager.is_floating_point()
        and (reference.dtype == torch.float64 or reference.dtype.itemsize > eager.dtype.itemsize)
    )
    problems: list[str] = []
    if same(
        eager,
        result,
        fp64_ref=reference.double() if precise else None,
        cos_similarity=rules.cosine,
        tol=rules.tolerance,
        equal_nan=rules.equal_nan,
        log_error=lambda text, *values: problems.append(text % values),
        use_larger_multiplier_for_smaller_tensor=rules.larger_multiplier,
        **({"force_max_multiplier": True} if rules.widest else {}),  # not every torch has it
    ):
        return ""
    lost = int((eager.isfinite() & ~result.isfinite()).sum())
    if lost:
        return f"{lost} of {eager.numel()} numbers are NaN or infinite where eager's are not"
    if torch.allclose(eager, result, rules.tolerance, rules.tolerance, equal_nan=True):
        nans = f"{int(eager.isnan().sum())} of {eager.numel()} numbers are NaN on both sides"
        return f"{nans}, and in float32 the harness takes NaN for equal to nothing"
    return problems[0] if problems else f"the cosine to eager is below 0.99 ({_form(result)})"


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same numbers dense, and 8-bit floats as float32: allclose knows neither."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _form(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"a {type(value).__name__}"


_Sums = defaultdict[str, float]  # over the tensors of a part of the results, as of one vector


def _cosine(part: _Sums) -> float | None:
    """Return the cosine of eager to compiled; None where a side is all zeros."""
    norms = math.sqrt(part["eager_square"]) * math.sqrt(part["square"])
    return part["product"] / norms if norms else None


def _rmse_ratio(part: _Sums) -> float | None:
    """Return the error of compiled over eager's; None without a reference."""
    if "eager_error" not in part:
        return None
    if part["eager_error"]:
        return math.sqrt(part["error"] / part["eager_error"])
    return math.inf if part["error"] else 1.0


class _ErrorSums:
    """Collects ErrorStats tensor by tensor: the results of a large model have no room twice in float64."""

    def __init__(self) -> None:
        self._stats = ErrorStats()
        self._parts: defaultdict[str, _Sums] = defaultdict(lambda: defaultdict(float))

    def add(self, place: str, eager: Any, result: Any, reference: Any) -> None:
        eager, result, precise = (_numbers(value) for value in (eager, result, reference))
        if eager is None or result is None or eager.shape != result.shape:
            return
        if precise is not None and precise.shape != eager.shape:
            precise = None
        stats = self._stats
        stats.numbers += eager.numel()
        kept = eager.isfinite() & result.isfinite()
        if not kept.all():
            stats.not_finite += int((~kept).sum())
            stats.lost += int((eager.isfinite() & ~kept).sum())
            eager, result, precise = eager[kept], result[kept], None if precise is None else precise[kept]
        if not eager.numel():
            return
        part = self._parts[place.split(".", maxsplit=1)[0]]  # the logits, or all gradients
        part["numbers"] += eager.numel()
        part["product"] += float((eager * result).sum())
        part["eager_square"] += float(eager.square().sum())
        part["square"] += float(result.square().sum())
        if precise is not None:
            known = precise.isfinite()  # not everywhere where a half has a number
            part["eager_error"] += float((precise - eager)[known].square().sum())
            part["error"] += float((precise - result)[known].square().sum())

    def stats(self) -> ErrorStats:
        stats = self._stats
        # a single number has neither direction nor a mean error
        parts = [part for part in self._parts.values() if part["numbers"] > 1] or [*self._parts.values()]
        stats.rmse_ratio = max((r for part in parts if (r := _rmse_ratio(part)) is not None), default=None)
        stats.cosine = min((c for part in parts if (c := _cosine(part)) is not None), default=None)
        return stats


def _numbers(value: Any) -> torch.Tensor | None:
    """Return what errors are measured on, in float64: None for integers and what is no tensor."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    return _as_real(_plain(value)).double()
