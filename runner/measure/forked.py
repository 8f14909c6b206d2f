"""Stages: parts of a task that run in forked processes of their own, without starting Python for each.

The child imports torch (and transformers or timm) once and forks a fresh process for every stage: its CUDA
context, caches, compiled code and memory are its own, and if it dies the other stages go on.

A process that has touched CUDA or run an OpenMP region cannot be forked. So the child itself does neither:
no `torch.cuda` call, no operator, no `set_num_threads`. The variable `ASK_NVML`, which it sets first, makes
`torch.cuda.is_available()` in imported packages harmless.
"""

import os
import pickle
import select
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

from runner.launch.failures import TaskFailure, failure_of
from runner.measure import turns
from runner.system.processes import Tree, die_with, send

_GRACE_S = 3.0  # from SIGTERM to SIGKILL of a stage that ran out of time
_POLL_S = 0.1  # at least, while the other side of a pair has its turn
T = TypeVar("T")
ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"  # is_available() then asks NVML and leaves the CUDA driver alone


def run_stage(
    name: str,
    work: Callable[[], T],
    *,
    folder: Path,
    variables: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float,
) -> T:
    """Call `work` in a forked process and return its result, which is pickled.

    `variables` are added to the process's environment (caches, TMPDIR); its output goes where ours goes.
    Raise TaskFailure: what `work` raised (by `failure_of`), crashed with the signal's name if the process
    died, timed_out after `timeout_s` of its own turns. Nothing that the stage started is alive afterwards.
    """
    answer = folder / f"stage_{name}.pickle"
    answer.unlink(missing_ok=True)
    tree = Tree()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        # the only other thread is the lifeline's, which only reads
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _stage(parent, work, answer, variables)
    tree.root = pid
    process = os.pidfd_open(pid)
    try:
        ends, ended = turns.clock_s() + timeout_s, False
        while not ended and (left_s := ends - turns.clock_s()) > 0:
            ended = bool(select.select([process], [], [], max(left_s, _POLL_S))[0])
    finally:
        os.close(process)
        is_dead = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        send(tree.end(_GRACE_S if tree.alive() and not is_dead else 0.0), signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        turns.resume()
    if not ended:
        reason = f"stage {name}: its time limit of {timeout_s:.0f} s was reached"
        raise TaskFailure("timed_out", "timeout", reason)
    if answer.exists():
        result, failure = pickle.loads(answer.read_bytes())  # noqa: S301 - our own process wrote it
        if failure:
            raise failure
        return cast("T", result)
    if os.WIFSIGNALED(status):
        word = signal.Signals(os.WTERMSIG(status)).name
        advice = " (the kernel does so when memory runs out)" if word == "SIGKILL" else ""
        raise TaskFailure("crashed", word, f"stage {name}: its process was ended by {word}{advice}")
    code = os.WEXITSTATUS(status)
    raise TaskFailure("crashed", f"exit_{code}", f"stage {name}: its process ended with exit code {code}")


def _stage(parent: int, work: Callable[[], Any], answer: Path, variables: Mapping[str, str]) -> None:
    """Run in the forked process; never return, and run no exit handlers, which belong to the parent."""
    code = 1
    try:
        die_with(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # the lifeline is the parent's
        os.environ.pop(ASK_NVML, None)
        os.environ.update(variables)
        tempfile.tempdir = None
        try:
            result: tuple[Any, TaskFailure | None] = work(), None
        except BaseException as error:  # noqa: BLE001 - whatever a benchmark raises is its outcome
            if not isinstance(error, TaskFailure):
                traceback.print_exc()
            result = None, failure_of(error)
        fresh = answer.with_suffix(".new")
        fresh.write_bytes(pickle.dumps(result))
        fresh.replace(answer)
        code = 0
    except BaseException:  # noqa: BLE001 - without an answer the parent reports a crash
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
