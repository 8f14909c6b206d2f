"""Artifacts kept beside the numbers: generated code, the allocator's history, tlparse's report."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

_MOST_EVENTS = 100_000  # in the allocator's history
_TLPARSE_S = 120


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


class NoReport(Exception):
    """There is no tlparse report; the text says why."""


def tlparse_report(traces: Path) -> bytes:
    """Return tlparse's report on the logs in a folder, as a tar.gz.

    Raise NoReport if the program is not installed, fails or takes too long, or torch logged nothing.
    """
    program = shutil.which("tlparse")
    logs = sorted(traces.glob("*.log"))
    if program is None:
        raise NoReport("tlparse is not installed")
    if not logs:
        raise NoReport("torch logged nothing of a compile")
    target = traces / "report"
    command = [program, str(logs[0]), "-o", str(target), "--no-browser"]
    try:
        # Not captured: a process that it started could hold the pipe open.
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=_TLPARSE_S)
    except subprocess.CalledProcessError as error:
        raise NoReport(f"tlparse ended with exit status {error.returncode}") from error
    except subprocess.TimeoutExpired as error:
        raise NoReport(f"tlparse took longer than {_TLPARSE_S} s") from error
    except OSError as error:
        raise NoReport(f"tlparse cannot be started: {error}") from error
    if not target.is_dir():
        raise NoReport("tlparse wrote none")
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            archive.add(target, "tlparse")
        return file.getvalue()
