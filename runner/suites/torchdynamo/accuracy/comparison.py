"""Compare two results by the harness's rule (`torch._dynamo.utils.same`), and measure their errors.

Two tensors are the same where every element is within the tolerance, or else where the result's error
against the reference is not much larger than eager's own: rmse(result) ≤ m · rmse(eager) + tolerance / 10.
By cosine: where they point the same way to 0.99. Infinities are equal to themselves; NaN is so where the
rules say it. Integers and complex numbers have the tolerance alone.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_SEQUENCES = (list, tuple, deque)
_COSINE = 0.99
_LOOSE = 4e-2  # a result without NaN, this near to the reference, is better than an eager one with NaN


class NotComparable(Exception):
    """The results hold a value that is neither a tensor nor a plain number, string or None."""


@dataclass(frozen=True)
class Rules:
    """`multiplier_by_size`: the harness allows small tensors of this model a larger error.
    `widest`: it allows ten times eager's (convolutions folded in bfloat16)."""

    tolerance: float
    cosine: bool = False
    equal_nan: bool = False
    multiplier_by_size: bool = False
    widest: bool = False


EXACT = Rules(tolerance=0.0)


@dataclass
class ErrorStats:
    """Errors of the floating-point and complex tensors of two results, where both are finite.

    `rmse_ratio` is the error against the reference, compiled over eager (infinite where eager has none),
    `cosine` that of compiled to eager. Both take each part of the results (logits, gradients, …) as one
    vector, and the worst part. `relative_*` are of |eager - compiled| / (1 + |eager|), over all elements.
    `not_finite` of the `numbers` elements are NaN or infinite on a side, `lost` on the compiled side alone.
    """

    rmse_ratio: float | None = None
    cosine: float | None = None
    relative_max: float = 0.0
    relative_mean: float = 0.0
    relative_std: float = 0.0
    numbers: int = 0
    not_finite: int = 0
    lost: int = 0


@dataclass
class Comparison:
    same: bool
    reason: str = ""  # the first tensor that differs, and how
    errors: ErrorStats = field(default_factory=ErrorStats)


def compare(eager: Any, result: Any, reference: Any, rules: Rules, *, measured: bool = False) -> Comparison:
    """Compare `result` with `eager`, part by part; `measured` also fills in the errors.

    `reference` is None, or the same structure in higher precision. Raise NotComparable for values that are
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


def _difference(eager: Any, result: Any, reference: Any, rules: Rules) -> str:
    """Return how the result differs, or ''."""
    if isinstance(result, _Missing):
        return result.reason
    if isinstance(eager, (torch.Tensor, float, complex)):
        eager, result = (
            torch.tensor(value) if isinstance(value, (float, complex)) else value for value in (eager, result)
        )
        return _tensor_difference(eager, result, reference, rules)
    if eager is None or isinstance(eager, (str, int, torch.device, torch.dtype)):
        return "" if eager == result else f"eager has {eager!r}, compiled {result!r}"
    raise NotComparable(f"results of type {type(eager).__name__} cannot be compared")


def _tensor_difference(eager: torch.Tensor, result: Any, reference: Any, rules: Rules) -> str:
    if not isinstance(result, torch.Tensor) or eager.dtype != result.dtype or eager.shape != result.shape:
        return f"eager gives {_form(eager)}, compiled {_form(result)}"
    eager, result = _plain(eager), _plain(result)
    if eager.dtype == torch.bool:
        return "" if torch.equal(eager, result) else "torch.bool values differ"
    if rules.cosine:
        return _by_cosine(eager, result, rules.tolerance)
    if _close(eager, result, rules.tolerance, equal_nan=rules.equal_nan):
        return ""
    precise = (
        isinstance(reference, torch.Tensor)
        and eager.is_floating_point()
        and (reference.dtype == torch.float64 or reference.dtype.itemsize > eager.dtype.itemsize)
    )
    problem = _by_error(eager, result, reference, rules) if precise else _not_close(eager, result, rules)
    lost = int((eager.isfinite() & ~result.isfinite()).sum())
    if problem and lost:
        return f"{lost} of {eager.numel()} numbers are NaN or infinite where eager's are not"
    return problem


def _not_close(eager: torch.Tensor, result: torch.Tensor, rules: Rules) -> str:
    if _close(eager, result, rules.tolerance, equal_nan=True):
        nans = f"{int(eager.isnan().sum())} of {eager.numel()} numbers are NaN on both sides"
        return f"{nans}, and in float32 the harness takes NaN for equal to nothing"
    if not rules.tolerance:
        return "not the same numbers"
    return f"not within {rules.tolerance:g} of eager, and no reference says which is nearer"


def _by_cosine(eager: torch.Tensor, result: torch.Tensor, tolerance: float) -> str:
    if _close(eager, result, tolerance, equal_nan=True):  # zeros have no direction
        return ""
    flat = [_as_real(value).flatten().float() for value in (eager, result)]
    cosine = float(torch.nn.functional.cosine_similarity(*flat, dim=0, eps=1e-6))
    return "" if cosine >= _COSINE else f"cosine {cosine:.5f} to eager"


def _by_error(eager: torch.Tensor, result: torch.Tensor, reference: torch.Tensor, rules: Rules) -> str:
    better = eager.isnan().any() and not reference.isnan().any() and not result.isnan().any()
    if better and _close(reference.to(result.dtype), result, _LOOSE, equal_nan=rules.equal_nan):
        return ""
    eager_error, error = _rmse(reference, eager), _rmse(reference, result)
    multiplier = _multiplier(result, rules)
    if error <= multiplier * eager_error + rules.tolerance / 10:
        return ""
    if rules.equal_nan and math.isnan(eager_error) and math.isnan(error):
        return ""
    return (
        f"error {error:.3e} against the reference, eager's {eager_error:.3e} "
        f"({multiplier:g} × that and {rules.tolerance / 10:g} are allowed; {_form(result)})"
    )


def _multiplier(result: torch.Tensor, rules: Rules) -> float:
    """Return how many times eager's error the harness allows."""
    if rules.widest or (rules.multiplier_by_size and result.numel() <= 10):
        return 10.0
    if rules.multiplier_by_size and result.numel() <= 500:
        return 8.0
    one_by_one = result.dim() == 4 and result.shape[-1] == result.shape[-2] == 1
    noisy = result.numel() < 1000 or one_by_one or rules.tolerance >= 2e-2
    return 3.0 if noisy or result.dtype in (torch.float16, torch.bfloat16) else 2.0


