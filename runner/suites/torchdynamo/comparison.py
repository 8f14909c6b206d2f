"""Are two results the same? The harness's rule (`torch._dynamo.utils.same`), and how far apart they are.

Two tensors are the same where every element is within the tolerance, or else where the result's error
against the reference is not much larger than eager's own: rmse(result) ≤ m · rmse(eager) + tolerance / 10.
By cosine: where they point the same way to 0.99. Infinities are equal to themselves; NaN is so where the
rules say it. Integers and complex numbers have the tolerance alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_SEQUENCES = (list, tuple, deque)
_COSINE = 0.99
_LOOSE = 4e-2  # a result without NaN, this near to the reference, is better than an eager one with NaN


class NotComparable(Exception):
    """The two results hold something that the comparison does not know."""


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
    """Over the floating-point and complex tensors of two results, where both are finite.

    `rmse_ratio`: error against the reference, compiled over eager (infinite where eager has none); `cosine`:
    of compiled to eager. Both take each part of the results (logits, gradients, …) as one vector, and the
    worst part. `relative_*`: of
    |eager - compiled| / (1 + |eager|), over all elements. Of `numbers` elements `not_finite` are NaN or
    infinite on a side; of these `lost` are finite in eager mode.
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
    distance: ErrorStats = field(default_factory=ErrorStats)


def compare(eager: Any, result: Any, reference: Any, rules: Rules, *, measured: bool = False) -> Comparison:
    """`reference` is None, or the same structure in higher precision. `measured` asks for the distance.

    Raises NotComparable for values that are neither tensors nor plain.
    """
    found = Comparison(same=True)
    sums = _Sums()
    for place, eager_part, part, reference_part in _walk("", eager, result, reference):
        problem = _difference(eager_part, part, reference_part, rules)
        if problem and found.same:
            found.same, found.reason = False, f"{place or 'the output'}: {problem}"
        if measured and not isinstance(part, _Missing):
            sums.add(place, eager_part, part, reference_part)
    if measured:
        found.distance = sums.distance()
    return found


class _Missing:
    """Stands where one side has nothing of this name, or something of another kind."""

    def __init__(self, said: str) -> None:
        self.said = said


