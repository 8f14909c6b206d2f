"""Measurements → rows: a fixed number of bulk statements, in the caller's transaction.

One that is all of its point goes by COPY into the points, where nothing of its place is stored. The others
go into a temporary table and from there with ON CONFLICT, so that a repeated upload stores each of them once.
Uploads into one run wait for each other.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from hud.ingest.compilations import NewCompilation, store_compilations
from hud.ingest.receipt import Receipt
from hud.ingest.resolve import RowKey, RunPlace, row_keys
from hud.models import STATUS_CODES, Measurement
from hud.points import write as points
from hud.sql import copy_rows, empty_temporary_table, execute, fetch_tuples, int_array
from runner.formats import reasons
from runner.formats.measurement import ParsedMeasurement, RunKey
from runner.schema.records import STATUSES
from runner.schema.statistics import spread_of, value_of
from runner.schema.suite import value_rule

_MAX_REPEAT = 2**15 - 1  # that its column holds
_MOST_SPREAD = 1e30  # that a point holds, as `hud.sql.real` has it
_RUNS = 4_170_226  # class of the advisory locks of runs, of no meaning
_PLACE = "m.run_id, m.series_id, m.environment_id, m.repeat, m.side, m.order_time"
_SAME_PLACE = """m.run_id = given.run_id AND m.series_id = given.series_id
    AND m.environment_id = given.environment_id AND m.side = given.side"""


def store(
    measurements: Sequence[ParsedMeasurement],
    receipt: Receipt,
    *,
    runs: Mapping[RunKey, RunPlace],
    replace: bool = False,
    closed: Collection[int] = (),
    grown: Collection[int] = (),
    upload_id: int | None = None,
) -> list[dict[str, Any]]:
    """Write measurements into their runs, and what became of them into the receipt; `replace` lets them
    supersede stored ones, as those of a task's later attempt and a correction do; into `closed` runs nothing
    new is written; `grown` runs may have measurements already. One with the identity of a stored one, or of
    another of this upload, and another value is left out. Return the stored values that were replaced by
    others, each with its place."""
    if not measurements:
        return []
    if grown:
        locks = "SELECT pg_advisory_xact_lock(%s, id) FROM unnest(%s::int[]) AS id"
        execute(locks, [_RUNS, sorted(grown)])
    own = [runs[item.run] for item in measurements]
    keys = _number_times(row_keys(measurements, own), measurements, grown)
    rows: dict[RowKey, tuple[Any, ...]] = {}
    places: dict[RowKey, ParsedMeasurement] = {}
    conflicts, repeated = [], 0
    for key, item, run in zip(keys, measurements, own, strict=True):
        if key[3] > _MAX_REPEAT:
            conflicts.append((item, reasons.TOO_MANY_TIMES))
            continue
        row = (*key, *_row(item, item.run.point_time or run.order_time), upload_id)
        is_repeat = item.is_appended and not item.run.point_time
        while (earlier := rows.setdefault(key, row)) != row and is_repeat:
            key = (*key[:3], key[3] + 1, key[4])  # noqa: PLW2901
            row = (*key, *row[len(key) :])
        if earlier is row:
            places[key] = item
        elif earlier == row:
            repeated += 1
        else:
            conflicts.append((item, reasons.OTHER_VALUE))
    refused = _new_in(closed, rows)
    for key in refused:
        del rows[key]
        conflicts.append((places[key], reasons.CLOSED_RUN))
    if refused:
        _delete_empty_series({key[1] for key in refused})
    alone = _alone(rows, {place.pk for place in runs.values() if place.is_ab}, grown)
    _copy_alone(alone.values(), {place.pk: place for place in runs.values()})
    others = [row for key, row in rows.items() if key not in alone]
    points.unfold(row[:2] for row in others if row[0] in grown)
    stored, superseded = _copy_measurements(others, replace=replace, closed=closed)
    refined, clashing = (0, {}) if stored == len(others) else _compare_with_stored(closed)
    conflicts += [(places[key], reason) for key, reason in clashing.items()]
    compilations = {
        key: NewCompilation(item.compiled, item.compilation, item.draw, runs[item.run].order_time)
        for key, item in places.items()
        if item.compiled and key in rows and key[0] not in closed and key not in clashing
    }
    store_compilations(compilations, replace=replace, upload_id=upload_id)
    points.make([row[:2] for row in others], of_compilations=[key[:2] for key in compilations])
    receipt.stored += stored + len(alone)
    receipt.duplicates += len(others) - stored - len(clashing) + repeated
    receipt.leave_out(conflicts)
    receipt.warn(f"{refined} stored values were replaced by more precise ones" if refined else "")
    return superseded


def _number_times(
    keys: list[RowKey], measurements: Sequence[ParsedMeasurement], grown: Collection[int]
) -> list[RowKey]:
    """Return the keys, with the next free `repeat` for each further time of an experiment and metric in a
    run, such as a history file has: each is a point of its own. A time that is stored keeps its number."""
    timed = {key for key, item in zip(keys, measurements, strict=True) if item.run.point_time}
    asked = {key for key in timed if key[0] in grown}
    if not asked and len(set(keys)) == len(keys):
        return keys
    times = _stored_times(keys, measurements, asked) if asked else {}
    numbers: dict[tuple[int, int, int, int, datetime], int] = {}
    last: dict[tuple[int, int, int, int], int] = {}

    def note(key: RowKey, time: datetime) -> None:
        run_id, series_id, environment_id, repeat, side = key
        numbers.setdefault((run_id, series_id, environment_id, side, time), repeat)
        place = run_id, series_id, environment_id, side
        last[place] = max(last.get(place, 0), repeat)

    for stored, at in times.items():
        note(stored, at)
    numbered = []
    for key, item in zip(keys, measurements, strict=True):
        time, given = item.run.point_time, key
        if time:
            if times.get(key, time) != time:
                run_id, series_id, environment_id, _repeat, side = key
                free = last[run_id, series_id, environment_id, side] + 1
                repeat = numbers.get((run_id, series_id, environment_id, side, time), free)
                given = run_id, series_id, environment_id, repeat, side
            times[given] = time
            note(given, time)
        numbered.append(given)
    return numbered


def _stored_times(
    keys: Sequence[RowKey], measurements: Sequence[ParsedMeasurement], asked: Collection[RowKey]
) -> dict[RowKey, datetime]:
    """Return the stored rows that matter for these: of the same key, of the same time, and the last one of
    the experiment and metric in the run."""
    given = [
        (*key, item.run.point_time) for key, item in zip(keys, measurements, strict=True) if key in asked
    ]
    rows = fetch_tuples(
        f"""
        SELECT DISTINCT found.* FROM unnest(
            %s::int[], %s::int[], %s::int[], %s::int2[], %s::int2[], %s::timestamptz[]
        ) AS given(run_id, series_id, environment_id, repeat, side, order_time)
        CROSS JOIN LATERAL (
            (SELECT {_PLACE} FROM hud_measurement m WHERE {_SAME_PLACE} AND m.repeat = given.repeat)
            UNION ALL
            (SELECT {_PLACE} FROM hud_measurement m
            WHERE {_SAME_PLACE} AND m.order_time = given.order_time LIMIT 1)
            UNION ALL
            (SELECT {_PLACE} FROM hud_measurement m WHERE {_SAME_PLACE} ORDER BY m.repeat DESC LIMIT 1)
        ) AS found
        """,  # noqa: S608 — only constants of this module are put into the text  # nosec B608
        [list(column) for column in zip(*given, strict=True)],
    )
    return {row[:5]: row[5] for row in rows}


def _new_in(closed: Collection[int], rows: Collection[RowKey]) -> list[RowKey]:
    """Return the keys of closed runs that are not stored yet."""
    asked = [key for key in rows if key[0] in closed]
    if not asked:
        return []
    stored = set(Measurement.objects.filter(run__in={key[0] for key in asked}).values_list(*_KEY))
    return [key for key in asked if key not in stored]


def _delete_empty_series(ids: Collection[int]) -> None:
    """Delete those of these series that were made only for what a closed run does not take."""
    execute(
        """
        DELETE FROM hud_series s WHERE id = ANY(%s)
            AND NOT EXISTS (SELECT FROM hud_point WHERE series_id = s.id)
            AND NOT EXISTS (SELECT FROM hud_sidepoint WHERE series_id = s.id)
            AND NOT EXISTS (SELECT FROM hud_seriesstate WHERE series_id = s.id)
            AND NOT EXISTS (SELECT FROM hud_regression WHERE series_id = s.id)
        """,
        [list(ids)],
    )


def _alone(
    rows: Mapping[RowKey, tuple[Any, ...]], ab_runs: Collection[int], grown: Collection[int]
) -> dict[RowKey, tuple[Any, ...]]:
    """Return the rows that are all of their points, as far as `hud.points.write.make` has nothing to add."""
    count = Counter(key[:2] for key in rows)
    alone = {
        key: row for key, row in rows.items() if not key[4] and count[key[:2]] == 1 and key[0] not in ab_runs
    }
    if asked := [key for key in alone if key[0] in grown]:
        stored = fetch_tuples(
            """
            SELECT run_id, series_id FROM unnest(%s::int[], %s::int[]) AS given(run_id, series_id)
            WHERE EXISTS (SELECT FROM hud_point p
                    WHERE p.run_id = given.run_id AND p.series_id = given.series_id)
                OR EXISTS (SELECT FROM hud_compilation c WHERE c.run_id = given.run_id)
            """,
            [[key[0] for key in asked], [key[1] for key in asked]],
        )
        known = set(stored)
        return {key: row for key, row in alone.items() if key[:2] not in known}
    return alone


def _copy_alone(rows: Collection[tuple[Any, ...]], runs: Mapping[int, RunPlace]) -> None:
    """Write measurements that are all of their points, which hold those without further samples."""
    if not rows:
        return
    if detailed := [row for row in rows if row[_SAMPLES] is not None]:
        copy_rows("hud_detailedmeasurement", _TYPES, detailed)
    copy_rows("hud_point", _OF_POINT, (_point_row(row, runs[row[0]]) for row in rows))
    own = {row[0] for row in rows}
    points.count_points(own)
    execute("INSERT INTO hud_unjudgedrun (run_id) SELECT unnest(%s::int[])", [int_array(own)])


def _point_row(row: tuple[Any, ...], run: RunPlace) -> tuple[Any, ...]:
    run_id, series_id, environment_id, repeat, _side, time, value, samples, target, spread, *more = row
    count, status, target_arch, code, note, quality, compilation, _draw, upload_id = more
    held = (repeat, compilation, upload_id) if samples is None else (None, None, None)
    said = (
        value,
        target,
        spread and min(spread, _MOST_SPREAD),
        count,
        status,
        target_arch,
        code,
        note,
        quality,
    )
    return (run_id, series_id, environment_id, time, *said, *held, 1, 1, run.branch, run.rerun)


def _row(item: ParsedMeasurement, order_time: datetime) -> tuple[Any, ...]:
    samples = item.samples
    keep_samples = samples if len(samples) > 1 else None
    rule = value_rule(item.suite, item.metric)
    return (
        order_time,
        value_of(samples, rule) if samples else None,
        keep_samples,
        item.target,
        spread_of(samples, rule) if keep_samples else None,
        len(samples),
        STATUS_CODES[item.status],
        item.target_arch,
        item.code,
        item.message,
        item.quality,
        item.compilation,
        item.draw,
    )


_KEY = ("run_id", "series_id", "environment_id", "repeat", "side")
_TYPES = {
    **dict(zip(_KEY, ("int4", "int4", "int4", "int2", "int2"), strict=True)),
    "order_time": "timestamptz", "value": "float8", "samples": "float8[]", "target": "float8",
    "spread": "float8", "n": "int4", "status": "int2", "target_arch": "varchar", "code": "varchar",
    "note": "varchar", "quality": "varchar", "compilation": "int2", "draw": "int2", "upload_id": "int4",
}  # fmt: skip
_COLUMNS = ", ".join(_TYPES)
_SAMPLES = list(_TYPES).index("samples")
_OF_POINT = {
    "run_id": "int4", "series_id": "int4", "environment_id": "int4", "order_time": "timestamptz",
    "value": "float8", "target": "float8", "spread": "float4", "samples": "int4", "status": "int2",
    "target_arch": "varchar", "code": "varchar", "note": "varchar", "quality": "varchar", "repeat": "int2",
    "compilation": "int2", "upload_id": "int4", "compilations": "int2", "processes": "int2",
    "branch": "varchar", "rerun": "bool",
}  # fmt: skip
_SAME_KEY = " AND ".join(f"old.{name} = new.{name}" for name in _KEY)
_REPLACED = ", ".join(f"{name} = excluded.{name}" for name in _TYPES if name not in _KEY)
_REPLACE = f"({', '.join(_KEY)}) DO UPDATE SET {_REPLACED} WHERE old.run_id <> ALL(%(closed)s)"


def _copy_measurements(
    rows: list[tuple[Any, ...]], *, replace: bool, closed: Collection[int]
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many rows were written, and the values that were superseded. Without `replace` a stored row
    stays; those of `closed` runs always stay."""
    if not rows:
        return 0, []
    conflict = _REPLACE if replace else "DO NOTHING"
    empty_temporary_table("incoming", "LIKE hud_detailedmeasurement")
    copy_rows("incoming", _TYPES, rows)
    superseded = _superseded(closed) if replace else []
    # The order keeps two concurrent uploads from waiting for each other.
    ((stored,),) = fetch_tuples(
        f"""
        WITH written AS (
            INSERT INTO hud_detailedmeasurement AS old ({_COLUMNS})
            SELECT {_COLUMNS} FROM incoming ORDER BY run_id, series_id, environment_id
            ON CONFLICT {conflict} RETURNING run_id
        ), unjudged AS (
            INSERT INTO hud_unjudgedrun (run_id) SELECT DISTINCT run_id FROM written
        )
        SELECT count(*) FROM written
        """,  # noqa: S608 — only constants of this module are put into the text  # nosec B608
        {"closed": list(closed)},
    )
    return int(stored), superseded


