"""Observations → rows: a fixed number of bulk statements, in the caller's transaction.

Measurements go by COPY into a temporary table and from there with ON CONFLICT, so that a repeated or
concurrent upload stores each of them once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from hud.ingest.parse import Observation
from hud.ingest.run_keys import RunKey
from hud.models import STATUS_CODES
from runner.catalog.metrics import metric_info, value_rule
from runner.formats import reasons
from runner.records import Environment
from runner.summary import spread_of, value_of

_CLASS_PACKAGES = ("transformers", "timm", "torchbenchmark", "torchvision", "numpy")


@dataclass(frozen=True)
class Stored:
    """`conflicts`: same identity as a stored one or as another of this upload, with another value, and
    so left out, each with the reason. `refined`: duplicates whose value was the same in more digits."""

    stored: int
    duplicates: int
    conflicts: list[tuple[Observation, str]]
    refined: int = 0


_Key = tuple[int, int, int, int]  # run, series, environment, process


def store(
    observations: Sequence[Observation],
    *,
    run_ids: dict[RunKey, tuple[int, datetime]],
    replace: bool = False,
    closed: Collection[int] = (),
    upload_id: int | None = None,
) -> Stored:
    """Writes measurements into their runs; `replace` lets a task's later attempt supersede an earlier one,
    into `closed` runs nothing new is written."""
    if not observations:
        return Stored(0, 0, [])
    keys = _keys(observations, run_ids)
    rows: dict[_Key, tuple[Any, ...]] = {}
    places: dict[_Key, Observation] = {}
    conflicts, repeated = [], 0
    for key, item in zip(keys, observations, strict=True):
        row = (*key[:3], *_row(item, run_ids[item.run][1]), item.process, upload_id)
        earlier = rows.setdefault(key, row)
        if earlier is row:
            places[key] = item
        elif earlier == row:
            repeated += 1
        else:
            conflicts.append((item, reasons.OTHER_VALUE))
    for key in _new_in(closed, rows):
        del rows[key]
        conflicts.append((places[key], reasons.CLOSED_RUN))
    stored = _copy_measurements(list(rows.values()), replace=replace)
    refined, clashing = (0, []) if stored == len(rows) else _compare_with_stored(closed)
    conflicts += [(places[key], reasons.STORED_VALUE) for key in clashing]
    return Stored(stored, len(rows) - stored - len(clashing) + repeated, conflicts, refined)


def _keys(observations: Sequence[Observation], run_ids: dict[RunKey, tuple[int, datetime]]) -> list[_Key]:
    """Run, series, environment and process of each observation; what is not there yet is made."""
    # observations of one upload share their environment's object, and its fingerprint takes a while
    distinct = {id(item.environment): item.environment for item in observations}
    fingerprints = {place: environment.fingerprint() for place, environment in distinct.items()}
    found = _environment_ids({fingerprints[place]: environment for place, environment in distinct.items()})
    environments = {place: found[fingerprint] for place, fingerprint in fingerprints.items()}
    return [
        (run_ids[item.run][0], series_id, environments[id(item.environment)], item.process)
        for item, series_id in zip(observations, _series_of(observations), strict=True)
    ]


def _series_of(observations: Sequence[Observation]) -> list[int]:
    """The series of each observation: one look-up where all of them are known."""
    digests = [_digest(item) for item in observations]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT digest, id FROM hud_series WHERE digest = ANY(%s::text[])", [f"{{{','.join(digests)}}}"]
        )
        found: dict[str, int] = dict(cursor.fetchall())
    missing = {
        digest: item for digest, item in zip(digests, observations, strict=True) if digest not in found
    }
    if missing:
        found |= _new_series(missing)
    return [found[digest] for digest in digests]


def _digest(item: Observation) -> str:
    """32 hex digits over what makes a series. NUL, which no text holds, keeps the parts apart."""
    *texts, dynamic = item.identity
    said = "\0".join((*texts, "1" if dynamic else "0", item.metric))
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _new_series(missing: Mapping[str, Observation]) -> dict[str, int]:
    """The series of these digests, made where they are not there. Knobs that are equal in other words
    (1 and 1.0) are one series, which keeps its first digest."""
    metrics = metric_ids(sorted({item.metric for item in missing.values()}))
    experiments = _experiment_ids(sorted({item.identity for item in missing.values()}))
    pairs = {digest: (experiments[item.identity], metrics[item.metric]) for digest, item in missing.items()}
    series = _series_ids({pair: digest for digest, pair in pairs.items()})
    return {digest: series[pair] for digest, pair in pairs.items()}


def _new_in(closed: Collection[int], rows: Collection[_Key]) -> list[_Key]:
    """Those keys of closed runs that are not stored yet."""
    asked = [key for key in rows if key[0] in closed]
    if not asked:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT run_id, series_id, environment_id, process FROM hud_measurement
            WHERE run_id = ANY(%s)""",
            [sorted({key[0] for key in asked})],
        )
        stored = set(cursor.fetchall())
    return [key for key in asked if key not in stored]