def _close(one: torch.Tensor, other: torch.Tensor, tolerance: float, *, equal_nan: bool) -> bool:
    return torch.allclose(one, other, atol=tolerance, rtol=tolerance, equal_nan=equal_nan)


def _rmse(reference: torch.Tensor, value: torch.Tensor) -> float:
    return float(torch.sqrt(torch.mean(torch.square(reference - value))))


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


@dataclass
class _Part:
    """One number for each tensor of a part of the results (the logits, or all gradients)."""

    numbers: int = 0
    cosines: list[float] = field(default_factory=list)
    eager_norms: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    eager_errors: list[float] = field(default_factory=list)  # norms against the reference, as the next
    errors: list[float] = field(default_factory=list)

    def add(self, eager: torch.Tensor, result: torch.Tensor, reference: torch.Tensor | None) -> None:
        eager_norm, norm = _norm(eager), _norm(result)
        alike = (eager / eager_norm).mul_(result / norm).sum() if eager_norm and norm else 0.0
        self.numbers += eager.numel()
        self.cosines.append(float(alike))
        self.eager_norms.append(eager_norm)
        self.norms.append(norm)
        if reference is not None:
            unknown = ~reference.isfinite()  # not everywhere where a half has a number
            self.eager_errors.append(_norm((reference - eager).masked_fill_(unknown, 0.0)))
            self.errors.append(_norm((reference - result).masked_fill_(unknown, 0.0)))

    def cosine(self) -> float | None:
        """Return the cosine of all tensors as one vector; None where a side is all zeros."""
        eager, result = math.hypot(*self.eager_norms), math.hypot(*self.norms)
        if not eager or not result:
            return None
        rows = zip(self.cosines, self.eager_norms, self.norms, strict=True)
        return sum(cosine * (eager_norm / eager) * (norm / result) for cosine, eager_norm, norm in rows)

    def rmse_ratio(self) -> float | None:
        if not self.errors:
            return None
        error, eager_error = math.hypot(*self.errors), math.hypot(*self.eager_errors)
        if eager_error > 0:
            return error / eager_error
        return 1.0 if error == 0 else math.inf


class _ErrorSums:
    """Collects ErrorStats tensor by tensor: the results of a large model have no room twice in float64."""

    def __init__(self) -> None:
        self._stats = ErrorStats()
        self._parts: defaultdict[str, _Part] = defaultdict(_Part)
        self._relative_sum = 0.0
        self._relative_norms: list[float] = []

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
        self._parts[place.split(".", maxsplit=1)[0]].add(eager, result, precise)
        relative = (eager - result).abs() / (1 + eager.abs())
        stats.relative_max = max(stats.relative_max, float(relative.max()))
        self._relative_sum += float(relative.sum())
        self._relative_norms.append(_norm(relative))

    def stats(self) -> ErrorStats:
        stats = self._stats
        # a single number has neither direction nor a mean error
        parts = [part for part in self._parts.values() if part.numbers > 1] or [*self._parts.values()]
        stats.rmse_ratio = max((r for part in parts if (r := part.rmse_ratio()) is not None), default=None)
        stats.cosine = min((c for part in parts if (c := part.cosine()) is not None), default=None)
        finite = stats.numbers - stats.not_finite
        rms = math.hypot(*self._relative_norms) / math.sqrt(finite or 1)
        stats.relative_mean = self._relative_sum / (finite or 1)
        if rms:
            stats.relative_std = rms * math.sqrt(max(1 - (stats.relative_mean / rms) ** 2, 0.0))
        return stats


def _norm(numbers: torch.Tensor) -> float:
    """Return the 2-norm, scaled by the largest number: its square may leave float64."""
    largest = float(numbers.abs().amax()) if numbers.numel() else 0.0
    return largest * float(torch.linalg.vector_norm(numbers / largest)) if 0 < largest < math.inf else largest


def _numbers(value: Any) -> torch.Tensor | None:
    """Return what errors are measured on, in float64: None for integers and what is no tensor."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    return _as_real(_plain(value)).double()
