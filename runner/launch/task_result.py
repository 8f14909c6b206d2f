"""How a task ended and what it left: passed from the launcher to outputs, tables and upstream files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.schema.outcome_records import TaskOutcome
from runner.schema.suite import TaskSpec

_KEEPING = ("dump_", "keep_", "save_")  # knobs that ask for artifacts

Json = Any
Record = dict[str, Json]


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
