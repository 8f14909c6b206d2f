"""Find or make what a measurement refers to: its run, its series and its environment.

All by a fixed number of bulk statements in the caller's transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any, NamedTuple, TypeGuard
from uuid import UUID, uuid4

import orjson
from django.db.models import Q
from django.utils import timezone as clock

from hud.accounts.keys import effective_scopes
from hud.models import ApiKey, Run, State, Upload
from hud.sql import execute, fetch_tuples
from runner.formats.errors import WrongRecord
from runner.formats.measurement import ParsedMeasurement, RunKey, first_runner
from runner.formats.parameters import PLAUSIBLE, Parameters, is_plausible, parse_time
from runner.formats.readers.v3 import OURS
from runner.formats.scalars import branch_name, nfc, text
from runner.schema.devices import DEVICE_KINDS
from runner.schema.draws import PairPlace, pair_place
from runner.schema.metrics import metric_info
from runner.schema.records import CLASS_PACKAGES, Environment, Record
from runner.schema.tasks import CANCELLED

_MAX_NUMBER = 10_000  # of a process
_FIRST = PairPlace(0, 0)
_SUCCEEDED = (State.SUCCEEDED, "")
_FAILED = {"wrong", "oom", "crashed", "failed"}
_ENDS = (State.CANCELLED, State.TIMED_OUT, State.FAILED, State.SUCCEEDED)  # as `hud/runs/states.py` has them


class _Origin(NamedTuple):
    """A record's host, both interpreters of an A/B run, its repeat, side and draw, as `runners` says them.
    `numbered`: it is one process of several, which share the time of their run."""

    host: str
    base: str = ""
    head: str = ""
    place: PairPlace = _FIRST
    numbered: bool = False

    @classmethod
    def of(cls, record: Record) -> _Origin:
        """Read a record. Raise WrongRecord for a place that no A/B comparison has."""
        runner = first_runner(record)
        facts = runner.get("extra_info")
        facts = facts if isinstance(facts, dict) else {}
        name = text(runner.get("name"))
        host = "" if name in DEVICE_KINDS else name  # some scripts write the kind of device there
        try:
            place = pair_place(facts.get("pair"))
        except ValueError as error:
            raise WrongRecord("/runners/0/extra_info/pair", str(error)) from error
        if place:
            base, head = text(facts["pair"].get("base")), text(facts["pair"].get("new"))
            if base and head:
                return cls(host, base[:60], head[:60], place, True)
        process = facts.get("process")
        return cls(host, place=PairPlace(process, 0), numbered=True) if _is_number(process) else cls(host)


# columns of a run that its key has under the same name, beside the interpreters
_OF_KEY = ("source", "external_id", "repo", "branch", "commit", "order_time_source")
_OF_RUN = attrgetter(
    "benchmark.name", "timestamp", "repo", "head_branch", "head_sha", "workflow_id", "job_id", "run_attempt"
)


class RunKeys:
    """The runs of one upload's records, which mostly share one."""

    def __init__(self, *, any_time: bool = False) -> None:
        self._any_time = any_time
        self._origins: dict[bytes, _Origin] = {}
        self._keys: dict[tuple[Any, ...], RunKey] = {}

    def of(self, record: Record, facts: bytes, given: Parameters) -> tuple[RunKey, PairPlace]:
        """Return a record's run and its place there; `facts` is what it says of runners, as JSON. Raise
        WrongRecord for a place that no run has, or a time that an upload cannot have, unless `any_time`."""
        origin = self._origins.get(facts)
        if origin is None:
            origin = self._origins[facts] = _Origin.of(record)
        said = (*origin, *_OF_RUN(record))
        found = self._keys.get(said)
        if found is None:
            time = from_epoch(record.timestamp)
            if time and not (self._any_time or is_plausible(time)):
                raise WrongRecord("/timestamp", f"{time.isoformat()} is not {PLAUSIBLE}")
            found = self._keys[said] = _run_key(record, origin, given, time)
        return found, origin.place


