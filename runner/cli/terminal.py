"""Run tasks on one accelerator of this machine, one after the other, for a person or a script."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from runner.launch.launch import Event
from runner.launch.pairs import LaunchRequest, Pair, run_task
from runner.launch.task_result import TaskResult, artifacts_in, asks_for_artifacts
from runner.schema import inductor_options
from runner.schema.inductor_options import InductorValue
from runner.schema.suite import BadRequest, TaskSpec
from runner.system import locks, machine
from runner.system.accelerators import Accelerator, NoSuchDevice, accelerators
from runner.system.interpreters import DEFAULT, Interpreter

_WITH = "/@"  # in a key, before what a job is measured with

Json = Any


@dataclass(frozen=True)
class Job:
    """A task to launch in an interpreter, by its name; with a base, a pair of launches."""

    task: TaskSpec
    process: int = 0  # repeats of one task are processes 0, 1, 2 …; of pairs it is their number
    python: str = DEFAULT
    base_python: str = ""
    new_options: Mapping[str, InductorValue] = field(default_factory=dict)  # inductor's, of a pair's new side

    measured_with: str = ""  # a digest of what is measured besides the task: `runner/cli/resume.py`

    @property
    def plain_key(self) -> str:
        """The key without `measured_with`."""
        named = (self.python, self.base_python) != (DEFAULT, "")
        parts = [self.task.fingerprint(), f"{self.process}" if self.process else ""]
        sides = f"{self.base_python}:{self.python}" if named else ""
        return "/".join(filter(None, [*parts, sides, inductor_options.words(self.new_options)]))

    @property
    def key(self) -> str:
        """What `--resume` knows the job by; the fingerprint for a plain task in the own interpreter."""
        return f"{self.plain_key}{_WITH}{self.measured_with}" if self.measured_with else self.plain_key


def plain_key(key: str) -> str:
    return key.partition(_WITH)[0]


@dataclass(frozen=True)
class RunContext:
    """What all jobs of one command have in common."""

    pythons: Mapping[str, Interpreter]
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="compiler-hud-run-")))
    keeps_artifacts: bool = False  # of all tasks; else of those that are asked for some
    started: float = field(default_factory=time.time)  # s since 1970: they are one run and have one time


def accelerator(asked: str) -> Accelerator:
    """Return the device called `cpu`, `cuda` or `cuda:N`; of '' the first GPU, or else the CPU.

    Raise BadRequest where there is no such device.
    """
    kind, _, index = asked.partition(":")
    wanted = {"": [], "cpu": ["cpu"], "cuda": [index or "0"]}.get(kind)
    if wanted is None:
        raise BadRequest(f"--device {asked!r} is not cpu, cuda or cuda:N")
    try:
        return accelerators(wanted)[0]
    except NoSuchDevice as error:
        raise BadRequest(str(error)) from error


def run_jobs(
    jobs: Sequence[Job],
    chosen: Accelerator,
    context: RunContext,
    *,
    on_event: Callable[[TaskSpec, Event], None],
    on_finished: Callable[[TaskResult], None],
) -> list[TaskResult]:
    """Run the jobs until the last one, or until Ctrl-C or SIGTERM: the running task is then `cancelled`.

    Raise `locks.Busy` where another process holds the accelerator.
    """
    finished: list[TaskResult] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_if_empty, context)
        lock_fd = locks.acquire(locks.default_folder(), chosen.lock, what="python -m runner run")
        stack.callback(os.close, lock_fd)
        stop = stack.enter_context(_stop_asked())
        for number, job in enumerate(jobs):
            done = _run_job(number, job, chosen, context, lock_fd=lock_fd, on_event=on_event, stop=stop)
            finished.append(done)
            on_finished(done)
            if stop:
                break
    return finished


def _run_job(
    number: int,
    job: Job,
    chosen: Accelerator,
    context: RunContext,
    *,
    lock_fd: int,
    on_event: Callable[[TaskSpec, Event], None],
    stop: Sequence[float],
) -> TaskResult:
    """Launch one job, in a folder that stays only where it did not end well."""
    place = context.folder / f"{number}-{job.task.case}"
    cache = machine.cache_folder()
    pair = Pair(job.base_python, job.python, job.process, context.folder / "pairs", job.new_options)
    outcome = run_task(
        LaunchRequest(
            job.task,
            place,
            pythons=context.pythons,
            environment={
                # kernels compiled once are kept: two runs of the same code measure the same ones
                "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{cache}/inductor",
                "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR") or f"{cache}/triton",
                "CUDA_VISIBLE_DEVICES": chosen.visible,
                "RUNNER_HOST": os.environ.get("RUNNER_HOST") or platform.node(),
                "RUNNER_CEILINGS": str(machine.ceilings_path()),
            },
            lock_fd=lock_fd,
            on_event=lambda event: on_event(job.task, event),
            should_stop=lambda: "cancelled" if stop else "",
            python=job.python,
            pair=pair if job.base_python else None,
        )
    )
    process = 0 if job.base_python else job.process
    records, unexpected = (
        [_as_of_command(record, context.started, process) for record in found]
        for found in (outcome.records, outcome.unexpected)
    )
    if outcome.status == "ok":
        keep = artifacts_in(place) and (context.keeps_artifacts or asks_for_artifacts(job.task))
        left = [path for path in place.iterdir() if path.name != "artifacts"] if keep else [place]
        for path in left:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    return TaskResult(job.task, outcome, place, records, job.key, unexpected)


def _as_of_command(record: dict[str, Json], started: float, process: int) -> dict[str, Json]:
    """Give the record the time of the command, whose tasks are one run, and its number among repeated
    processes (`runner.schema.records`)."""
    timed = {**record, "timestamp": started}
    if not process:
        return timed
    runner = (record.get("runners") or [{}])[0]
    return {
        **timed,
        "runners": [{**runner, "extra_info": {**runner.get("extra_info", {}), "process": process}}],
    }


def _remove_if_empty(context: RunContext) -> None:
    """Remove the folder of a command, unless a task left something to look at in it."""
    shutil.rmtree(context.folder / "pairs", ignore_errors=True)
    with contextlib.suppress(OSError):
        context.folder.rmdir()


@contextlib.contextmanager
def _stop_asked() -> Iterator[list[float]]:
    """Yield a list that is filled once Ctrl-C or SIGTERM comes; the launch then ends its task in order."""
    asked: list[float] = []

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked.append(time.monotonic())

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
