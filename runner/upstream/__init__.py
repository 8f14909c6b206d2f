"""`--format upstream`: each outside system's own files, as that system writes them, one file a system.

A writer is made for the path a person gave and is told of every finished task; after each one the files
on disk are whole. It chooses suffixes and side files by itself, as the system does, and they are known
before. What a system's files have no words for is in none of them: they would call it something else. What
they have one place for is measured once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from runner.catalog import BadRequest, TaskSpec
from runner.task_result import TaskResult
from runner.upstream import cachebench, gpt_fast, operatorbench, torchdynamo, xla


class Writer(Protocol):
    def add(self, finished: TaskResult) -> list[Path]:
        """The files that say something of this task: none where nothing of it has a place in them."""


class System(NamedTuple):
    """An outside system's way to write results."""

    name: str
    writer: Callable[[Path], Writer]
    no_place: Callable[[TaskSpec], str]  # why its files cannot hold a task, '' where they can
    places: Callable[[TaskSpec], Collection[str]]  # by what names they tell what a task measures
    # All that the writer for this path writes for these tasks; of a folder, all below it.
    files: Callable[[Path, Sequence[TaskSpec]], Collection[Path]]

    def check_places(self, tasks: Sequence[TaskSpec]) -> None:
        """Raises BadRequest where several of these launches have one place."""
        counts = Counter(place for task in tasks for place in self.places(task))
        for place, count in counts.items():
            if count > 1:
                raise BadRequest(
                    f"--format upstream: {self.name}'s file has one place for {place}, which is to be"
                    f" measured {count} times; --format ours and v3 keep all"
                )


_GPT_FAST = System("gpt-fast", gpt_fast.GptFastFiles, gpt_fast.no_place, gpt_fast.places, gpt_fast.files)
_DYNAMO = System(
    "the torchdynamo harness",
    torchdynamo.DynamoFiles,
    torchdynamo.no_place,
    torchdynamo.places,
    torchdynamo.files,
)
SYSTEMS = {
    "micro": _GPT_FAST,
    "gpt_fast": _GPT_FAST,
    "cache": System(
        "cachebench", cachebench.CacheFile, cachebench.no_place, cachebench.places, cachebench.files
    ),
    "huggingface": _DYNAMO,
    "timm": _DYNAMO,
    "torchbench": _DYNAMO,
    "operators": System(
        "operatorbench",
        operatorbench.OperatorbenchFiles,
        operatorbench.no_place,
        operatorbench.places,
        operatorbench.files,
    ),
    "xla": System("PyTorch/XLA", xla.XlaFiles, lambda _task: "", xla.places, xla.files),
}


def system_of(suites: Sequence[str]) -> System:
    """The one system that these suites belong to. Raises BadRequest for none or several."""
    found = {SYSTEMS.get(suite) for suite in suites}
    (system, *others) = found or {None}
    if system is None or others:
        offered = ", ".join(sorted(SYSTEMS))
        raise BadRequest(f"--format upstream is for suites of one outside system; there are: {offered}")
    return system
