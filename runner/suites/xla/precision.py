"""Threads and precision of float32 products, in the stage that works with them."""

from __future__ import annotations

import torch

from runner.catalog import TaskSpec
from runner.measure.device import prepare


def fix_precision(spec: TaskSpec) -> None:
    """As PyTorch/XLA's runner: fast products unless told otherwise. What was asked for always wins."""
    prepare(spec.device)
    asked = spec.setting("matmul_precision")
    plain = "highest" if spec.setting("disable_tf32") else "high"
    torch.set_float32_matmul_precision(str(asked or plain))
