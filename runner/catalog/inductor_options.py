"""Options of inductor that the new side of a pair is given, while the base goes without: out of a fixed
list with bounds, so that nothing else can be set on a host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from runner.catalog import BadRequest, Knob, TaskSpec, suite_of
from runner.catalog.backends import backend_of
from runner.catalog.suites.torchdynamo_knobs import INDUCTOR_OPTIONS

VARIABLE = "RUNNER_INDUCTOR_OPTIONS"  # of the process that measures: a JSON object

InductorOptions = dict[str, bool | int]

_OFFERED = {knob.name: knob for knob in INDUCTOR_OPTIONS}
_WORDS = {"true": True, "on": True, "false": False, "off": False}


def problems(options: Mapping[str, object]) -> dict[str, str]:
    """By name: why an option cannot be."""
    said = {
        name: _OFFERED[name].problem(value) if name in _OFFERED else _unknown(name)
        for name, value in options.items()
    }
    return {name: problem for name, problem in said.items() if problem}


def checked(options: Mapping[str, object]) -> InductorOptions:
    """The options as they are. Raises BadRequest for one that is not in the list or out of its bounds."""
    for name, problem in problems(options).items():
        raise BadRequest(f"inductor's option {name}: {problem}")
    return {name: value for name, value in sorted(options.items()) if isinstance(value, bool | int)}


def parsed(settings: Sequence[str]) -> InductorOptions:
    """Of texts ``NAME=VALUE``, as a person types them. Raises BadRequest."""
    found: dict[str, object] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or name in found:
            raise BadRequest(f"{setting!r} is not NAME=VALUE, each name once")
        found[name] = _value(_OFFERED.get(name), text)
    return checked(found)


def of_variable(text: str) -> InductorOptions:
    """What the process was given, '' for nothing. Raises BadRequest."""
    try:
        said = json.loads(text or "{}")
    except ValueError as error:
        raise BadRequest(f"{VARIABLE} is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise BadRequest(f"{VARIABLE} is no object of inductor's options")
    return checked(said)


def variable(options: Mapping[str, bool | int]) -> dict[str, str]:
    """The environment variable that carries them; none for no options."""
    return {VARIABLE: json.dumps(dict(options), sort_keys=True)} if options else {}


def fits(task: TaskSpec) -> bool:
    """Whether they mean anything to this task: it is compiled by inductor, and its suite takes them."""
    return suite_of(task.suite).inductor_options and backend_of(task).is_inductor


def words(options: Mapping[str, bool | int]) -> str:
    """``epilogue_fusion=off, max_fusion_size=8``."""
    said = {True: "on", False: "off"}
    return ", ".join(
        f"{name}={said[value] if isinstance(value, bool) else value}"
        for name, value in sorted(options.items())
    )


def _unknown(name: str) -> str:
    return f"no option that can be set is called {name[:100]!r}; there are: {', '.join(sorted(_OFFERED))}"


def _value(knob: Knob | None, text: str) -> object:
    """Of the option's kind where the text is that, else the text, which is refused by its own words."""
    if knob and knob.kind == "int" and text.isascii() and text.isdecimal() and len(text) < 10:
        return int(text)
    return _WORDS.get(text.lower(), text)