def _run_key(record: Record, origin: _Origin, given: Parameters, time: datetime | None) -> RunKey:
    external_id = None
    if record.workflow_id not in (None, 0, "0", ""):
        external_id = f"{record.workflow_id}/{record.job_id or 0}/{record.run_attempt or 1}"[:200]
    commit_time = parse_time(given.commit_date) if given.commit_date else None
    run_time = time or (parse_time(given.run_time) if given.run_time else None)
    order_time_source = "commit" if commit_time else "run" if run_time else "upload"
    return RunKey(
        source=nfc(given.source or record.benchmark.name)[:100],
        external_id=external_id or given.run_id or None,
        host=nfc(origin.host or given.host)[:200],
        commit=(record.head_sha or given.commit)[:64],
        branch=branch_name(record.head_branch or given.branch),
        repo=nfc(record.repo or given.repo)[:200],
        order_time=commit_time or run_time,
        order_time_source=order_time_source,
        interpreter=origin.head,
        base_interpreter=origin.base,
        # a workflow's job has one result for each experiment and metric
        point_time=None if commit_time or external_id or origin.numbered else time,
    )


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER


def from_epoch(moment: float | None) -> datetime | None:
    """Read seconds since 1970, or the milliseconds that some uploaders write; None and 0 are no time. Raise
    WrongRecord for a time that no calendar has."""
    if not moment:
        return None
    try:
        return datetime.fromtimestamp(moment / 1000 if moment > 1e11 else moment, tz=timezone.utc)
    except (ValueError, OverflowError, OSError) as error:
        raise WrongRecord("/timestamp", f"{moment:g} is no time in seconds since 1970") from error


# ---- runs


def _end_by(item: ParsedMeasurement) -> tuple[State, str]:
    """Return how a run of our runner ended, by one of its results; other systems do not say."""
    if not item.run.source.startswith(OURS) or item.run.uid:
        return _SUCCEEDED
    words = f"{item.case}: {item.message or item.status}"[:500]
    if (item.status, item.code) == ("not_run", CANCELLED):
        return State.CANCELLED, words
    if item.status == "timed_out":
        return State.TIMED_OUT, words
    return (State.FAILED, words) if item.status in _FAILED else _SUCCEEDED


class RunPlace(NamedTuple):
    """A run with its place in every series."""

    pk: int
    order_time: datetime
    stream_id: int | None  # never None; a foreign key with a default is typed so
    branch: str
    rerun: bool
    is_ab: bool

    @classmethod
    def of(cls, run: Run) -> RunPlace:
        return cls(run.pk, run.order_time, run.stream_id, run.branch, run.rerun, run.is_ab)


@dataclass
class Runs:
    """The runs of one upload. `own` are runs of this hud's runner, of other streams, and those of other
    people that it names by their uid, which an upload (of an export, say) may repeat but not add to; `grown`
    are those that may have measurements already."""

    parameters: Parameters
    upload_id: int
    stream_id: int
    key: ApiKey | None = None  # None: the command line
    places: dict[RunKey, RunPlace] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    grown: set[int] = field(default_factory=set)

    @property
    def ids(self) -> list[int]:
        return sorted({place.pk for place in self.places.values()})

    def resolve(self, measurements: Sequence[ParsedMeasurement]) -> None:
        """Find or make the runs of these measurements. A new run gets their earliest time."""
        self.grown.update(place.pk for place in self.places.values())
        of_runs: dict[RunKey, list[ParsedMeasurement]] = {}
        for item in measurements:
            of_runs.setdefault(item.run, []).append(item)
        new = of_runs.keys() - self.places.keys()
        for key in sorted(new, key=lambda run: (run.source, run.external_id or "", run.host, run.commit)):
            items = of_runs[key]
            timed = (item.run for item in items if item.run.order_time)
            earliest = min(timed, key=attrgetter("order_time"), default=key)
            ends = (_end_by(item) for item in items if item.status != "ok")
            end = min(ends, key=lambda end: _ENDS.index(end[0]), default=_SUCCEEDED)
            self.places[key] = self._place(earliest, sorted({item.suite for item in items}), end)
        for key, items in of_runs.items():
            if self.places[key].is_ab:  # a comparison has one point for each side, whatever the times say
                for item in items:
                    item.run = replace(item.run, point_time=None)

    def _place(self, key: RunKey, suites: list[str], end: tuple[State, str]) -> RunPlace:
        now = clock.now()
        uid = UUID(key.uid) if key.uid else uuid4()
        wanted = Run(
            uid=uid,
            state=end[0],
            reason=end[1],
            title=f"{key.source}: {', '.join(suites)}"[:300],
            host_name=key.host,
            upload_id=self.upload_id,
            stream_id=self.stream_id,
            provenance=self.parameters.provenance,
            order_time=key.order_time or now,
            started=now,
            finished=now,
            interpreter=key.interpreter,
            base_interpreter=key.base_interpreter,
            **{name: getattr(key, name) for name in _OF_KEY},
        )
        if not (key.uid or key.external_id):  # nothing names it, so that it is a new one
            Run.objects.bulk_create([wanted])
            return RunPlace.of(wanted)
        # two uploads may bring a new run at the same moment: the second waits here, then finds it
        Run.objects.bulk_create([wanted], ignore_conflicts=True)
        natural = Q(
            stream=self.stream_id,
            external_id=key.external_id,
            source=key.source,
            host_name=key.host,
            commit=key.commit,
        ) & Q(external_id__isnull=False)
        known = Run.objects.select_related("upload__key").filter(Q(uid=uid) | natural)
        found = min(known, key=lambda run: run.uid != uid)
        if key.uid or found.uid != uid:
            self.grown.add(found.pk)
        place = RunPlace.of(found)
        is_foreign = found.upload is None or found.stream_id != self.stream_id
        if is_foreign or (key.uid and not self._may_add_to(found.upload)):
            self.own.add(found.pk)
            return place
        new = [suite for suite in suites if suite not in found.title]
        if new:
            Run.objects.filter(pk=found.pk).update(title=", ".join([found.title, *new])[:300])
        return place

    def _may_add_to(self, upload: Upload | None) -> bool:
        """Return whether to add to the run of an upload that its uid names; uids are public."""
        if self.key is None or upload is None or upload.pk == self.upload_id:
            return True
        if upload.key_id == self.key.pk or "run" in effective_scopes(self.key):
            return True
        return upload.key is not None and upload.key.owner_id in {self.key.owner_id} - {None}