def _row(item: Observation, at: datetime) -> tuple[Any, ...]:
    samples = item.samples
    keep_samples = samples if len(samples) > 1 else None
    rule = value_rule(item.identity[0], item.metric)
    return (
        at,
        value_of(samples, rule) if samples else None,
        keep_samples,
        item.target,
        spread_of(samples, rule) if keep_samples else None,
        len(samples),
        STATUS_CODES[item.status],
        item.target_arch,
        item.code,
        item.words,
    )


_COLUMNS = (
    "run_id, series_id, environment_id, at, median, samples, target, spread, n, status, target_arch, code,"
    " warning, process, upload_id"
)
_TYPES = (
    "int4", "int4", "int4", "timestamptz", "float8", "float8[]", "float8",
    "float8", "int4", "int2", "varchar", "varchar", "varchar", "int2", "int4",
)  # fmt: skip
_REPLACE = """(run_id, series_id, environment_id, process) DO UPDATE SET
    at = excluded.at, median = excluded.median, samples = excluded.samples, target = excluded.target,
    spread = excluded.spread, n = excluded.n, status = excluded.status,
    target_arch = excluded.target_arch, code = excluded.code, warning = excluded.warning"""


def _copy_measurements(rows: list[tuple[Any, ...]], *, replace: bool) -> int:
    """Rows that were not there before (with `replace`: all of them)."""
    if not rows:
        return 0
    conflict = _REPLACE if replace else "DO NOTHING"
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMPORARY TABLE incoming (LIKE hud_measurement) ON COMMIT DROP;"
            if not _has_incoming(cursor)
            else "TRUNCATE incoming"
        )
        with cursor.copy(f"COPY incoming ({_COLUMNS}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(_TYPES)
            for row in rows:
                copy.write_row(row)
        # The order keeps two concurrent uploads from waiting for each other.
        cursor.execute(
            f"""
            WITH written AS (
                INSERT INTO hud_measurement ({_COLUMNS})
                SELECT {_COLUMNS} FROM incoming ORDER BY run_id, series_id, environment_id
                ON CONFLICT {conflict} RETURNING run_id
            ), touched AS (
                INSERT INTO hud_touchedrun (run_id) SELECT DISTINCT run_id FROM written
            )
            SELECT count(*) FROM written
            """  # noqa: S608 — only constants of this module are put into the text
        )
        return int(cursor.fetchone()[0])


_SAME_KEY = """old.run_id = new.run_id AND old.series_id = new.series_id
    AND old.environment_id = new.environment_id AND old.process = new.process"""


def _rounds_to(precise: str, coarse: str) -> str:
    """SQL: the precise median, rounded to the coarse one's digits, is the coarse one."""
    digits = f"scale({coarse}.median::text::numeric)"
    return f"""(length({precise}.median::text) > length({coarse}.median::text)
        AND {digits} BETWEEN 2 AND 15
        AND round({precise}.median::text::numeric, {digits}) = {coarse}.median::text::numeric)"""


def _compare_with_stored(closed: Collection[int]) -> tuple[int, list[_Key]]:
    """Looks at what the upload brought again: takes over the same value in more digits (a script's CSV
    rounds what its JSON lines say in full); returns how many, and the keys whose value is another one."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            UPDATE hud_measurement old
            SET median = new.median, samples = new.samples, spread = new.spread, n = new.n,
                upload_id = new.upload_id
            FROM incoming new WHERE {_SAME_KEY} AND old.samples IS NULL AND {_rounds_to("new", "old")}
                AND old.status = new.status AND old.code IS NOT DISTINCT FROM new.code
                AND old.run_id <> ALL(%s)
            """,  # noqa: S608 — only constants of this module are put into the text
            [list(closed)],
        )
        refined = cursor.rowcount
        cursor.execute(
            f"""
            SELECT new.run_id, new.series_id, new.environment_id, new.process
            FROM incoming new JOIN hud_measurement old ON {_SAME_KEY}
            WHERE (old.median IS DISTINCT FROM new.median AND NOT coalesce({_rounds_to("old", "new")}, false))
               OR old.status <> new.status OR old.code IS DISTINCT FROM new.code
            """  # noqa: S608
        )
        return refined, cursor.fetchall()