def _superseded(closed: Collection[int]) -> list[dict[str, Any]]:
    """Return what the incoming rows are about to replace by something else."""
    rows = fetch_tuples(
        f"""
        SELECT old.run_id, s.experiment_id, k.name, old.repeat, old.side,
            old.value, old.samples, old.status
        FROM incoming new JOIN hud_detailedmeasurement old ON {_SAME_KEY}
        JOIN hud_series s ON s.id = old.series_id JOIN hud_metric k ON k.id = s.metric_id
        WHERE old.run_id <> ALL(%s) AND (old.value, old.samples, old.status, old.code)
            IS DISTINCT FROM (new.value, new.samples, new.status, new.code)
        ORDER BY 1, 2, 3, 4, 5
        """,  # noqa: S608 — only constants of this module are put into the text  # nosec B608
        [list(closed)],
    )
    names = ("run", "experiment", "metric", "repeat", "side", "value", "samples", "status")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _rounds_to(precise: str, coarse: str) -> str:
    """Return SQL for: the precise value, rounded to the coarse one's digits, is the coarse one."""
    digits = f"scale({coarse}.value::text::numeric)"
    return f"""(length({precise}.value::text) > length({coarse}.value::text)
        AND {digits} BETWEEN 2 AND 15
        AND round({precise}.value::text::numeric, {digits}) = {coarse}.value::text::numeric)"""


