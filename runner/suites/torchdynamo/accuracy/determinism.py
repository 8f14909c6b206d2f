"""Make two runs of the same code give the same bits, for accuracy checks."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import torch

from runner.measure.state.device import SEED
from runner.schema.suite import TaskSpec
from runner.suites.torchdynamo import rules

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_NO_SPLIT_SUMS = ("nvidia_deeprecommender",)


@contextlib.contextmanager
def deterministic(spec: TaskSpec) -> Iterator[None]:
    """Switch on deterministic algorithms, float32 sums and eager's random numbers in compiled code; TF32 off.

    Restore everything on exit. Enter before any matrix product: cuBLAS reads its variable when its first
    handle is made.
    """
    with contextlib.ExitStack() as restored:
        sdp_half_sums = torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp
        restored.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
        restored.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        restored.callback(sdp_half_sums, torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed())
        restored.callback(os.environ.pop, _CUBLAS)
        os.environ[_CUBLAS] = ":4096:8"
        torch.use_deterministic_algorithms(spec.case not in rules.NOT_DETERMINISTIC_ALGORITHMS)
        torch.set_float32_matmul_precision("highest")
        sdp_half_sums(False)
        for module, name, value in _switches(spec):
            if hasattr(module, name):  # not every release has them all
                restored.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, value)
        yield


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
    """Start the same random numbers again, on every device."""
    random.seed(SEED)
    torch.manual_seed(SEED)