def _has_incoming(cursor: Any) -> bool:
    cursor.execute("SELECT to_regclass('pg_temp.incoming') IS NOT NULL")
    return bool(cursor.fetchone()[0])


def _known_or_inserted(keys: list[Any], select: str, insert: str, columns: Sequence[list[Any]]) -> list[int]:
    """Ids of keys in their order. Looks first, inserts only what is missing, looks again: a row that a
    concurrent upload inserts meanwhile is waited for by ON CONFLICT and seen by the second look."""
    with connection.cursor() as cursor:
        cursor.execute(select, columns)
        found = dict(cursor.fetchall())
        if len(found) < len(keys):
            missing = [place for place in range(len(keys)) if place + 1 not in found]
            cursor.execute(insert, [[column[place] for place in missing] for column in columns])
            cursor.execute(select, columns)
            found = dict(cursor.fetchall())
    return [found[place + 1] for place in range(len(keys))]


_EXPERIMENT_VALUES = """unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[], %s::bool[])"""


def _experiment_ids(identities: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
    columns: list[list[Any]] = [list(column) for column in zip(*identities, strict=True)] or [[]] * 9
    names = 'suite, "case", knobs, mode, dtype, backend, device, arch, dynamic'
    select = f"""
        SELECT given.place, e.id FROM {_EXPERIMENT_VALUES} WITH ORDINALITY
            AS given(suite, "case", knobs, mode, dtype, backend, device, arch, dynamic, place)
        JOIN hud_experiment e ON e.suite = given.suite AND e."case" = given."case"
            AND e.knobs = given.knobs::jsonb AND e.mode = given.mode AND e.dtype = given.dtype
            AND e.backend = given.backend AND e.device = given.device AND e.arch = given.arch
            AND e.dynamic = given.dynamic"""  # noqa: S608
    insert = f"""
        INSERT INTO hud_experiment ({names})
        SELECT suite, "case", knobs::jsonb, mode, dtype, backend, device, arch, dynamic
        FROM {_EXPERIMENT_VALUES} AS given({names}) ON CONFLICT DO NOTHING"""  # noqa: S608
    ids = _known_or_inserted(identities, select, insert, columns)
    return dict(zip(identities, ids, strict=True))


def metric_ids(names: list[str]) -> dict[str, int]:
    """Registry ids of these names, which are distinct; an unknown one is registered without direction."""
    infos = [metric_info(name) for name in names]
    columns: list[list[Any]] = [
        [info.name for info in infos],
        [info.title for info in infos],
        [info.unit for info in infos],
        [info.direction for info in infos],
        [info.kind for info in infos],
        [info.precision for info in infos],
        [info.floor for info in infos],
    ]
    values = "unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::int2[], %s::float8[])"
    fields = "name, title, unit, direction, kind, precision, floor"
    select = f"""SELECT given.place, m.id FROM {values} WITH ORDINALITY AS given({fields}, place)
        JOIN hud_metric m ON m.name = given.name"""  # noqa: S608
    insert = f"""INSERT INTO hud_metric ({fields}) SELECT {fields} FROM {values} AS given({fields})
        ON CONFLICT DO NOTHING"""  # noqa: S608
    return dict(zip(names, _known_or_inserted(names, select, insert, columns), strict=True))


def _series_ids(digests: Mapping[tuple[int, int], str]) -> dict[tuple[int, int], int]:
    """Series of these pairs of experiment and metric, each with the digest it is to be found by."""
    pairs = sorted(digests)
    columns: list[list[Any]] = [
        [pair[0] for pair in pairs],
        [pair[1] for pair in pairs],
        [digests[pair] for pair in pairs],
    ]
    given = "unnest(%s::int[], %s::int[], %s::text[])"
    select = f"""SELECT given.place, s.id
        FROM {given} WITH ORDINALITY AS given(experiment, metric, digest, place)
        JOIN hud_series s ON s.experiment_id = given.experiment AND s.metric_id = given.metric"""  # noqa: S608
    insert = f"""INSERT INTO hud_series (experiment_id, metric_id, digest)
        SELECT experiment, metric, digest FROM {given} AS given(experiment, metric, digest)
        ON CONFLICT DO NOTHING"""  # noqa: S608
    ids = _known_or_inserted(pairs, select, insert, columns)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE hud_series s SET digest = given.digest
            FROM (SELECT * FROM unnest(%s::int[], %s::text[]) AS given(id, digest) ORDER BY id) AS given
            WHERE s.id = given.id AND s.digest IS NULL
            """,
            [ids, columns[2]],
        )
    return dict(zip(pairs, ids, strict=True))


def _environment_ids(environments: dict[str, Environment]) -> dict[str, int]:
    fingerprints = sorted(environments)
    ordered = [environments[fingerprint] for fingerprint in fingerprints]
    columns: list[list[Any]] = [
        fingerprints,
        [class_key(environment) for environment in ordered],
        [environment.torch[:100] for environment in ordered],
        [environment.torch_git[:64] for environment in ordered],
        [environment.gpu[:200] for environment in ordered],
        [json.dumps(asdict(environment)) for environment in ordered],
    ]
    values = "unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])"
    names = "fingerprint, class_key, torch, torch_git, gpu, facts"
    select = f"""SELECT given.place, e.id FROM {values} WITH ORDINALITY AS given({names}, place)
        JOIN hud_environment e ON e.fingerprint = given.fingerprint"""  # noqa: S608
    insert = f"""INSERT INTO hud_environment ({names})
        SELECT fingerprint, class_key, torch, torch_git, gpu, facts::jsonb FROM {values} AS given({names})
        ON CONFLICT DO NOTHING"""  # noqa: S608
    return dict(zip(fingerprints, _known_or_inserted(fingerprints, select, insert, columns), strict=True))


def class_key(environment: Environment) -> str:
    """Environment class: what a baseline may be compared with. torch and triton are the subject and
    never part of it; minor versions of driver and CUDA are noise."""
    parts = [environment.gpu, _major(environment.driver), _major(environment.cuda), environment.cpu]
    parts += [f"{name}={environment.packages.get(name, '')}" for name in _CLASS_PACKAGES]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def _major(version: str) -> str:
    return version.split(".", 1)[0]
