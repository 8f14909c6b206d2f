"""The switches of an accuracy check: two runs of the same code are to give the same bits."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import torch

from runner.catalog import TaskSpec
from runner.measure.device import SEED
from runner.suites.torchdynamo import rules

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_NO_SPLIT_SUMS = ("nvidia_deeprecommender",)


@contextlib.contextmanager
def deterministic(spec: TaskSpec) -> Iterator[None]:
    """Deterministic algorithms, no TF32, sums in float32, eager's random numbers in compiled code.

    All of it ends again. cuBLAS reads its variable when its first handle is made: this comes before any
    product of matrices.
    """
    precision, algorithms = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    half_sums = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    os.environ[_CUBLAS] = ":4096:8"
    torch.use_deterministic_algorithms(rules.deterministic_algorithms(spec))
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
    with contextlib.ExitStack() as switches:
        for place, name, value in _switches(spec):
            if hasattr(place, name):  # not every release has them all
                switches.callback(setattr, place, name, getattr(place, name))
                setattr(place, name, value)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(algorithms)
            torch.set_float32_matmul_precision(precision)
            torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(half_sums)
            os.environ.pop(_CUBLAS)


def _switches(spec: TaskSpec) -> list[tuple[Any, str, bool]]:
    import torch._inductor.config as inductor  # noqa: PLC0415 - takes a second

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
    if spec.case in _NO_SPLIT_SUMS or spec.knobs.get("batch_invariant"):
        switches.append((backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False))
        switches.append((backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False))
    return switches


def reseed() -> None:
    """The same random numbers again, on every device."""
    random.seed(SEED)
    torch.manual_seed(SEED)
