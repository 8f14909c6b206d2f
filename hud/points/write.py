"""Write points: from the measurements of a run, in the transaction that stores those.

Everything that adds, changes, moves or removes measurements calls `unfold` before and `make` after it, for
the runs and series concerned.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet, Value
from django.db.models.functions import Greatest, Least

from hud.models import (
    NEVER_RAN,
    STATUS_CODES,
    STATUS_NAMES,
    VERDICT_CODES,
    DetailedMeasurement,
    Measurement,
    Point,
    Run,
    RunSubject,
    Series,
    SidePoint,
)
from hud.sql import copy_rows, empty_temporary_table, execute, fetch_tuples, int_array, real
from runner.schema.points import Process, point_of

_FEW_KERNELS = 8  # up to as many a variant comes again and says something; with more it is always new
_KEY = ("series_id", "order_time", "run_id", "environment_id")
_SIDE_KEY = ("run_id", "series_id", "environment_id", "side")
_NUMBERS = {
    "value": "float8", "values": "float8[]", "variants": "varchar[]", "counts": "int4[]",
    "compilations": "int2", "processes": "int2", "samples": "int4", "spread": "float8", "status": "int2",
    "code": "varchar", "note": "text", "target": "float8", "target_arch": "varchar",
    "quality": "varchar",
}  # fmt: skip
_FOLDED = {"upload_id": "int4", "repeat": "int2", "compilation": "int2"}
_COLUMNS = {
    "series_id": "int4", "order_time": "timestamptz", "run_id": "int4", "environment_id": "int4",
    "side": "int2", "is_ab": "bool", "branch": "varchar", "rerun": "bool", **_NUMBERS, **_FOLDED,
}  # fmt: skip
_DEFINITIONS = ", ".join(f'"{name}" {kind}' for name, kind in _COLUMNS.items())
_JUDGED = (
    "verdict", "change", "noise", "factor", "level", "level_points", "level_stream_id", "verdict_reason",
)  # fmt: skip
_NEVER = [STATUS_CODES[name] for name in NEVER_RAN]
_PIECE = 5000  # pairs of run and series that are made together
_RUNS_AT_ONCE = 20

# Measurements m of the wanted runs and series, but for processes whose choices were forced. The last one says
# whether a point may hold it: a process of its own with at most one sample. OFFSET 0: one look-up by the key
# for each, in this order, also where the planner knows nothing yet of tables that were just filled.
_PROCESSES = f"""
    SELECT m.series_id, m.order_time, m.run_id, m.environment_id, point.side, point.is_ab, r.branch, r.rerun,
        m.repeat, m.compilation, m.value, m.spread, m.n, m.status, m.code, m.note, m.target, m.target_arch,
        CASE WHEN cardinality(c.kernels) <= {_FEW_KERNELS} THEN nullif(c.variant, '') END, m.quality,
        m.upload_id, m.samples IS NULL AND m.spread IS NULL AND m.side = 0 AND NOT point.is_ab
    FROM unnest(%s::int[], %s::int[]) AS wanted(run_id, series_id)
    CROSS JOIN LATERAL (
        SELECT * FROM hud_measurement
        WHERE run_id = wanted.run_id AND series_id = wanted.series_id AND draw IS NULL OFFSET 0
    ) m
    CROSS JOIN LATERAL (
        SELECT base_interpreter <> '' AS is_ab, branch, rerun FROM hud_run WHERE id = m.run_id OFFSET 0
    ) r
    CROSS JOIN LATERAL (SELECT r.is_ab, CASE WHEN r.is_ab THEN m.side ELSE 0 END AS side) point
    CROSS JOIN LATERAL (SELECT experiment_id FROM hud_series WHERE id = m.series_id OFFSET 0) s
    LEFT JOIN LATERAL (
        SELECT kernels, variant FROM hud_compilation WHERE run_id = m.run_id
            AND experiment_id = s.experiment_id AND environment_id = m.environment_id
            AND repeat = m.repeat AND side = m.side OFFSET 0
    ) c ON true
    ORDER BY 1, 2, 3, 4, 5, m.repeat
"""  # noqa: S608 — constants of this module  # nosec B608


# Points p of the wanted runs and series that hold their measurement: one look-up for each.
_OF_FOLDED = """run_id, series_id, environment_id, order_time, value, target, n, status, repeat, side,
    compilation, target_arch, code, note, quality, upload_id"""
_UNFOLD = f"""
    WITH folded AS (
        SELECT p.* FROM unnest(%s::int[], %s::int[]) AS wanted(run_id, series_id) CROSS JOIN LATERAL (
            SELECT * FROM hud_measurement
            WHERE run_id = wanted.run_id AND series_id = wanted.series_id AND in_point OFFSET 0) p
    ), moved AS (
        INSERT INTO hud_detailedmeasurement ({_OF_FOLDED}) SELECT {_OF_FOLDED} FROM folded
    )
    UPDATE hud_point p SET repeat = NULL, compilation = NULL, upload_id = NULL FROM folded
    WHERE p.series_id = folded.series_id AND p.order_time = folded.order_time AND p.run_id = folded.run_id
        AND p.environment_id = folded.environment_id
