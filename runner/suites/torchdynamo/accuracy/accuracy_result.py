"""The result of an accuracy check, and the types of what the check is given."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from torch.utils import _pytree as pytree

from runner.schema.records import Json
from runner.schema.statuses import status_of
from runner.suites.torchdynamo.model.loaded_model import LoadedModel, fresh
from runner.suites.torchdynamo.model.step import Step, StepFunction

CompileStep = Callable[[Step, LoadedModel], StepFunction]
Load = Callable[..., LoadedModel]


@dataclass(frozen=True)
class AccuracyResult:
    """`status` is one of ours, `code` the harness's word. `details` stand beside the value in its record."""

    status: str
    code: str
    rmse_ratio: float | None = None  # error of compiled over error of eager, against the reference
    cosine: float | None = None  # compiled to eager; both are NaN or infinite where the result is so
    details: dict[str, Json] = field(default_factory=dict)


def result_of(code: str, details: dict[str, Json], reason: str = "", status: str = "") -> AccuracyResult:
    """Return the result of a check that ends with `code`; `status` where the code does not imply it."""
    details = details | ({"reason": reason} if reason else {})
    return AccuracyResult(status or status_of(code) or "failed", code, details=details)


def copy_of(model: LoadedModel) -> LoadedModel:
    """Copy the module and its inputs; no input of the copy has a gradient yet."""
    inputs = pytree.tree_map(fresh, model.inputs)
    return dataclasses.replace(model, module=copy.deepcopy(model.module), inputs=inputs)
