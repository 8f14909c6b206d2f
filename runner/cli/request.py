"""What a person asks for at a terminal → tasks of the catalogue."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.schema.plan import Selection, distinct, plan
from runner.schema.suite import BadRequest, Option, OptionValue, Suite, TaskSpec
from runner.suites import suite_of

_CASE = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<knobs>[^\[\]]*)\])?")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


@dataclass(frozen=True)
class Request:
    """Options of `python -m runner run`, as typed. An empty choice means the suite's own."""

    suites: Sequence[str]
    device: str  # cuda or cpu
    cases: Sequence[str] = ()  # NAME or NAME[KNOB=VALUE,…]
    filter: str = ""  # regular expression, searched in the case's name
    exclude: str = ""  # the same, for cases to leave out
    exclude_exact: Sequence[str] = ()
    modes: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    backends: Sequence[str] = ()
    dynamic: bool = False
    verify: bool = False
    timeout_s: int | None = None
    repeat: int | None = None
    iterations_per_run: int | None = None
    batch_size: int | None = None
    options: Sequence[str] = field(default=())  # KNOB=VALUE, or KNOB=VALUE+VALUE for a matrix


def tasks(request: Request) -> list[TaskSpec]:
    """Return the tasks of a request. Raise BadRequest for anything that the catalogue does not offer."""
    suites = [suite_of(name) for name in request.suites]
    _check_cases(suites, request.cases)
    wanted, unwanted = _pattern("--filter", request.filter), _pattern("--exclude", request.exclude)
    found = [
        task
        for suite in suites
        for task in _suite_tasks(suite, request)
        if wanted.search(task.case)
        and not (request.exclude and unwanted.search(task.case))
        and task.case not in request.exclude_exact
    ]
    if not found:
        raise BadRequest("no case fits this request")
    return distinct(found)


def partition(tasks: Sequence[TaskSpec], text: str) -> list[TaskSpec]:
    """Part I of N, counted from 1, of ``I/N``: each task is in one part. Raises BadRequest."""
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    place, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= place <= parts:
        raise BadRequest(f"--partition {text!r} is not I/N with I from 1 to N")
    return list(tasks[place - 1 :: parts])


def _pattern(option: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise BadRequest(f"{option} {text!r} is no regular expression: {error}") from error


def _check_cases(suites: Sequence[Suite], texts: Sequence[str]) -> None:
    """Of several suites, one has to have the case; of a single one, the plan says so itself."""
    if len(suites) < 2:
        return
    for text in texts:
        name = text.partition("[")[0]
        if not any(_has(suite, name) for suite in suites):
            raise BadRequest(f"none of {', '.join(suite.name for suite in suites)} has a case {name!r}")


def _has(suite: Suite, case: str) -> bool:
    return any(case == one.name for one in suite.cases)


def _settings(suite: Suite, request: Request) -> list[str]:
    """Options that are knobs of the suite, and the knobs that were named as such."""
    given = {
        "repeat": request.repeat,
        "iterations_per_run": request.iterations_per_run,
        "batch_size": request.batch_size,
    }
    found = [f"{name}={value}" for name, value in given.items() if value is not None]
    if request.verify and any(option.name == "verify" for option in suite.options):
        found.append("verify=true")  # the other suites check every result anyway
    return [*found, *request.options]


def _suite_tasks(suite: Suite, request: Request) -> list[TaskSpec]:
    shared = _knobs(suite, _settings(suite, request))
    axes = dict(suite.axes)

    def planned(names: Sequence[str], knobs: Mapping[str, list[OptionValue]]) -> list[TaskSpec]:
        return [
            task
            for combination in _combinations(suite, {**shared, **knobs}, whole=not request.backends)
            for task in plan(
                Selection(
                    suite.name,
                    request.device,
                    cases=names,
                    modes=request.modes or axes.get("mode", ()),
                    dtypes=request.dtypes or axes.get("dtype", ()),
                    backends=request.backends or axes.get("backend", ()),
                    dynamic=request.dynamic,
                    knobs=combination,
                    timeout_s=request.timeout_s,
                )
            )
        ]

    if not request.cases:
        return planned((), {})
    found = []
    for text in request.cases:
        match = _CASE.fullmatch(text)
        if match is None:
            raise BadRequest(f"--case {text!r} is not NAME or NAME[KNOB=VALUE,…]")
        if len(request.suites) > 1 and not _has(suite, match["name"]):
            continue
        settings = (match["knobs"] or "").split(",") if match["knobs"] else []
        found += planned([match["name"]], _knobs(suite, settings))
    return found


def _combinations(
    suite: Suite, knobs: Mapping[str, list[OptionValue]], *, whole: bool
) -> Iterator[dict[str, OptionValue]]:
    """Every combination of the knobs' values; of the whole matrix: with those axes that nobody named."""
    names = {option.name for option in suite.options if whole and option.name not in knobs}
    axes: dict[str, list[OptionValue]] = {name: list(values) for name, values in suite.axes if name in names}
    lists = {**knobs, **axes}
    for values in itertools.product(*lists.values()):
        yield dict(zip(lists, values, strict=True))


def _knobs(suite: Suite, settings: Sequence[str]) -> dict[str, list[OptionValue]]:
    """The values of each knob that was named; several make a matrix."""
    offered = {option.name: option for option in suite.options}
    found: dict[str, list[OptionValue]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise BadRequest(f"{setting!r} is not KNOB=VALUE")
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            raise BadRequest(f"suite {suite.name} has no option {name!r}; it has: {known}")
        if name in found:
            raise BadRequest(f"option {name} is given twice; several values are {name}=A+B")
        several = [text] if offered[name].kind == "ints" else text.split("+")
        found[name] = [_value(offered[name], part) for part in several]
    return found


def _value(option: Option, text: str) -> OptionValue:
    """The typed value; the catalogue checks its bounds."""
    try:
        if option.kind == "int":
            return int(text)
        if option.kind == "ints":
            return [int(part) for part in text.split("+")]
    except ValueError:
        raise BadRequest(f"option {option.name}: {text!r} is not {option.kind}") from None
    if option.kind == "bool" and text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    return text
