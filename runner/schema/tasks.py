"""Tasks: those of a request, the processes of each, how one ended, and records for what it lacks."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from runner.schema.draws import LEAST_DRAWS, MAX_DRAWS, MAX_ROUNDS
from runner.schema.metrics import metric_info
from runner.schema.options import OptionValue
from runner.schema.records import NEVER_RAN, STATUSES, SUCCESS, Json
from runner.schema.statistics import LEAST_PAIRS
from runner.schema.suite import MAX_COMPILATIONS, BadRequest, Expected, TaskSpec, knobs_key, suite_of

COMPILATIONS = {"cuda": 3}  # of a task on such a device where nothing is said; elsewhere 1

Caches = Literal["fresh", "kept", "pinned", "ledger"]
CACHES: tuple[Caches, ...] = ("fresh", "kept", "pinned", "ledger")
_FORCED = ("pinned", "ledger")
# In a process's environment: the folder of its compile caches, which earlier processes filled, or which this
# one is to fill for later ones.
KEPT_CACHES, NEW_CACHES = "RUNNER_CACHES", "RUNNER_NEW_CACHES"
CANCELLED = "cancelled"  # the end of a task that a person stopped; no status of a record


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
    apart. `caches`: fresh ones, or those that the first kept one filled, or fresh with pinned choices, which
    in a pair are those that both sides draw, or with the proven choices of the host."""

    task: TaskSpec
    number: int
    caches: Caches


@dataclass(frozen=True)
class Replication:
    """How often each task of a run is measured; None means the default.

    Each compilation is a process with empty caches. Further repeats are processes over the caches that the
    first compilation left.

    An A/B comparison (`is_ab`) is at equal choices unless it has caches: each of its `draws` is a pair of
    processes, to whose choices both sides are then pinned, `repeats` times. With fresh or kept caches it is
    `repeats` pairs. `pairs` is the most of either.
    """

    compilations: int | None = None
    repeats: int | None = None
    caches: Caches | None = None
    is_ab: bool = False
    draws: int | None = None
    pairs: int | None = None

    @property
    def used_caches(self) -> Caches:
        """Return the caches of every process but the first; `pinned` in a comparison at equal choices."""
        return self.caches or ("pinned" if self.is_ab else "fresh")

    @property
    def at_equal_choices(self) -> bool:
        return self.is_ab and self.used_caches == "pinned"

    @property
    def words(self) -> str:
        """Return what is measured over which caches, where that is not fresh ones."""
        if self.at_equal_choices:
            return f"equal choices, {self.rounds} rounds"
        return "" if self.used_caches == "fresh" else self.used_caches

    @property
    def rounds(self) -> int:
        """Return how often both sides are pinned to each draw."""
        return self.repeats or 1

    @property
    def pairs_planned(self) -> int:
        """Return the number of pairs of free processes in an A/B comparison."""
        if self.at_equal_choices:
            return self.draws or self.pairs or LEAST_DRAWS
        compilations = self.compilations if self._has_several else None
        return self.repeats or compilations or self.pairs or LEAST_PAIRS

    @property
    def _has_several(self) -> bool:
        return (self.compilations or 1) > 1

    def processes(self, tasks: Sequence[TaskSpec]) -> list[Process]:
        """Return every process: all tasks once, then all of them again, since what drifts in hours hits every
        task alike. Raise BadRequest for a number that cannot be."""
        self._check(tasks)
        caches = self.used_caches
        if self.is_ab:
            return [Process(task, number, caches) for number in range(self.pairs_planned) for task in tasks]
        repeats = self.repeats or 1
        counts = [self._compilations_of(task) for task in tasks]
        first: Caches = "kept" if repeats > 1 and caches == "fresh" else caches
        compiled = [
            Process(replace(task, compilation=number), number, caches if number else first)
            for number in range(max(counts, default=0))
            for task, count in zip(tasks, counts, strict=True)
            if number < count
        ]
        repeated = [
            Process(task, count + number, "kept")
            for number in range(repeats - 1)
            for task, count in zip(tasks, counts, strict=True)
        ]
        return [*compiled, *repeated]

    def compiled_once(self, tasks: Sequence[TaskSpec]) -> list[str]:
        """Return the suites and backends that were asked for several compilations and have one only."""
        if not self._has_several or self.is_ab:
            return []
        lacking = [task for task in tasks if not suite_of(task.suite).has_compilations(task)]
        return sorted({f"{task.suite} ({task.backend})" for task in lacking})

    def _compilations_of(self, task: TaskSpec) -> int:
        if not suite_of(task.suite).has_compilations(task):
            return 1
        default = COMPILATIONS.get(task.device, 1) if self.used_caches == "fresh" else 1
        return self.compilations or default

    def _check(self, tasks: Sequence[TaskSpec]) -> None:
        if self.is_ab:
            self._check_pairs()
            return
        if self.draws is not None or self.pairs is not None:
            raise BadRequest("draws and pairs belong to an A/B comparison: name a baseline or options")
        if self.caches in _FORCED and (self.repeats or 1) > 1:
            raise BadRequest("forced choices are compiled anew in each process: say compilations")
        number = self.compilations
        if number is None:
            return
        _check_number("compilations", number, 1, MAX_COMPILATIONS)
        if number > 1 and self.caches == "kept":
            raise BadRequest("kept caches are compiled into once: say repeats")
        once = self.compiled_once(tasks)
        if once and not any(suite_of(task.suite).has_compilations(task) for task in tasks):
            raise BadRequest(f"{', '.join(once)}: measured in one compilation, not in {number}")

    def _check_pairs(self) -> None:
        if self.caches == "ledger":
            raise BadRequest("an A/B comparison pins what its own sides draw, not proven choices")
        least = LEAST_DRAWS if self.at_equal_choices else 1
        _check_number("draws", self.draws, LEAST_DRAWS, MAX_DRAWS)
        _check_number("compilations", self.compilations, 1, MAX_COMPILATIONS)
        _check_number("pairs", self.pairs, least, MAX_DRAWS)
        if self.at_equal_choices:
            _check_number("repeats", self.repeats, 1, MAX_ROUNDS)
            if self._has_several:
                raise BadRequest("compilations of an A/B comparison need fresh caches: say draws")
        elif self.draws is not None:
            raise BadRequest("draws are of a comparison at equal choices: leave out caches, or say repeats")
        elif self._has_several and self.used_caches == "kept":
            raise BadRequest("kept caches are compiled into once: say repeats")
        elif self._has_several and self.repeats is not None:
            raise BadRequest("the pairs of an A/B comparison are its compilations: say one of both")
        if self.pairs is not None and self.pairs_planned > self.pairs:
            raise BadRequest(f"{self.pairs_planned} are more than the {self.pairs} pairs that are allowed")


