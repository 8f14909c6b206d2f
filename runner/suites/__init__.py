"""The suites, a folder each: `__init__.py` defines SUITE in plain Python, `run.py` measures with torch.

A new suite is a folder and a line here.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module

from runner.schema.metrics import GPT_FAST_SIZES
from runner.schema.suite import SUITES, UNLISTED, suite_of
from runner.suites.cache import DEFAULTS
from runner.suites.file import file_suite

__all__ = ["CEILINGS", "ENVIRONMENTS", "PRESETS", "SUITES", "suite_of"]

CEILINGS = "ceilings"  # the suite that measures what a host itself reaches
CANARY = "canary"  # the interpreter that does so where a host has it: it stays as it is
for _folder in (
    *("huggingface", "timm", "torchbench", "micro", "operators", "gpt_fast", "cache", "xla", "kernels"),
    CEILINGS,
):
    _suite = import_module(f"runner.suites.{_folder}").SUITE
    SUITES[_suite.name] = _suite
UNLISTED["file"] = file_suite

# What `runner env` builds by name: torch_xla is made for one release of torch, which has its own torchvision.
ENVIRONMENTS: Mapping[str, Sequence[str]] = {
    # inductor compiles C++ by setuptools, which no package of these asks for
    "xla": (
        *("torch==2.9.0", "torch_xla==2.9.0", "torchvision==0.24.0"),
        *("timm", "transformers", "numpy", "setuptools"),
    ),
    CANARY: ("torch==2.9.0", "numpy"),
    "torchao": ("torch", "torchao", "numpy"),
}


def command_that_adds(package: str) -> str:
    """Return the command that gives a host an interpreter with a package, which its agent then offers."""
    own = {"torch_xla": "xla", "torchao": "torchao"}
    return f"python -m runner env {own[package]}" if package in own else f"python -m pip install {package}"


_SIZES = "+".join(map(str, GPT_FAST_SIZES))
_KERNELS = ("layer_norm", "gemv", "gather_gemv", "mlp_layer_norm_gelu")
# operatorbench has no valid inputs for these, and leaves out convolutions
_SKIPPED = r"gather|nll_loss|aten\.index|aten\.scatter_|masked_fill_\.Scalar|convolution"

# Presets: the measurements that each outside system's own script makes without options, as options of
# `runner run`.
PRESETS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "torchdynamo": {
        "suites": ["torchbench", "huggingface", "timm"],
        "modes": ["inference", "training"],
        "dtypes": ["float32"],
        "backends": ["inductor"],
    },
    "cachebench": {"suites": ["cache"], "cases": DEFAULTS},
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
    "xla": {"suites": ["xla"], "cases": [case.name for case in SUITES["torchbench"].cases]},
}
