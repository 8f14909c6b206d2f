"""Build the model of a user's own file: its `build()` returns a module or any callable, with its inputs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from runner.launch.failures import TaskFailure
from runner.suites.file import imported, own_file
from runner.suites.torchdynamo import model

_MODULE = "runner_own_file"


def build(case: str, request: model.ModelRequest) -> model.LoadedModel:  # noqa: ARG001 - there is only one
    """Call the file's `build()`. Raise TaskFailure (failed, bad_file) unless it returns a callable and its
    inputs: a tensor, a tuple or a dict."""
    if request.batch_size is not None or request.tiny or request.checkpointing or request.real_weights:
        raise NotImplementedError("a file of one's own has the size that its build() gives it")
    path = own_file()
    assert path is not None  # the catalogue knows the case only where there is one
    try:
        with torch.device(request.device):
            made = _build_function(path)()
    except SystemExit as error:
        raise _bad_file(f"{path.name} ends its process: exit({error.code})") from error
    if not isinstance(made, tuple | list) or len(made) != 2 or not callable(made[0]):
        raise _bad_file("build() returns (module or callable, inputs)")
    called, inputs = made
    module = called if isinstance(called, torch.nn.Module) else model.Called(called)
    module = module.to(request.device)
    if not request.dropout:
        model.without_dropout(module)
    inputs = pytree.tree_map_only(torch.Tensor, lambda one: one.to(request.device), _inputs(inputs))
    sizes = {len(value) for value in model.tensors_in(inputs) if value.dim()}
    batched = len(sizes) == 1
    return model.LoadedModel(module, inputs, model.mean_of, sizes.pop() if batched else 1, batched=batched)


def _bad_file(reason: str) -> TaskFailure:
    return TaskFailure("failed", "bad_file", reason)


def _build_function(path: Path) -> Callable[[], Any]:
    """Import the file as Python would: it may import its neighbours."""
    if path.suffix != ".py":
        raise _bad_file(f"{path.name} is no Python file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    build = getattr(imported(path, _MODULE), "build", None)
    if not callable(build):
        raise _bad_file(f"{path.name} has no function build()")
    return build


def _inputs(inputs: Any) -> model.Inputs:
    if torch.is_tensor(inputs):
        return (inputs,)
    if isinstance(inputs, tuple | list):
        return tuple(inputs)
    if isinstance(inputs, dict):
        return inputs
    raise _bad_file("the inputs of build() are a tensor, a tuple or a dict")
