"""Check that a row's result does not depend on its batch, as the harness does: bit for bit, forward only."""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any

import torch
from torch.utils import _pytree as pytree

from runner.launch.failures import failure_of
from runner.schema.records import Json
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo.accuracy.accuracy_result import (
    AccuracyResult,
    CompileStep,
    Load,
    copy_of,
    result_of,
)
from runner.suites.torchdynamo.accuracy.comparison import EXACT, NotComparable, compare
from runner.suites.torchdynamo.accuracy.determinism import deterministic, reseed
from runner.suites.torchdynamo.model.loaded_model import LoadedModel, load
from runner.suites.torchdynamo.model.step import Step


def check(spec: TaskSpec, compile_step: CompileStep, *, load: Load = load) -> AccuracyResult:
    """Compile for the whole batch, for half of it, … for 1, and compare the rows that they share.

    Each batch is compiled afresh; parts of a result without the batch as first dimension are left out.
    Raise TaskFailure where the model cannot be loaded, or the backend does not support what is asked.
    """
    forward_only = dataclasses.replace(spec, mode="inference")
    with deterministic(spec), torch.no_grad():
        reseed()
        model = load(forward_only, for_accuracy=True)
        batch = model.batch_size
        details: dict[str, Json] = {"batch_size": batch}
        if not model.batched or batch < 2:
            return result_of("pass_due_to_skip", details, "there is no batch to take parts of")
        code, reason = _compared(forward_only, model, compile_step)
    return result_of(code, details, reason)


def _compared(spec: TaskSpec, model: LoadedModel, compile_step: CompileStep) -> tuple[str, str]:
    """Return the harness's code and the reason."""
    whole: Any = None
    size = model.batch_size
    while size >= 1:
        try:
            reseed()
            torch._dynamo.reset()
            part = copy_of(dataclasses.replace(model, inputs=model.inputs_at(size)))
            step = Step(part, spec, for_accuracy=True)
            step.begin()
            result = compile_step(step, part)(part.inputs)
        except Exception as error:
            failure = failure_of(error)
            if failure.status == "unsupported":
                raise
            traceback.print_exc()
            failed = "fail_to_run" if whole is None else f"fail_to_run_at_batch_{size}"
            return ("OOM" if failure.status == "oom" else failed), failure.reason
        whole = result if whole is None else whole
        try:
            found = compare(
                _rows(whole, model.batch_size, size),
                _rows(result, size, size),
                None,
                dataclasses.replace(EXACT, equal_nan=spec.dtype != "float32"),
            )
        except NotComparable as error:
            return "infra_error", str(error)
        if not found.same:
            return f"fail_batch_invariance_at_{size}", found.reason
        size //= 2
    return "pass", ""


def _rows(result: Any, batch: int, size: int) -> Any:
    """Return the first rows of every tensor that has `batch` rows; the rest becomes None."""

    def rows(value: Any) -> torch.Tensor | None:
        has_rows = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == batch
        return value[:size] if has_rows else None

    return pytree.tree_map(rows, dict(result) if isinstance(result, dict) else result)
