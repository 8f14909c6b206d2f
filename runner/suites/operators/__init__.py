"""operatorbench: one operator at a time, eager against inductor, over shapes that models really call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.schema.metrics import STEP_METRICS
from runner.schema.options import EXPLAIN_FAILURE, Option, OptionValue, choice, count, repeat, switch
from runner.schema.suite import Case, Expected, Suite, TaskSpec

OWN = "own"
OWN_INPUTS = "RUNNER_OPERATOR_INPUTS"  # of a host: the file behind `inputs=own`
INPUTS = ("huggingface", "timm", OWN)
_DIGITS = 8
_OWN_NAME = f"{OWN}(-[0-9a-f]{{{_DIGITS}}})?"
_SHAPE = r"(\S{0,200}#[0-9a-f]{8})?"  # '' for the quantiles over all calls
_DTYPES = ("float16", "float32", "bfloat16")
# In the order in which models of both kinds call them.
TWENTY = tuple(
    f"aten.{name}"
    for name in (
        *("copy_.default", "clone.default", "add.Tensor", "sum.dim_IntList", "mm.default", "addmm.default"),
        *("_log_softmax.default", "mul.Tensor", "bmm.default", "mean.dim", "_softmax.default"),
        *("native_layer_norm.default", "div.Tensor", "cat.default", "relu_.default", "gelu.default"),
        *("convolution.default", "native_batch_norm.default", "embedding.default"),
        "nll_loss_forward.default",
    )
)
_FURTHER = tuple(
    f"aten.{name}"
    for name in (
        *("_log_softmax_backward_data.default", "_softmax_backward_data.default", "_to_copy.default"),
        *("add_.Tensor", "convolution_backward.default", "embedding_dense_backward.default"),
        *("gather.default", "gelu_backward.default", "hardtanh_.default", "index.Tensor"),
        *("index_select.default", "max_pool2d_with_indices.default"),
        *("max_pool2d_with_indices_backward.default", "native_batch_norm_backward.default"),
        *("native_layer_norm_backward.default", "nll_loss_backward.default"),
        *("pow.Tensor_Scalar", "relu.default", "rsqrt.default"),
        *("sigmoid.default", "silu_.default", "sub.Tensor", "tanh.default", "threshold_backward.default"),
        "where.self",
    )
)

_QUANTILES = ("20th", "50th", "80th")
METRICS_CUDA = ("device_latency_ms", "device_speedup")
_CALL_QUANTILES = tuple(f"call_{quantile}" for quantile in _QUANTILES)  # without operatorbench's own clock


@dataclass(frozen=True)
class OperatorSuite(Suite):
    """A task measures the quantiles over the recorded calls of an operator, and each call."""

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        knobs = {**task.identity(), "inputs": inputs_name(str(task.setting("inputs")), variables)}
        quantiles = _CALL_QUANTILES if task.compilation else _QUANTILES
        metrics = call_metrics(task) if task.setting("shape") else quantiles
        return [Expected(task.case, task.backend, task.device, knobs, metrics)]

    def expected_in_full(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        """Add an experiment for each recorded call."""
        (whole,) = self.expected(task, variables)
        if task.setting("shape"):
            return [whole]
        from runner.suites.operators.inputs import BadInputs, calls_of_task  # noqa: PLC0415 - imports this

        try:
            calls = calls_of_task(task, variables)
        except (BadInputs, OSError):
            return [whole]
        metrics = call_metrics(task)
        of_calls = (
            replace(whole, knobs={**whole.knobs, "shape": call.label}, metrics=metrics) for call in calls
        )
        return [whole, *of_calls]

    def open_knobs(self, task: TaskSpec) -> dict[str, str]:
        found = {} if task.setting("shape") else {"shape": _SHAPE}
        return {**found, "inputs": _OWN_NAME} if task.setting("inputs") == OWN else found

    def files_digest(self, task: TaskSpec, variables: Mapping[str, str]) -> str:
        return digest_of_own(variables) if task.setting("inputs") == OWN else ""

    def asked_knobs(self, stored: Mapping[str, Any]) -> dict[str, OptionValue]:
        """Ask for the host's own file without the digest that results carry."""
        own = str(stored.get("inputs", "")).startswith(f"{OWN}-")
        return {**stored, "inputs": OWN} if own else dict(stored)


def call_metrics(task: TaskSpec) -> tuple[str, ...]:
    """Return the metrics of one recorded call."""
    on_cuda = task.device == "cuda" and task.setting("graph_replay")
    return (*STEP_METRICS, *(METRICS_CUDA if on_cuda else ()))


def inputs_name(asked: str, variables: Mapping[str, str]) -> str:
    """Return what results call these inputs: with the digest of a file of one's own, since another file is
    another experiment."""
    digest = digest_of_own(variables) if asked == OWN else ""
    return f"{OWN}-{digest}" if digest else asked


def digest_of_own(variables: Mapping[str, str]) -> str:
    """Return a digest of the file behind `inputs=own`, where these are the variables of the environment; ''
    if there is none that can be read."""
    try:
        content = Path(variables[OWN_INPUTS]).read_bytes()
    except (KeyError, OSError):
        return ""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


SUITE = OperatorSuite(
    name="operators",
    title="Operators over recorded shapes, eager against inductor",
    class_packages=("numpy",),
    headline_metrics=("50th", "20th", "80th", "device_speedup", "abs"),
    reference_backends=("eager",),
    cases=tuple(
        Case(name, f"{name.split('.')[1]} over its recorded shapes", _DTYPES) for name in TWENTY + _FURTHER
    ),
    case_groups={"frequent": TWENTY},
    backends=("inductor", "autotune"),
    compiles=True,
    options=(
        choice("inputs", f"whose recorded calls; own: the log that {OWN_INPUTS} names on the host", *INPUTS),
        Option("shape", "word", "one recorded call only, by its name in the results"),
        count("max_samples", "recorded calls of an operator, the most frequent first", 1, 1000, 15),
        count("start_idx", "recorded calls to leave out at the start", 0, 1000, 0),
        repeat("samples of call time for each call, at least", 5, 1000, 30),
        Option("graph_replay", "bool", "device time too", default=True, identity=False),
        switch("channels_last", "tensors of four dimensions lie channels last"),
        EXPLAIN_FAILURE,
    ),
    timeout_s=1800,
    axes=(("dtype", ("float16",)),),
)