def _check_number(name: str, number: int | None, least: int, most: int) -> None:
    if number is not None and not least <= number <= most:
        raise BadRequest(f"{name} are {least} to {most}, not {number}")


def plan(asked: Selection) -> list[TaskSpec]:
    """Return the tasks of a selection, each once. Raise BadRequest for what the suite does not offer."""
    suite = suite_of(asked.suite)
    tasks = []
    limit_s = suite.timeout_s if asked.timeout_s is None else asked.timeout_s
    modes, backends = asked.modes or suite.modes[:1], asked.backends or suite.backends[:1]
    for case in suite.chosen_cases(asked.cases, asked.knobs, asked.device):
        dtypes = asked.dtypes or case.dtypes
        if not asked.cases:  # of all cases those that have the type
            dtypes = [dtype for dtype in dtypes if dtype in case.dtypes]
        for dtype, mode, backend in itertools.product(dtypes, modes, backends):
            names = (suite.name, case.name, mode, dtype, backend, asked.device)
            task = TaskSpec(*names, asked.dynamic, asked.knobs, limit_s)
            suite.check(task)
            tasks.append(suite.normalized(task))
    if not tasks:
        raise BadRequest(f"nothing of suite {suite.name} fits this request")
    return distinct(tasks)


def task_of(
    experiment: Mapping[str, Json], knobs: Mapping[str, OptionValue | None] = MappingProxyType({})
) -> TaskSpec:
    """Return the task that measures an experiment of this `IDENTITY`. `knobs` replace its case parameters;
    None stands for the suite's default. Raise BadRequest."""
    suite, case = suite_of(experiment["suite"]), experiment["case"]
    suite.case(case)  # a name for several cases is none
    asked = {**suite.asked_knobs(experiment["knobs"]), **knobs}
    selection = Selection(
        suite.name,
        experiment["device"],
        cases=[case],
        modes=[experiment["mode"]] if experiment["mode"] else [],
        dtypes=[experiment["dtype"]],
        backends=[experiment["backend"]],
        dynamic=bool(experiment["dynamic"]),
        knobs={name: value for name, value in asked.items() if value is not None},
    )
    return plan(selection)[0]


