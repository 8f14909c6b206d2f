"""Several accelerators work off one list of jobs: a process for each, the next job to whoever is free."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.sharedctypes import Synchronized

from runner.accelerators import Accelerator
from runner.catalog import TaskSpec
from runner.launch import Event, Outcome
from runner.processes import die_with
from runner.terminal import Bench, Finished, Job, clear, lock, run_job, stop_asked

_LOOK_S = 0.2
_FORK = multiprocessing.get_context("fork")  # torch is in no process here


def longest_first(jobs: Sequence[Job], seconds: Mapping[str, float]) -> list[Job]:
    """What was never done before may take long, and goes before all that is known."""
    return sorted(jobs, key=lambda job: -seconds.get(job.key, math.inf))


@dataclass(frozen=True)
class _List:
    """The jobs, and the number of the next one, which the workers share."""

    jobs: Sequence[Job]
    following: Synchronized[int]

    def take(self) -> int | None:
        with self.following.get_lock():
            number = self.following.value
            self.following.value += 1
        return number if number < len(self.jobs) else None


@dataclass
class _Worker:
    process: ForkProcess
    told: Connection  # (number of a job, event or Finished)
    at_work: int | None = None  # number of its job


def run_jobs(
    jobs: Sequence[Job],
    chosen: Sequence[Accelerator],
    bench: Bench,
    *,
    on_event: Callable[[TaskSpec, Event], None],
    on_finished: Callable[[Finished], None],
) -> list[Finished]:
    """Runs the jobs in their order until the end, or until Ctrl-C or SIGTERM; the result is in the order in
    which they ended. Raises `locks.Busy` where another process holds one of the accelerators."""
    finished: list[Finished] = []
    with contextlib.ExitStack() as stack:
        held = [(one, stack.enter_context(lock(one))) for one in chosen]
        stop = stack.enter_context(stop_asked())
        todo = _List(jobs, _FORK.Value("i", 0))
        workers = [_start(one, lock_fd, todo, bench) for one, lock_fd in held]
        while workers:
            if stop:
                for worker in workers:
                    worker.process.terminate()
            for connection in wait([worker.told for worker in workers], _LOOK_S):
                worker = next(one for one in workers if one.told is connection)
                done = _hear(worker, jobs, bench, on_event)
                if done:
                    finished.append(done)
                    on_finished(done)
                if worker.told.closed:
                    workers.remove(worker)
    clear(bench)
    return finished


def _start(chosen: Accelerator, lock_fd: int, todo: _List, bench: Bench) -> _Worker:
    told, tells = _FORK.Pipe(duplex=False)
    parent = os.getpid()

    def work() -> None:
        die_with(parent)
        with stop_asked() as stop:
            while not stop and (number := todo.take()) is not None:
                _work(number, todo.jobs[number], chosen, bench, lock_fd, tells, stop)

    process = _FORK.Process(target=work)
    process.start()
    tells.close()
    return _Worker(process, told)


def _hear(
    worker: _Worker, jobs: Sequence[Job], bench: Bench, on_event: Callable[[TaskSpec, Event], None]
) -> Finished | None:
    """Takes one message; closes the connection of a worker that has ended."""
    try:
        number, said = worker.told.recv()
    except EOFError:
        worker.told.close()
        worker.process.join()
        return _lost(worker, jobs, bench)
    worker.at_work = None if isinstance(said, Finished) else number
    if isinstance(said, Finished):
        return said
    on_event(jobs[number].task, said)
    return None


def _lost(worker: _Worker, jobs: Sequence[Job], bench: Bench) -> Finished | None:
    """The job of a worker that died in the middle of it."""
    if worker.at_work is None:
        return None
    job = jobs[worker.at_work]
    reason = f"its worker ended with exit status {worker.process.exitcode}"
    return Finished(job.task, Outcome("crashed", "runner_error", reason), bench.folder, [], job.key)


def _work(  # noqa: PLR0917 - one step of the worker
    number: int,
    job: Job,
    chosen: Accelerator,
    bench: Bench,
    lock_fd: int,
    tells: Connection,
    stop: Sequence[float],
) -> None:
    """In the worker's process."""

    def tell(_task: TaskSpec, event: Event) -> None:
        tells.send((number, {**event, "label": f"{event.get('label') or ''} on {chosen.name}".strip()}))

    tell(job.task, {"phase": "start"})
    tells.send((number, run_job(number, job, chosen, bench, lock_fd=lock_fd, on_event=tell, stop=stop)))