def _walk(place: str, eager: Any, result: Any, reference: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Leaves of two results and of the reference, with the path to each."""
    if isinstance(eager, dict):
        yield from _walk_named(place, eager, result, reference)
    elif isinstance(eager, _SEQUENCES):
        if not isinstance(result, _SEQUENCES) or len(result) != len(eager):
            yield place, eager, _Missing(f"eager has {len(eager)} parts, compiled {_length(result)}"), None
            return
        numbered = dict(enumerate(eager)), dict(enumerate(result))
        yield from _walk_named(place, *numbered, None if reference is None else dict(enumerate(reference)))
    else:
        yield place, eager, result, reference


def _walk_named(
    place: str, eager: dict[Any, Any], result: Any, reference: Any
) -> Iterator[tuple[str, Any, Any, Any]]:
    if not isinstance(result, dict) or set(result) != set(eager):
        names = sorted(map(str, result)) if isinstance(result, dict) else type(result).__name__
        yield place, eager, _Missing(f"eager has {sorted(map(str, eager))}, compiled {names}"), None
        return
    for name, part in eager.items():
        below = f"{place}.{name}" if place else str(name)
        yield from _walk(below, part, result[name], None if reference is None else reference[name])


def _length(value: Any) -> str:
    return str(len(value)) if isinstance(value, _SEQUENCES) else f"a {type(value).__name__}"


def _difference(eager: Any, result: Any, reference: Any, rules: Rules) -> str:
    """How the result differs, '' where it is the same."""
    if isinstance(result, _Missing):
        return result.said
    if isinstance(eager, (torch.Tensor, float, complex)):
        return _tensor_difference(_tensor(eager), _tensor(result), reference, rules)
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
    precise = _is_more_precise(reference, eager)
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


def _tensor(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, (float, complex)) else value


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a form that comparing knows."""
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor


def _is_more_precise(reference: Any, eager: torch.Tensor) -> bool:
    if not isinstance(reference, torch.Tensor) or not eager.is_floating_point():
        return False
    return reference.dtype == torch.float64 or reference.dtype.itemsize > eager.dtype.itemsize


def _by_cosine(eager: torch.Tensor, result: torch.Tensor, tolerance: float) -> str:
    if _close(eager, result, tolerance, equal_nan=True):  # zeros have no direction
        return ""
    cosine = _cosine(eager, result)
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
    """How many times eager's error the harness allows."""
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


def _cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    flat = _as_real(one).flatten().float(), _as_real(other).flatten().float()
    return float(torch.nn.functional.cosine_similarity(*flat, dim=0, eps=1e-6))


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _form(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"a {type(value).__name__}"


class _Group:
    """The tensors of one part of the results: the logits, or all gradients."""

    def __init__(self) -> None:
        self._cosines: list[float] = []  # tensor by tensor, as all that follows
        self._eager, self._result = _Size(), _Size()
        self._eager_error, self._error = _Size(), _Size()

    @property
    def count(self) -> int:
        return sum(self._eager.counts)

    def add(self, eager: torch.Tensor, result: torch.Tensor, reference: torch.Tensor | None) -> None:
        sizes = self._eager.add(eager), self._result.add(result)
        alike = (eager / sizes[0]).mul_(result / sizes[1]).mean() if all(sizes) else 0.0
        self._cosines.append(float(alike))
        if reference is not None:
            self._error.add(_errors(reference, result))
            self._eager_error.add(_errors(reference, eager))

    def cosine(self) -> float | None:
        if not (self._eager.total() and self._result.total()):
            return None
        shares = zip(self._cosines, self._eager.shares(), self._result.shares(), strict=True)
        return sum(cosine * eager * result for cosine, eager, result in shares)

    def rmse_ratio(self) -> float | None:
        if not self._error.counts:
            return None
        error, eager_error = self._error.total(), self._eager_error.total()
        if eager_error > 0:
            return error / eager_error
        return 1.0 if error == 0 else math.inf


class _Size:
    """Root mean square over several tensors, of numbers whose squares may be too large or too small for a
    float64."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._sizes: list[float] = []

    def add(self, numbers: torch.Tensor) -> float:
        """Answers with that of this tensor alone."""
        largest = float(numbers.abs().max()) if numbers.numel() else 0.0
        size = largest
        if 0 < largest < math.inf:
            size = largest * math.sqrt(float((numbers / largest).square_().mean()))
        self.counts.append(numbers.numel())
        self._sizes.append(size)
        return size

    def total(self) -> float:
        return math.hypot(*self._weighted())

    def shares(self) -> list[float]:
        """What each tensor has of the length of all as one vector."""
        total = self.total()
        return [size / total for size in self._weighted()]

    def _weighted(self) -> list[float]:
        count = max(1, sum(self.counts))
        return [size * math.sqrt(n / count) for n, size in zip(self.counts, self._sizes, strict=True)]


def _errors(reference: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Of what the reference has a number for, which is not everything that a half has one for."""
    errors = reference - value
    known = reference.isfinite()
    return errors if known.all() else errors[known]


class _Sums:
    """What the distance of two results is made of, tensor after tensor."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._count, self._total, self._largest = 0, 0.0, 0.0
        self._relative = _Size()
        self._not_finite, self._lost = 0, 0

    def add(self, place: str, eager: Any, result: Any, reference: Any) -> None:
        eager, result, precise = (_numbers(value) for value in (eager, result, reference))
        if eager is None or result is None or eager.shape != result.shape:
            return
        if precise is not None and precise.shape != eager.shape:
            precise = None
        kept = eager.isfinite() & result.isfinite()
        if not kept.all():
            self._not_finite += int((~kept).sum())
            self._lost += int((eager.isfinite() & ~kept).sum())
            eager, result, precise = eager[kept], result[kept], None if precise is None else precise[kept]
        if not eager.numel():
            return
        self._groups.setdefault(place.split(".", maxsplit=1)[0], _Group()).add(eager, result, precise)
        relative = (eager - result).abs() / (1 + eager.abs())
        self._count += relative.numel()
        self._total += float(relative.sum())
        self._relative.add(relative)
        self._largest = max(self._largest, float(relative.max()))

    def distance(self) -> ErrorStats:
        mean = self._total / self._count if self._count else 0.0
        size = self._relative.total()
        varying = 1 - (mean / size) ** 2 if size else 0.0  # share of the mean square
        # a single number has neither direction nor a mean error
        groups = [group for group in self._groups.values() if group.count > 1] or [*self._groups.values()]
        ratios = [ratio for group in groups if (ratio := group.rmse_ratio()) is not None]
        cosines = [cosine for group in groups if (cosine := group.cosine()) is not None]
        return ErrorStats(
            rmse_ratio=max(ratios) if ratios else None,
            cosine=min(cosines) if cosines else None,
            relative_max=self._largest,
            relative_mean=mean,
            relative_std=size * math.sqrt(max(varying, 0.0)),
            numbers=self._count + self._not_finite,
            not_finite=self._not_finite,
            lost=self._lost,
        )


def _numbers(value: Any) -> torch.Tensor | None:
    """What distances are made of, in float64; None for what has none."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    return _as_real(_plain(value)).double()
