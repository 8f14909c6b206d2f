"""Upload parameters: what the file does not contain. The query string, the command line and manifests use the
same names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import zip_longest
from typing import Any

from runner.formats.errors import BadUpload, Fault
from runner.formats.scalars import invisible_in

_MAX_LENGTH = 200
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # NUL, half characters
# these do not make another upload of the same content
_NOT_IDENTITY = {"filename", "dry_run", "partial", "stream"}
_FIRST_YEAR = 2010
_AHEAD = timedelta(days=1)  # clocks and zones that are a little off
PLAUSIBLE = f"from {_FIRST_YEAR} to a day from now"
_SWITCHES = {"": False, "0": False, "1": True, "true": True, "false": False}


def _text(description: str, **schema: Any) -> str:
    """Return a field with its part of the OpenAPI document, which `_problem` checks."""
    return field(default="", metadata={"description": description, "schema": schema})


_SWITCH, _TIME = {"enum": ["0", "1"]}, {"format": "date-time"}
_WANTED = {  # a pattern in words
    "batch_size": "a positive integer",
    "commit": "at most 64 letters, digits, dots, dashes and underscores",
}


def _switch(name: str) -> cached_property[bool]:
    return cached_property(lambda parameters: _SWITCHES[getattr(parameters, name).lower()])


@dataclass(frozen=True)
class Parameters:
    """Texts as given; '' is not given. What the content says wins over a parameter."""

    filename: str = _text("the file's name with its last folders, of which formats read hints", maxLength=500)
    format: str = _text("the format, where its content does not tell it")
    suite: str = _text("the suite, such as huggingface")
    mode: str = _text("inference or training")
    dtype: str = _text("the data type, such as bfloat16")
    backend: str = _text("the compiler, such as eager or inductor")
    device: str = _text("cuda, cpu or another kind of device")
    arch: str = _text("the device's name, such as h200")
    batch_size: str = _text("the batch size of every result", pattern="^[1-9][0-9]{0,8}$")
    dynamic: str = _text("1: with dynamic shapes", **_SWITCH)
    commit: str = _text("the commit that was measured", pattern="^[0-9A-Za-z._-]{1,64}$")
    commit_date: str = _text("the commit's time, by which series are ordered", **_TIME)
    branch: str = _text("the branch, by default the dashboard's own")
    repo: str = _text("the repository, as owner/name")
    torch: str = _text("the version of torch")
    cuda: str = _text("the version of CUDA")
    driver: str = _text("the version of the GPU's driver")
    host: str = _text("the machine that measured")
    run_time: str = _text("when the run was made", **_TIME)
    run_id: str = _text("the run's name: later uploads with it add to the same run")
    source: str = _text("the system that made the run; part of its identity")
    stream: str = _text("the stream, by default the key's")
    provenance: str = _text("where the file comes from, in words", maxLength=2000)
    replace: str = _text(
        "1: values supersede the stored ones of the same run (run_id, source, host, commit)", **_SWITCH
    )
    dry_run: str = _text("1: store nothing, return the receipt", **_SWITCH)
    partial: str = _text("1: store the correct records of an upload with wrong ones", **_SWITCH)

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Parameters:
        """Check parameters. Raise BadUpload, with every fault, for an unknown name or an unfit value."""
        faults = []
        for name, value in texts.items():
            limit = SCHEMAS.get(name, {}).get("maxLength", _MAX_LENGTH)
            if name not in KNOWN:
                faults.append(Fault(f"?{name}", f"no parameter is called {name[:60]!r}"))
            elif len(value) > limit or _UNSTORABLE.search(value):
                faults.append(Fault(f"?{name}", f"a text of at most {limit} characters without NUL"))
            elif character := invisible_in(value):
                faults.append(Fault(f"?{name}", f"it holds the invisible character {character}"))
            elif problem := _problem(name, value):
                faults.append(Fault(f"?{name}", problem))
        if faults:
            raise BadUpload("parameters of the upload are wrong", faults)
        return cls(**dict(texts))

    is_dynamic = _switch("dynamic")
    is_dry_run = _switch("dry_run")
    is_partial = _switch("partial")
    is_replace = _switch("replace")

    def given(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value}

    def identity(self) -> dict[str, str]:
        """Return what makes the same content another upload: all but the file's name and the switches."""
        named = self.given()
        return {name: named[name] for name in sorted(named) if name not in _NOT_IDENTITY}


DESCRIPTIONS = {parameter.name: str(parameter.metadata["description"]) for parameter in fields(Parameters)}
SCHEMAS: dict[str, dict[str, Any]] = {it.name: it.metadata["schema"] for it in fields(Parameters)}
SWITCHES = {name for name, schema in SCHEMAS.items() if schema == _SWITCH}  # the parameters that are 0 or 1
KNOWN = frozenset(DESCRIPTIONS)


def with_switch_values(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command, in which a switch without a value gets 1."""
    bare = {f"--{name}" for name in SWITCHES} | {f"--{name.replace('_', '-')}" for name in SWITCHES}
    pairs = zip_longest(arguments, arguments[1:], fillvalue="")
    return [
        f"{text}=1" if text in bare and not (after and after.lower() in _SWITCHES) else text
        for text, after in pairs
    ]


def _problem(name: str, value: str) -> str:
    schema = SCHEMAS[name] if value else {}
    if schema == _TIME and not parse_time(value):
        return f"a time such as 2026-11-21T07:52:00Z, {PLAUSIBLE}"
    if schema == _SWITCH and value.lower() not in _SWITCHES:
        return "0 or 1"
    if "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        return _WANTED[name]
    return ""


def parse_time(value: str) -> datetime | None:
    """Read an ISO 8601 time, in UTC where it names no zone; None for what is no time, or not plausible."""
    try:
        time = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    try:
        time = time.astimezone(timezone.utc) if time.tzinfo else time.replace(tzinfo=timezone.utc)
    except OverflowError:
        return None
    return time if is_plausible(time) else None


def is_plausible(time: datetime) -> bool:
    """Return whether results can be from this time. A later one would stay the newest of its series."""
    return time.year >= _FIRST_YEAR and time <= datetime.now(timezone.utc) + _AHEAD
