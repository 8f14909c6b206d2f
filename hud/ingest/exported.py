"""What an export of ours says beyond the v3 shape: the run a record belongs to, so that taking it in again
gives the same rows. It stands in ``benchmark.extra_info.hud`` (`hud/export.py` writes it).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hud.ingest.errors import Fault
from hud.ingest.parameters import parse_time
from runner.records import Record

_PLACE = "/benchmark/extra_info/hud"
_TEXTS = {"source": 100, "host": 200, "commit": 64, "branch": 200, "repo": 200}
_AT_SOURCES = ("commit", "run", "upload")
_MAX_PROCESS = 32767


@dataclass(frozen=True)
class RunKey:
    """One upload makes one run for each of these."""

    source: str
    external_id: str | None
    host: str
    commit: str
    branch: str
    repo: str
    at: datetime | None
    at_source: str
    uid: str | None = None  # of the run that an export of ours names


def exported(record: Record) -> dict[str, Any] | None:
    """The object itself, or None where the record is no export of ours."""
    said = (record.benchmark.extra_info or {}).get("hud")
    return said if isinstance(said, dict) else None


def exported_run(record: Record) -> RunKey | None:
    said = exported(record)
    run = said.get("run") if said else None
    if not isinstance(run, dict):
        return None
    texts = {name: str(run.get(name) or "")[:limit] for name, limit in _TEXTS.items()}
    external_id = run.get("external_id")
    return RunKey(
        **texts,
        external_id=str(external_id)[:200] if external_id is not None else None,
        at=parse_time(str(run.get("at"))),
        at_source=str(run.get("at_source")),
        uid=str(run.get("uid")),
    )


def exported_process(record: Record) -> int:
    said = exported(record)
    process = said.get("process", 0) if said else 0
    return process if isinstance(process, int) and not isinstance(process, bool) else 0


def exported_fault(record: Record) -> Fault | None:
    """What is wrong with the part that places a record in its run."""
    said = exported(record)
    if said is None or not isinstance(said.get("run"), dict):
        return None
    run = said["run"]
    if not _is_uuid(run.get("uid")):
        return Fault(f"{_PLACE}/run/uid", "a UUID")
    if not isinstance(run.get("at"), str) or parse_time(run["at"]) is None:
        return Fault(f"{_PLACE}/run/at", "a time such as 2026-11-21T07:52:00Z")
    if run.get("at_source") not in _AT_SOURCES:
        return Fault(f"{_PLACE}/run/at_source", f"one of {', '.join(_AT_SOURCES)}")
    if not 0 <= exported_process(record) <= _MAX_PROCESS:
        return Fault(f"{_PLACE}/process", f"0 to {_MAX_PROCESS}")
    return None


def _is_uuid(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(uuid.UUID(value))
    except ValueError:
        return False
