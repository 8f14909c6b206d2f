"""Measurements → rows: a fixed number of bulk statements, in the caller's transaction.

One that is all of its point goes by COPY into the points, where nothing of its place is stored. The others
go into a temporary table and from there with ON CONFLICT, so that a repeated upload stores each of them once.
Uploads into one run wait for each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Any

from django.db.models import Max, Q

from hud.ingest.compilations import store_compilations
from hud.ingest.receipt import Receipt
from hud.ingest.runs import Runs
from hud.ingest.series import RowKey, row_keys
from hud.models import STATUS_CODES, Measurement, Run
from hud.points import write as points
from hud.sql import copy_rows, empty_temporary_table, execute, fetch_tuples, int_array
from runner.formats import reasons
from runner.formats.measurement import ParsedMeasurement
from runner.schema.records import STATUSES
from runner.schema.statistics import spread_of, value_of
from runner.schema.suite import value_rule

_MAX_REPEAT = 2**15 - 1  # that its column holds
_MOST_SPREAD = 1e30  # that a point holds, as `hud.sql.real` has it
_RUNS = 4_170_226  # class of the advisory locks of runs, of no meaning
_PLACE = ("run_id", "series_id", "environment_id", "side")  # of a key without the repeat


def store(
    measurements: Sequence[ParsedMeasurement], receipt: Receipt, runs: Runs, *, replace: bool
) -> list[dict[str, Any]]:
    """Write measurements into their runs, and what became of them into the receipt; `replace` lets them
    supersede stored ones, as those of a task's later attempt and a correction do; into closed runs nothing
    new is written. One with the identity of a stored one, or of another of this upload, and another value is
    left out. Return the stored values that were replaced by others, each with its place."""
    if not measurements:
        return []
    grown, closed, upload_id = runs.grown, runs.closed, runs.upload.pk if runs.upload else None
    if grown:
        locks = "SELECT pg_advisory_xact_lock(%s, id) FROM unnest(%s::int[]) AS id"
        execute(locks, [_RUNS, sorted(grown)])
    by_id = {run.pk: run for run in runs.by_key.values()}
    keys = _number_times(row_keys(measurements, runs.by_key), measurements, grown)
    rows, items = _rows(zip(keys, measurements, strict=True), by_id, receipt, upload_id)
    if refused := _new_in(closed, rows):
        for key in refused:
            del rows[key]
            receipt.leave_out(items[key], reasons.CLOSED_RUN)
        _delete_empty_series({key[1] for key in refused})
    alone = _alone(rows, by_id, grown)
    _copy_alone(alone.values(), by_id)
    others = [row for key, row in rows.items() if key not in alone]
    points.unfold(row[:2] for row in others if row[0] in grown)
    stored, superseded = _copy_measurements(others, replace=replace, closed=closed)
    refined, clashing = (0, {}) if stored == len(others) else _compare_with_stored(closed)
    for key, reason in clashing.items():
        receipt.leave_out(items[key], reason)
    compiled = {
        key: item
        for key, item in items.items()
        if item.compiled and key in rows and key not in clashing and key[0] not in closed
    }
    store_compilations(compiled, by_id, replace=replace, upload_id=upload_id)
    points.make([row[:2] for row in others], of_compilations=[key[:2] for key in compiled])
    if stored or refined:  # the archive has samples too, which may change where no point does
        points.touch_runs(row[0] for row in others)
    receipt.stored += stored + len(alone)
    receipt.duplicates += len(others) - stored - len(clashing)
    receipt.warn(f"{refined} stored values were replaced by more precise ones" if refined else "")
    return superseded


def _rows(
    keyed: Iterable[tuple[RowKey, ParsedMeasurement]],
    runs: Mapping[int, Run],
    receipt: Receipt,
    upload_id: int | None,
) -> tuple[dict[RowKey, tuple[Any, ...]], dict[RowKey, ParsedMeasurement]]:
    """Return the rows to store, and their measurements; of several with one key the first."""
    rows: dict[RowKey, tuple[Any, ...]] = {}
    items: dict[RowKey, ParsedMeasurement] = {}
    order_times = {run_id: run.order_time for run_id, run in runs.items()}
    for key, item in keyed:
        if key[3] > _MAX_REPEAT:
            receipt.leave_out(item, reasons.TOO_MANY_TIMES)
            continue
        row = _row(key, item, item.run.point_time or order_times[key[0]], upload_id)
        is_repeat = item.is_appended and not item.run.point_time
        while (earlier := rows.setdefault(key, row)) != row and is_repeat:
            key = (*key[:3], key[3] + 1, key[4])  # noqa: PLW2901
            row = (*key, *row[len(key) :])
        if earlier is row:
            items[key] = item
        elif earlier == row:
            receipt.duplicates += 1
        else:
            receipt.leave_out(item, reasons.OTHER_VALUE)
    return rows, items


def _number_times(
    keys: list[RowKey], measurements: Sequence[ParsedMeasurement], grown: Collection[int]
) -> list[RowKey]:
    """Return the keys, with the next free `repeat` for each further time of an experiment and metric in a
    run, such as a history file has: each is a point of its own. A time that is stored keeps its number."""
    in_grown = [
        key for key, item in zip(keys, measurements, strict=True) if item.run.point_time and key[0] in grown
    ]
    if not in_grown and len(set(keys)) == len(keys):
        return keys
    repeats: dict[tuple[int, ...], dict[datetime, int]] = defaultdict(dict)  # by place: those of its times
    last: dict[tuple[int, ...], int] = {}
    taken: set[tuple[int, ...]] = set()  # places with repeats

    def take(place: tuple[int, ...], repeat: int, time: datetime) -> int:
        repeat = repeats[place].setdefault(time, repeat)
        last[place] = max(last.get(place, 0), repeat)
        taken.add((*place, repeat))
        return repeat

    runs, series, repeats_of_file = ({key[part] for key in in_grown} for part in (0, 1, 3))
    of_series = Measurement.objects.filter(run__in=runs, series__in=series)
    times = {item.run.point_time for item in measurements if item.run.point_time}
    same = of_series.filter(Q(order_time__in=times) | Q(repeat__in=repeats_of_file)).order_by("repeat")
    for *names, repeat, time in same.values_list(*_PLACE, "repeat", "order_time"):
        take(tuple(names), repeat, time)
    for *names, highest in of_series.values_list(*_PLACE).annotate(highest=Max("repeat")):
        last[tuple(names)] = highest
    numbered = []
    for key, item in zip(keys, measurements, strict=True):
        run_id, series_id, environment_id, repeat, side = key
        if time := item.run.point_time:
            place = run_id, series_id, environment_id, side
            repeat = take(place, last[place] + 1 if (*place, repeat) in taken else repeat, time)
        numbered.append((run_id, series_id, environment_id, repeat, side))
    return numbered


def _new_in(closed: Collection[int], rows: Collection[RowKey]) -> list[RowKey]:
    """Return the keys of closed runs that are not stored yet."""
    in_closed = [key for key in rows if key[0] in closed]
    if not in_closed:
        return []
    stored = Measurement.objects.filter(run__in={key[0] for key in in_closed}).values_list(*_KEY)
    known = set(stored)
    return [key for key in in_closed if key not in known]


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
    rows: Mapping[RowKey, tuple[Any, ...]], runs: Mapping[int, Run], grown: Collection[int]
) -> dict[RowKey, tuple[Any, ...]]:
    """Return the rows that are all of their points, as far as `hud.points.write.make` has nothing to add."""
    count = Counter(map(_OF_PLACE, rows.values()))
    compared = {run_id for run_id, run in runs.items() if run.is_ab}
    alone = {
        key: row
        for key, row in rows.items()
        if count[_OF_PLACE(row)] == 1 and not key[4] and key[0] not in compared
    }
    if in_grown := [_OF_PLACE(row) for key, row in alone.items() if key[0] in grown]:
        stored = fetch_tuples(
            """
            SELECT * FROM unnest(%s::int[], %s::int[], %s::timestamptz[]) AS given(run, series, order_time)
            WHERE EXISTS (SELECT FROM hud_point p WHERE p.series_id = given.series
                    AND p.order_time = given.order_time AND p.run_id = given.run)
                OR EXISTS (SELECT FROM hud_compilation c WHERE c.run_id = given.run)
            """,
            [list(column) for column in zip(*in_grown, strict=True)],
        )
        known = set(stored)
        return {key: row for key, row in alone.items() if _OF_PLACE(row) not in known}
    return alone


def _copy_alone(rows: Collection[tuple[Any, ...]], runs: Mapping[int, Run]) -> None:
    """Write measurements that are all of their points, which hold those without further samples."""
    if not rows:
        return
    if detailed := [row for row in rows if row[_SAMPLES] is not None]:
        copy_rows("hud_detailedmeasurement", _TYPES, detailed)
    ends = {run_id: (1, 1, run.branch, run.rerun) for run_id, run in runs.items()}
    copy_rows("hud_point", _OF_POINT, (_point_row(row, ends[row[0]]) for row in rows))
    own = {row[0] for row in rows}
    points.count_points(own)
    points.note_subjects((row[0], row[1]) for row in rows)
    execute("INSERT INTO hud_unjudgedrun (run_id) SELECT unnest(%s::int[])", [int_array(own)])


def _point_row(row: tuple[Any, ...], end: tuple[Any, ...]) -> tuple[Any, ...]:
    compilation, _draw, upload_id, spread, samples = row[_SAMPLES - 4 :]
    held = (row[3], compilation, upload_id) if samples is None else (None, None, None)
    return (*row[:3], *row[5 : _SAMPLES - 4], spread and min(spread, _MOST_SPREAD), *held, *end)


def _row(
    key: RowKey, item: ParsedMeasurement, order_time: datetime, upload_id: int | None
) -> tuple[Any, ...]:
    samples, spread, array = item.samples, None, None
    value = samples[0] if samples else None
    if len(samples) > 1:
        rule = value_rule(item.suite, item.metric)
        value, spread, array = value_of(samples, rule), spread_of(samples, rule), [*samples]
    numbers = value, item.target, len(samples), STATUS_CODES[item.status]
    return (*key, order_time, *numbers, *_OF_ITEM(item), upload_id, spread, array)


_KEY = ("run_id", "series_id", "environment_id", "repeat", "side")
_TYPES = {
    **dict(zip(_KEY, ("int4", "int4", "int4", "int2", "int2"), strict=True)),
    "order_time": "timestamptz", "value": "float8", "target": "float8", "n": "int4", "status": "int2",
    "target_arch": "varchar", "code": "varchar", "note": "varchar", "quality": "varchar",
    "compilation": "int2", "draw": "int2", "upload_id": "int4", "spread": "float8",
    "samples": "float8[]",
}  # fmt: skip
_OF_ITEM = attrgetter("target_arch", "code", "message", "quality", "compilation", "draw")
_COLUMNS = ", ".join(_TYPES)
_SAMPLES = list(_TYPES).index("samples")
_OF_PLACE = itemgetter(0, 1, len(_KEY))  # run, series and order time of a row, which one point has
_OF_POINT = {
    "run_id": "int4", "series_id": "int4", "environment_id": "int4", "order_time": "timestamptz",
    "value": "float8", "target": "float8", "samples": "int4", "status": "int2", "target_arch": "varchar",
    "code": "varchar", "note": "varchar", "quality": "varchar", "spread": "float4", "repeat": "int2",
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
