"""What a person asks for at a terminal → tasks of the catalogue."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runner.catalog import BadRequest, Knob, KnobValue, Suite, TaskSpec, plan, suite_of

_CASE = re.compile(r"(?P<name>[^\[\]]+)(\[(?P<knobs>[^\[\]]*)\])?")
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


@dataclass(frozen=True)
class Request:
    """Options of `python -m runner run`, as typed. An empty choice means the suite's own."""

    suites: Sequence[str]
    device: str  # cuda or cpu
    cases: Sequence[str] = ()  # NAME or NAME[KNOB=VALUE,…]
    filter: str = ""  # regular expression, searched in the case's name
    modes: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    backends: Sequence[str] = ()
    repeat: int | None = None
    options: Sequence[str] = field(default=())  # KNOB=VALUE


def tasks(request: Request) -> list[TaskSpec]:
    """The matrix of a request. Raises BadRequest for anything the catalogue does not offer."""
    found = [task for name in request.suites for task in _suite_tasks(suite_of(name), request)]
    if request.filter:
        try:
            pattern = re.compile(request.filter)
        except re.error as error:
            raise BadRequest(f"--filter {request.filter!r} is no regular expression: {error}") from error
        found = [task for task in found if pattern.search(task.case)]
    if not found:
        raise BadRequest("no case fits this request")
    return list({task.fingerprint(): task for task in found}.values())


def _suite_tasks(suite: Suite, request: Request) -> list[TaskSpec]:
    shared = _knobs(suite, request.options)
    if request.repeat is not None:
        shared |= _knobs(suite, [f"repeat={request.repeat}"])

    def planned(cases: Sequence[str], knobs: Mapping[str, KnobValue]) -> list[TaskSpec]:
        return plan(
            suite.name,
            cases=cases,
            device=request.device,
            modes=request.modes,
            dtypes=request.dtypes,
            backends=request.backends,
            knobs={**shared, **knobs},
        )

    if not request.cases:
        return planned((), {})
    found = []
    for text in request.cases:
        match = _CASE.fullmatch(text)
        if match is None:
            raise BadRequest(f"--case {text!r} is not NAME or NAME[KNOB=VALUE,…]")
        settings = (match["knobs"] or "").split(",") if match["knobs"] else []
        found += planned([match["name"]], _knobs(suite, settings))
    return found


def _knobs(suite: Suite, settings: Sequence[str]) -> dict[str, KnobValue]:
    offered = {knob.name: knob for knob in suite.knobs}
    found = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise BadRequest(f"{setting!r} is not KNOB=VALUE")
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            raise BadRequest(f"suite {suite.name} has no knob {name!r}; it has: {known}")
        found[name] = _value(offered[name], text)
    return found


def _value(knob: Knob, text: str) -> KnobValue:
    """The typed value; the catalogue checks its bounds."""
    try:
        if knob.kind == "int":
            return int(text)
        if knob.kind == "ints":
            return [int(part) for part in text.split("+")]
    except ValueError:
        raise BadRequest(f"knob {knob.name}: {text!r} is not {knob.kind}") from None
    if knob.kind == "bool" and text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    return text
