"""Suites: their cases, their options, and the results that each of their tasks leaves.

A run is data: a suite's name, case names and bounded options out of what the suites declare. Nothing else can
be asked of a host, so nothing that reaches Redis or the API can become a command.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

from runner.schema.options import EXPLAIN, EXPLAIN_S, Option, OptionValue, setting_text
from runner.schema.records import CLASS_PACKAGES
from runner.schema.statistics import ValueRule

MAX_COMPILATIONS = 20
COMPILATION_VARIABLE = "RUNNER_COMPILATION"  # in a process's environment: the number that its records carry

# What tells the experiments of one arch apart: the attributes of a result.
IDENTITY = ("suite", "case", "mode", "dtype", "backend", "device", "dynamic", "knobs")
_KNOBS = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class BadRequest(ValueError):
    """A suite, case or option that is not offered, or a run that cannot be. The text names it and what is
    offered; `knob` is the option that is wrong, or ''; `options` has a reason for each wrong option of
    inductor."""

    def __init__(self, text: str, knob: str = "", options: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(text)
        self.knob = knob
        self.options = options


@dataclass(frozen=True)
class Case:
    name: str
    title: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class TaskSpec:
    """One case of a suite with every setting bound; it runs in a fresh process.

    `compilation` is its number: the first (0) measures everything, each further one compiles again with empty
    caches and measures what another compilation can change.
    """

    suite: str
    case: str
    mode: str
    dtype: str
    backend: str
    device: str  # cuda or cpu
    dynamic: bool = False
    knobs: Mapping[str, OptionValue] = field(default_factory=dict)
    timeout_s: int = 600
    compilation: int = 0

    def to_json(self) -> dict[str, Any]:
        named = dataclasses.asdict(self)
        if not self.compilation:
            del named["compilation"]
        return named

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TaskSpec:
        """Rebuild a task and check it against its suite. Raise BadRequest for what is not offered."""
        try:
            task = cls(**value)
        except TypeError as error:
            raise BadRequest(f"this is no task: {error}") from error
        suite_of(task.suite).check(task)
        return task

    def setting(self, name: str) -> OptionValue | None:
        """Return an option's value: the given one, else its default. Raise KeyError if the suite lacks it."""
        return self.knobs.get(name, suite_of(self.suite).offered[name].default)

    def number(self, name: str) -> int:
        """Return the value of an option that is an integer."""
        return cast("int", self.setting(name))

    def identity(self) -> dict[str, OptionValue]:
        """Return the knobs that make this another experiment than the suite's plain one."""
        offered = suite_of(self.suite).offered
        return {
            name: value
            for name, value in self.knobs.items()
            if offered[name].identity and value != offered[name].default
        }

    def fingerprint(self) -> str:
        """Return 16 hex digits over everything that says what is measured, so not over the time limit and the
        number of the compilation."""
        left_out = ("timeout_s", "compilation")
        named = {name: value for name, value in self.to_json().items() if name not in left_out}
        return hashlib.sha256(knobs_key(named).encode()).hexdigest()[:16]

    def compilation_facts(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Return what each record says of its compilation, in a process with these environment variables."""
        number = int(variables.get(COMPILATION_VARIABLE, self.compilation))
        return {"compilation": number} if suite_of(self.suite).has_compilations(self) else {}

    def asks_for_artifacts(self) -> bool:
        """Return whether an option asks to keep artifacts; others are made anyway."""
        return any(
            value and name.startswith(("dump_", "keep_", "save_")) for name, value in self.knobs.items()
        )

    def command(self, verb: str = "run", *, where: str = "") -> str:
        """Return the command line that runs this task without the web application, or writes its file
        (`reproduce`). `where` are the options that name its device, if it is not the first of its kind."""
        knobs = ",".join(f"{name}={setting_text(value)}" for name, value in sorted(self.knobs.items()))
        parts = [f"python -m runner {verb}", suite_of(self.suite).argument()]
        parts += [f"--case '{self.case}[{knobs}]'" if knobs else f"--case {self.case}"]
        parts += [f"--mode {self.mode}", f"--dtype {self.dtype}", f"--backend {self.backend}"]
        parts += [where or f"--device {self.device}"]
        if self.dynamic:
            parts.append("--dynamic")
        return " ".join(parts)


@dataclass(frozen=True)
class Expected:
    """One experiment of a task, as its records name it, and the metrics that each such task measures."""

    case: str
    backend: str
    knobs: Mapping[str, Any]
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class TargetFraction:
    """`fraction` of the arch's copy bandwidth (suite `ceilings`, case `copy`), as a value of `metric`.

    A row that an operator set goes before it; it goes before the record's own target, which counts where it
    was made for this arch.
    """

    metric: str
    case: str
    dtype: str
    size: str  # the case parameter D: "1024" … "16384", or "mean"
    fraction: float


@dataclass(frozen=True)
class Matrix:
    """How a suite's page compares the cells of its matrix, and explains the codes of their verification."""

    backends: tuple[str, ...]  # with a column each
    ratio: tuple[str, str]  # the two whose times are divided
    time_metric: str  # compared between backends
    code_metric: str  # whose code says whether the cell agrees with eager
    runtime_knob: str  # names the runtime of the cells on these backends
    runtime_backends: tuple[str, ...]
    codes: Mapping[str, tuple[str, str]]  # what a code means, what to do


@dataclass(frozen=True)
class Suite:
    """A suite as data. A suite whose answers depend on the task is a subclass that overrides methods.

    `run.py` beside the suite's `__init__.py` has `run(task, report)`, which measures a task with torch.
    """

    name: str
    title: str
    cases: tuple[Case, ...]
    backends: tuple[str, ...]
    modes: tuple[str, ...] = ("inference",)
    devices: tuple[str, ...] = ("cuda", "cpu")
    options: tuple[Option, ...] = ()
    dynamic: bool = False
    timeout_s: int = 600
    headline_metrics: tuple[str, ...] = ()  # what a person reads first, most telling first
    # A matrix: the modes, backends and dtypes that a command runs where it names none.
    axes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    backend_pattern: str = ""  # other backends whose whole name matches can be named too
    packages: tuple[str, ...] = ()  # what an interpreter must have besides torch to run any of it
    class_packages: tuple[str, ...] = CLASS_PACKAGES  # whose version may change its numbers
    target_fractions: tuple[TargetFraction, ...] = ()  # targets as shares of what the host reaches
    inductor_options: bool = False  # its tasks take options of inductor where inductor compiles them
    matrix: Matrix | None = None  # of a suite that compares its backends cell by cell
    reference_backends: tuple[str, ...] = ()  # which its records name beside those of `expected`
    compiles: bool = False  # its tasks can be compiled several times; else their one process is all there is
    file_variable: str = ""  # of the environment: the path of the file (`run --file`) that has its cases

    @cached_property
    def offered(self) -> dict[str, Option]:
        return {option.name: option for option in self.options}

    @cached_property
    def packages_by_cell(self) -> dict[str, str]:
        """Return each package besides torch that a cell needs, with the backends or number of cases that need
        it; '' where all do."""
        needs: dict[str, list[TaskSpec]] = {}
        for case, backend in itertools.product(self.cases, self.backends):
            task = TaskSpec(self.name, case.name, self.modes[0], case.dtypes[0], backend, self.devices[-1])
            for package in self.packages_of(task):
                needs.setdefault(package, []).append(task)
        cells = {}
        for package, tasks in needs.items():
            cases = len({task.case for task in tasks})
            backends = dict.fromkeys(task.backend for task in tasks)
            of_cases = f"{cases} of {len(self.cases)} cases" if cases < len(self.cases) else ""
            cells[package] = ", ".join(backends) if len(backends) < len(self.backends) else of_cases
        return cells

    @property
    def module(self) -> str:
        """Return the module that measures; only the child imports it."""
        return f"runner.suites.{self.name}.run"

    def argument(self) -> str:
        """Return the argument of `runner run` that names the suite."""
        return self.name

    def backends_on(self, device: str) -> tuple[str, ...]:
        return self.backends

    def case(self, name: str) -> Case:
        """Return a case. Raise BadRequest for one that the suite lacks."""
        by_name = {case.name: case for case in self.cases}
        if name not in by_name:
            raise BadRequest(f"suite {self.name} has no case {name!r}; it has: {', '.join(by_name)}")
        return by_name[name]

    def check_listed(self, name: str) -> None:
        """Raise BadRequest for a case that only a command on the host itself can name."""

    def local_cases(self) -> Sequence[Case]:
        """Return the cases that files of this machine add or tell something of, for a person to read."""
        return ()

    def default_dtypes(self, mode: str) -> tuple[str, ...]:
        """Return the dtypes that a command measures in a mode where it names none; () for all of a case."""
        return dict(self.axes).get("dtype", ())

    def has_case(self, name: str) -> bool:
        return any(name == case.name for case in self.cases)

    def chosen_cases(self, names: Sequence[str], knobs: Mapping[str, OptionValue], device: str) -> list[Case]:
        """Return the cases of these names; without a name, all that a task with these knobs can measure on a
        device. Raise BadRequest as `case`."""
        return [self.case(name) for name in names] or list(self.cases)

    def check(self, task: TaskSpec) -> None:
        """Raise BadRequest for a task with anything that the suite does not offer."""
        case = self.case(task.case)
        title = f"{self.name}/{case.name}"
        for what, value, offered in (
            ("dtype", task.dtype, case.dtypes),
            ("mode", task.mode, self.modes),
            ("device", task.device, self.devices),
        ):
            if value not in offered:
                raise BadRequest(f"{title} has no {what} {value!r}; it has: {', '.join(offered)}")
        backends = self.backends_on(task.device)
        named = isinstance(task.backend, str) and re.fullmatch(self.backend_pattern or "(?!)", task.backend)
        if task.backend not in backends and not named:
            raise BadRequest(f"{title} has no backend {task.backend!r}; it has: {', '.join(backends)}")
        if not isinstance(task.dynamic, bool) or (task.dynamic and not self.dynamic):
            raise BadRequest(f"{title} has no dynamic shapes")
        if not isinstance(task.timeout_s, int) or not 1 <= task.timeout_s <= self.timeout_s:
            raise BadRequest(f"{title}: the time limit is 1 to {self.timeout_s} s, not {task.timeout_s!r}")
        last = MAX_COMPILATIONS - 1 if self.compiles else 0
        if type(task.compilation) is not int or not 0 <= task.compilation <= last:
            raise BadRequest(f"{title}: the compilations are 0 to {last}, not {task.compilation!r}")
        for name, setting in task.knobs.items():
            if name not in self.offered:
                names = ", ".join(sorted(self.offered))
                raise BadRequest(f"{title} has no option {name!r}; it has: {names}", name)
            if problem := self.offered[name].problem(setting):
                raise BadRequest(f"{title}: option {name}: {problem}", name)

    def normalized(self, task: TaskSpec) -> TaskSpec:
        """Return the task without options at their default, in the order in which they are offered."""
        in_order = {name: task.knobs[name] for name in self.offered if name in task.knobs}
        changed = {name: value for name, value in in_order.items() if value != self.offered[name].default}
        return replace(task, knobs=changed)

    def canonical(self, task: TaskSpec) -> TaskSpec:
        """Return the same task for all ways of asking for it, with the backend and knobs of its results."""
        return task

    def packages_of(self, task: TaskSpec) -> tuple[str, ...]:
        """Return what an interpreter must have besides torch to run this task."""
        return self.packages

    def expected(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        """Return the experiments of a task that runs with these environment variables. The task leaves a
        record for each of their metrics: with a value, or with the status that says why there is none."""
        named = self.canonical(task)
        return [Expected(task.case, named.backend, named.identity(), self.headline_metrics)]

    def expected_in_full(self, task: TaskSpec, variables: Mapping[str, str]) -> list[Expected]:
        """Like `expected`, with what only the host can know, since it reads the host's files."""
        return self.expected(task, variables)

    def open_knobs(self, task: TaskSpec) -> dict[str, str]:
        """Return the knobs of a record whose values `expected` cannot know, each with the regular expression
        that its value matches in full; '' is an absent one."""
        return {}

    def files_digest(self, task: TaskSpec, variables: Mapping[str, str]) -> str:
        """Return a digest of the host's files that decide what the task measures; '' if there are none."""
        return ""

    def asked_knobs(self, stored: Mapping[str, Any]) -> dict[str, OptionValue]:
        """Return the knobs that a task is given to measure the experiment with these stored knobs."""
        return dict(stored)

    def complete_knobs(self, knobs: Mapping[str, Any], device: str) -> Mapping[str, Any]:
        """Return the knobs of a stored result with what earlier releases did not say."""
        return knobs

    def has_compilations(self, task: TaskSpec) -> bool:
        """Return whether the task can be compiled several times, from empty caches each time."""
        return self.compiles

    def takes_inductor_options(self, task: TaskSpec) -> bool:
        return self.inductor_options and task.backend.startswith("inductor")

    def explaining_knobs(self, metric: str, backend: str) -> dict[str, OptionValue]:
        """Return the options with which a task explains why this metric failed; {} if it cannot."""
        return {EXPLAIN: EXPLAIN_S} if backend.startswith("inductor") and EXPLAIN in self.offered else {}

    def value_rule(self, metric: str) -> ValueRule:
        """Return how the samples of one process become the metric's value."""
        return "median"

    def problem_of(self, identity: Mapping[str, Any], task: TaskSpec, expected: Iterable[Expected]) -> str:
        """Return why a result with this identity does not belong to the task, or ''. `identity` has the keys
        `IDENTITY`."""
        experiments, free = list(expected), self.open_knobs(task)
        knobs = dict(identity["knobs"])
        for name, pattern in free.items():
            value = knobs.pop(name, "")
            if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
                return f"its {name} is {value!r:.100}"
        for what, value, own in (
            ("suite", identity["suite"], [task.suite]),
            ("case", identity["case"], [experiment.case for experiment in experiments]),
            ("mode", identity["mode"], [task.mode]),
            ("dtype", identity["dtype"], [task.dtype]),
            ("backend", identity["backend"], [*(e.backend for e in experiments), *self.reference_backends]),
            ("device", identity["device"], [task.device]),
            ("dynamic", identity["dynamic"], [task.dynamic]),
        ):
            if value not in own:
                return f"its {what} is {value!r:.100}, not {own[0]!r:.100}"
        of_case = [experiment.knobs for experiment in experiments if experiment.case == identity["case"]]
        closed = [{name: options[name] for name in options if name not in free} for options in of_case]
        # equal as text too: in Python True equals 1
        if any(options == knobs and knobs_key(options) == knobs_key(knobs) for options in closed):
            return ""
        return f"its knobs are {knobs!r:.100}, not {closed[0]!r:.100}"


# The suites by name, in the order of their pages, filled by runner/suites/__init__.py. An unlisted one can be
# run but is not offered.
SUITES: dict[str, Suite] = {}
UNLISTED: dict[str, Callable[[], Suite]] = {}


def suite_of(name: str) -> Suite:
    """Return a suite by its name. Raise BadRequest for one that does not exist."""
    if name in UNLISTED:
        return UNLISTED[name]()
    if name not in SUITES:
        raise BadRequest(f"no suite is called {name!r}; there are: {', '.join(sorted(SUITES))}")
    return SUITES[name]


def value_rule(suite: str, metric: str) -> ValueRule:
    """Return how the samples of one process become the value of a metric, also in suites of others."""
    return SUITES[suite].value_rule(metric) if suite in SUITES else "median"


def knobs_key(knobs: Mapping[str, Any]) -> str:
    """Return the canonical text of an experiment's knobs: the identity that the store keeps."""
    return _KNOBS.encode(knobs) if knobs else "{}"
