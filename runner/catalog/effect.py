"""Which of a request's settings change what runs: those make the task, the others are told with their reason.

A knob says in the catalogue what a task must be for it to mean anything (`Knob.where`). In a matrix a cell
runs without what would change nothing there; a setting that no cell takes is refused. So a task, and with
it the identity of what it measures, holds no setting without an effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.catalog.backends import canonical, parts_of
from runner.catalog.batch_sizes import default_batch_size
from runner.catalog.suites.suite import Knob, Suite, Where

if TYPE_CHECKING:
    from runner.catalog import KnobValue, TaskSpec

_DIMENSIONS = ("suite", "case", "mode", "dtype", "device", "dynamic")
_COMPILERS = {"inductor": "a backend of inductor", "other": "a backend other than inductor"}
_ON_OFF = {True: "on", False: "off"}
_CHECKED_IN_NAMES = ("compile_mode", "freezing", "cpp_wrapper")
_MOST_PLACES = 3  # that one remark names


@dataclass(frozen=True)
class Cell:
    """A task of a matrix. By setting, as NAME=VALUE: which of those that were asked for it has, and what the
    task would need for each of the others."""

    task: TaskSpec
    takes: frozenset[str] = frozenset()
    without: Mapping[str, str] = dataclasses.field(default_factory=dict)


def cell(task: TaskSpec, suite: Suite) -> Cell:
    """Of a task with all that was asked for, each within its bounds."""
    asked = dict(task.knobs)
    kept: dict[str, KnobValue] = {}
    takes, without = set(), {}
    for knob in suite.knobs:
        if knob.name not in asked:
            continue
        value = asked[knob.name]
        if _is_default(knob, value, task):
            continue
        here = dataclasses.replace(task, knobs=kept)
        missing = unmet(knob, value, here, suite)
        if missing:
            without[said(knob.name, value)] = missing
            continue
        takes.add(said(knob.name, value))
        if not _is_so_anyway(knob, value, here):
            kept[knob.name] = value
    return Cell(dataclasses.replace(task, knobs=kept), frozenset(takes), without)


def unmet(knob: Knob, value: object, task: TaskSpec, suite: Suite) -> str:
    """What the task would need for this setting to change anything, '' where it does."""
    here = _all_of(task, suite)
    needs = knob.needs(value).items()
    return words({name: values for name, values in needs if name in here and here[name] not in values})


def name_problem(task: TaskSpec, suite: Suite) -> str:
    """Why its backend's name says a setting that changes nothing, '' where it says none."""
    parts = parts_of(task.backend) or {}
    for knob in suite.knobs:
        value = parts.get(knob.name)
        if knob.name not in _CHECKED_IN_NAMES or value == knob.default:
            continue
        here = _all_of(task, suite)
        needs = {name: values for name, values in knob.needs(value).items() if name in ("export", "device")}
        missing = words({name: values for name, values in needs.items() if here[name] not in values})
        if missing:
            return f"{said(knob.name, value)} of its name would change nothing: it needs {missing}"
    return ""


def refused(cells: Sequence[Cell]) -> tuple[str, str]:
    """A setting that no cell takes: its knob, and why; '' and '' where there is none."""
    taken = frozenset[str]().union(*(one.takes for one in cells))
    for one in cells:
        for setting, missing in one.without.items():
            if setting not in taken:
                reason = f"{place(one.task)}: {setting} would change nothing; it needs {missing}"
                return setting.partition("=")[0], reason
    return "", ""


def remarks(cells: Sequence[Cell]) -> list[str]:
    """A sentence for each setting that some cells go without, and one for cells that are another by name."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in cells:
        for setting, missing in one.without.items():
            found.setdefault((setting, missing), []).append(place(one.task))
    said = [
        f"run without {setting}, which needs {missing}: {_some(dict.fromkeys(places))}"
        for (setting, missing), places in found.items()
    ]
    twice = _twice([one.task for one in cells])
    return [*said, f"measured once, as it is the same: {_some(twice)}"] if twice else said


def _twice(tasks: Sequence[TaskSpec]) -> list[str]:
    """Those that were asked for in other words before."""
    first: dict[str, TaskSpec] = {}
    for task in tasks:
        first.setdefault(canonical(task).fingerprint(), task)
    others = [task for task in tasks if first[canonical(task).fingerprint()] != task]
    return list(dict.fromkeys(place(task) for task in others))


def distinct(tasks: Iterable[TaskSpec]) -> list[TaskSpec]:
    """Each way of measuring once, however often and in whichever words it was asked for."""
    found: dict[str, TaskSpec] = {}
    for task in tasks:
        found.setdefault(canonical(task).fingerprint(), task)
    return list(found.values())


def place(task: TaskSpec) -> str:
    dynamic = ", dynamic" if task.dynamic else ""
    return f"{task.suite}/{task.case} ({task.mode}, {task.dtype}, {task.backend}, {task.device}{dynamic})"


def said(name: str, value: object) -> str:
    return f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def words(where: Where, suite: str = "") -> str:
    """``mode inference, a backend of inductor, export none or aot_inductor``; '' for anywhere. Of a suite
    that is named, nothing is said where it is one of those."""
    said = {name: values for name, values in where.items() if name != "suite" or suite not in values}
    return ", ".join(_words(name, values) for name, values in said.items())


def _words(name: str, values: tuple[object, ...]) -> str:
    if name == "compiler":
        return " or ".join(_COMPILERS[str(value)] for value in values)
    if name == "case":
        return "another case"
    if name == "dynamic":
        return "dynamic shapes" if True in values else "static shapes"
    return f"{name} {' or '.join(_ON_OFF[one] if isinstance(one, bool) else str(one) for one in values)}"


def _some(places: Iterable[str]) -> str:
    every = list(places)
    more = len(every) - _MOST_PLACES
    return "; ".join(every[:_MOST_PLACES]) + (f"; and {more} more" if more > 0 else "")


def _all_of(task: TaskSpec, suite: Suite) -> dict[str, object]:
    """Whatever a `where` can ask for: knobs that are given, those that the backend's name says, defaults."""
    parts = parts_of(task.backend)
    return {
        **{knob.name: knob.default for knob in suite.knobs},
        **(parts or {}),
        **task.knobs,
        **{name: getattr(task, name) for name in _DIMENSIONS},
        "compiler": "other" if parts is None else "inductor",
    }


def _is_default(knob: Knob, value: object, task: TaskSpec) -> bool:
    """As good as not given, unless the backend's name says otherwise."""
    parts = parts_of(task.backend) or {}
    return same(value, knob.default) and parts.get(knob.name, value) == value


def _is_so_anyway(knob: Knob, value: object, task: TaskSpec) -> bool:
    """What the backend's name, the device or the model has where nobody asks for it."""
    if knob.name in (parts := parts_of(task.backend) or {}):
        return bool(parts[knob.name] == value)
    if knob.name == "batch_size":
        tiny = task.knobs.get("size") == "tiny"
        return value == default_batch_size(task.suite, task.case, task.mode, tiny=tiny)
    return knob.of_device.get(task.device) == value


def same(value: object, default: object) -> bool:
    return value == default and isinstance(value, bool) == isinstance(default, bool)