# ---- series and environments

RowKey = tuple[int, int, int, int, int]  # run, series, environment, repeat, side


def row_keys(measurements: Sequence[ParsedMeasurement], runs: Sequence[RunPlace]) -> list[RowKey]:
    """Return the key of each measurement's row, given its run; make the series and environments that are not
    there yet."""
    # measurements of one upload share their environment's object, and its fingerprint takes a while
    distinct = {id(item.environment): item.environment for item in measurements}
    fingerprints = {place: environment.fingerprint() for place, environment in distinct.items()}
    found = _environment_ids({fingerprints[place]: environment for place, environment in distinct.items()})
    environments = {place: found[fingerprint] for place, fingerprint in fingerprints.items()}
    return [
        (run.pk, series_id, environments[id(item.environment)], item.repeat, item.side)
        for item, run, series_id in zip(measurements, runs, _series_of(measurements, runs), strict=True)
    ]


def _series_of(measurements: Sequence[ParsedMeasurement], runs: Sequence[RunPlace]) -> list[int]:
    """Return the series of each measurement, by one look-up where all are known."""
    streams = [run.stream_id for run in runs]
    digests = [_digest(item, stream) for item, stream in zip(measurements, streams, strict=True)]
    known = "SELECT digest, id FROM hud_series WHERE digest = ANY(%s::text[])"
    found: dict[str, int] = dict(fetch_tuples(known, [f"{{{','.join(digests)}}}"]))
    missing = {
        digest: (item, stream)
        for digest, item, stream in zip(digests, measurements, streams, strict=True)
        if digest not in found
    }
    if missing:
        found |= _new_series(missing)
    return [found[digest] for digest in digests]


def _digest(item: ParsedMeasurement, stream: int | None) -> str:
    """Return 32 hex digits over what makes a series. NUL, which no text holds, keeps the parts apart."""
    *texts, dynamic = item.identity
    said = "\0".join((*texts, "1" if dynamic else "0", item.metric, str(stream)))
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _new_series(missing: Mapping[str, tuple[ParsedMeasurement, int | None]]) -> dict[str, int]:
    """Make the series of these digests where they are not there. Knobs that are equal in other words
    (1 and 1.0) are one series, which keeps its first digest."""
    items = [item for item, _stream in missing.values()]
    metrics = metric_ids(sorted({item.metric for item in items}))
    identities = sorted({item.identity for item in items})
    columns = dict(zip(_EXPERIMENT, zip(*identities, strict=True), strict=True))
    ids = ids_of("hud_experiment", _EXPERIMENT, columns, identities.__getitem__)
    experiments = dict(zip(identities, ids, strict=True))
    parts = {
        digest: (experiments[item.identity], metrics[item.metric], stream)
        for digest, (item, stream) in missing.items()
    }
    digests = {part: digest for digest, part in parts.items()}
    rows = [(*part, digest) for part, digest in digests.items()]
    columns = dict(zip(_SERIES, zip(*digests, strict=True), strict=False))
    ids = ids_of("hud_series", _SERIES, columns, rows.__getitem__)
    execute(
        """
        UPDATE hud_series s SET digest = given.digest
        FROM (SELECT * FROM unnest(%s::int[], %s::text[]) AS given(id, digest) ORDER BY id) AS given
        WHERE s.id = given.id AND s.digest IS NULL
        """,
        [ids, list(digests.values())],
    )
    series = dict(zip(digests, ids, strict=True))
    return {digest: series[part] for digest, part in parts.items()}


