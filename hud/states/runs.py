"""State transitions of tasks and runs, as pure code.

`tasks.py` reads rows, applies these rules and writes the result. A task has one method for
each event, which returns the task afterwards; a repeated event returns the same object.

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


CANCELLED = "cancelled"  # sent by a host instead of a status, after it stopped a cancelled task
NOT_RUN = "not_run"  # status of a task that ended without an outcome of its own


class StaleToken(Exception):
    """No running task has this token (any more), so nothing may be written under it."""


class InvalidTransition(ValueError):
    """The event cannot happen to a task in this state."""


@dataclass(frozen=True)
class TaskLife:
    """The part of a task that decides its transitions. `token` belongs to the latest claim: it permits writes
    while the task runs and repeated final reports afterwards. It is None once the lease was broken."""

    state: TaskState = TaskState.QUEUED
    attempt: int = 0  # claims that count
    token: UUID | None = None
    status: str = ""  # one of runner.schema.records.STATUSES, once ended

    @property
    def ended(self) -> bool:
        return self.state not in {TaskState.QUEUED, TaskState.RUNNING}

    def claimed(self, token: UUID, *, cancelling: bool) -> TaskLife:
        """Give the task to a host. Raise InvalidTransition."""
        if self.state is not TaskState.QUEUED or cancelling:
            raise InvalidTransition("only a queued task of a run that goes on can be claimed")
        return replace(self, state=TaskState.RUNNING, attempt=self.attempt + 1, token=token)

    def written(self, token: UUID) -> TaskLife:
        """Return the task if its host may write under this token. Raise StaleToken."""
        if self.state is not TaskState.RUNNING or self.token != token:
            raise StaleToken("the lease of this task has ended")
        return self

    def finished(self, token: UUID, status: str, *, cancelling: bool) -> TaskLife:
        """End the task; the first report counts. Raise StaleToken, InvalidTransition."""
        if self._reported(token):
            return self
        self.written(token)
        if status != CANCELLED:
            return replace(self, state=TaskState.DONE, status=status)
        if not cancelling:
            raise InvalidTransition("this run was not cancelled")
        return self._ended(TaskState.CANCELLED)

    def handed_back(self, token: UUID, *, cancelling: bool) -> TaskLife:
        """Queue the task again without using up an attempt. Raise StaleToken."""
        if self._reported(token):
            return self
        self.written(token)
        if cancelling:
            return self._ended(TaskState.CANCELLED)
        return replace(self, state=TaskState.QUEUED, attempt=self.attempt - 1)

    def lease_broken(self, *, cancelling: bool, max_attempts: int) -> TaskLife:
        """Take the task from a silent host and queue it again, or lose it. Raise InvalidTransition."""
        if self.state is not TaskState.RUNNING:
            raise InvalidTransition("only a running task has a lease")
        fenced = replace(self, token=None)
        if cancelling:
            return fenced._ended(TaskState.CANCELLED)
        if self.attempt < max_attempts:
            return replace(fenced, state=TaskState.QUEUED)
        return fenced._ended(TaskState.LOST)

    def cancel_asked(self) -> TaskLife:
        """End a queued task; a running one ends with its host's next report."""
        return self._ended(TaskState.CANCELLED) if self.state is TaskState.QUEUED else self

    def _reported(self, token: UUID) -> bool:
        return self.state is not TaskState.RUNNING and self.token == token

    def _ended(self, state: TaskState) -> TaskLife:
        return replace(self, state=state, status=NOT_RUN)


# The final state of a run: the first line that applies to any of its tasks wins.
_ENDS: tuple[tuple[RunState, Callable[[TaskLife], bool]], ...] = (
    (RunState.CANCELLED, lambda task: task.state is TaskState.CANCELLED),
    (RunState.LOST, lambda task: task.state is TaskState.LOST),
    (RunState.TIMED_OUT, lambda task: task.status == "timed_out"),
    (RunState.FAILED, lambda task: task.status not in SUCCESS),
)


def run_state(tasks: Sequence[TaskLife]) -> tuple[RunState, int | None]:
    """Return a run's state and, unless it succeeds, the index of the task that decided its end."""
    if not all(task.ended for task in tasks):
        untouched = all(task.state is TaskState.QUEUED and task.attempt == 0 for task in tasks)
        return (RunState.QUEUED if untouched else RunState.RUNNING), None
    for state, applies in _ENDS:
        for index, task in enumerate(tasks):
            if applies(task):
                return state, index
    return RunState.SUCCEEDED, None
