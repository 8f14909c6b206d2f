"""Judge new measurements: from a series' state, so that the cost does not grow with its history.

Ingestion marks the run in its own transaction (`UnjudgedRun`). Once the run is complete, its series are
marked (`Series.touched_at`) and judged. `SeriesState` holds what the next point is judged against; where an
older point has changed, the series is judged again from its beginning. Pages read these rows and compute no
history.

Half of each round goes to the newest measurements, half to those that wait longest: a backfill of old data
delays the verdicts of today's runs by one round, and is itself never set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby

import msgspec
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import F

from hud.judging.levels import Level, Point, advance, begin_anew
from hud.judging.regressions import follow, funnel
from hud.judging.rules.thresholds import Judging, Thresholds, opens_regressions
from hud.judging.verdict import Verdict
from hud.models import ACTIVE, NEVER_RAN, STATUS_NAMES, Measurement, Series, SeriesState
from hud.models import Verdict as VerdictRow
from hud.runs.branches import stored_names
from runner.schema.statistics import median

logger = logging.getLogger(__name__)
_FEW_KERNELS = 8  # up to as many a variant comes again and says something; with more it is always new
_RECENT = 60  # values that a state keeps for sparklines
_EVER = datetime.min.replace(tzinfo=timezone.utc)

ClassKey = tuple[int, str]  # a series, and a class of environments


@dataclass
class _Present:
    """A series in one class of environments, while it is judged."""

    series: Series
    judging: Judging
    is_headline: bool
    level: Level = field(default_factory=Level)
    recent: list[float | None] = field(default_factory=list)
    newest: Point | None = None
    verdict: Verdict | None = None  # of the newest


def process_pending(limit: int = 200, *, on_progress: Callable[[], None] = lambda: None) -> int:
    """Judge up to `limit` touched series whose runs are complete; return how many, or if none the runs whose
    series were marked. `on_progress` is called after them."""
    marked = _mark_series(limit // 2)
    unfinished = Measurement.objects.filter(run__state__in=ACTIVE).values("series_id")
    touched = Series.objects.select_related("metric", "experiment").filter(touched_at__isnull=False)
    complete = touched.exclude(pk__in=unfinished)
    newest = complete.order_by(F("touched_until").desc(nulls_last=True), "-pk")[: limit - limit // 2]
    oldest = complete.order_by("touched_at", "pk")[: limit // 2]
    pending = {series.pk: series for series in (*newest, *oldest)}
    _judge_or_log(list(pending.values()))
    on_progress()
    return len(pending) or marked


def _judge_or_log(pending: Sequence[Series]) -> None:
    """Judge the series together; one that cannot be judged must not stop the verdicts of all others."""
    try:
        judge_series(pending)
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        if len(pending) > 1:
            for series in pending:
                _judge_or_log([series])
            return
        logger.exception("series %s is not judged", pending[0].pk)
        Series.objects.filter(pk=pending[0].pk).update(touched_at=None, touched_until=None)


def _mark_series(limit: int) -> int:
    """Mark the series of up to `limit` complete runs with the newest data, and of as many that wait longest;
    return how many runs."""
    with connection.cursor() as cursor:
        # a measurement that arrives meanwhile adds its own row in its transaction, so that none is missed
        cursor.execute(
            """
            WITH complete AS (
                SELECT u.run_id, min(u.id) AS id, min(r.order_time) AS time
                FROM hud_unjudgedrun u JOIN hud_run r ON r.id = u.run_id
                WHERE r.state <> ALL(%(active)s) GROUP BY u.run_id
            ), taken AS (
                DELETE FROM hud_unjudgedrun WHERE run_id IN (
                    (SELECT run_id FROM complete ORDER BY time DESC LIMIT %(limit)s)
                    UNION (SELECT run_id FROM complete ORDER BY id LIMIT %(limit)s)
                ) RETURNING run_id
            ), updated AS (
                UPDATE hud_series s SET touched_at = least(s.touched_at, points.first),
                    touched_until = greatest(s.touched_until, points.last)
                FROM (
                    SELECT series_id, min(order_time) AS first, max(order_time) AS last FROM hud_measurement
                    WHERE run_id IN (SELECT run_id FROM taken) GROUP BY series_id ORDER BY series_id
                ) AS points
                WHERE s.id = points.series_id
            )
            SELECT count(DISTINCT run_id) FROM taken
            """,
            {"active": list(ACTIVE), "limit": limit},
        )
        return int(cursor.fetchone()[0])


def judge_series(pending: Sequence[Series]) -> None:
    """Write verdicts, states and regressions of touched series, in one transaction and a fixed number of
    statements."""
    with transaction.atomic():
        taken = _take(pending)
        if not taken:
            return
        thresholds = Thresholds.read()
        judging = {series.pk: thresholds.of(series.experiment, series.metric) for series in taken}
        headline = _headline(taken, judging)
        present = _stored(taken, judging, headline)
        replayed = {series.pk for series in taken} - {series_id for series_id, _class in present}
        for (series_id, _class), one in present.items():
            if one.newest and one.newest.time >= _since(one.series):
                replayed.add(series_id)
        judged_until = {key: one.newest.time for key, one in present.items() if one.newest}
        settled = follow.settled(replayed)
        for key in [key for key in present if key[0] in replayed]:
            present[key] = _Present(present[key].series, present[key].judging, present[key].is_headline)
        begin = {series.pk: _EVER if series.pk in replayed else _since(series) for series in taken}
        rows: list[VerdictRow] = []
        by_id = {series.pk: series for series in taken}
        seen = {series_id for (series_id, _class), one in present.items() if one.newest}
        new_points = 0
        for (series_id, class_key), points in read_points(begin):
            series = by_id[series_id]
            one = present.setdefault(
                (series_id, class_key), _Present(series, judging[series_id], series_id in headline)
            )
            until = judged_until.get((series_id, class_key), _EVER)
            new_points += sum(point.time > until for point in points)
            ends = settled.get((series_id, class_key), [])
            rows += _judge_points(one, points, ends, is_first=series_id not in seen)
            seen.add(series_id)
        _write(taken, present, rows)
        funnel.count_points(new_points)
        follow.update(
            [
                follow.Judged(one.series, class_key, one.level, one.newest, one.verdict, one.is_headline)
                for (_series, class_key), one in present.items()
                if one.newest and one.verdict
            ]
        )


def _since(series: Series) -> datetime:
    assert series.touched_at is not None
    return series.touched_at


def _take(pending: Sequence[Series]) -> list[Series]:
    """Clear the marks of the series that still have them. A measurement that arrives meanwhile marks its run,
    and so its series, again."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE hud_series s SET touched_at = NULL, touched_until = NULL
            FROM unnest(%s::int[], %s::timestamptz[]) AS seen(id, touched_at)
            WHERE s.id = seen.id AND s.touched_at = seen.touched_at RETURNING s.id
            """,
            [[series.pk for series in pending], [series.touched_at for series in pending]],
        )
        ids = {pk for (pk,) in cursor.fetchall()}
    return [series for series in pending if series.pk in ids]


def _headline(taken: Iterable[Series], judging: Mapping[int, Judging]) -> set[int]:
    """Return the series that may open a regression; call time only where there is no device time."""
    experiments = {series.experiment_id for series in taken}
    present: dict[int, set[str]] = {}
    for experiment_id, name in Series.objects.filter(experiment__in=experiments).values_list(
        "experiment_id", "metric__name"
    ):
        present.setdefault(experiment_id, set()).add(name)
    return {
        series.pk
        for series in taken
        if opens_regressions(judging[series.pk], series.metric, present[series.experiment_id])
    }


def _stored(
    taken: Iterable[Series], judging: Mapping[int, Judging], headline: Container[int]
) -> dict[ClassKey, _Present]:
    """Return the stored states of these series."""
    by_id = {series.pk: series for series in taken}
    found = {}
    for state in SeriesState.objects.filter(series__in=by_id):
        series = by_id[state.series_id]
        level = msgspec.convert(state.level, Level)
        one = _Present(series, judging[series.pk], series.pk in headline, level, state.recent)
        values = () if state.value is None else (state.value,)
        one.newest = Point(state.run_id, state.environment_id, state.order_time, values)
        found[state.series_id, state.class_key] = one
    return found


def read_points(begin: dict[int, datetime]) -> Iterable[tuple[ClassKey, list[Point]]]:
    """Return the points of each series from its time on, by class and in order, without A/B runs, whose sides
    are compared with each other, without pinned ones and without points that never ran."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT w.id, e.class_key, m.run_id, m.environment_id, m.order_time, r.branch = ANY(%s),
                coalesce(e.facts->>'gpu_uuid', ''), m.status, m.value,
                CASE WHEN cardinality(c.kernels) <= %s THEN nullif(c.variant, '') END
            FROM unnest(%s::int[], %s::timestamptz[]) AS w(id, since)
            JOIN hud_measurement m ON m.series_id = w.id AND m.order_time >= w.since
            JOIN hud_series s ON s.id = w.id
            JOIN hud_environment e ON e.id = m.environment_id
            JOIN hud_run r ON r.id = m.run_id AND r.base_interpreter = ''
            LEFT JOIN hud_runrequest q ON q.run_id = r.id
            LEFT JOIN hud_compilation c ON c.run_id = m.run_id AND c.experiment_id = s.experiment_id
                AND c.environment_id = m.environment_id AND c.repeat = m.repeat AND c.side = m.side
            WHERE q.caches IS DISTINCT FROM 'pinned'
            ORDER BY w.id, m.order_time, m.run_id, m.environment_id, m.repeat, m.side
            """,
            [stored_names(), _FEW_KERNELS, list(begin), list(begin.values())],
        )
        rows = cursor.fetchall()
    found: dict[ClassKey, list[Point]] = {}
    for (series_id, class_key, *about), group in groupby(rows, lambda row: row[:7]):
        run_id, environment_id, time, is_baseline, card = about
        outcomes = [row[7:] for row in group]
        values = tuple(value for _status, value, _variant in outcomes if value is not None)
        groups = tuple(variant for _status, value, variant in outcomes if value is not None)
        statuses = {STATUS_NAMES.get(status, "failed") for status, _value, _variant in outcomes}
        if values or not statuses <= NEVER_RAN:
            # a process that failed does not hide the values of the others
            point = Point(
                run_id,
                environment_id,
                time,
                values,
                groups,
                card=card,
                good=statuses == {"ok"},
                is_baseline=is_baseline,
            )
            found.setdefault((series_id, class_key), []).append(point)
    return found.items()


def _judge_points(
    one: _Present, points: Sequence[Point], settled: Sequence[datetime], *, is_first: bool
) -> Iterable[VerdictRow]:
    """Judge the points; yield a row for each new one. At each time in `settled` a person or a comparison in
    pairs has ended the level. The first point of the series is new; that of another class says so."""
    ends = sorted(settled)
    for point in points:
        if point.is_baseline and ends and point.time >= ends[0]:
            ends = [end for end in ends if end > point.time]
            begin_anew(one.level, point)
            verdict = Verdict("unchanged")
        else:
            verdict = advance(one.level, point, one.judging.rule)
        if one.judging.judged is False:
            verdict = Verdict("unchanged", reason="not_judged")
        if point.is_baseline:
            one.recent = [*one.recent, median(point.values) if point.values else None][-_RECENT:]
            one.newest, one.verdict = point, verdict
        if point.time >= _since(one.series):
            is_silent = verdict.verdict == "unchanged" or (verdict.verdict == "new" and is_first)
            yield VerdictRow(
                run_id=point.run_id,
                series=one.series,
                environment_id=point.environment_id,
                order_time=point.time,
                verdict="" if is_silent else verdict.verdict,
                reason=verdict.reason or ("other_class" if verdict.verdict == "new" and not is_first else ""),
                change=verdict.change,
                noise=verdict.noise,
                factor=verdict.factor,
                baseline=verdict.baseline,
                baseline_n=verdict.baseline_n,
            )


def _write(taken: Sequence[Series], present: dict[ClassKey, _Present], rows: Sequence[VerdictRow]) -> None:
    """Write the verdicts from each series' touched point on, and the states; remove states without a point.

    A verdict that differs from an earlier one of the same point says which it superseded.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            DELETE FROM hud_verdict v USING unnest(%s::int[], %s::timestamptz[]) AS w(id, since)
            WHERE v.series_id = w.id AND v.order_time >= w.since
            RETURNING v.series_id, v.run_id, v.environment_id, v.order_time, v.verdict
            """,
            [[series.pk for series in taken], [_since(series) for series in taken]],
        )
        earlier = {tuple(key): verdict for *key, verdict in cursor.fetchall()}
    for row in rows:
        old = earlier.get((row.series_id, row.run_id, row.environment_id, row.order_time), "")
        row.superseded = old if old != row.verdict else ""
        row.verdict = row.verdict or ("unchanged" if row.superseded else "")
    VerdictRow.objects.bulk_create([row for row in rows if row.verdict])
    for series_id, class_key in [key for key, one in present.items() if one.newest is None]:
        SeriesState.objects.filter(series=series_id, class_key=class_key).delete()
        del present[series_id, class_key]
    keys = {"id", "series", "class_key", "seen_run"}
    SeriesState.objects.bulk_create(
        [_state(key, one) for key, one in present.items() if one.verdict],
        update_conflicts=True,
        unique_fields=["series", "class_key"],
        update_fields=[item.name for item in SeriesState._meta.fields if item.name not in keys],
    )


def _state(key: ClassKey, one: _Present) -> SeriesState:
    assert one.newest
    assert one.verdict
    return SeriesState(
        series=one.series,
        class_key=key[1],
        level=msgspec.to_builtins(one.level),
        run_id=one.newest.run_id,
        environment_id=one.newest.environment_id,
        order_time=one.newest.time,
        headline=one.is_headline,
        value=one.recent[-1],
        verdict=one.verdict.verdict,
        reason=one.verdict.reason,
        change=one.verdict.change,
        noise=one.verdict.noise,
        factor=one.verdict.factor,
        baseline=one.verdict.baseline,
        points=one.level.points,
        recent=one.recent,
    )
