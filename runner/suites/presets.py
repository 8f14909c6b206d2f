"""Presets: the measurements that each outside system's own script makes without options, as options of
`runner run`. Names are fields of `runner.cli.request.Request`."""

from collections.abc import Mapping, Sequence

from runner.schema.metrics import GPT_FAST_SIZES
from runner.suites import cache, torchbench

_SIZES = "+".join(map(str, GPT_FAST_SIZES))
_KERNELS = ("layer_norm", "gemv", "gather_gemv", "mlp_layer_norm_gelu")
# operatorbench has no valid inputs for these, and leaves out convolutions
_SKIPPED = r"gather|nll_loss|aten\.index|aten\.scatter_|masked_fill_\.Scalar|convolution"

PRESETS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "torchdynamo": {
        "suites": ["torchbench", "huggingface", "timm"],
        "modes": ["inference", "training"],
        "dtypes": ["float32"],
        "backends": ["inductor"],
    },
    "cachebench": {"suites": ["cache"], "cases": cache.DEFAULTS},
    "operatorbench": {
        "suites": ["operators"],
        "dtypes": ["float32"],
        "options": ["inputs=torchbench"],
        "exclude": _SKIPPED,
    },
    "gpt_fast": {
        "suites": ["micro", "gpt_fast"],
        "cases": [*(f"{name}[D={_SIZES}]" for name in _KERNELS), "Llama-2-7b-chat-hf", "Mixtral-8x7B-v0.1"],
    },
    "xla": {"suites": ["xla"], "cases": [case.name for case in torchbench.SUITE.cases]},
}
