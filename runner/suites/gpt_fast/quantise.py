"""torchao's weight-only quantisation of a model's linear layers."""

import importlib
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from runner.launch.failures import TaskFailure


def quantise(model: nn.Module, how: str, layer: type[nn.Module]) -> None:
    """Quantise the weights of the layers of this very type in place. Raise TaskFailure (unsupported) where
    torchao is missing or has none for this device."""
    try:
        torchao: Any = importlib.import_module("torchao.quantization")
    except ImportError as error:
        reason = f"{error}: python -m pip install torchao, or python -m runner env torchao"
        raise TaskFailure("unsupported", "no_torchao", reason) from error
    for part in model.modules():
        if type(part) is layer:
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


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor, of a quantised one those of its parts."""
    if not is_traceable_wrapper_subclass(tensor):
        return tensor.numel() * tensor.element_size()
    names, _context = tensor.__tensor_flatten__()
    return sum(tensor_bytes(getattr(tensor, name)) for name in names)
