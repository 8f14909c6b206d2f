"""Artifacts kept beside the numbers: generated code, the allocator's history, torch's log of the compile."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_MOST_EVENTS = 100_000  # in the allocator's history


def generated_code(modules: list[Any]) -> str:
    """Return the sources of inductor's wrapper modules, one after the other."""
    paths = [Path(module.__file__) for module in modules if getattr(module, "__file__", None)]
    return "\n\n".join(f"# {path.name}\n{path.read_text()}" for path in paths)


@contextlib.contextmanager
def memory_history(*, on: bool) -> Iterator[None]:
    """Record what the CUDA allocator does."""
    if not on:
        yield
        return
    torch.cuda.memory._record_memory_history(max_entries=_MOST_EVENTS)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def memory_snapshot() -> bytes:
    """Return the recorded history as a pickle for https://pytorch.org/memory_viz."""
    return pickle.dumps(torch.cuda.memory._snapshot())


def trace_compiles(folder: Path) -> None:
    """Make torch write its structured compile log, which tlparse reads, to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TORCH_TRACE"] = str(folder)
    internal = torch._logging._internal
    internal.LOG_TRACE_HANDLER = None  # made when torch was imported, without a folder
    internal._init_logs()


def compile_log(folder: Path) -> bytes:
    """Return the log that torch wrote to `folder`, as a tar.gz; nothing if it wrote none."""
    logs = sorted(folder.glob("*.log"))
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for log in logs:
                archive.add(log, log.name)
        return file.getvalue() if logs else b""
