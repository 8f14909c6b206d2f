"""Turn the options of `python -m runner run`, or a preset's, into tasks."""

import argparse
import itertools
import re
from collections.abc import Sequence

from runner.schema.options import Option, OptionValue
from runner.schema.suite import BadRequest, Suite, TaskSpec
from runner.schema.tasks import Selection, distinct, plan
from runner.suites import PRESETS, suite_of

_CASE = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<knobs>[^\[\]]*)\])?")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


_NOTHING: dict[str, object] = {  # options of `run` that are not given
    **dict.fromkeys(("cases", "modes", "dtypes", "backends", "options", "filter", "exclude_exact"), ()),
    **dict.fromkeys(("repeat", "iterations_per_run", "batch_size", "timeout_s")),
    "exclude": "",
    "dynamic": False,
    "verify": False,
}


def tasks_of_preset(name: str, device: str, **options: Sequence[str]) -> list[TaskSpec]:
    """Return the tasks of a preset; options that are not empty go before its own. Raise BadRequest."""
    if name not in PRESETS:
        raise BadRequest(f"no preset is called {name!r}; there are: {', '.join(PRESETS)}")
    given = {option: value for option, value in options.items() if value}
    return tasks(argparse.Namespace(**{**_NOTHING, **PRESETS[name], **given}), device)


def tasks(request: argparse.Namespace, device: str) -> list[TaskSpec]:
    """Return the tasks of the options of `run`, as typed, on `cuda` or `cpu`. An empty choice means the
    default of the suite. Raise BadRequest for anything that no suite offers."""
    suites = [suite_of(name) for name in request.suites]
    for name in (text.partition("[")[0] for text in request.cases):
        # the plan of a single suite rejects an unknown case itself
        if len(suites) > 1 and not any(suite.has_case(name) for suite in suites):
            raise BadRequest(f"none of {', '.join(suite.name for suite in suites)} has a case {name!r}")
    wanted, unwanted = _pattern("--filter", "|".join(request.filter)), _pattern("--exclude", request.exclude)
    found = [
        task
        for suite in suites
        for task in _suite_tasks(suite, request, device)
        if wanted.search(task.case)
        and not (request.exclude and unwanted.search(task.case))
        and task.case not in request.exclude_exact
    ]
    if not found:
        raise BadRequest("no case fits this request")
    return distinct(found)


def partition(tasks: Sequence[TaskSpec], text: str) -> list[TaskSpec]:
    """Return part I of N, counted from 1, for the text ``I/N``. Raise BadRequest for another text."""
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


def _suite_tasks(suite: Suite, request: argparse.Namespace, device: str) -> list[TaskSpec]:
    given = {name: getattr(request, name) for name in ("repeat", "iterations_per_run", "batch_size")}
    settings = [f"{name}={value}" for name, value in given.items() if value is not None]
    if request.verify and "verify" in suite.offered:
        settings.append("verify=true")  # the other suites check every result anyway
    shared = _values(suite, [*settings, *request.options])
    chosen: list[tuple[list[str], dict[str, list[OptionValue]]]] = [] if request.cases else [([], shared)]
    for text in request.cases:
        match = _CASE.fullmatch(text)
        if match is None:
            raise BadRequest(f"--case {text!r} is not NAME or NAME[OPTION=VALUE,…]")
        if len(request.suites) == 1 or suite.has_case(match["name"]):
            settings = match["knobs"].split(",") if match["knobs"] else []
            chosen.append(([match["name"]], {**shared, **_values(suite, settings)}))
    axes = dict(suite.axes)
    on_device = suite.backends_on(device)
    backends = request.backends or [name for name in axes.get("backend", ()) if name in on_device]
    modes = request.modes or axes.get("mode", suite.modes[:1])
    found = []
    for names, knobs in chosen:
        for values, mode in itertools.product(itertools.product(*knobs.values()), modes):
            selection = Selection(
                suite.name,
                device,
                cases=names,
                modes=[mode],
                dtypes=request.dtypes or suite.default_dtypes(mode),
                backends=backends,
                dynamic=request.dynamic,
                knobs=dict(zip(knobs, values, strict=True)),
                timeout_s=request.timeout_s,
            )
            found += plan(selection)
    return found


def _values(suite: Suite, settings: Sequence[str]) -> dict[str, list[OptionValue]]:
    """Return the values of each option that is named; several make a matrix."""
    offered = suite.offered
    values: dict[str, list[OptionValue]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise BadRequest(f"{setting!r} is not NAME=VALUE")
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            raise BadRequest(f"suite {suite.name} has no option {name!r}; it has: {known}")
        if name in values:
            raise BadRequest(f"option {name} is given twice; several values are {name}=A+B")
        several = [text] if offered[name].kind == "ints" else text.split("+")
        values[name] = [_value(offered[name], part) for part in several]
    return values


def _value(option: Option, text: str) -> OptionValue:
    """Return the text as the option's type; the suite checks its bounds."""
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
