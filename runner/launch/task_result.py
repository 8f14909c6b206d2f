"""How a task ended and what it left: passed from the launcher to outputs, tables and upstream files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.schema.plan import TaskSpec

_KEEPING = ("dump_", "keep_", "save_")  # knobs that ask for artifacts

Json = Any
Record = dict[str, Json]


@dataclass(frozen=True)
class TaskOutcome:
    """`status` is one of `STATUSES`, or the word `should_stop` gave. Records are objects of
    the v3 shape (`runner.schema.records`)."""

    status: str
    code: str = ""
    reason: str = ""
    seconds: float = 0.0
    exit_code: int | None = None  # None where a signal ended the child, or it never started
    signal: str = ""  # SIGSEGV, …
    leftover: tuple[int, ...] = ()  # pids that not even SIGKILL ended: the accelerator is not free
    records: Sequence[Record] = field(default=(), repr=False)
    unexpected: Sequence[Record] = field(default=(), repr=False)  # records of another task, which say so

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> TaskOutcome:
        """Read status, code and reason; what is not there is ''."""
        status, code, reason = (str(value.get(name) or "") for name in ("status", "code", "reason"))
        return cls(status, code, reason)


@dataclass(frozen=True)
class TaskResult:
    """One task with its outcome and its records as they are kept."""

    task: TaskSpec
    outcome: TaskOutcome
    folder: Path  # with its log, kept only where the outcome is not ok, and what artifacts are to be kept
    records: list[Record]
    key: str = ""  # of its job
    unexpected: Sequence[Record] = ()  # kept in our own files only

    @property
    def name(self) -> str:
        """The key; a task that was launched as it stands is known by its fingerprint."""
        return self.key or self.task.fingerprint()


def artifacts_in(folder: Path) -> list[Path]:
    """Return the artifacts of a task in its folder."""
    return [path for path in (folder / "artifacts").rglob("*") if path.is_file()]


def asks_for_artifacts(task: TaskSpec) -> bool:
    """Return whether a knob asks for artifacts; others are made by the way."""
    return any(value and name.startswith(_KEEPING) for name, value in task.knobs.items())
