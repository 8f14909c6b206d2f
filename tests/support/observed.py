"""A file as ingestion reads it, without the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hud.ingest.parse import RecordParser
from runner.formats import format_of
from runner.formats.errors import BadUpload
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
SHIPPED = Path(__file__).resolve().parent.parent.parent / "hud" / "samples"


def observe(body: bytes | str, filename: str = "", **given: str) -> RecordParser:
    """Parse the records of a body. Raise BadUpload."""
    content = body.encode() if isinstance(body, str) else body
    parameters = Parameters.parse({**given, "filename": filename})
    parser = RecordParser(parameters)
    for item in format_of(parameters.format, content).items(content, filename):
        parser.add(item)
    return parser


def observe_sample(name: str, **given: str) -> RecordParser:
    """One of the files made by hand."""
    return observe((SAMPLES / name).read_bytes(), name, **given)


def by_metric(parser: RecordParser, case: str) -> dict[str, ParsedMeasurement]:
    """The observations of one case, by metric."""
    return {item.metric: item for item in parser.measurements if item.identity[1] == case}


def skips(parser: RecordParser) -> list[tuple[int | None, str]]:
    """Line and reason of what was left out."""
    return [(entry.get("line"), entry["reason"]) for entry in parser.receipt.skipped]


def deciding_values(body: bytes, name: str) -> set[Any] | None:
    """Return the values that may decide; None of a body that is refused."""
    try:
        parser = observe(body, name)
    except BadUpload:
        return None
    deciding = (item for item in parser.measurements if item.samples and not item.quality)
    return None if parser.faults else {(item.identity, item.metric, *item.samples) for item in deciding}