def ids_of(
    table: str,
    columns: Mapping[str, str],
    keys: Mapping[str, Sequence[Any]],
    row_of: Callable[[int], Sequence[Any]],
) -> list[int]:
    """Return the ids of distinct rows, which `keys`, columns with their values, tell apart; make those that
    are not there, as `row_of` says them by their place. `columns` have their types.

    Look first, insert only what is missing, look again: a row that a concurrent upload inserts meanwhile is
    waited for by ON CONFLICT and seen by the second look.
    """
    count = len(next(iter(keys.values())))
    if not count:
        return []

    # one JSON text costs a tenth of psycopg's arrays
    def given(names: Iterable[str]) -> str:
        types = ", ".join(f'"{name}" {columns[name].replace("jsonb", "text")}' for name in names)
        return f"json_to_recordset(%s::json) AS given(place int, {types})"

    values = {name: f'given."{name}"{"::jsonb" * (kind == "jsonb")}' for name, kind in columns.items()}
    same = " AND ".join(f'known."{name}" = {values[name]}' for name in keys)
    select = f"SELECT given.place, known.id FROM {given(keys)} JOIN {table} known ON {same}"  # noqa: S608 — only constants of this module are put into the text  # nosec B608
    insert = f"""INSERT INTO {table} ({", ".join(f'"{name}"' for name in columns)})
        SELECT {", ".join(values.values())} FROM {given(columns)} ON CONFLICT DO NOTHING"""  # noqa: S608  # nosec B608
    names = ("place", *keys)
    rows = [dict(zip(names, row, strict=True)) for row in zip(range(count), *keys.values(), strict=True)]
    body = orjson.dumps(rows).decode()
    found = dict(fetch_tuples(select, [body]))
    if len(found) < count:
        missing = (place for place in range(count) if place not in found)
        new = [dict(zip(columns, row_of(place), strict=True)) for place in missing]
        execute(insert, [orjson.dumps(new).decode()])
        found = dict(fetch_tuples(select, [body]))
    return [found[place] for place in range(count)]


_EXPERIMENT = {
    "suite": "text", "case": "text", "knobs": "jsonb", "mode": "text", "dtype": "text", "backend": "text",
    "device": "text", "arch": "text", "dynamic": "bool",
}  # fmt: skip
_METRIC = {
    "name": "text", "title": "text", "unit": "text", "direction": "text", "kind": "text", "precision": "int2",
    "floor": "float8",
}  # fmt: skip
_METRIC_ROW = attrgetter(*_METRIC)
_SERIES = {"experiment_id": "int", "metric_id": "int", "stream_id": "int", "digest": "text"}
_ENVIRONMENT = {
    "fingerprint": "text", "class_key": "text", "torch": "text", "torch_git": "text", "gpu": "text",
    "facts": "jsonb",
}  # fmt: skip


def metric_ids(names: list[str]) -> dict[str, int]:
    """Return the ids of these distinct names. A new one gets the unit and direction of the registry."""
    ids = ids_of("hud_metric", _METRIC, {"name": names}, lambda place: _METRIC_ROW(metric_info(names[place])))
    return dict(zip(names, ids, strict=True))


def _environment_ids(environments: Mapping[str, Environment]) -> dict[str, int]:
    """Return the ids of these environments by their fingerprints."""
    fingerprints = sorted(environments)

    def row_of(place: int) -> tuple[Any, ...]:
        found = environments[fingerprints[place]]
        shown = found.torch[:100], found.torch_git[:64], found.gpu[:200]
        return fingerprints[place], class_key(found), *shown, json.dumps(asdict(found))

    ids = ids_of("hud_environment", _ENVIRONMENT, {"fingerprint": fingerprints}, row_of)
    return dict(zip(fingerprints, ids, strict=True))


def class_key(environment: Environment) -> str:
    """Return the environment class: what a baseline may be compared with. torch and triton are the subject
    and never part of it; minor versions of driver and CUDA are noise."""
    parts = [environment.gpu, _major(environment.driver), _major(environment.cuda), environment.cpu]
    parts += [f"{name}={environment.packages.get(name, '')}" for name in CLASS_PACKAGES]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def _major(version: str) -> str:
    return version.split(".", 1)[0]
