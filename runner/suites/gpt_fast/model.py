"""Llama- and Mixtral-shaped transformers with a static KV cache, for one sequence, and torchao's weight-only
quantisation of their linear layers.

Random weights are drawn on the device in their final type, layer by layer: 7 billion in bfloat16 take 13.5 GB
and no more.
"""

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from runner.launch.failures import TaskFailure
from runner.suites.tables import rows_of

_EPSILON = 1e-5  # of the norms
_DTYPE = torch.bfloat16  # of activations, of norms, and of weights that are not quantised
_INT8_DEVIATION = 73.3  # of integers drawn evenly from -127 to 127


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    rope_base: float
    experts: int  # 0: one feed-forward part for all tokens
    active_experts: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


_COUNTS = ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary", "experts", "active_experts")
SHAPES = {
    row["name"]: Shape(rope_base=float(row["rope_base"]), **{name: int(row[name]) for name in _COUNTS})
    for row in rows_of("gpt_fast", "models")
}


class Linear(nn.Module):
    """`x @ weight.T`, weights [outputs, inputs] drawn so that outputs are as large as inputs.

    int8 weights have one scale for each output. Inductor fuses their conversion into the product, so that
    each weight is read once, as int8.
    """

    def __init__(self, size: tuple[int, ...], device: str, *, int8: bool = False) -> None:
        super().__init__()
        deviation = size[-1] ** -0.5
        if int8:
            weight = torch.empty(size, dtype=torch.int8, device=device).random_(-127, 128)
            # a different scale for each output, since a kernel that ignores equal scales would pass
            drawn = torch.empty(size[:-1], dtype=torch.float32, device=device).uniform_(0.5, 1.5)
            scales = (drawn * (deviation / _INT8_DEVIATION)).to(_DTYPE)
        else:
            weight, scales = _normal(size, deviation, device), None
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = nn.functional.linear(x, self.weight.to(x.dtype))
        return product if self.scales is None else product * self.scales