def distinct(tasks: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Return the tasks without those that measure the same under another name of the backend."""
    specs: dict[str, TaskSpec] = {}
    for task in tasks:
        specs.setdefault(suite_of(task.suite).canonical(task).fingerprint(), task)
    return list(specs.values())


@dataclass(frozen=True)
class TaskOutcome:
    """How a task ended. `status` is one of `STATUSES`, or the text that `should_stop` returned; records have
    the v3 shape (`records.py`)."""

    status: str
    code: str = ""
    reason: str = ""
    seconds: float = 0.0
    leftover: tuple[int, ...] = ()  # pids that not even SIGKILL ended: the accelerator is not free
    records: Sequence[dict[str, Json]] = field(default=(), repr=False)
    unexpected: Sequence[dict[str, Json]] = field(default=(), repr=False)  # of another task, and marked

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> TaskOutcome:
        """Read what `to_json` returns; what is not there is '' or 0."""
        status, code, reason = (str(value.get(name) or "") for name in ("status", "code", "reason"))
        return cls(status, code, reason, float(value.get("seconds") or 0.0))

    def to_json(self) -> dict[str, Json]:
        return {name: getattr(self, name) for name in ("status", "code", "reason", "seconds")}


@dataclass(frozen=True)
class TaskResult:
    """A task with its outcome and its records, as outputs, tables and upstream files get it."""

    task: TaskSpec
    outcome: TaskOutcome
    folder: Path  # holds its log if it failed, and its artifacts
    records: list[dict[str, Json]]
    key: str = ""  # of its job
    unexpected: Sequence[dict[str, Json]] = ()  # kept in our own files only

    @property
    def name(self) -> str:
        """Return the key of the job, else the fingerprint of the task."""
        return self.key or self.task.fingerprint()

    def artifacts(self) -> list[Path]:
        """Return the artifacts that are in the task's folder now."""
        return [path for path in (self.folder / "artifacts").rglob("*") if path.is_file()]


def missing(
    task: TaskSpec,
    end: TaskOutcome,
    records: Sequence[Mapping[str, Json]],
    experiments: Sequence[Expected],
    *,
    place: Callable[[], dict[str, Json]] = dict,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Json]]:
    """Return v3 records for the metrics of these experiments that the records lack. Their host is that of the
    records, or without any `place`: arch, runners, dependencies and timestamp. `variables` were the task's
    environment."""
    if end.status == CANCELLED:
        end = TaskOutcome("not_run", CANCELLED, "the task was cancelled")
    if end.status in SUCCESS or end.status not in STATUSES:
        return []
    measured: defaultdict[tuple[str, str, str], set[str]] = defaultdict(set)  # by case, backend and knobs
    for record in records:
        model, info = record["model"], record["benchmark"].get("extra_info") or {}
        key = model["name"], model.get("backend") or "", knobs_key(info.get("knobs") or {})
        measured[key].add(record["metric"]["name"])
    lacking: list[tuple[Expected, str]] = []
    for experiment in experiments:
        metrics = measured[experiment.case, experiment.backend, knobs_key(experiment.knobs)]
        if not metrics or end.status not in NEVER_RAN or end.code == CANCELLED:
            lacking += [(experiment, metric) for metric in experiment.metrics if metric not in metrics]
    if not lacking:
        return []
    status = {"status": end.status, "code": end.code, "reason": end.reason}
    facts = {**task.compilation_facts(variables), **status}
    if records:
        info, host = records[0]["benchmark"]["extra_info"], records[0]
    else:
        host = {"runners": [], "dependencies": {}, **place()}
        arch = host.pop("arch", "")
        info = {"dynamic": task.dynamic, **({"arch": arch} if arch else {})}
    named = {"name": f"Compiler HUD {task.suite}", "mode": task.mode, "dtype": task.dtype}
    return [
        {
            **host,
            "benchmark": {**named, "extra_info": {**info, "device": task.device, "knobs": dict(one.knobs)}},
            "model": {"name": one.case, "type": "benchmark", "backend": one.backend, "origins": [task.suite]},
            "metric": {
                "name": metric.name,
                "extra_info": {"unit": metric.unit, "direction": metric.direction, **facts},
            },
        }
        for one, metric in ((experiment, metric_info(name)) for experiment, name in lacking)
    ]