"""  # noqa: S608 — constants of this module  # nosec B608


def unfold(places: Iterable[tuple[int, int]]) -> None:
    """Give the measurements of these pairs of run and series rows of their own, which may then be changed
    until `make` is called for the same pairs."""
    if ordered := sorted(set(places)):
        execute(_UNFOLD, list(map(int_array, zip(*ordered, strict=True))))


def make(places: Iterable[tuple[int, int]], *, of_compilations: Iterable[tuple[int, int]] = ()) -> int:
    """Make the points of these pairs of run and series from their measurements; return how many changed.

    A point whose measurements are gone goes too. One that changes loses its verdict until it is judged
    again. A compilation, given by the run and series it came with, tells the variant of all metrics of its
    experiment.
    """
    wanted = set(places)
    changed = 0
    with transaction.atomic(savepoint=False):
        if compiled := sorted(set(of_compilations)):
            with_variants = fetch_tuples(
                """
                SELECT DISTINCT c.run_id, s.id
                FROM unnest(%s::int[], %s::int[]) AS c(run_id, series_id)
                CROSS JOIN LATERAL (
                    SELECT experiment_id, stream_id FROM hud_series WHERE id = c.series_id OFFSET 0) own
                CROSS JOIN LATERAL (
                    SELECT id FROM hud_series
                    WHERE experiment_id = own.experiment_id AND stream_id = own.stream_id OFFSET 0) s
                CROSS JOIN LATERAL (
                    SELECT FROM hud_point WHERE run_id = c.run_id AND series_id = s.id LIMIT 1) p
                """,
                [list(column) for column in zip(*compiled, strict=True)],
            )
            wanted.update(with_variants)
        ordered = sorted(wanted)
        for start in range(0, len(ordered), _PIECE):
            runs, series = map(int_array, zip(*ordered[start : start + _PIECE], strict=True))
            empty_temporary_table("new_point", _DEFINITIONS)
            if points := list(_points(fetch_tuples(_PROCESSES, [runs, series]))):
                copy_rows("new_point", _COLUMNS, points)
            changed += _merge(runs, series)
        if changed:
            count_points(run for run, _series in ordered)
            note_subjects(ordered)
    return changed


def count_points(runs: Iterable[int]) -> None:
    """Count the points of runs, and those that regressed."""
    counted = """(points, regressed) = (SELECT count(*), count(*) FILTER (WHERE verdict = %(regressed)s)
        FROM hud_point WHERE run_id = own.id)"""
    touch_runs(runs, counted)


def touch_runs(runs: Iterable[int], changes: str = "points = hud_run.points") -> None:
    """Make new versions of the rows of runs, by which pages see that what they keep of them is outdated."""
    if wanted := sorted(set(runs)):
        execute(
            f"""
            UPDATE hud_run SET {changes}
            FROM (SELECT id FROM hud_run WHERE id = ANY(%(runs)s) ORDER BY id FOR NO KEY UPDATE) own
            WHERE hud_run.id = own.id
            """,  # noqa: S608 — constants of this module  # nosec B608
            {"runs": wanted, "regressed": VERDICT_CODES["regressed"]},
        )


def touch_series(series: Iterable[int] | QuerySet[Any], first: datetime, last: datetime) -> None:
    """Mark series for the judge, which judges them again from the first of these times on."""
    Series.objects.filter(pk__in=series).update(
        touched_at=Least("touched_at", Value(first)), touched_until=Greatest("touched_until", Value(last))
    )


def note_subjects(places: Iterable[tuple[int, int]]) -> None:
    """Note of what the runs of these pairs of run and series have results."""
    if ordered := sorted(set(places)):
        execute(
            """
            INSERT INTO hud_runsubject (run_id, stream_id, suite, arch, mode, dtype)
            SELECT DISTINCT own.run_id, s.stream_id, e.suite, e.arch, e.mode, e.dtype
            FROM unnest(%s::int[], %s::int[]) AS own(run_id, series_id) CROSS JOIN LATERAL (
                SELECT FROM hud_point WHERE run_id = own.run_id AND series_id = own.series_id
                    AND status <> ALL(%s) LIMIT 1) p
            CROSS JOIN LATERAL (
                SELECT experiment_id, stream_id FROM hud_series WHERE id = own.series_id OFFSET 0) s
            CROSS JOIN LATERAL (SELECT * FROM hud_experiment WHERE id = s.experiment_id OFFSET 0) e
            ORDER BY 1, 3, 4, 5, 6 ON CONFLICT DO NOTHING
            """,
            [*map(int_array, zip(*ordered, strict=True)), _NEVER],
        )


def forget_subjects(runs: Sequence[int]) -> None:
    """Remove the notes of what these runs have no results of any more."""
    RunSubject.objects.filter(run__in=runs).delete()
    note_subjects(Point.objects.filter(run__in=runs).values_list("run", "series"))


def _points(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    for key, group in groupby(rows, key=lambda row: row[:8]):
        measured = list(group)
        statuses = [STATUS_NAMES.get(row[13], "failed") for row in measured]
        processes = zip(measured, statuses, strict=True)
        point = point_of([Process._make((*row[8:13], status, *row[14:20])) for row, status in processes])
        values = {**point._asdict(), "status": STATUS_CODES[point.status]}
        repeat, compilation, *_, upload_id, may_be_held = measured[0][8:]
        held = (upload_id, repeat, compilation) if may_be_held and len(measured) == 1 else (None, None, None)
        yield (*key, *(values[name] for name in _NUMBERS), *held)


def _merge(runs: str, series: str) -> int:
    """Bring the stored points of these runs and series to the new ones; return how many changed."""
    changed = 0
    for table, key, more, held, is_ab in (
        ("hud_point", _KEY, ("branch", "rerun"), _FOLDED, False),
        ("hud_sidepoint", _SIDE_KEY, ("order_time",), (), True),
    ):
        written = [*more, *_NUMBERS]
        names = ", ".join(f'"{name}"' for name in (*key, *written, *held))
        selected = names.replace('"spread"', real("spread"))
        same = " AND ".join(f'new."{name}" = old."{name}"' for name in key)
        # OFFSET 0: one look-up by run and series for each, also where the planner knows little of the table
        changed += execute(
            f"""
            DELETE FROM {table} old USING (
                SELECT o.* FROM unnest(%s::int[], %s::int[]) AS wanted(run_id, series_id) CROSS JOIN LATERAL (
                    SELECT {", ".join(key)} FROM {table}
                    WHERE run_id = wanted.run_id AND series_id = wanted.series_id OFFSET 0) o
            ) new
            WHERE {same} AND NOT EXISTS (SELECT FROM new_point new WHERE new.is_ab = {is_ab} AND {same})
            """,  # noqa: S608 — constants of this module, as below  # nosec B608
            [runs, series],
        )
        differs, refolds = _differs(written), _differs([*written, *held])
        updates = [f'"{name}" = excluded."{name}"' for name in (*written, *held)]
        if not is_ab:
            updates += [f'"{name}" = CASE WHEN NOT ({differs}) THEN old."{name}" END' for name in _JUDGED]
            updates.append(f"superseded = coalesce(CASE WHEN {differs} THEN old.verdict END, old.superseded)")
        changed += execute(
            f"""
            INSERT INTO {table} AS old ({names})
            SELECT {selected} FROM new_point WHERE is_ab = {is_ab} ORDER BY {", ".join(key)}
            ON CONFLICT ({", ".join(key)}) DO UPDATE SET {", ".join(updates)} WHERE {refolds}
            """  # noqa: S608  # nosec B608
        )
    # rows of their own that points now hold
    execute(
        """
        DELETE FROM hud_detailedmeasurement m USING new_point new
        WHERE m.run_id = new.run_id AND m.series_id = new.series_id
            AND m.environment_id = new.environment_id AND m.repeat = new.repeat AND m.side = 0
        """
    )
    return changed


def _differs(names: Iterable[str]) -> str:
    """Return SQL for: one of these columns of a stored point is to be another."""
    before, after = (", ".join(f'{side}."{name}"' for name in names) for side in ("old", "excluded"))
    return f"({before}) IS DISTINCT FROM ({after})"


def rebuild(*, dry_run: bool = False) -> tuple[int, int, int]:
    """Make all points anew; return how many there are, how many differed, and how many have lost their raw
    values, which stay. A dry run changes nothing."""
    differing = 0
    runs = list(Run.objects.order_by("pk").values_list("pk", flat=True))
    for start in range(0, len(runs), _RUNS_AT_ONCE):
        with transaction.atomic():
            places = "SELECT DISTINCT run_id, series_id FROM hud_measurement WHERE run_id = ANY(%s)"
            differing += make(fetch_tuples(places, [runs[start : start + _RUNS_AT_ONCE]]))
            if dry_run:
                transaction.set_rollback(True)
    raw = Measurement.objects.filter(run=OuterRef("run"), series=OuterRef("series"))
    points = Point.objects.count() + SidePoint.objects.count()
    without_raw = sum(kind.filter(~Exists(raw)).count() for kind in (Point.objects, SidePoint.objects))
    return points, differing, without_raw


def are_missing() -> bool:
    """Return whether there are measurements and no points: as after a move from before there were any."""
    made = Point.objects.exists() or SidePoint.objects.exists()
    return DetailedMeasurement.objects.exists() and not made