class Experts(Linear):
    """`Linear` with weights [experts, outputs, inputs]; every token uses some of the experts."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """x [tokens, active, inputs], chosen [tokens, active] → [tokens, active, outputs]."""
        product = torch.einsum("tai,taoi->tao", x, self.weight[chosen].to(x.dtype))
        return product if self.scales is None else product * self.scales[chosen]


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, width: int, device: str) -> None:
        super().__init__()
        # not ones, since a norm that ignores its weight would pass
        self.register_buffer("weight", torch.empty(width, dtype=_DTYPE, device=device).uniform_(0.5, 1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPSILON)).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Causal attention over everything in the cache [kv heads, context, head width]."""

    def __init__(self, shape: Shape, *, int8: bool, context: int, device: str) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_width
        self.query_key_value = Linear((shape.width + 2 * kv_width, shape.width), device, int8=int8)
        self.output = Linear((shape.width, shape.width), device, int8=int8)
        size = (shape.kv_heads, context, shape.head_width)
        self.register_buffer("keys", torch.zeros(size, dtype=_DTYPE, device=device))
        self.register_buffer("values", torch.zeros(size, dtype=_DTYPE, device=device))

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, rotation: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        shape, tokens = self.shape, x.shape[0]
        kv_width = shape.kv_heads * shape.head_width
        widths = [shape.width, kv_width, kv_width]
        projected = self.query_key_value(x).split(widths, dim=-1)
        query, key, value = (part.view(tokens, -1, shape.head_width) for part in projected)
        self.keys[:, positions] = rotated(key, rotation).transpose(0, 1)
        self.values[:, positions] = value.transpose(0, 1)
        # query [heads, tokens, w], keys and values [heads, context, w], mask [tokens, context]
        groups = shape.heads // shape.kv_heads
        keys, values = (cache.repeat_interleave(groups, dim=0) for cache in (self.keys, self.values))
        scores = (rotated(query, rotation).transpose(0, 1) @ keys.transpose(1, 2)) * shape.head_width**-0.5
        shares = torch.softmax(scores.float().masked_fill(~mask, float("-inf")), dim=-1)
        y = (shares.to(values.dtype) @ values).transpose(0, 1)
        return self.output(y.reshape(tokens, shape.width))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape, *, int8: bool, device: str) -> None:
        super().__init__()
        self.gate = Linear((shape.hidden, shape.width), device, int8=int8)
        self.up = Linear((shape.hidden, shape.width), device, int8=int8)
        self.down = Linear((shape.width, shape.hidden), device, int8=int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    """Sends every token through the `active` experts that its router scores highest."""

    def __init__(self, shape: Shape, *, int8: bool, device: str) -> None:
        super().__init__()
        self.active = shape.active_experts
        self.router = Linear((shape.experts, shape.width), device)  # never quantised
        self.gate = Experts((shape.experts, shape.hidden, shape.width), device, int8=int8)
        self.up = Experts((shape.experts, shape.hidden, shape.width), device, int8=int8)
        self.down = Experts((shape.experts, shape.width, shape.hidden), device, int8=int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(self.router(x).float(), dim=-1)
        shares, chosen = torch.topk(scores, self.active, dim=-1)  # each [tokens, active]
        shares = shares / shares.sum(-1, keepdim=True)
        each = x[:, None].expand(-1, self.active, -1)
        hidden = nn.functional.silu(self.gate(each, chosen)) * self.up(each, chosen)
        return torch.einsum("tai,ta->ti", self.down(hidden, chosen), shares.to(x.dtype))


class Block(nn.Module):
    def __init__(self, shape: Shape, *, int8: bool, context: int, device: str) -> None:
        super().__init__()
        self.attention_norm = Norm(shape.width, device)
        self.attention = Attention(shape, int8=int8, context=context, device=device)
        self.feed_forward_norm = Norm(shape.width, device)
        feed_forward = MixtureOfExperts if shape.experts else FeedForward
        self.feed_forward = feed_forward(shape, int8=int8, device=device)

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, rotation: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), positions, rotation, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Transformer(nn.Module):
    """Tokens [n] at positions [n] → logits [n, vocabulary]; earlier tokens are in the KV cache."""

    def __init__(self, shape: Shape, *, int8: bool, context: int, device: str) -> None:
        super().__init__()
        self.shape = shape
        self.context = context
        self.embedding = nn.Embedding(
            shape.vocabulary, shape.width, _weight=_normal((shape.vocabulary, shape.width), 1.0, device)
        )
        self.blocks = nn.ModuleList(
            Block(shape, int8=int8, context=context, device=device) for _ in range(shape.layers)
        )
        self.norm = Norm(shape.width, device)
        self.output = Linear((shape.vocabulary, shape.width), device, int8=int8)
        self.register_buffer("rotation", _rotation(shape, context, device))
        self.requires_grad_(False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        rotation = self.rotation[positions]
        mask = torch.arange(self.context, device=tokens.device) <= positions[:, None]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, positions, rotation, mask)
        return self.output(self.norm(x))

    def active_weight_bytes(self) -> int:
        """Return the weights one token uses, as gpt-fast counts: no embedding, only active experts."""
        everything = sum(_bytes(part) for part in (*self.blocks, self.norm, self.output))
        experts = sum(_bytes(part) for part in self.modules() if isinstance(part, Experts))
        idle = experts * (self.shape.experts - self.shape.active_experts) // max(self.shape.experts, 1)
        return everything - idle - self.kv_bytes()

    def kv_bytes(self) -> int:
        """Return the bytes of the KV cache."""
        shape = self.shape
        return 2 * shape.layers * shape.kv_heads * shape.head_width * self.context * _DTYPE.itemsize


def weight_bytes(shape: Shape, *, int8: bool) -> int:
    """Return roughly the bytes of a model: without norms and scales, which are few beside the products."""
    attention = shape.width * (2 * shape.width + 2 * shape.kv_heads * shape.head_width)
    feed_forward = 3 * shape.width * shape.hidden * max(shape.experts, 1)
    products = shape.layers * (attention + feed_forward) + shape.width * shape.vocabulary
    return products * (1 if int8 else 2) + shape.width * shape.vocabulary * 2


def rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Apply rotary positions to x [tokens, heads, w]; rotation [tokens, w / 2, 2] is cosine and sine."""
    pairs = x.float().unflatten(-1, (-1, 2))
    cosine, sine = rotation[:, None, :, 0], rotation[:, None, :, 1]
    first = pairs[..., 0] * cosine - pairs[..., 1] * sine
    second = pairs[..., 1] * cosine + pairs[..., 0] * sine
    return torch.stack((first, second), dim=-1).flatten(-2).to(x.dtype)


def _rotation(shape: Shape, context: int, device: str) -> torch.Tensor:
    """Return [context, head width / 2, 2]: cosine and sine of each position's angles."""
    exponents = torch.arange(0, shape.head_width, 2, device=device) / shape.head_width
    angles = torch.outer(torch.arange(context, device=device), shape.rope_base**-exponents)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def _normal(size: tuple[int, ...], deviation: float, device: str) -> torch.Tensor:
    """Draw in place, so that no copy in another type exists."""
    return torch.empty(size, dtype=_DTYPE, device=device).normal_(0.0, deviation)


def _bytes(module: nn.Module) -> int:
    return sum(map(_tensor_bytes, (*module.parameters(), *module.buffers())))


def quantise(model: nn.Module, how: str) -> None:
    """Quantise the weights of the linear layers in place. Raise TaskFailure (unsupported) where torchao is
    missing or has none for this device."""
    try:
        torchao: Any = importlib.import_module("torchao.quantization")
    except ImportError as error:
        reason = f"{error}: python -m pip install torchao, or python -m runner env torchao"
        raise TaskFailure("unsupported", "no_torchao", reason) from error
    for part in model.modules():
        if type(part) is Linear:
            outputs, inputs = part.weight.shape
            linear = nn.Linear(inputs, outputs, bias=False, device="meta")
            linear.weight = nn.Parameter(part.weight, requires_grad=False)
            try:
                config = (
                    torchao.Int8WeightOnlyConfig()
                    if how == "int8"
                    else torchao.Int4WeightOnlyConfig(group_size=32, int4_packing_format="tile_packed_to_4d")
                )
                torchao.quantize_(linear, config)
            except (AssertionError, ImportError, NotImplementedError, RuntimeError, TypeError) as error:
                reason = f"torchao has no {how} here: {error}"
                raise TaskFailure("unsupported", "no_quantisation", reason) from error
            part.weight = linear.weight.detach()


def _tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor, of a quantised one those of its parts."""
    if not is_traceable_wrapper_subclass(tensor):
        return tensor.numel() * tensor.element_size()
    names, _context = tensor.__tensor_flatten__()
    return sum(_tensor_bytes(getattr(tensor, name)) for name in names)
