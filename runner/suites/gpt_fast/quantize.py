"""int8 weights with one scale for each output, dequantised inside the product.

The products are written so that inductor fuses the conversion into them: each weight is read once, as int8.
"""

from __future__ import annotations

import torch
from torch import nn

_LARGEST = 127
_SPREAD = 73.3  # standard deviation of integers drawn evenly from -127 to 127


class Int8Linear(nn.Module):
    """`x @ weight.T`, weights [outputs, inputs] drawn so that outputs are as large as inputs."""

    def __init__(self, inputs: int, outputs: int, device: str) -> None:
        super().__init__()
        self.register_buffer("weight", _integers((outputs, inputs), device))
        self.register_buffer("scales", _scales((outputs,), inputs, device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype)) * self.scales

    def dequantized(self) -> torch.Tensor:
        return self.weight.float() * self.scales.float()[:, None]


class Int8Experts(nn.Module):
    """`Int8Linear` with `experts` weights, of which every token uses some."""

    def __init__(self, experts: int, inputs: int, outputs: int, device: str) -> None:
        super().__init__()
        self.register_buffer("weight", _integers((experts, outputs, inputs), device))
        self.register_buffer("scales", _scales((experts, outputs), inputs, device))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """x [tokens, active, inputs], chosen [tokens, active] → [tokens, active, outputs]."""
        weight = self.weight[chosen].to(x.dtype)
        return torch.einsum("tai,taoi->tao", x, weight) * self.scales[chosen]

    def dequantized(self, expert: int) -> torch.Tensor:
        return self.weight[expert].float() * self.scales[expert].float()[:, None]


def _integers(size: tuple[int, ...], device: str) -> torch.Tensor:
    """Draw in place, so that no copy in another type exists."""
    return torch.empty(size, dtype=torch.int8, device=device).random_(-_LARGEST, _LARGEST + 1)


def _scales(size: tuple[int, ...], inputs: int, device: str) -> torch.Tensor:
    """Draw a different scale for each output, since a kernel that ignores equal scales would pass."""
    drawn = torch.empty(size, dtype=torch.float32, device=device).uniform_(0.5, 1.5)
    return (drawn * (inputs**-0.5 / _SPREAD)).to(torch.bfloat16)
