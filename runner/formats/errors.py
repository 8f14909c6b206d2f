"""The errors of ingestion, with the place of each fault."""

from dataclasses import dataclass
from typing import Any

LARGER_FILES = "`python -m runner upload FILE` and `manage.py ingest FILE` cut a larger file into pieces"


@dataclass(frozen=True)
class Fault:
    """One error and its place: a JSON pointer within the line or the body, and the line if the file has
    lines. `malformed`: the text is not of the format at all."""

    pointer: str
    detail: str
    line: int | None = None
    malformed: bool = False

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"pointer": self.pointer, "detail": self.detail}
        return entry if self.line is None else {**entry, "line": self.line}


class WrongRecord(ValueError):
    """A record that cannot be stored; `pointer` is the place within the record. `malformed` as in `Fault`."""

    def __init__(self, pointer: str, detail: str, *, malformed: bool = False) -> None:
        super().__init__(detail)
        self.malformed = malformed
        self.pointer = pointer
        self.detail = detail


class BadUpload(ValueError):
    """Nothing of this upload was stored. `faults` says where it is wrong."""

    def __init__(self, detail: str, faults: list[Fault] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.faults = faults or []


class MalformedUpload(BadUpload):
    """The body is not of the format at all (for v3: not JSON)."""


class UploadTooLarge(BadUpload):
    """More bytes or records than one request may carry."""
