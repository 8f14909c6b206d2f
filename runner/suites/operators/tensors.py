"""Makes tensors of recorded forms; integers that are indices are valid ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from runner.launch.failures import TaskFailure
from runner.suites.operators.inputs import Call, TensorForm, Word, parse
from runner.suites.torchdynamo.model import tensors_in

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_NAMESPACE = "aten"
_SMALL = 8  # integers that are no index are below
_DEVICES = ("cpu", "cuda", "meta")

_Limit = Callable[[Sequence[Any]], int]
_ALONG_DIM = ("gather", "index_select", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add")


# For each operator: places of index tensors → what they must be below, from the other arguments.
_LIMITS: Mapping[str, Mapping[int, _Limit]] = {
    "embedding": {1: lambda args: args[0].shape[0]},
    "embedding_dense_backward": {1: lambda args: args[2]},
    **{name: {2: lambda args: args[0].shape[args[1]]} for name in _ALONG_DIM},
    "nll_loss_forward": {1: lambda args: args[0].shape[1]},
    "nll_loss_backward": {2: lambda args: args[1].shape[1]},
    "nll_loss2d_forward": {1: lambda args: args[0].shape[1]},
    "nll_loss2d_backward": {2: lambda args: args[1].shape[1]},
    "max_pool2d_with_indices_backward": {7: lambda args: args[1].shape[-1] * args[1].shape[-2]},
}
# Lists of index tensors, one for each dimension of the first argument.
_INDEXED = ("index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put")
# Places of arguments that must be positive: variances, divisors, arguments of roots and logarithms.
_POSITIVE = {
    "native_batch_norm": (4,),
    "_native_batch_norm_legit": (4,),
    "_batch_norm_with_update": (4,),
    "cudnn_batch_norm": (4,),
    "native_batch_norm_backward": (4, 6),
    "nll_loss_backward": (6,),
    **dict.fromkeys(("sqrt", "rsqrt", "log", "reciprocal", "log2"), (0,)),
    "pow": (0,),
    "div": (1,),
}


def operator_of(name: str) -> Any:
    """Return the overload of ``aten.mm.default``. Raise TaskFailure (unsupported) if torch lacks it."""
    parts = name.split(".")
    if len(parts) != 3 or parts[0] != _NAMESPACE:
        raise TaskFailure("unsupported", "no_operator", f"{name!r} is not aten.NAME.OVERLOAD")
    found: Any = getattr(getattr(torch.ops.aten, parts[1], None), parts[2], None)
    if not isinstance(found, torch._ops.OpOverload):
        raise TaskFailure("unsupported", "no_operator", f"torch {torch.__version__} has no {name}")
    return found


def make(call: Call, dtype: torch.dtype, device: str, *, channels_last: bool = False) -> Arguments:
    """Make the arguments of one call: floating tensors normal, or positive if the operator needs it.

    Calls are recorded in float16: bfloat16 replaces it, float32 replaces every floating type. Complex numbers
    have no half to compute with.
    """
    args, kwargs = parse(call.text)
    name = call.operator.split(".")[1]
    maker = _Maker(dtype, device, channels_last)
    limits = {place: limit(args) for place, limit in _LIMITS.get(name, {}).items() if place < len(args)}
    if name in _INDEXED:
        made = [maker.value(args[0]), _indices(maker, args), *(maker.value(value) for value in args[2:])]
    else:
        made = [
            maker.value(value, limit=limits.get(place), positive=place in _POSITIVE.get(name, ()))
            for place, value in enumerate(args)
        ]
    return tuple(made), {key: maker.value(value) for key, value in kwargs.items()}


def _indices(maker: _Maker, args: Sequence[Any]) -> list[torch.Tensor | None]:
    """Make a list of indices; a boolean one covers as many dimensions as it has."""
    sizes = iter(args[0].shape)
    made = []
    for form in args[1]:
        dimensions = len(form.shape) if form and form.dtype == "bool" else 1
        covered = [next(sizes) for _ in range(dimensions)]
        made.append(maker.tensor(form, limit=covered[0]) if form else None)
    return made


@dataclass(frozen=True)
class _Maker:
    dtype: torch.dtype
    device: str
    channels_last: bool

    def value(self, value: Any, *, limit: int | None = None, positive: bool = False) -> Any:
        if isinstance(value, TensorForm):
            return self.tensor(value, limit=limit, positive=positive)
        if isinstance(value, Word):
            found = getattr(torch, value.name)
            return self._mapped(found) if isinstance(found, torch.dtype) else found
        if isinstance(value, str) and value in _DEVICES:
            return torch.device(self.device)
        if isinstance(value, list | tuple):
            return type(value)(self.value(item, positive=positive) for item in value)
        return value

    def tensor(self, form: TensorForm, *, limit: int | None = None, positive: bool = False) -> torch.Tensor:
        dtype = self._mapped(getattr(torch, form.dtype))
        stride = form.stride or ()
        # a dimension of stride 0 has one row for all
        shape = [1 if stride and stride[place] == 0 else size for place, size in enumerate(form.shape)]
        values = self._values(shape, dtype, limit=limit, positive=positive)
        if stride:
            laid = torch.empty_strided(form.shape, stride, dtype=dtype, device=self.device)
            rows = laid[tuple(slice(0, size) for size in shape)]
            rows.copy_(values)
            values = laid
        if self.channels_last and values.dim() == 4:
            values = values.contiguous(memory_format=torch.channels_last)
        return values

    def _values(
        self, shape: Sequence[int], dtype: torch.dtype, *, limit: int | None, positive: bool
    ) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.randint(0, 2, tuple(shape), device=self.device).bool()
        if dtype.is_floating_point or dtype.is_complex:
            made = torch.randn(tuple(shape), device=self.device, dtype=dtype)
            return made.abs_().add_(0.5) if positive and not dtype.is_complex else made
        low = 0 if limit is not None else 1  # no zeros: an operator may divide by an integer
        high = max(low + 1, limit or _SMALL)
        return torch.randint(low, high, tuple(shape), device=self.device, dtype=dtype)

    def _mapped(self, dtype: torch.dtype) -> torch.dtype:
        if dtype == torch.complex32:
            return torch.complex64
        if not dtype.is_floating_point or self.dtype == torch.float16:
            return dtype
        if self.dtype == torch.bfloat16:
            return torch.bfloat16 if dtype == torch.float16 else dtype
        return self.dtype


# Operators that read only the indexed part of their first tensor: at most the size of the output, or, if each
# index stands for one element (`_PICKED`), of the indices.
_LOOKED_UP = ("aten.embedding.", "aten.gather.", "aten.index.", "aten.index_select.")
_PICKED = ("aten.nll_loss_forward.",)


def moved_bytes(operator: str, operands: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Return the fewest bytes a call must move: read the inputs it needs once, write its outputs once."""
    whole = bytes_of(operands) + bytes_of(outputs)
    if not operands:
        return whole
    table = bytes_of(operands[:1])
    if operator.startswith(_LOOKED_UP):
        return whole - table + min(table, bytes_of(outputs))
    if operator.startswith(_PICKED) and len(operands) > 1:
        return whole - table + min(table, operands[1].numel() * operands[0].element_size())
    return whole


def bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of reading each element once; a dimension of stride 0 is read once."""
    return sum(
        math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
        * tensor.element_size()
        for tensor in tensors
    )


def memory_needed(call: Call) -> int:
    """Return the bytes of the recorded arguments, with gaps between strides, before any is made."""
    return sum(one.untyped_storage().nbytes() for one in tensors_in(make(call, torch.float16, "meta")))
