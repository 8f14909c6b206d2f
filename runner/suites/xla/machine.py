"""The device of a cell: whether it is there, its settings, waiting for it and its runtime's counts."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

from runner.formats.xla import Cell
from runner.launch.failures import TaskFailure
from runner.measure.state.device import SEED, prepare
from runner.schema.suite import TaskSpec

_HLO, _IR = "hlo", "ir"  # kinds of artifacts that XLA itself writes


def variables(spec: TaskSpec, cell: Cell) -> dict[str, str]:
    """Return the environment variables that must be set before torch_xla is imported."""
    if not cell.xla:
        return {}
    functional = spec.setting("enable_functionalization")
    return {
        "PJRT_DEVICE": cell.accelerator.upper(),
        "XLA_DISABLE_FUNCTIONALIZATION": "0" if functional else "1",
    }


def dumps(spec: TaskSpec, cell: Cell, artifacts: Path) -> dict[str, str]:
    """Return the environment variables that make XLA keep its HLO and IR."""
    found = {}
    if cell.xla and spec.setting("dump_hlo"):
        (artifacts / _HLO).mkdir(parents=True, exist_ok=True)
        found["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={artifacts / _HLO}".strip()
    form = spec.setting("save_ir_format")
    if cell.xla and form:
        (artifacts / _IR).mkdir(parents=True, exist_ok=True)
        found["XLA_SAVE_TENSORS_FMT"] = str(form)
        found["XLA_SAVE_TENSORS_FILE"] = str(artifacts / _IR / f"ir.{form}")
    return found


def keep_readable(artifacts: Path) -> None:
    """Keep only the HLO texts of XLA's dump: object files and LLVM's own are many times as large."""
    for path in (artifacts / _HLO).glob("*"):
        if path.suffix != ".txt" or "buffer-assignment" in path.name or "memory-usage" in path.name:
            path.unlink()


def check(cell: Cell) -> None:
    """Raise TaskFailure (unsupported) for a cell without its torch_xla, and do not import that."""
    if cell.xla and importlib.util.find_spec("torch_xla") is None:
        reason = f"torch_xla is not installed beside torch {torch.__version__}"
        raise TaskFailure("unsupported", "no_torch_xla", f"{reason}: take an interpreter that has it")


def set_precision(spec: TaskSpec) -> None:
    """Set this process's threads, and the precision of float32 products: by default that of its runner."""
    prepare(spec.device)
    torch.set_float32_matmul_precision(str(spec.setting("matmul_precision") or "high"))


class Machine:
    """A device that is used directly or through XLA."""

    def __init__(self, cell: Cell) -> None:
        self._xla: Any = None
        self.device = torch.device(cell.accelerator)
        if cell.xla:
            for name in ("torch_xla.core.xla_model", "torch_xla.debug.metrics"):
                importlib.import_module(name)
            self._xla = importlib.import_module("torch_xla")
            self.device = self._xla.device()

    def seed(self) -> None:
        torch.manual_seed(SEED)
        if self._xla:
            self._xla.core.xla_model.set_rng_state(SEED, str(self.device))

    def launch(self) -> None:
        """Start the operations that lazy tensors have collected."""
        if self._xla:
            self._xla.sync()

    def wait(self) -> None:
        """Wait until the device has done everything that was started."""
        if self._xla:
            self._xla.core.xla_model.wait_device_ops()
        elif self.device.type == "cuda":
            torch.cuda.synchronize()

    @property
    def metrics(self) -> Any:
        """Return torch_xla.debug.metrics, which only an XLA device has."""
        return self._xla.debug.metrics
