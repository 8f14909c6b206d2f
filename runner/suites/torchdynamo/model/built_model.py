"""The request for a model, and the model that a suite's file builds for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Loss = Callable[[Any], torch.Tensor]  # of the module's output
Inputs = dict[str, Any] | tuple[Any, ...]
_OPERATORS = ("nms", "qnms")  # of torchvision
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a library's declarations end with the object


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


class Called(torch.nn.Module):
    """A function, or a module, as a module without parameters of its own."""

    def __init__(self, called: Callable[..., Any]) -> None:
        super().__init__()
        self.called = called

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.called(*args, **kwargs)


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


def torchvision() -> Any:
    """Import torchvision. Beside a torch for CPUs the import of its CUDA build fails for missing operators.

    Declared without an implementation, they let the models, which use none, be built.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _declared:
            raise
    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(name + _SCHEMA)
    _declared.append(library)
    return importlib.import_module("torchvision")
