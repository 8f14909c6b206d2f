"""The life of tasks and runs as pure code: their states, and what each event changes.

`tasks.py` and `run_states.py` read rows, ask here and write the result; nothing else decides. A task
has one method for each event, which returns the task afterwards: the very same object where the event is a
repetition and changes nothing.

    queued ── claimed ──▶ running ── finished ──▶ done, cancelled
      ▲                      │
      ├──── handed back ─────┤
      └──── lost once ───────┴── lost too often ──▶ lost          ended states never change
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from runner.schema.records import SUCCESS


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    CANCELLED = "cancelled"


class TaskState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    LOST = "lost"
    CANCELLED = "cancelled"


CANCELLED = "cancelled"  # what a host says instead of a status, where it stopped because it was told to
NOT_RUN = "not_run"  # status of a task that ended without an outcome of its own


class StaleToken(Exception):
    """The token is not, or no longer, that of a running task: nothing may be written under it."""


class InvalidTransition(ValueError):
    """This cannot happen to the task in its state; the text says why."""


@dataclass(frozen=True)
class Task:
    """What decides about a task. `token` is that of the latest claim: it may write while the task runs, and
    is known again when it repeats its last word; None once its lease was broken."""

    state: TaskState = TaskState.QUEUED
    attempt: int = 0  # claims that count
    token: UUID | None = None
    status: str = ""  # one of runner.schema.records.STATUSES, once ended

    @property
    def ended(self) -> bool:
        return self.state not in {TaskState.QUEUED, TaskState.RUNNING}

    def claimed(self, token: UUID, *, cancelling: bool) -> Task:
        """Record that a host took it. Raise InvalidTransition."""
        if self.state is not TaskState.QUEUED or cancelling:
            raise InvalidTransition("only a queued task of a run that goes on can be claimed")
        return replace(self, state=TaskState.RUNNING, attempt=self.attempt + 1, token=token)

    def written(self, token: UUID) -> Task:
        """Check that its host may write under this token. Raise StaleToken."""
        if self.state is not TaskState.RUNNING or self.token != token:
            raise StaleToken("the lease of this task has ended")
        return self

    def finished(self, token: UUID, status: str, *, cancelling: bool) -> Task:
        """End it as its host says; the first report counts. Raise StaleToken, InvalidTransition."""
        if self._said_before(token):
            return self
        self.written(token)
        if status != CANCELLED:
            return replace(self, state=TaskState.DONE, status=status)
        if not cancelling:
            raise InvalidTransition("nobody asked to cancel this run")
        return self._ended(TaskState.CANCELLED)

    def handed_back(self, token: UUID, *, cancelling: bool) -> Task:
        """Queue it again, undone and without using an attempt. Raise StaleToken."""
        if self._said_before(token):
            return self
        self.written(token)
        if cancelling:
            return self._ended(TaskState.CANCELLED)
        return replace(self, state=TaskState.QUEUED, attempt=self.attempt - 1)

    def lease_broken(self, *, cancelling: bool, max_attempts: int) -> Task:
        """Give up on a silent host: try again, unless it was the last attempt. Raise InvalidTransition."""
        if self.state is not TaskState.RUNNING:
            raise InvalidTransition("only a running task has a lease")
        fenced = replace(self, token=None)
        if cancelling:
            return fenced._ended(TaskState.CANCELLED)
        if self.attempt < max_attempts:
            return replace(fenced, state=TaskState.QUEUED)
        return fenced._ended(TaskState.LOST)

    def cancel_asked(self) -> Task:
        """End it if it waits; a running task is told with its next report."""
        return self._ended(TaskState.CANCELLED) if self.state is TaskState.QUEUED else self

    def _said_before(self, token: UUID) -> bool:
        return self.state is not TaskState.RUNNING and self.token == token

    def _ended(self, state: TaskState) -> Task:
        return replace(self, state=state, status=NOT_RUN)


# How a run ends, by what its tasks say; the first line that applies to any of them wins.
_ENDS: tuple[tuple[RunState, Callable[[Task], bool]], ...] = (
    (RunState.CANCELLED, lambda task: task.state is TaskState.CANCELLED),
    (RunState.LOST, lambda task: task.state is TaskState.LOST),
    (RunState.TIMED_OUT, lambda task: task.status == "timed_out"),
    (RunState.FAILED, lambda task: task.status not in SUCCESS),
)


def run_state(tasks: Sequence[Task]) -> tuple[RunState, int | None]:
    """Return the state of a run with these tasks (at least one), and which task decided a bad end."""
    if not all(task.ended for task in tasks):
        untouched = all(task.state is TaskState.QUEUED and task.attempt == 0 for task in tasks)
        return (RunState.QUEUED if untouched else RunState.RUNNING), None
    for state, applies in _ENDS:
        for place, task in enumerate(tasks):
            if applies(task):
                return state, place
    return RunState.SUCCEEDED, None
