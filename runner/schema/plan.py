"""What can run: suites, cases, knobs and limits. Standard library only; both halves read it.

A run is data: a suite's name, case names and bounded knobs out of this catalogue. Nothing else can be
asked of a host, so nothing that reaches Redis or the API can become a command.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.suites import SUITES, Case, Knob, Suite
from runner.suites.file import NAME as OWN_FILE
from runner.suites.file import own_file, suite_of_file
from runner.suites.torchdynamo.backend_names import canonical, normalized

__all__ = [
    "PROTOCOL",
    "SUITES",
    "BadRequest",
    "Case",
    "Knob",
    "Selection",
    "Suite",
    "TaskSpec",
    "distinct",
    "plan",
]

PROTOCOL = 1  # of the talk between agent and hud; a host that speaks another one is told so

_KNOBS = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
KnobValue = bool | int | str | list[int]


class BadRequest(ValueError):
    """A suite, case or knob that the catalogue does not offer. The text names it and what is offered; `knob`
    is the knob that is wrong where it is one."""

    def __init__(self, text: str, knob: str = "") -> None:
        super().__init__(text)
        self.knob = knob


@dataclass(frozen=True)
class TaskSpec:
    """One launch of a fresh process: one case of a suite, with every knob bound."""

    suite: str
    case: str
    mode: str
    dtype: str
    backend: str
    device: str  # cuda or cpu
    dynamic: bool = False
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    timeout_s: int = 600

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TaskSpec:
        """Rebuilds a spec and checks it against the catalogue: raises BadRequest for anything else."""
        names = {item.name for item in dataclasses.fields(cls)}
        unknown = sorted(set(value) - names)
        if unknown:
            raise BadRequest(f"unknown field {unknown[0]!r} in a task")
        try:
            spec = cls(**dict(value))
        except TypeError as error:
            raise BadRequest(f"a task needs more: {error}") from error
        return _checked(spec)

    def setting(self, name: str) -> KnobValue | None:
        """A knob's value: the one given, else its default. Raises KeyError for one the suite lacks."""
        offered = {knob.name: knob for knob in suite_of(self.suite).knobs}
        return self.knobs.get(name, offered[name].default)

    def identity(self) -> dict[str, KnobValue]:
        """The knobs that make this another experiment than the suite's plain one."""
        offered = {knob.name: knob for knob in suite_of(self.suite).knobs}
        return {
            name: value
            for name, value in self.knobs.items()
            if offered[name].identity and value != offered[name].default
        }

    def fingerprint(self) -> str:
        """Identity of what is measured: 16 hex digits over everything but the time limit."""
        said = {name: value for name, value in self.to_json().items() if name != "timeout_s"}
        return hashlib.sha256(knobs_key(said).encode()).hexdigest()[:16]

    def command(self, *, where: str = "") -> str:
        """The line a person types to reproduce this task, without the web application; `where` are the
        options that name its device, if not the first of its kind."""
        knobs = ",".join(f"{name}={_knob_text(value)}" for name, value in sorted(self.knobs.items()))
        case = f"{self.case}[{knobs}]" if knobs else self.case
        path = own_file() if self.suite == OWN_FILE else None
        suite = f"--file {shlex.quote(str(path))}" if path else self.suite
        parts = ["python -m runner run", suite, f"--case '{case}'" if knobs else f"--case {case}"]
        parts += [f"--mode {self.mode}", f"--dtype {self.dtype}", f"--backend {self.backend}"]
        parts += [where or f"--device {self.device}"]
        if self.dynamic:
            parts.append("--dynamic")
        return " ".join(parts)


def _knob_text(value: KnobValue) -> str:
    return "+".join(str(item) for item in value) if isinstance(value, list) else str(value)


def suite_of(name: str) -> Suite:
    path = own_file() if name == OWN_FILE else None
    if path is not None:
        return suite_of_file(path)
    if name not in SUITES:
        raise BadRequest(f"no suite is called {name!r}; there are: {', '.join(sorted(SUITES))}")
    return SUITES[name]


