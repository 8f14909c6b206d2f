"""torchbench's models: those of torchvision from there, the others from an installed checkout."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch

from runner.catalog.suites.torchbench import OF_TORCHVISION
from runner.failures import TaskFailure
from runner.suites.torchdynamo.models.built import TINY_BATCH, Built, mean_of
from runner.suites.torchdynamo.models.vision import torchvision

CHECKOUT = "TORCHBENCH"  # environment variable: the folder that holds the package torchbenchmark
_IMAGE = 224
_TINY_IMAGE = 64
_INFERENCE_ONLY = (
    "llama",
    "pyhpc_equation_of_state",
    "pyhpc_isoneutral_mixing",
    "pyhpc_turbulent_kinetic_energy",
)
_CUDA_ONLY = ("moco",)
_BATCH_NOT_FIRST = (  # the size is spread over several dimensions, or is not the batch
    "pyhpc_equation_of_state",
    "pyhpc_isoneutral_mixing",
    "pyhpc_turbulent_kinetic_energy",
    "dlrm",
)


def build(
    case: str,
    *,
    device: str,
    batch_size: int | None,
    tiny: bool,
    training: bool,
    dropout: bool,
    checkpointing: bool,
) -> Built:
    """The model of a case. Raises TaskFailure (unsupported) where it needs a checkout that is not here."""
    if checkpointing:
        raise NotImplementedError("the harness checkpoints no activations in this suite")
    if tiny and batch_size is not None:
        batch_size = min(batch_size, TINY_BATCH)
    if case in OF_TORCHVISION:
        built = _of_torchvision(case, device, batch_size or 1, tiny)
        if dropout:  # not in an accuracy check
            torch.backends.cudnn.benchmark = True  # as torchbench's own class of these models
    else:
        built = _of_checkout(case, device, batch_size, training=training)
        if tiny:
            built.size_note = f"reduced: batch of {built.batch_size}"
    if not dropout:
        for module in built.module.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd):
                module.p = 0.0
    return built


def _of_torchvision(case: str, device: str, batch_size: int, tiny: bool) -> Built:
    with torch.device(device):
        module = getattr(torchvision().models, case)(weights=None)
    image = _TINY_IMAGE if tiny else _IMAGE
    return Built(
        module=module,
        inputs=(torch.randn(batch_size, 3, image, image, device=device),),
        loss=mean_of,
        batch_size=batch_size,
        size_note=f"reduced: images of {image}×{image}" if tiny else "",
    )


def _of_checkout(case: str, device: str, batch_size: int | None, *, training: bool) -> Built:
    if device == "meta":
        raise NotImplementedError("a checkout's models change settings and read data where they are built")
    if training and case in _INFERENCE_ONLY:
        raise TaskFailure("unsupported", "inference_only", f"{case} cannot be trained")
    if device == "cpu" and case in _CUDA_ONLY:
        raise TaskFailure("unsupported", "cuda_only", f"{case} runs on CUDA only")
    kind = _model_class(case)
    if not getattr(kind, "ALLOW_CUSTOMIZE_BSIZE", True):
        batch_size = None
    benchmark = kind(
        test="train" if training else "eval", device=device, batch_size=batch_size, extra_args=[]
    )
    module, inputs = benchmark.get_module()
    return Built(
        module=module,
        inputs=inputs if isinstance(inputs, dict) else tuple(inputs),
        loss=mean_of,
        batch_size=int(benchmark.batch_size),
        batched=case not in _BATCH_NOT_FIRST,
    )


def _model_class(case: str) -> Any:
    folder = os.environ.get(CHECKOUT)
    if folder and folder not in sys.path:
        sys.path.append(folder)
    torchvision()
    try:
        return importlib.import_module(f"torchbenchmark.models.{case}").Model
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "torchbenchmark":
            reason = (
                f"{case} comes with torchbench's repository: install it, "
                f"or name its folder in the variable {CHECKOUT} of this interpreter"
            )
        else:
            reason = f"{case} of the installed torchbench needs the package {error.name!r}"
        raise TaskFailure("unsupported", "no_torchbench", reason) from error
