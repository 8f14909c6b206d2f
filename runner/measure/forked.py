"""Stages: parts of one experiment that each need a process of their own, without a start of Python each.

The child imports torch (and transformers or timm) once and forks a fresh process for every stage: its CUDA
context, caches, compiled code and memory are its own, and where it dies the other stages go on.

A process that has touched CUDA or run an OpenMP region cannot be forked. So the child itself does neither:
no `torch.cuda` call, no operator, no `set_num_threads`. `before_forks` keeps `torch.cuda.is_available()`
of other people's imports harmless.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from runner.failures import TaskFailure, failure_of
from runner.processes import Tree, die_with, send
from runner.records import Json

_GRACE_S = 3.0  # from SIGTERM to SIGKILL of a stage that ran out of time
_crash_hint: ContextVar[Path] = ContextVar("crash_hint")  # of this stage, should a signal end it
ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"  # is_available() then asks NVML and leaves the CUDA driver alone


def before_forks() -> None:
    """To be called by the child before it imports torch."""
    os.environ[ASK_NVML] = "1"


def run_stage(
    name: str,
    work: Callable[[], Json],
    *,
    folder: Path,
    variables: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float,
) -> Json:
    """Calls `work` in a forked process and returns what it returned, which must be JSON.

    `variables` are the process's environment besides ours: caches, TMPDIR; its output goes where ours goes.
    Raises TaskFailure: what `work` raised (by `failure_of`), crashed with the signal's name where the
    process died, timed_out after `timeout_s`. Nothing that the stage started is alive afterwards.
    """
    answer = folder / f"stage_{name}.json"
    answer.unlink(missing_ok=True)
    _words(answer).unlink(missing_ok=True)
    tree = Tree()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # fork beside the lifeline's thread, which only reads
        pid = os.fork()
    if pid == 0:
        _stage(parent, work, answer, variables)
    tree.root = pid
    try:
        ended = _ended_within(pid, timeout_s)
    finally:
        leftover = tree.end(_GRACE_S if tree.alive() and not _is_dead(pid) else 0.0)
        send(leftover, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if not ended:
        raise TaskFailure(
            "timed_out", "timeout", f"stage {name}: its time limit of {timeout_s:.0f} s was reached"
        )
    return _answered(name, answer, status)


@contextlib.contextmanager
def crash_hint(text: str) -> Iterator[None]:
    """Code that may crash the process: where a signal ends the stage inside, its reason says `text` too."""
    path = _crash_hint.get(None)
    if path is None:  # no stage
        yield
        return
    path.write_text(text)
    try:
        yield
    finally:
        path.unlink()


def _words(answer: Path) -> Path:
    return answer.with_suffix(".words")


def _stage(parent: int, work: Callable[[], Json], answer: Path, variables: Mapping[str, str]) -> None:
    """The forked process; never returns, and runs no exit handlers, which belong to the parent."""
    code = 1
    try:
        die_with(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # the lifeline is the parent's
        os.environ.pop(ASK_NVML, None)
        os.environ.update(variables)
        tempfile.tempdir = None
        _crash_hint.set(_words(answer))
        told = _told(work)
        fresh = answer.with_suffix(".new")
        fresh.write_text(json.dumps(told))
        fresh.replace(answer)
        code = 0
    except BaseException:  # noqa: BLE001 - no answer is the answer: the parent says that it crashed
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _told(work: Callable[[], Json]) -> dict[str, Json]:
    try:
        return {"value": work()}
    except BaseException as error:  # noqa: BLE001 - whatever a benchmark raises is its outcome
        if not isinstance(error, TaskFailure):
            traceback.print_exc()
        failure = failure_of(error)
        return {"failure": [failure.status, failure.code, str(failure)]}


def _ended_within(pid: int, timeout_s: float) -> bool:
    watched = os.pidfd_open(pid)
    try:
        return bool(select.select([watched], [], [], timeout_s)[0])
    finally:
        os.close(watched)


def _is_dead(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _answered(name: str, answer: Path, status: int) -> Json:
    """What the ended stage said. Raises TaskFailure for a failure, or where it said nothing."""
    if answer.exists():
        told = json.loads(answer.read_text())
        if "failure" in told:
            raise TaskFailure(*told["failure"])
        return told["value"]
    if os.WIFSIGNALED(status):
        word = signal.Signals(os.WTERMSIG(status)).name
        advice = " (the kernel does so when memory runs out)" if word == "SIGKILL" else ""
        words = _words(answer)
        advice += f"; {words.read_text()}" if words.exists() else ""
        raise TaskFailure("crashed", word, f"stage {name}: its process was ended by {word}{advice}")
    code = os.WEXITSTATUS(status)
    raise TaskFailure("crashed", f"exit_{code}", f"stage {name}: its process ended with exit code {code}")
