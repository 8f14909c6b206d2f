"""Turn a request for part of a suite into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from runner.schema.options import OptionValue
from runner.schema.statistics import LEAST_PAIRS
from runner.schema.suite import MAX_COMPILATIONS, BadRequest, TaskSpec, suite_of

# Of agent and HUD; a host with another one is refused. 2: a task says its compilation and its caches.
PROTOCOL = 2
COMPILATIONS = {"cuda": 3}  # of a task on such a device where nothing is said; elsewhere 1

Caches = Literal["fresh", "kept", "pinned"]
CACHES: tuple[Caches, ...] = ("fresh", "kept", "pinned")
# In a process's environment: the folder of its compile caches, which earlier processes filled, or which this
# one is to fill for later ones.
KEPT_CACHES, NEW_CACHES = "RUNNER_CACHES", "RUNNER_NEW_CACHES"


@dataclass(frozen=True)
class Selection:
    """A choice of a suite's cases × modes × dtypes × backends. Empty means the suite's default."""

    suite: str
    device: str  # cuda or cpu
    cases: Sequence[str] = ()
    modes: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    backends: Sequence[str] = ()
    dynamic: bool = False
    knobs: Mapping[str, OptionValue] = field(default_factory=dict)
    timeout_s: int | None = None


@dataclass(frozen=True)
class Process:
    """One fresh process of a task, or one pair of them in an A/B comparison. `number` tells those of a task
    apart. `caches`: fresh ones, or those that the first kept one filled, or fresh with pinned choices."""

    task: TaskSpec
    number: int
    caches: Caches


@dataclass(frozen=True)
class Replication:
    """How often each task of a run is measured; None means the default.

    Each compilation is a process with empty caches. Further repeats are processes over the caches that the
    first compilation left. In an A/B comparison (`is_ab`) each repeat is a pair, which compiles both sides
    unless caches are kept.
    """

    compilations: int | None = None
    repeats: int | None = None
    caches: Caches = "fresh"
    is_ab: bool = False

    def processes(self, tasks: Sequence[TaskSpec]) -> list[Process]:
        """Return every process: all tasks once, then all of them again, since what drifts in hours hits every
        task alike. Raise BadRequest for a number that cannot be."""
        self._check(tasks)
        repeats = self.repeats or (LEAST_PAIRS if self.is_ab else 1)
        counts = [self._compilations_of(task) for task in tasks]
        first: Caches = "kept" if repeats > 1 and self.caches == "fresh" and not self.is_ab else self.caches
        further: Caches = self.caches if self.is_ab else "kept"
        compiled = [
            Process(replace(task, compilation=number), number, self.caches if number else first)
            for number in range(max(counts, default=0))
            for task, count in zip(tasks, counts, strict=True)
            if number < count
        ]
        repeated = [
            Process(task, count + number, further)
            for number in range(repeats - 1)
            for task, count in zip(tasks, counts, strict=True)
        ]
        return [*compiled, *repeated]

    def compiled_once(self, tasks: Sequence[TaskSpec]) -> list[str]:
        """Return the suites and backends that were asked for several compilations and have one only."""
        if (self.compilations or 1) == 1:
            return []
        lacking = [task for task in tasks if not suite_of(task.suite).has_compilations(task)]
        return sorted({f"{task.suite} ({task.backend})" for task in lacking})

    def _compilations_of(self, task: TaskSpec) -> int:
        if self.is_ab or not suite_of(task.suite).has_compilations(task):
            return 1
        return self.compilations or (COMPILATIONS.get(task.device, 1) if self.caches == "fresh" else 1)

    def _check(self, tasks: Sequence[TaskSpec]) -> None:
        if self.caches == "pinned" and (self.is_ab or (self.repeats or 1) > 1):
            raise BadRequest("pinned choices are compiled anew in each process: say compilations, and no A/B")
        number = self.compilations
        if number is None:
            return
        if not 1 <= number <= MAX_COMPILATIONS:
            raise BadRequest(f"compilations are 1 to {MAX_COMPILATIONS}, not {number}")
        if number > 1 and self.is_ab:
            raise BadRequest("the pairs of an A/B comparison are its compilations: say repeats")
        if number > 1 and self.caches == "kept":
            raise BadRequest("kept caches are compiled into once: say repeats")
        once = self.compiled_once(tasks)
        if once and not any(suite_of(task.suite).has_compilations(task) for task in tasks):
            raise BadRequest(f"{', '.join(once)}: measured in one compilation, not in {number}")


def plan(asked: Selection) -> list[TaskSpec]:
    """Return the tasks of a selection, each once. Raise BadRequest for what the suite does not offer."""
    suite = suite_of(asked.suite)
    found = []
    for case in [case for name in asked.cases for case in suite.cases_called(name)] or suite.cases:
        offered = _offered("dtype", asked.dtypes, case.dtypes, f"{suite.name}/{case.name}", bool(asked.cases))
        for dtype in offered:
            for mode in _offered("mode", asked.modes, suite.modes, suite.name, True)[: len(asked.modes) or 1]:
                for backend in asked.backends or suite.backends[:1]:
                    names = (suite.name, case.name, mode, dtype, backend, asked.device)
                    limit_s = suite.timeout_s if asked.timeout_s is None else asked.timeout_s
                    task = TaskSpec(*names, asked.dynamic, asked.knobs, limit_s)
                    suite.check(task)
                    found.append(suite.normalized(task))
    if not found:
        raise BadRequest(f"nothing of suite {suite.name} fits this request")
    return distinct(found)


def distinct(tasks: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Return the tasks without those that measure the same under another name of the backend."""
    found: dict[str, TaskSpec] = {}
    for task in tasks:
        found.setdefault(suite_of(task.suite).canonical(task).fingerprint(), task)
    return list(found.values())


def _offered(what: str, asked: Sequence[str], offered: Sequence[str], place: str, strict: bool) -> list[str]:
    if not asked:
        return list(offered)
    wrong = [name for name in asked if name not in offered]
    if wrong and strict:
        raise BadRequest(f"{place} has no {what} {wrong[0]!r}; it has: {', '.join(offered)}")
    return [name for name in asked if name in offered]
