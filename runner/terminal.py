"""Runs tasks one after the other on this machine, for a person at a terminal or a script."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from runner import host, locks
from runner.accelerators import Accelerator, NoSuchDevice, accelerators
from runner.catalog import BadRequest, TaskSpec
from runner.launch import Event, Outcome, launch

Json = Any


@dataclass(frozen=True)
class Finished:
    """One task with its outcome and its records (objects of the v3 shape)."""

    task: TaskSpec
    outcome: Outcome
    folder: Path  # with its log; kept only where the outcome is not ok
    records: list[dict[str, Json]]


def accelerator(asked: str) -> Accelerator:
    """Of `cpu`, `cuda` or `cuda:N`; '' is the first GPU, or the CPU where there is none.

    Raises BadRequest where there is no such device.
    """
    kind, _, index = asked.partition(":")
    wanted = {"": [], "cpu": ["cpu"], "cuda": [index or "0"]}.get(kind)
    if wanted is None:
        raise BadRequest(f"--device {asked!r} is not cpu, cuda or cuda:N")
    try:
        return accelerators(wanted)[0]
    except NoSuchDevice as error:
        raise BadRequest(str(error)) from error


def run_tasks(
    tasks: Sequence[TaskSpec],
    chosen: Accelerator,
    *,
    on_event: Callable[[TaskSpec, Event], None],
    on_finished: Callable[[Finished], None],
) -> list[Finished]:
    """Runs until the end or until Ctrl-C or SIGTERM, after which the running task is `cancelled`.

    Raises `locks.Busy` where another process holds the accelerator.
    """
    finished: list[Finished] = []
    started = time.time()
    folder = Path(tempfile.mkdtemp(prefix="compiler-hud-run-"))
    with _lock(chosen) as lock_fd, _stop_asked() as stop:
        for number, task in enumerate(tasks):
            place = folder / f"{number}-{task.case}"
            outcome = launch(
                task,
                place,
                environment=_variables(chosen),
                lock_fd=lock_fd,
                on_event=_told(on_event, task),
                should_stop=lambda: "cancelled" if stop else "",
            )
            done = Finished(task, outcome, place, _records(place, started))
            finished.append(done)
            on_finished(done)
            if outcome.status == "ok":
                shutil.rmtree(place)
            if stop:
                break
    with contextlib.suppress(OSError):
        folder.rmdir()
    return finished


def _told(on_event: Callable[[TaskSpec, Event], None], task: TaskSpec) -> Callable[[Event], None]:
    return lambda event: on_event(task, event)


def _variables(chosen: Accelerator) -> dict[str, str]:
    """Kernels compiled once are kept, so that two runs of the same code measure the same kernels."""
    cache = host.cache_folder()
    return {
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(cache / "inductor"),
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR") or str(cache / "triton"),
        "CUDA_VISIBLE_DEVICES": chosen.visible,
        "RUNNER_HOST": os.environ.get("RUNNER_HOST") or platform.node(),
        "RUNNER_CEILINGS": str(host.ceilings_path()),
    }


def _records(place: Path, started: float) -> list[dict[str, Json]]:
    """What a task left; all tasks of one command carry its time, since they are one run."""
    try:
        lines = (place / "results.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a killed task may leave half a line
            found.append({**json.loads(line), "timestamp": started})
    return found


@contextlib.contextmanager
def _lock(chosen: Accelerator) -> Iterator[int]:
    descriptor = locks.acquire(locks.default_folder(), chosen.lock, what="python -m runner run")
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _stop_asked() -> Iterator[list[float]]:
    """A list that is filled once Ctrl-C is pressed or SIGTERM comes; launch ends the task in order."""
    asked: list[float] = []

    def ask(_number: int, _frame: FrameType | None) -> None:
        asked.append(time.monotonic())

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