def _compare_with_stored(closed: Collection[int]) -> tuple[int, dict[RowKey, str]]:
    """Look at what the upload brought again: take over the same value in more digits (a script's CSV
    rounds what its JSON lines say in full); return how many, and for the keys whose value is another one the
    reason, with both values."""
    refined = execute(
        f"""
        UPDATE hud_detailedmeasurement old
        SET value = new.value, samples = new.samples, spread = new.spread, n = new.n,
            upload_id = new.upload_id
        FROM incoming new WHERE {_SAME_KEY} AND old.samples IS NULL AND {_rounds_to("new", "old")}
            AND old.status = new.status AND old.code IS NOT DISTINCT FROM new.code
            AND old.run_id <> ALL(%s)
        """,  # noqa: S608 — only constants of this module are put into the text  # nosec B608
        [list(closed)],
    )
    clashing = fetch_tuples(
        f"""
        SELECT new.run_id, new.series_id, new.environment_id, new.repeat, new.side,
            old.value, old.status, old.code, new.value, new.status, new.code
        FROM incoming new JOIN hud_detailedmeasurement old ON {_SAME_KEY}
        WHERE (old.value IS DISTINCT FROM new.value AND NOT coalesce({_rounds_to("old", "new")}, false))
           OR old.status <> new.status OR old.code IS DISTINCT FROM new.code
        """,  # noqa: S608  # nosec B608
    )
    differing: dict[RowKey, str] = {}
    for row in clashing:
        how = "" if row[0] in closed else "; replace=1 supersedes it"
        both = f"{_outcome(*row[5:8])} is stored, this upload says {_outcome(*row[8:])}"
        differing[row[:5]] = f"{reasons.STORED_VALUE}: {both}{how}"
    return refined, differing


def _outcome(value: float | None, status: int, code: str | None) -> str:
    """Return a value as text, without one its status and code."""
    return f"{STATUSES[status]} {code or ''}".strip() if value is None else repr(value)
