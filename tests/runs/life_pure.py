"""The small world of `test_life.py` in plain Python: what must come of every step, by `states.py` alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from hud.states import runs as states
from hud.states.fair_share import NIGHT_EVERY
from hud.states.runs import TaskState

MAX_ATTEMPTS = 2
MAX_RUNS = 4
CASES = ("layer_norm", "mlp_layer_norm_gelu")
STATUSES = ("ok", "cannot_tell", "wrong", "failed", "timed_out", "crashed", "oom", "cancelled")
# Accelerators by host; only host "a" has the label that some runs ask for.
PLACES = (("a", "cpu"), ("a", "cuda:0"), ("b", "cpu"))
WISHES: tuple[dict[str, str], ...] = ({}, {"site": "a"}, {"accelerator": "cpu"})
Handle = tuple[int, int]  # run, position
Said = tuple[str, Any]  # what a call answered, or which error it raised


@dataclass
class PureRun:
    tasks: list[PureTask]
    watched: bool
    labels: dict[str, str]
    cancelling: bool = False


@dataclass
class PureTask:
    life: states.TaskLife = field(default_factory=states.TaskLife)
    place: int | None = None
    nonce: str = ""


@dataclass
class Lease:
    handle: Handle
    place: int
    nonce: str
    token: UUID


class Pure:
    """The world as `hud/states/runs.py` has it."""

    def __init__(self) -> None:
        self.runs: list[PureRun] = []
        self.leases: list[Lease] = []
        self.closed: set[str] = set()
        self.dirty: set[int] = set()
        self.since_night = Counter[int]()

    def request(self, count: int, watched: bool, labels: dict[str, str]) -> None:
        self.runs.append(PureRun([PureTask() for _ in range(count)], watched, labels))

    def claim(self, place: int, nonce: str) -> int | None:
        for handle, task in self._tasks():
            if task.place == place and task.life.state is TaskState.RUNNING:
                return self._lease(handle, task) if task.nonce == nonce else None
        found = self._next(place)
        if found is None:
            return None
        handle, task = found
        task.life = task.life.claimed(uuid4(), cancelling=False)
        task.place, task.nonce = place, nonce
        self.since_night[place] = self.since_night[place] + 1 if self.runs[handle[0]].watched else 0
        assert task.life.token
        self.leases.append(Lease(handle, place, nonce, task.life.token))
        return len(self.leases) - 1

    def _next(self, place: int) -> tuple[Handle, PureTask] | None:
        host, name = PLACES[place]
        has = {"site": host, "accelerator": name}
        if host in self.closed or place in self.dirty:
            return None
        nights_turn = self.since_night[place] >= NIGHT_EVERY - 1
        waiting = [
            (run.watched == nights_turn, number, position)
            for number, run in enumerate(self.runs)
            if not run.cancelling and run.labels.items() <= has.items()
            for position, task in enumerate(run.tasks)
            if task.life.state is TaskState.QUEUED
        ]
        if not waiting:
            return None
        _unwatched, number, position = min(waiting)
        return (number, position), self.runs[number].tasks[position]

    def _lease(self, handle: Handle, task: PureTask) -> int:
        tokens = [lease.token for lease in self.leases]
        assert task.life.token
        assert self.leases[tokens.index(task.life.token)].handle == handle
        return tokens.index(task.life.token)

    def write(self, number: int, kind: str) -> bool:
        lease, run, task = self._held(number)
        task.life.written(lease.token)
        return kind == "report" and run.cancelling

    def finish(self, number: int, status: str) -> str:
        lease, run, task = self._held(number)
        task.life = task.life.finished(lease.token, status, cancelling=run.cancelling)
        return task.life.state

    def hand_back(self, number: int) -> str:
        lease, run, task = self._held(number)
        task.life = task.life.handed_back(lease.token, cancelling=run.cancelling)
        if task.life.state is TaskState.QUEUED:
            task.place, task.nonce = None, ""
        return task.life.state

    def _held(self, number: int) -> tuple[Lease, PureRun, PureTask]:
        lease = self.leases[number]
        run = self.runs[lease.handle[0]]
        return lease, run, run.tasks[lease.handle[1]]

    def cancel(self, number: int) -> None:
        run = self.runs[number]
        if not run.cancelling and not all(task.life.ended for task in run.tasks):
            run.cancelling = True
            for task in run.tasks:
                task.life = task.life.cancel_asked()

    def lose(self, handle: Handle) -> None:
        run, task = self.runs[handle[0]], self._of(handle)
        task.life = task.life.lease_broken(cancelling=run.cancelling, max_attempts=MAX_ATTEMPTS)
        if task.life.state is TaskState.QUEUED:
            task.place, task.nonce = None, ""

    def open(self, host: str, how: str) -> None:
        (self.closed.discard if how == "resume" else self.closed.add)(host)

    def soil(self, place: int, dirty: bool) -> None:
        (self.dirty.add if dirty else self.dirty.discard)(place)

    def _of(self, handle: Handle) -> PureTask:
        return self.runs[handle[0]].tasks[handle[1]]

    def _tasks(self) -> Iterator[tuple[Handle, PureTask]]:
        for number, run in enumerate(self.runs):
            for position, task in enumerate(run.tasks):
                yield (number, position), task

    def running(self) -> list[tuple[Handle, int | None]]:
        return [
            (handle, task.place) for handle, task in self._tasks() if task.life.state is TaskState.RUNNING
        ]

    def task_states(self) -> dict[Handle, tuple[str, int, str, int | None]]:
        """State, attempt, status and place of each."""
        return {
            handle: (task.life.state.value, task.life.attempt, task.life.status, task.place)
            for handle, task in self._tasks()
        }

    def run_states(self) -> list[str]:
        return [states.run_state([task.life for task in run.tasks])[0].value for run in self.runs]
