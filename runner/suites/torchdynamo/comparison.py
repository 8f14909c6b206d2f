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

EXACT = AccuracyRules(tolerance=0.0)


_Sums = defaultdict[str, float]  # over the tensors of a part of the results, as of one vector


class ErrorStats:
    """Errors of the floating-point and complex tensors of two results, where both are finite.

    `not_finite` of the `numbers` elements are NaN or infinite on a side, `lost` on the compiled side alone.
    They are collected tensor by tensor: the results of a large model have no room twice in float64.
    """

    def __init__(self) -> None:
        self.numbers = self.not_finite = self.lost = 0
        self._parts: defaultdict[str, _Sums] = defaultdict(lambda: defaultdict(float))

    def add(self, place: str, eager: Any, result: Any, reference: Any) -> None:
        eager, result, precise = (_numbers(value) for value in (eager, result, reference))
        if eager is None or result is None or eager.shape != result.shape:
            return
        if precise is not None and precise.shape != eager.shape:
            precise = None
        self.numbers += eager.numel()
        kept = eager.isfinite() & result.isfinite()
        if not kept.all():
            self.not_finite += int((~kept).sum())
            self.lost += int((eager.isfinite() & ~kept).sum())
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

    @property
    def rmse_ratio(self) -> float | None:
        """Return the error against the reference, compiled over eager, of the worst part; infinite where
        eager has none, None without a reference."""
        ratios = []
        for part in self._large_parts():
            if part.get("eager_error"):
                ratios.append(math.sqrt(part["error"] / part["eager_error"]))
            elif "eager_error" in part:
                ratios.append(math.inf if part["error"] else 1.0)
        return max(ratios, default=None)

    @property
    def cosine(self) -> float | None:
        """Return the cosine of compiled to eager of the worst part; None where a side is all zeros."""
        norms = [
            (part, math.sqrt(part["eager_square"]) * math.sqrt(part["square"]))
            for part in self._large_parts()
        ]
        return min((part["product"] / norm for part, norm in norms if norm), default=None)

    def _large_parts(self) -> list[_Sums]:
        """Return the parts (logits, gradients, …), each as one vector. A single number has neither direction
        nor a mean error."""
        return [part for part in self._parts.values() if part["numbers"] > 1] or [*self._parts.values()]


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
    comparison = Comparison(same=True)
    for place, eager_part, part, reference_part, missing in _walk("", eager, result, reference):
        problem = missing or _difference(eager_part, part, reference_part, rules)
        if problem and comparison.same:
            comparison.same, comparison.reason = False, f"{place or 'the output'}: {problem}"
        if measured:
            comparison.errors.add(place, eager_part, part, reference_part)
    return comparison


def _walk(place: str, eager: Any, result: Any, reference: Any) -> Iterator[tuple[str, Any, Any, Any, str]]:
    """Yield the leaves of both results and of the reference, each with its path and ''; where the compiled
    result has other parts than eager's, both with these."""
    parts, others = _parts(eager), _parts(result)
    if parts is None:
        yield place, eager, result, reference, ""
    elif others is None or others.keys() != parts.keys():
        compiled = f"a {type(result).__name__}" if others is None else sorted(map(str, others))
        yield place, eager, result, None, f"eager has {sorted(map(str, parts))}, compiled {compiled}"
    else:
        references = _parts(reference) or {}
        for name, part in parts.items():
            below = f"{place}.{name}" if place else str(name)
            yield from _walk(below, part, others[name], references.get(name))


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a container by name or number, None for a leaf."""
    if isinstance(value, (list, tuple, deque)):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else None


def _difference(eager: Any, result: Any, reference: Any, rules: AccuracyRules) -> str:
    """Return how the result differs, or ''."""
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


def _numbers(value: Any) -> torch.Tensor | None:
    """Return what errors are measured on, in float64: None for integers and what is no tensor."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    return _as_real(_plain(value)).double()
