"""torchvision, also where its compiled operators do not fit the installed torch."""

from __future__ import annotations

import importlib
from typing import Any

import torch

_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a library's declarations end with the object


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
