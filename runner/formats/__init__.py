"""Outside formats: one file each. A format turns bytes into records with their places.

Adding one: a module here with `matches` and `read`, and its line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from runner.formats.errors import BadUpload, Fault, MalformedUpload
from runner.records import Record


@dataclass(frozen=True)
class Placed:
    """A record and where it stood. `skip` says why it cannot become a measurement; `fault` that it is
    wrong, which refuses the upload unless its sender asked for the good part."""

    record: Record | None
    pointer: str
    line: int | None = None
    skip: str = ""
    fault: Fault | None = None
    warning: str = ""  # about the file as a whole; the receipt says each once
    hints: Mapping[str, str] | None = (
        None  # upload parameters that the file's name suggests: the weakest word
    )


class Format(Protocol):
    def matches(self, body: bytes, filename: str) -> bool:
        """True where the content is of this format."""

    def read(self, body: bytes, filename: str) -> Iterator[Placed]:
        """Every record, wrong ones with their fault; raises BadUpload where the body has no records."""


# In the order in which they are asked; imported on first use. v3 takes whatever is JSON.
FORMATS = {
    "ours": "runner.formats.ours",
    "xla": "runner.formats.xla",
    "userbenchmark": "runner.formats.userbenchmark",
    "v3": "runner.formats.v3",
    "cachebench": "runner.formats.v3",
    "torchdynamo": "runner.formats.torchdynamo",
    "graph_breaks": "runner.formats.graph_breaks",
    "expected_accuracy": "runner.formats.expected_accuracy",
    "gpt_fast": "runner.formats.gpt_fast",
    "operatorbench": "runner.formats.operatorbench",
    "pr_time": "runner.formats.pr_time",
}


def format_of(name: str, body: bytes, filename: str) -> tuple[str, Format]:
    """The named format, or the first one whose content this is; raises BadUpload where it is none."""
    if name:
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            raise BadUpload(f"no format is called {name!r}", [Fault("?format", f"one of: {known}")])
        return name, _load(name)
    for candidate in FORMATS:
        module = _load(candidate)
        if module.matches(body, filename):
            return candidate, module
    raise MalformedUpload(
        "this is none of the formats known here", [Fault("", f"known: {', '.join(FORMATS)}")]
    )


# Formats of which a part of the meaning stands in the file's name alone: `said_by_name` reads it.
_NAMED = ("torchdynamo", "graph_breaks", "expected_accuracy", "operatorbench")


def said_by_name(format_name: str, filename: str) -> dict[str, str]:
    """What the file's name says that the content does not: with it the same content is another upload."""
    if format_name not in _NAMED:
        return {}
    module = import_module(FORMATS[format_name])
    return {name: value for name, value in module.said_by_name(filename).items() if value}


def _load(name: str) -> Format:
    return cast(Format, import_module(FORMATS[name]))
