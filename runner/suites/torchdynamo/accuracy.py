"""Check whether the compiled step is right, by the harness's procedure, in a process of its own.

A float64 copy gives the reference; eager mode runs twice and has to give the same bits; then the compiled
step runs, under the harness's tolerances for this model. Where the harness guesses, this does not: a result
that cannot be compared is not called wrong, no model passes without a comparison unless eager itself has no
deterministic algorithms for it, and a check without a reference is by cosine and says so.
"""

import contextlib
import dataclasses
import gc
import math
import os
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor import config as inductor
from torch.utils import _pytree as pytree

from runner.formats.metric_values import status_of
from runner.launch.failures import failure_of
from runner.measure.state.device import SEED
from runner.schema.records import Json
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo.comparison import EXACT, Comparison, compare
from runner.suites.torchdynamo.model import LoadedModel, Step, StepFunction, cast, cast_module, dtype_of, load
from runner.suites.torchdynamo.rules import AccuracyRules, accuracy_rules, has

_NO_REFERENCE = "none"
_LARGE_PARAMETERS = 2_000_000_000  # from here the reference is float32, on the logits

CompileStep = Callable[[Step], StepFunction]


@dataclass(frozen=True)
class AccuracyResult:
    """`status` is one of ours, `code` the harness's word. `details` stand beside the value in its record."""

    status: str
    code: str
    rmse_ratio: float | None = None  # error of compiled over error of eager, against the reference
    cosine: float | None = None  # compiled to eager; both are NaN or infinite where the result is so
    details: dict[str, Json] = field(default_factory=dict)


@dataclass(eq=False)
class _Ended(Exception):
    """Ends the check with this code; `status` is given where the code does not imply it."""

    code: str
    reason: str = ""
    status: str = ""


@contextlib.contextmanager
def _ending(oom: str, failed: str) -> Iterator[None]:
    """Raise _Ended with the first code where memory runs out in this block, with the second for any other
    exception but an unsupported backend."""
    try:
        yield
    except Exception as error:
        failure = failure_of(error)
        if failure.status == "unsupported":
            raise
        traceback.print_exc()
        status = failure.status if failure.status in ("crashed", "timed_out") else ""
        raise _Ended(oom if failure.status == "oom" else failed, failure.reason, status) from error


def check(spec: TaskSpec, compile_step: CompileStep) -> AccuracyResult:
    """Run the whole procedure. `compile_step` is given a step before it has run.

    Raise TaskFailure where the model cannot be loaded, or the backend does not support what is asked.
    """
    make_deterministic(spec)
    procedure = _check
    if spec.knobs.get("batch_invariant"):
        procedure, spec = _check_batch_invariance, dataclasses.replace(spec, mode="inference")
    details: dict[str, Json] = {}
    reseed()
    try:
        with torch.set_grad_enabled(spec.mode == "training"):
            return procedure(spec, compile_step, details)
    except _Ended as ended:
        status = ended.status or status_of(ended.code) or "failed"
        return AccuracyResult(status, ended.code, details={**details, "reason": ended.reason})


def _check(spec: TaskSpec, compile_step: CompileStep, details: dict[str, Json]) -> AccuracyResult:
    model = load(spec, for_accuracy=True, dtype=torch.float32)
    rules = accuracy_rules(spec)
    steps = spec.number("iterations")
    details |= {"batch_size": model.batch_size, "steps": steps, "tolerance": rules.tolerance}
    details |= {"size_note": model.size_note} if model.size_note else {}
    compared = _compared(spec, model, rules, compile_step, details)
    errors = compared.errors
    if errors.not_finite:
        lost = f"; in {errors.lost} of these places eager has a number" if errors.lost else ""
        counted = f"{errors.not_finite} of {errors.numbers} numbers are NaN or infinite"
        details["not_finite"] = f"{counted}, which no distance counts{lost}"
    ratio, cosine = errors.rmse_ratio, errors.cosine
    if compared.same:
        if ratio == math.inf:
            details["rmse_ratio"] = "none: eager has no error at all"
            ratio = None
        return AccuracyResult("ok", "pass", ratio, cosine, details)
    if errors.lost:  # no number says how far away that is
        referenced = not str(details["reference"]).startswith(_NO_REFERENCE)
        ratio, cosine = math.inf if referenced else None, math.nan
    return AccuracyResult("wrong", "fail_accuracy", ratio, cosine, {**details, "reason": compared.reason})


def _compared(
    spec: TaskSpec,
    model: LoadedModel,
    rules: AccuracyRules,
    compile_step: CompileStep,
    details: dict[str, Json],
) -> Comparison:
    large = model.parameters >= _LARGE_PARAMETERS
    reference = _reference(spec, model, torch.float32 if large else torch.float64, details)
    cast_module(model.module, dtype_of(spec))
    model.inputs = cast(model.inputs, dtype_of(spec))
    eager = _run(spec, model, _eager_step, "eager_1st_run")
    again = _run(spec, model, _eager_step, "eager_2nd_run")
    equal_nan = spec.dtype != "float32"
    if not rules.skip:
        twice = _compare(eager, again, None, dataclasses.replace(EXACT, equal_nan=equal_nan))
        if not twice.same:
            raise _Ended("eager_two_runs_differ", twice.reason)
    del again
    torch._dynamo.reset()
    result = _run(spec, model, compile_step, "")
    if rules.skip:
        raise _Ended("pass_due_to_skip", rules.skip)
    if large:
        eager, result, reference = (
            {"logits": part["logits"]} if isinstance(part, dict) and "logits" in part else part
            for part in (eager, result, reference)
        )
    # Freezing folded constants into bfloat16 convolutions, which moves results.
    folded = torch._dynamo.utils.counters["inductor"]["binary_folding_conv"] > 0
    rules = dataclasses.replace(
        rules,
        cosine=rules.cosine or reference is None or (large and spec.dtype == "float32"),
        equal_nan=equal_nan,
        widest=folded and spec.dtype == "bfloat16",
    )
    details["compared_by"] = "cosine" if rules.cosine else "tolerance and error"
    return _compare(eager, result, reference, rules, measured=True)


