"""Posts result files to a hud."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.catalog import BadRequest
from runner.client import Hud, HudError, Refused, patiently
from runner.output import records_of

Json = Any

_MAX_BODY_BYTES = 32 * 2**20  # what a hud takes unless its operator said otherwise
_TIMEOUT_S = 120.0
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What came of one file. `accepted`: every record was stored, or was there already."""

    accepted: bool
    lines: list[str]


def read(path: Path) -> bytes:
    """The body for a file, v3 records as JSON lines where it is of `--format ours`.

    Raises BadRequest where it cannot be read or is larger than a hud takes.
    """
    limit = int(os.environ.get("HUD_MAX_BODY_BYTES", _MAX_BODY_BYTES))
    try:
        size = path.stat().st_size
        if size > limit:
            raise BadRequest(f"{path} has {size} bytes; a hud takes {limit} at once")
        return records_of(path.read_text()).encode()
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path} is not text: {error}") from error


def upload(filename: str, body: bytes, hud: Hud, *, patience_s: float = _PATIENCE_S) -> Answer:
    """Posts one body; tries again, with growing random pauses, while the hud cannot be reached."""
    try:
        receipt = patiently(lambda: hud.upload(filename, body), patience_s=patience_s)
    except Refused as error:
        return Answer(False, [f"refused, {error}", *_faults(error.problem)])
    except HudError as error:
        return Answer(False, [f"not delivered: {error}"])
    return _told(receipt)


def connect(address: str | None, key: str | None) -> Hud:
    """The hud of --hud and --key. Raises BadRequest where they are missing or no address."""
    if not address or not key:
        raise BadRequest("upload needs --hud and --key, or HUD_URL and HUD_KEY")
    try:
        return Hud(address, key, timeout_s=_TIMEOUT_S)
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _told(receipt: Mapping[str, Json]) -> Answer:
    if "stored" not in receipt:
        return Answer(True, [f"taken as an import job: {receipt.get('id', '')}"])
    skipped = receipt.get("skipped", [])
    lines = [f"stored {receipt['stored']}, duplicate {receipt['duplicates']}, skipped {len(skipped)}"]
    lines += [f"  skipped {_place(entry)}: {entry.get('reason', '')}" for entry in skipped]
    lines += [f"  warning: {text}" for text in receipt.get("warnings", [])]
    return Answer(not skipped, lines)


def _faults(problem: Mapping[str, Json]) -> list[str]:
    entries = problem.get("errors")
    entries = entries if isinstance(entries, list) else []
    return [f"  {_place(entry)}: {entry.get('detail', '')}" for entry in entries if isinstance(entry, dict)]


def _place(entry: Mapping[str, Json]) -> str:
    line = f"line {entry['line']} " if entry.get("line") else ""
    return f"{line}{entry.get('pointer') or ''}".strip()
