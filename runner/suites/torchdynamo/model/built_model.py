"""The request for a model, the model that a suite's file builds for it, and the losses of a training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Loss = Callable[[Any], torch.Tensor]  # of the module's output
Inputs = dict[str, Any] | tuple[Any, ...]


@dataclass(frozen=True)
class ModelRequest:
    """The size and mode of a case's model. Without `dropout` every probability is 0, as for accuracy."""

    device: str
    batch_size: int | None
    tiny: bool = False
    training: bool = False
    dropout: bool = True
    checkpointing: bool = False  # of activations


@dataclass
class BuiltModel:
    """A model in float32 on its device. `loss` is the suite's own, of the module's output.

    `batched` says that the first dimension of the inputs is the batch and may have another size.
    """

    module: torch.nn.Module
    inputs: Inputs
    loss: Loss
    batch_size: int
    size_note: str = ""  # how a reduced model differs from the real one; '' for the real one
    batched: bool = True


def without_dropout(module: torch.nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0


def mean_of(output: Any) -> torch.Tensor:
    """Return the harness's loss where it takes none of the model: the mean of the tensors' means."""
    if isinstance(output, torch.Tensor):
        return output.sum() / output.numel()
    parts = list(output.values()) if isinstance(output, dict) else list(output)
    total: Any = sum(mean_of(part) for part in parts)
    return total / len(parts)


def loss_of(name: str, native: Loss) -> Loss:
    """Return the loss by that name, a function of the module's output: `native`, or one of three others."""
    others: dict[str, Loss] = {
        "sum": lambda output: _main_output(output).sum(),
        "mean": lambda output: _main_output(output).mean(),
        "cross_entropy": _cross_entropy,
    }
    return others.get(name, native)


def _main_output(output: Any) -> torch.Tensor:
    """Return the logits, or the first tensor."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        return _main_output(output["logits"] if "logits" in output else next(iter(output.values())))
    return _main_output(output[0])


def _cross_entropy(output: Any) -> torch.Tensor:
    """Take each row's class from its number alone, so that a batch may have any size."""
    logits = _main_output(output)
    rows = logits.reshape(-1, logits.shape[-1])
    classes = torch.arange(rows.shape[0], device=rows.device) % rows.shape[1]
    return torch.nn.functional.cross_entropy(rows, classes)