def _reference(spec: TaskSpec, model: LoadedModel, dtype: torch.dtype, details: dict[str, Json]) -> Any:
    """Return eager's results in `dtype`, or None where it cannot run in that; note in `details` which."""
    try:
        precise = model.copy()
        cast_module(precise.module, dtype)
        precise.inputs = cast(precise.inputs, dtype)
        plain = dataclasses.replace(spec, dtype="float32")  # no autocast around float64
        steps = _steps_of(plain, precise, _eager_step)
        details["reference"] = str(dtype).removeprefix("torch.")
        return cast(steps, dtype)
    except Exception as error:
        if failure_of(error).status == "crashed":
            raise
        traceback.print_exc()
        details["reference"] = f"{_NO_REFERENCE}: {failure_of(error).reason}"
        return None
    finally:
        _release(spec)


def _run(spec: TaskSpec, model: LoadedModel, make: CompileStep, stage: str) -> Any:
    """Return the results of a fresh copy. Raise _Ended with the stage's code where it does not run."""
    reseed()
    try:
        with _ending(f"{stage}_OOM" if stage else "OOM", f"{stage}_fail" if stage else "fail_to_run"):
            return _steps_of(spec, model.copy(), make)
    finally:
        _release(spec)


def _steps_of(spec: TaskSpec, model: LoadedModel, make: CompileStep) -> Any:
    step = Step(model, spec, for_accuracy=True)
    function = make(step)
    result = None
    for _ in range(spec.number("iterations")):
        step.begin()
        result = function(model.inputs)
    # Copied, since CUDA graphs reuse the memory of their outputs.
    outputs = pytree.tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.detach().clone(),
        step.outputs_for_comparison(result, model.inputs),
    )
    return dict(outputs) if isinstance(outputs, dict) else outputs


def _eager_step(step: Step) -> StepFunction:
    return step.function


def _compare(eager: Any, result: Any, reference: Any, rules: AccuracyRules, **how: bool) -> Comparison:
    """Compare as `compare` does. Raise _Ended where it cannot."""
    with _ending("OOM", "infra_error"):
        return compare(eager, result, reference, rules, **how)


def _release(spec: TaskSpec) -> None:
    """Free the memory of a finished run on a GPU, where several copies of a model are tight."""
    if spec.device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def _check_batch_invariance(
    spec: TaskSpec, compile_step: CompileStep, details: dict[str, Json]
) -> AccuracyResult:
    """Check that a row's result does not depend on its batch, as the harness does: bit for bit, forward only.

    Compile for the whole batch, for half of it, … for 1, each afresh, and compare the rows that they share.
    Parts of a result without the batch as first dimension are left out.
    """
    exact = dataclasses.replace(EXACT, equal_nan=spec.dtype != "float32")
    model = load(spec, for_accuracy=True)
    size = details["batch_size"] = model.batch_size
    if not model.batched or size < 2:
        raise _Ended("pass_due_to_skip", "there is no batch to take parts of")
    whole: Any = None
    while size >= 1:
        with _ending("OOM", "fail_to_run" if whole is None else f"fail_to_run_at_batch_{size}"):
            reseed()
            torch._dynamo.reset()
            part = dataclasses.replace(model, inputs=model.inputs_at(size)).copy()
            step = Step(part, spec, for_accuracy=True)
            step.begin()
            result = compile_step(step)(part.inputs)
        whole = result if whole is None else whole
        found = _compare(_rows(whole, model.batch_size, size), _rows(result, size, size), None, exact)
        if not found.same:
            raise _Ended(f"fail_batch_invariance_at_{size}", found.reason)
        size //= 2
    return AccuracyResult("ok", "pass", details=details)


def _rows(result: Any, batch: int, size: int) -> Any:
    """Return the first rows of every tensor that has `batch` rows; the rest becomes None."""

    def rows(value: Any) -> torch.Tensor | None:
        has_rows = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == batch
        return value[:size] if has_rows else None

    return pytree.tree_map(rows, dict(result) if isinstance(result, dict) else result)


def make_deterministic(spec: TaskSpec) -> None:
    """Switch on deterministic algorithms, float32 sums and eager's random numbers in compiled code; TF32 off.

    Call it before any matrix product: cuBLAS reads its variable when its first handle is made.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(not has(spec, "no_deterministic_algorithms"))
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
    backends = torch.backends
    switches = [
        (inductor, "fallback_random", True),
        (backends.cudnn, "deterministic", True),
        (backends.cudnn, "benchmark", False),
        (backends.cudnn, "allow_tf32", False),
        (backends.mkldnn, "deterministic", True),
    ]
    if spec.knobs.get("batch_invariant"):
        switches += [(inductor, "batch_invariant", True), (inductor.triton, "cudagraphs", False)]
    if has(spec, "no_split_sums") or spec.knobs.get("batch_invariant"):
        switches.append((backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False))
        switches.append((backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False))
    for module, name, value in switches:
        if hasattr(module, name):  # not every release has them all
            setattr(module, name, value)


def reseed() -> None:
    """Start the same random numbers again, on every device."""
    random.seed(SEED)
    torch.manual_seed(SEED)
