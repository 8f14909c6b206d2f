"""torchbench's models: those of torchvision from there, the others from an installed checkout."""

import importlib
import inspect
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runner.launch.failures import TaskFailure
from runner.suites.torchbench import CHECKOUT
from runner.suites.torchdynamo import has_trait, model
from runner.suites.torchdynamo.model import LoadedModel, ModelRequest, fetching, mean_of, torchvision

_IMAGE = 224
_TINY_IMAGE = 64
_has = partial(has_trait, "torchbench")


def build(case: str, request: ModelRequest) -> LoadedModel:
    """Build the model of a case. Raise TaskFailure (unsupported) where its checkout is missing."""
    if request.checkpointing:
        raise NotImplementedError("the harness checkpoints no activations in this suite")
    if _has(case, "torchvision"):
        built = _of_torchvision(case, request)
        if request.dropout:  # not in an accuracy check
            torch.backends.cudnn.benchmark = True  # as torchbench's own class of these models
    else:
        built = _of_checkout(case, request)
        if request.tiny:
            built.size_note = f"reduced: batch of {built.batch_size}"
    if not request.dropout:
        model.without_dropout(built.module)
    return built


def _of_torchvision(case: str, request: ModelRequest) -> LoadedModel:
    models = torchvision().models
    weights = models.get_model_weights(case).DEFAULT if request.real_weights else None
    with torch.device(request.device), fetching(weights.url if weights else ""):
        module = getattr(models, case)(weights=weights)
    image = _TINY_IMAGE if request.tiny else _IMAGE
    batch_size = request.batch_size or 1
    return LoadedModel(
        module=module,
        inputs=(torch.randn(batch_size, 3, image, image, device=request.device),),
        loss=mean_of,
        batch_size=batch_size,
        size_note=f"reduced: images of {image}×{image}" if request.tiny else "",
    )


def _of_checkout(case: str, request: ModelRequest) -> LoadedModel:
    if request.device == "meta":
        raise NotImplementedError("a checkout's models change settings and read data where they are built")
    if request.real_weights:
        raise TaskFailure("unsupported", "no_weights", "models of the checkout make their own weights")
    if request.training and _has(case, "inference_only"):
        raise TaskFailure("unsupported", "inference_only", f"{case} cannot be trained")
    if request.device == "cpu" and _has(case, "cuda_only"):
        raise TaskFailure("unsupported", "cuda_only", f"{case} runs on CUDA only")
    kind = _model_class(case)
    with fetching(f"what its install.py downloads, in {Path(inspect.getfile(kind)).parent}"):
        benchmark = kind(
            test="train" if request.training else "eval",
            device=request.device,
            batch_size=request.batch_size if getattr(kind, "ALLOW_CUSTOMIZE_BSIZE", True) else None,
            extra_args=[],
        )
    module, inputs = benchmark.get_module()
    return LoadedModel(
        module=module,
        inputs=inputs if isinstance(inputs, dict) else tuple(inputs),
        loss=mean_of,
        batch_size=int(benchmark.batch_size),
        # else the size is spread over several dimensions, or is not the batch
        batched=not _has(case, "batch_not_first"),
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
            there = f"install it, or name its folder in the variable {CHECKOUT} of this interpreter"
            reason = f"{case} comes with torchbench's repository: {there}"
        else:
            reason = f"{case} of the installed torchbench needs the package {error.name!r}"
        raise TaskFailure("unsupported", "no_torchbench", reason) from error
