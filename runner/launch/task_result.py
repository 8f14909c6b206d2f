"""The result of a task, passed from the launcher to outputs, tables and upstream files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.schema.outcome_records import TaskOutcome
from runner.schema.suite import TaskSpec

Json = Any
Record = dict[str, Json]


@dataclass(frozen=True)
class TaskResult:
    """One task with its outcome and its records as they are kept."""

    task: TaskSpec
    outcome: TaskOutcome
    folder: Path  # holds its log if it failed, and its artifacts
    records: list[Record]
    key: str = ""  # of its job
    unexpected: Sequence[Record] = ()  # kept in our own files only

    @property
    def name(self) -> str:
        """Return the key of the job, else the fingerprint of the task."""
        return self.key or self.task.fingerprint()


def artifacts_in(folder: Path) -> list[Path]:
    """Return the artifacts of a task in its folder."""
    return [path for path in (folder / "artifacts").rglob("*") if path.is_file()]
