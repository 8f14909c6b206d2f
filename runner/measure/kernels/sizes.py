"""Bytes that a kernel must move at least, and FLOPs."""

import re
from collections.abc import Callable, Sequence
from math import prod

from runner.measure.kernels.slots import Call, Generated, Operand
from runner.schema.compilations import KernelKind

_POINTER = re.compile(r"'(?P<name>\w+)': '\*\w+'|(?:const )?\w+\* (?P<name_cpp>\w+)")
_HEAD = re.compile(r"'signature': \{[^}]*\}|extern \"C\"[^{;]*")


def pointers(kernel: Generated) -> list[str]:
    """Return the parameters of a generated kernel that are operands."""
    head = _HEAD.search(kernel.code)
    return [match["name"] or match["name_cpp"] for match in _POINTER.finditer(head[0])] if head else []


def moved_bytes(kernel: Generated, kind: KernelKind, call: Call) -> int | None:
    """Return the bytes of a generated kernel's operands, of one that it writes in place twice.

    An operand of which the kernel gathers some elements counts as often as its code can access one.
    """
    names = pointers(kernel)
    if len(names) != len(call.operands):
        return None
    iterations = call.iterations if kind in {"pointwise", "reduction"} else 0
    total = 0
    for name, operand in zip(names, call.operands, strict=True):
        if operand.bytes is None:
            return None
        most = iterations * kernel.code.count(f"({name} + ") * operand.itemsize
        moved = min(operand.bytes, most) if most else operand.bytes
        total += moved * (2 if name.startswith("in_out") else 1)
    return total


# Operands and first result of a library's operator → FLOPs. A product counts two operations for each
# multiplication, as torch's own counter does.
_Formula = Callable[[Sequence[Operand], Operand], int]


def library_sizes(call: Call) -> tuple[int | None, int | None]:
    """Return the bytes that one call of a library's operator must move at least, each operand and result
    once, and its FLOPs by formula; None where they are not known."""
    operands, results = call.operands, call.results
    if call.name == "sum":
        return operands[0].bytes, None
    is_attention = call.name.startswith("_scaled_dot_product_") and "attention" in call.name
    is_backward = call.name.endswith("_backward")
    attention = _attention_backward if is_backward else _attention
    formula = attention if is_attention else _FORMULAS.get(call.name)
    are_known = all(operand.bytes is not None for operand in (*operands, *results))
    has_result = bool(results) or not call.name.startswith("conv")
    if formula is None or len(operands) < 2 or not are_known or not has_result:
        return None, None
    # an attention's result is like its query, a convolution's gradient like its result; `out=` is the last
    is_like_operand = is_attention or call.name == "convolution_backward"
    first = operands[0] if is_like_operand else results[0] if results else operands[-1]
    flops, moved = formula(operands, first), [*operands, *results]
    if is_attention:  # the sums for the backward pass and the seeds are small
        moved = [*operands, *(operands[1:4] if is_backward else (first,))]
    elif is_backward:  # for each gradient asked for: of the input, of the weights
        flops *= sum(result.sizes in (operand.sizes for operand in operands[1:3]) for result in results)
    return sum(operand.bytes or 0 for operand in moved), flops


def _product(index: int) -> _Formula:
    """Return the formula of a product whose left matrices are the operand at this place."""
    return lambda operands, result: 2 * prod(result.sizes) * operands[index].sizes[-1]


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
    "convolution": lambda operands, result: 2 * prod(result.sizes) * prod(operands[1].sizes[1:]),
    "convolution_transposed": lambda given, _result: 2 * prod(given[0].sizes) * prod(given[1].sizes[1:]),
    "convolution_backward": lambda operands, gradient: 2 * prod(gradient.sizes) * prod(operands[2].sizes[1:]),
}
