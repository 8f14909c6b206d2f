"""The losses a training step can take in place of the model's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Loss = Callable[[Any], torch.Tensor]


def loss_of(name: str, native: Loss) -> Loss:
    """Return the loss by that name, a function of the module's output: `native`, or one of three others."""
    others: dict[str, Loss] = {
        "sum": lambda output: main_output(output).sum(),
        "mean": lambda output: main_output(output).mean(),
        "cross_entropy": _cross_entropy,
    }
    return others.get(name, native)


def main_output(output: Any) -> torch.Tensor:
    """Return the logits, or the first tensor."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        return main_output(output["logits"] if "logits" in output else next(iter(output.values())))
    return main_output(output[0])


def _cross_entropy(output: Any) -> torch.Tensor:
    """Take each row's class from its number alone, so that a batch may have any size."""
    logits = main_output(output)
    rows = logits.reshape(-1, logits.shape[-1])
    classes = torch.arange(rows.shape[0], device=rows.device) % rows.shape[1]
    return torch.nn.functional.cross_entropy(rows, classes)
