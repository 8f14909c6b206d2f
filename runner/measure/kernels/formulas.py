"""Bytes and FLOPs of a library's operators by formula, from the sizes of their operands.

A product of matrices counts two operations for each multiplication, as torch's own counter does. An operator
without a formula has neither: it is named, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from runner.measure.kernels.slots import Call, Operand

_Formula = Callable[[Sequence[Operand], Operand], int]  # operands, first result → FLOPs


def flops(call: Call) -> int | None:
    """Return the FLOPs of one call of a library's operator."""
    formula, first = _formula(call.name), _first_result(call)
    if formula is None or first is None or not _is_known(call):
        return None
    if call.name == "convolution_backward":  # for each gradient asked for: of the input, of the weights
        asked = sum(result.sizes in (one.sizes for one in call.operands[1:3]) for result in call.results)
        return asked * formula(call.operands, first)
    return formula(call.operands, first)


def moved_bytes(call: Call) -> int | None:
    """Return the bytes that one call must move at least: each operand and result once."""
    first = _first_result(call)
    if call.name == "sum":
        return call.operands[0].bytes
    if _formula(call.name) is None or first is None or not _is_known(call):
        return None
    moved = [*call.operands, *call.results]
    if _is_attention(call.name):  # the sums for the backward pass and the seeds are small
        gradients = call.operands[1:4] if call.name.endswith("_backward") else (first,)
        moved = [*call.operands, *gradients]
    return sum(operand.bytes or 0 for operand in moved)


def _is_known(call: Call) -> bool:
    operands = (*call.operands, *call.results)
    return len(call.operands) > 1 and all(operand.bytes is not None for operand in operands)


def _is_attention(operator: str) -> bool:
    return operator.startswith("_scaled_dot_product_") and "attention" in operator


def _first_result(call: Call) -> Operand | None:
    """Return the first result; that of an attention is like its query, that of a product may be `out=`."""
    if _is_attention(call.name):
        return call.operands[0] if call.operands else None
    if call.name == "convolution_backward":
        return call.operands[0] if call.results else None  # the gradient is like the forward's result
    if call.name.startswith("conv"):
        return call.results[0] if call.results else None
    if call.results:
        return call.results[0]
    return call.operands[-1] if call.operands else None


def _formula(operator: str) -> _Formula | None:
    if _is_attention(operator):
        return _attention_backward if operator.endswith("_backward") else _attention
    return _FORMULAS.get(operator)


def _product(place: int) -> _Formula:
    """Return the formula of a product whose left matrices are the operand at this place."""
    return lambda operands, result: 2 * prod(result.sizes) * operands[place].sizes[-1]


def _attention(operands: Sequence[Operand], _result: Operand) -> int:
    query, key, value = operands[:3]
    return 2 * prod(query.sizes[:-1]) * key.sizes[-2] * (query.sizes[-1] + value.sizes[-1])


def _attention_backward(operands: Sequence[Operand], _result: Operand) -> int:
    """Count five products: the scores again, and the gradients of scores, query, key and value."""
    query, key, value = operands[1:4]
    return 2 * prod(query.sizes[:-1]) * key.sizes[-2] * (3 * query.sizes[-1] + 2 * value.sizes[-1])


_FORMULAS: dict[str, _Formula] = {
    **dict.fromkeys(("mm", "bmm", "_int_mm", "_scaled_mm"), _product(0)),
    **dict.fromkeys(("addmm", "baddbmm"), _product(1)),
    "convolution": lambda given, result: 2 * prod(result.sizes) * prod(given[1].sizes[1:]),
    "convolution_transposed": lambda given, _result: 2 * prod(given[0].sizes) * prod(given[1].sizes[1:]),
    "convolution_backward": lambda given, gradient: 2 * prod(gradient.sizes) * prod(given[2].sizes[1:]),
}
