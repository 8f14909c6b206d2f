"""What an accuracy check says, and what it is given."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree as pytree

from runner.catalog.codes import status_of
from runner.records import Json
from runner.suites.torchdynamo.loaded_model import LoadedModel, fresh
from runner.suites.torchdynamo.step import Step, StepFunction

CompileStep = Callable[[Step, LoadedModel], StepFunction]
Load = Callable[..., LoadedModel]


@dataclass(frozen=True)
class AccuracyResult:
    """`status` is one of ours, `code` the harness's word. `details` are told beside the value."""

    status: str
    code: str
    rmse_ratio: float | None = None  # error of compiled over error of eager, against the reference
    cosine: float | None = None  # compiled to eager; both are NaN or infinite where the result is so
    details: dict[str, Json] = field(default_factory=dict)


def result_of(code: str, details: dict[str, Json], reason: str = "", status: str = "") -> AccuracyResult:
    """The result of a check that ends with `code`; `status` where the code alone says too little."""
    told = details | ({"reason": reason} if reason else {})
    return AccuracyResult(status or status_of(code) or "failed", code, details=told)


def copy_of(model: LoadedModel) -> LoadedModel:
    """The same model and inputs in memory of their own; no input has a gradient yet."""
    inputs = pytree.tree_map(fresh, model.inputs)
    return dataclasses.replace(model, module=copy.deepcopy(model.module), inputs=inputs)


def kept(value: object) -> object:
    """A tensor that nobody writes again: CUDA graphs reuse the memory of their outputs."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
