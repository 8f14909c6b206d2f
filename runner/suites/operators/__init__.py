"""operatorbench: one operator at a time, eager against inductor, over shapes that models really call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from runner.schema.options import count, repeat, switch
from runner.schema.suite import Case, Knob, Suite

FREQUENT = "frequent"  # the case that is the twenty most frequent ones, in one task
OWN = "own"
OWN_INPUTS = "RUNNER_OPERATOR_INPUTS"  # of a host: the file behind `inputs=own`
INPUTS = ("huggingface", "timm", OWN)
_DIGITS = 8
_DTYPES = ("float16", "float32", "bfloat16")
# In the order in which models of both kinds call them.
TWENTY = (
    "aten.copy_.default",
    "aten.clone.default",
    "aten.add.Tensor",
    "aten.sum.dim_IntList",
    "aten.mm.default",
    "aten.addmm.default",
    "aten._log_softmax.default",
    "aten.mul.Tensor",
    "aten.bmm.default",
    "aten.mean.dim",
    "aten._softmax.default",
    "aten.native_layer_norm.default",
    "aten.div.Tensor",
    "aten.cat.default",
    "aten.relu_.default",
    "aten.gelu.default",
    "aten.convolution.default",
    "aten.native_batch_norm.default",
    "aten.embedding.default",
    "aten.nll_loss_forward.default",
)
_FURTHER = (
    "aten._log_softmax_backward_data.default",
    "aten._softmax_backward_data.default",
    "aten._to_copy.default",
    "aten.add_.Tensor",
    "aten.convolution_backward.default",
    "aten.embedding_dense_backward.default",
    "aten.gather.default",
    "aten.gelu_backward.default",
    "aten.hardtanh_.default",
    "aten.index.Tensor",
    "aten.index_select.default",
    "aten.masked_fill.Scalar",
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool2d_with_indices_backward.default",
    "aten.native_batch_norm_backward.default",
    "aten.native_dropout.default",
    "aten.native_layer_norm_backward.default",
    "aten.nll_loss_backward.default",
    "aten.pow.Tensor_Scalar",
    "aten.relu.default",
    "aten.rsqrt.default",
    "aten.rsub.Scalar",
    "aten.scatter_.value",
    "aten.sigmoid.default",
    "aten.silu_.default",
    "aten.sub.Tensor",
    "aten.tanh.default",
    "aten.threshold_backward.default",
    "aten.where.self",
)

SUITE = Suite(
    name="operators",
    title="Operators over recorded shapes, eager against inductor",
    module="runner.suites.operators.run",
    cases=(
        Case(FREQUENT, "The twenty most frequent operators, one after the other", _DTYPES),
        *(
            Case(name, f"{name.split('.')[1]} over its recorded shapes", _DTYPES)
            for name in TWENTY + _FURTHER
        ),
    ),
    backends=("inductor", "autotune"),
    knobs=(
        Knob(
            "inputs",
            "choice",
            f"whose recorded calls; own: the log that {OWN_INPUTS} names on the host",
            choices=INPUTS,
            default="huggingface",
        ),
        Knob("shape", "word", "one recorded call only, by its name in the results"),
        count("max_samples", "recorded calls of an operator, the most frequent first", 1, 1000, 15),
        count("start_idx", "recorded calls to leave out at the start", 0, 1000, 0),
        repeat("samples of call time for each call, at least", 5, 1000, 30),
        Knob("graph_replay", "bool", "device time too", default=True, identity=False),
        switch("channels_last", "tensors of four dimensions lie channels last"),
    ),
    timeout_s=1800,
    axes=(("dtype", ("float16",)),),
)


def told_inputs(asked: str, variables: Mapping[str, str]) -> str:
    """As results name them: with the digest of one's own file, since another file is another experiment."""
    digest = digest_of_own(variables) if asked == OWN else ""
    return f"{OWN}-{digest}" if digest else asked


def asked_inputs(told: str) -> str:
    """As a task asks for them."""
    return OWN if told.startswith(f"{OWN}-") else told


def digest_of_own(variables: Mapping[str, str]) -> str:
    """Of the content of the file behind `inputs=own`, where these are the variables of the environment; ''
    where there is none that can be read."""
    try:
        content = Path(variables[OWN_INPUTS]).read_bytes()
    except (KeyError, OSError):
        return ""
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
