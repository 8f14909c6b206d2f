"""Which run a record belongs to, as the record says it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeGuard

from runner.formats.measurement_key import DEVICES, About, first_runner
from runner.formats.parameters import Parameters, parse_time
from runner.formats.unicode import composed, text
from runner.records import Record

_MAX_NUMBER = 10_000  # of a pair or a process


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
    environment: str = ""  # of a run in pairs: the names of both
    base_environment: str = ""


@dataclass(frozen=True)
class Origin:
    """What `runners` says of a record's run: the host, both environments of a run in pairs, its process."""

    host: str
    base: str
    new: str
    process: int

    @classmethod
    def of(cls, record: Record) -> Origin:
        pair = _pair(record)
        # of a pair: twice its number, and one more for the new side
        process = 2 * pair["number"] + (pair["side"] == "new") if pair else _process(record)
        return cls(_runner_name(record), text(pair.get("base"))[:60], text(pair.get("new"))[:60], process)


class RunKeys:
    """Those of one upload: records mostly share one."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], RunKey] = {}

    def of(self, record: Record, origin: Origin, given: Parameters) -> RunKey:
        """Of a record that says the same as one before it, that one's."""
        said = (
            record.benchmark.name,
            origin.base,
            origin.new,
            origin.host,
            record.timestamp,
            record.repo,
            record.head_branch,
            record.head_sha,
            record.workflow_id,
            record.job_id,
            record.run_attempt,
        )
        found = self._known.get(said)
        if found is None:
            found = self._known[said] = _new(record, origin, given)
        return found


def _new(record: Record, origin: Origin, given: Parameters) -> RunKey:
    external_id = None
    if record.workflow_id not in (None, 0, "0", ""):
        external_id = f"{record.workflow_id}/{record.job_id or 0}/{record.run_attempt or 1}"[:200]
    commit_time = parse_time(given.commit_date) if given.commit_date else None
    run_time = _from_epoch(record.timestamp) or (parse_time(given.run_time) if given.run_time else None)
    at_source = "commit" if commit_time else "run" if run_time else "upload"
    return RunKey(
        source=composed(given.source or record.benchmark.name)[:100],
        external_id=external_id or given.run_id or None,
        host=composed(origin.host or given.host)[:200],
        commit=(record.head_sha or given.commit)[:64],
        branch=composed(record.head_branch or given.branch)[:200],
        repo=composed(record.repo or given.repo)[:200],
        at=commit_time or run_time,
        at_source=at_source,
        environment=origin.new,
        base_environment=origin.base,
    )


def exported_run(about: About) -> RunKey | None:
    """The run that an export of ours names."""
    run = about.exported.run if about.exported else None
    if run is None:
        return None
    return RunKey(
        source=run.source[:100],
        external_id=run.external_id,
        host=run.host,
        commit=run.commit[:64],
        branch=run.branch,
        repo=run.repo,
        at=parse_time(run.at),
        at_source=run.at_source,
        uid=str(run.uid),
        environment=run.environment[:60],
        base_environment=run.base_environment[:60],
    )


def _pair(record: Record) -> dict[str, Any]:
    """Its place among process pairs, {} for a record of no pair or of a pair that is not whole."""
    said = _facts(record).get("pair")
    if not isinstance(said, dict) or said.get("side") not in {"base", "new"}:
        return {}
    whole = _is_number(said.get("number")) and text(said.get("base")) and text(said.get("new"))
    return said if whole else {}


def _process(record: Record) -> int:
    """Which of repeated fresh processes, 0 for the first and where nothing says it."""
    process = _facts(record).get("process")
    return process if _is_number(process) else 0


def _facts(record: Record) -> dict[str, Any]:
    facts = first_runner(record).get("extra_info")
    return facts if isinstance(facts, dict) else {}


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER


def _runner_name(record: Record) -> str:
    """A host's name. Upstream's convention writes the kind of device there, which names no host."""
    name = text(first_runner(record).get("name"))
    return "" if name in DEVICES else name


def _from_epoch(moment: float | None) -> datetime | None:
    """Seconds since 1970, or the milliseconds that some uploaders write; None for what is no moment."""
    seconds = moment / 1000 if moment and moment > 1e11 else moment
    if not seconds or not 0 < seconds < 7e9:
        return None
    return datetime.fromtimestamp(seconds, tz=timezone.utc)
