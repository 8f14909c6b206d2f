"""Upload parameters: what the file does not contain. The query string, the command line and manifests use the
same names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import zip_longest

from runner.formats.errors import BadUpload, Fault
from runner.formats.scalars import invisible_in

_MAX_LENGTH = 200
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # NUL, half characters
_SIZE = re.compile(r"[0-9]+")
_COMMIT = re.compile(r"[0-9A-Za-z._-]{1,64}")
# these do not make another upload of the same content
_NOT_IDENTITY = {"filename", "dry_run", "partial", "stream"}
_FIRST_YEAR = 2010
_AHEAD = timedelta(days=1)  # clocks and zones that are a little off
PLAUSIBLE = f"from {_FIRST_YEAR} to a day from now"
_SWITCHES = {"": False, "0": False, "1": True, "true": True, "false": False}


def _text(description: str) -> str:
    return field(default="", metadata={"description": description})


def _switch(name: str) -> cached_property[bool]:
    return cached_property(lambda parameters: _SWITCHES[getattr(parameters, name).lower()])


@dataclass(frozen=True)
class Parameters:
    """Texts as given; '' is not given. What the content says wins over a parameter."""

    filename: str = _text("the file's name with its last folders, of which formats read hints")
    format: str = _text("the format, where its content does not tell it")
    suite: str = _text("the suite, such as huggingface")
    mode: str = _text("inference or training")
    dtype: str = _text("the data type, such as bfloat16")
    backend: str = _text("the compiler, such as eager or inductor")
    device: str = _text("cuda, cpu or another kind of device")
    arch: str = _text("the device's name, such as h200")
    batch_size: str = _text("the batch size of every result")
    dynamic: str = _text("1: with dynamic shapes")
    commit: str = _text("the commit that was measured")
    commit_date: str = _text("the commit's time, by which series are ordered")
    branch: str = _text("the branch, by default the dashboard's own")
    repo: str = _text("the repository, as owner/name")
    torch: str = _text("the version of torch")
    cuda: str = _text("the version of CUDA")
    driver: str = _text("the version of the GPU's driver")
    host: str = _text("the machine that measured")
    run_time: str = _text("when the run was made")
    run_id: str = _text("the run's name: later uploads with it add to the same run")
    source: str = _text("the system that made the run; part of its identity")
    stream: str = _text("the stream, by default the key's")
    provenance: str = _text("where the file comes from, in words")
    replace: str = _text("1: values supersede the stored ones of the same run (run_id, source, host, commit)")
    dry_run: str = _text("1: store nothing, return the receipt")
    partial: str = _text("1: store the correct records of an upload with wrong ones")

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Parameters:
        """Check parameters. Raise BadUpload, with every fault, for an unknown name or an unfit value."""
        faults = []
        for name, value in texts.items():
            limit = 2000 if name == "provenance" else 500 if name == "filename" else _MAX_LENGTH
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


SWITCHES = frozenset({"dynamic", "dry_run", "partial", "replace"})  # the parameters that are 0 or 1
DESCRIPTIONS = {parameter.name: str(parameter.metadata["description"]) for parameter in fields(Parameters)}
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
    if not value:
        return ""
    if name in {"commit_date", "run_time"} and not parse_time(value):
        return f"a time such as 2026-11-21T07:52:00Z, {PLAUSIBLE}"
    if name in {"dynamic", "replace", "dry_run", "partial"} and value.lower() not in _SWITCHES:
        return "0 or 1"
    if name == "batch_size" and not (_SIZE.fullmatch(value) and 0 < int(value) < 2**31):
        return "a positive integer"
    if name == "commit" and not _COMMIT.fullmatch(value):
        return "at most 64 letters, digits, dots, dashes and underscores"
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
