"""The functions of gpt-fast's benchmark.py, their operands, and the least bytes they must move."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from runner.measure.ceilings import COPY, MATMUL, READ

_ROWS = 4096  # of layer_norm's input
_BATCH = {"cuda": 4096, "cpu": 64}  # rows of mlp_batched's input
_EXPERTS = 8
_CHOSEN = (3, 5)  # experts that gather_gemv reads
_HIDDEN = 14336  # of the mlp


@dataclass(frozen=True)
class Kernel:
    """One case at one size. `options` are inductor's, as the script sets them for this case."""

    function: Callable[..., torch.Tensor]  # to be compiled
    eager: Callable[..., torch.Tensor]  # the same function for eager mode, with the same operands
    operands: tuple[Any, ...]
    reference: Callable[[], torch.Tensor]  # the result, computed in float64
    moved_bytes: int  # by the script's formula; for the mlp, which has none: parameters, input, output
    ceiling: str = READ  # the host's ceiling that this kernel is compared with
    flops: int = 0
    options: dict[str, bool] = field(default_factory=dict)
    of_gpt_fast: bool = True  # gpt-fast's script has this case and a metric for it


def _apply(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)


def _gemv(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return weights.to(x.dtype) @ x


def _gather_gemv(weights: torch.Tensor, chosen: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return weights[chosen].to(x.dtype) @ x


class _LayerNorm(nn.LayerNorm):
    """LayerNorm with float32 parameters, as in the script.

    Eager CUDA refuses those for a bfloat16 input, so eager mode takes copies with the same values in the
    input's type.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: str) -> None:
        super().__init__(size, device=device)
        # random, since a kernel that ignores parameters of ones and zeros would pass
        self.register_buffer("low_weight", torch.randn(size, device=device, dtype=dtype))
        self.register_buffer("low_bias", torch.randn(size, device=device, dtype=dtype))
        with torch.no_grad():
            self.weight.copy_(self.low_weight)
            self.bias.copy_(self.low_bias)

    def eager(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, self.normalized_shape, self.low_weight, self.low_bias, self.eps)


def _layer_norm_kernel(size: int, dtype: torch.dtype, device: str) -> Kernel:
    module = _LayerNorm(size, dtype, device)
    x = torch.randn(_ROWS, size, device=device, dtype=dtype)
    return Kernel(
        function=_apply,
        eager=_LayerNorm.eager,
        operands=(module, x),
        reference=lambda: copy.deepcopy(module).double()(x.double()),
        moved_bytes=2 * _ROWS * size * dtype.itemsize,
        ceiling=COPY,
    )


def _gemv_kernel(size: int, dtype: torch.dtype, device: str) -> Kernel:
    weights = torch.randn(size, size, device=device).to(dtype)
    x = torch.randn(size, device=device, dtype=torch.bfloat16)
    return Kernel(
        function=_gemv,
        eager=_gemv,
        operands=(weights, x),
        reference=lambda: weights.double() @ x.double(),
        moved_bytes=weights.nbytes,
        options={"coordinate_descent_tuning": True},
    )


def _gather_gemv_kernel(size: int, dtype: torch.dtype, device: str) -> Kernel:
    weights = torch.randn(_EXPERTS, size, size, device=device).to(dtype)
    x = torch.randn(size, device=device, dtype=torch.bfloat16)
    chosen = torch.tensor(_CHOSEN, device=device)
    return Kernel(
        function=_gather_gemv,
        eager=_gather_gemv,
        operands=(weights, chosen, x),
        reference=lambda: weights[chosen].double() @ x.double(),
        moved_bytes=len(_CHOSEN) * size * size * dtype.itemsize,
        options={"coordinate_descent_tuning": True},
    )


def _mlp_kernel(size: int, dtype: torch.dtype, device: str) -> Kernel:
    """Build gpt-fast's `mlp_layer_norm_gelu`, which has no GELU."""
    return _kernel_of_layers(torch.randn(size, device=device, dtype=dtype))


def _batched_mlp_kernel(size: int, dtype: torch.dtype, device: str) -> Kernel:
    """Build the same layers with a GELU. With many rows the products are limited by FLOPs."""
    x = torch.randn(_BATCH[device], size, device=device, dtype=dtype)
    return replace(_kernel_of_layers(x, nn.GELU()), ceiling=MATMUL, of_gpt_fast=False)


def _kernel_of_layers(x: torch.Tensor, *activation: nn.Module) -> Kernel:
    """Return the kernel of an mlp with input `x`. FLOPs are those of its two products."""
    size, like_x = x.shape[-1], {"dtype": x.dtype, "device": x.device}
    layers = nn.Sequential(
        nn.Linear(size, _HIDDEN, **like_x),
        nn.LayerNorm(_HIDDEN, **like_x),
        *activation,
        nn.Linear(_HIDDEN, size, **like_x),
        nn.LayerNorm(size, **like_x),
    )
    parameters = sum(parameter.numel() for parameter in layers.parameters())
    return Kernel(
        function=_apply,
        eager=_apply,
        operands=(layers, x),
        reference=lambda: copy.deepcopy(layers).double()(x.double()),
        moved_bytes=(parameters + 2 * x.numel()) * x.element_size(),
        flops=2 * 2 * x.numel() * _HIDDEN,
    )


# By case of the suite `micro`: D, dtype and device → its kernel, with random operands on the device.
KERNELS: dict[str, Callable[[int, torch.dtype, str], Kernel]] = {
    "layer_norm": _layer_norm_kernel,
    "gemv": _gemv_kernel,
    "gather_gemv": _gather_gemv_kernel,
    "mlp_layer_norm_gelu": _mlp_kernel,
    "mlp_batched": _batched_mlp_kernel,
}