@dataclass(frozen=True)
class Selection:
    """What to run of a suite: cases × modes × dtypes × backends. An empty choice means the suite's own."""

    suite: str
    device: str  # cuda or cpu
    cases: Sequence[str] = ()
    modes: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    backends: Sequence[str] = ()
    dynamic: bool = False
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    timeout_s: int | None = None


def plan(asked: Selection) -> list[TaskSpec]:
    """Return the tasks of a selection, each once. Raise BadRequest for a name that the catalogue does not
    offer or a knob out of its bounds."""
    suite = suite_of(asked.suite)
    found = []
    for case in [_case_of(suite, name) for name in asked.cases] or suite.cases:
        offered = _offered("dtype", asked.dtypes, case.dtypes, f"{suite.name}/{case.name}", bool(asked.cases))
        for dtype in offered:
            for mode in _offered("mode", asked.modes, suite.modes, suite.name, True)[: len(asked.modes) or 1]:
                for backend in asked.backends or suite.backends[:1]:
                    spec = TaskSpec(
                        suite=suite.name,
                        case=case.name,
                        mode=mode,
                        dtype=dtype,
                        backend=backend,
                        device=asked.device,
                        dynamic=asked.dynamic,
                        knobs=asked.knobs,
                        timeout_s=suite.timeout_s if asked.timeout_s is None else asked.timeout_s,
                    )
                    found.append(normalized(_checked(spec), suite.knobs))
    if not found:
        raise BadRequest(f"nothing of suite {suite.name} fits this request")
    return distinct(found)


def distinct(tasks: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Return each way of measuring once, also where its backend goes by several names."""
    found: dict[str, TaskSpec] = {}
    for task in tasks:
        found.setdefault(canonical(task).fingerprint(), task)
    return list(found.values())


def _offered(what: str, asked: Sequence[str], offered: Sequence[str], place: str, strict: bool) -> list[str]:
    if not asked:
        return list(offered)
    wrong = [name for name in asked if name not in offered]
    if wrong and strict:
        raise BadRequest(f"{place} has no {what} {wrong[0]!r}; it has: {', '.join(offered)}")
    return [name for name in asked if name in offered]


def _case_of(suite: Suite, name: str) -> Case:
    for case in suite.cases:
        if case.name == name:
            return case
    names = ", ".join(case.name for case in suite.cases)
    raise BadRequest(f"suite {suite.name} has no case {name!r}; it has: {names}")


def _checked(spec: TaskSpec) -> TaskSpec:
    suite = suite_of(spec.suite)
    case = _case_of(suite, spec.case)
    place = f"{suite.name}/{case.name}"
    for what, value, offered in (
        ("dtype", spec.dtype, case.dtypes),
        ("mode", spec.mode, suite.modes),
        ("device", spec.device, suite.devices),
    ):
        if value not in offered:
            raise BadRequest(f"{place} has no {what} {value!r}; it has: {', '.join(offered)}")
    if not isinstance(spec.backend, str) or not suite.has_backend(spec.backend):
        raise BadRequest(f"{place} has no backend {spec.backend!r}; it has: {', '.join(suite.backends)}")
    if not isinstance(spec.dynamic, bool) or (spec.dynamic and not suite.dynamic):
        raise BadRequest(f"{place} has no dynamic shapes")
    if not isinstance(spec.timeout_s, int) or not 1 <= spec.timeout_s <= suite.timeout_s:
        raise BadRequest(f"{place}: the time limit is 1 to {suite.timeout_s} s, not {spec.timeout_s!r}")
    offered_knobs = {knob.name: knob for knob in suite.knobs}
    for name, setting in spec.knobs.items():
        if name not in offered_knobs:
            known = ", ".join(sorted(offered_knobs))
            raise BadRequest(f"{place} has no knob {name!r}; it has: {known}", name)
        problem = offered_knobs[name].problem(setting)
        if problem:
            raise BadRequest(f"{place}: knob {name}: {problem}", name)
    return spec


def knobs_key(knobs: Mapping[str, Any]) -> str:
    """Canonical text of an experiment's knobs: the identity that the store keeps."""
    return _KNOBS.encode(knobs) if knobs else "{}"
