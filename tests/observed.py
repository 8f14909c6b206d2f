"""A file as the door sees it, without the database."""

from __future__ import annotations

from pathlib import Path

from hud.ingest.parse import Observation, Observer
from runner.formats import format_of
from runner.formats.parameters import Parameters

SAMPLES = Path(__file__).resolve().parent / "samples"
SHIPPED = Path(__file__).resolve().parent.parent / "hud" / "samples"


def observe(body: bytes | str, filename: str = "", **given: str) -> Observer:
    """What becomes of the records of a body. Raises BadUpload."""
    content = body.encode() if isinstance(body, str) else body
    parameters = Parameters.parse({**given, "filename": filename})
    _name, file_format = format_of(parameters.format, content, filename)
    observer = Observer(parameters)
    for placed in file_format.read(content, filename):
        observer.take(placed)
    return observer


def observe_sample(name: str, **given: str) -> Observer:
    """One of the files made by hand."""
    return observe((SAMPLES / name).read_bytes(), name, **given)


def by_metric(observer: Observer, case: str) -> dict[str, Observation]:
    """The observations of one case, by metric."""
    return {item.metric: item for item in observer.observations if item.identity[1] == case}


def skips(observer: Observer) -> list[tuple[int | None, str]]:
    """Line and reason of what was left out."""
    return [(entry.get("line"), entry["reason"]) for entry in observer.skipped]
