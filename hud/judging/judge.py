"""Write the verdicts of series with new measurements: read the history once, judge from the first new point.

Ingestion marks the run in its own transaction (`UnjudgedRun`). Once the run is complete, its series are
marked (`Series.touched_at`) and judged. Pages read these rows and compute no history.

Half of each round goes to the newest measurements, half to those that wait longest: a backfill of old data
delays the verdicts of today's runs by one round, and is itself never set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby

from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import F

from hud.judging.verdict import Rule, Verdict, judge
from hud.models import ACTIVE, NEVER_RAN, STATUS_NAMES, Measurement, Metric, Series
from hud.models import Verdict as VerdictRow
from hud.runs.branches import stored_names
from runner.schema.statistics import median

logger = logging.getLogger(__name__)
_HISTORY = 100
_SILENT = {"unchanged", "new"}  # verdicts without a row


@dataclass(frozen=True)
class _Point:
    """The measurements of one run, at one time, in one environment."""

    run_id: int
    environment_id: int
    order_time: datetime
    class_key: str
    good: bool  # every fresh process has the status ok
    ran: bool  # False if it could not run or was not allowed to
    is_baseline: bool  # of the default branch: later points are judged against it
    medians: tuple[float, ...]  # one for each fresh process that gave a number


def process_pending(limit: int = 200, *, on_progress: Callable[[], None] = lambda: None) -> int:
    """Judge up to `limit` touched series whose runs are complete; return how many, or if none the runs whose
    series were marked. `on_progress` is called after each series."""
    marked = _mark_series(limit // 2)
    unfinished = Measurement.objects.filter(run__state__in=ACTIVE).values("series_id")
    touched = Series.objects.select_related("metric", "experiment").filter(touched_at__isnull=False)
    complete = touched.exclude(pk__in=unfinished)
    newest = complete.order_by(F("touched_until").desc(nulls_last=True), "-pk")[: limit - limit // 2]
    oldest = complete.order_by("touched_at", "pk")[: limit // 2]
    pending = {series.pk: series for series in (*newest, *oldest)}
    for series in pending.values():
        _judge_or_log(series)
        on_progress()
    return len(pending) or marked


def _judge_or_log(series: Series) -> None:
    """Judge a series; one that cannot be judged must not stop the verdicts of all others."""
    try:
        judge_series(series)
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        logger.exception("series %s is not judged", series.pk)
        Series.objects.filter(pk=series.pk).update(touched_at=None, touched_until=None)


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


def judge_series(series: Series) -> None:
    """Write the verdicts of a series from its touched point on, in one transaction."""
    since = series.touched_at
    if since is None:
        return
    with transaction.atomic():
        # a measurement that arrives meanwhile marks its run, and so this series, again
        if not Series.objects.filter(pk=series.pk, touched_at=since).update(
            touched_at=None, touched_until=None
        ):
            return
        rows = list(_verdict_rows(series, since))
        VerdictRow.objects.filter(series=series, order_time__gte=since).delete()
        VerdictRow.objects.bulk_create(rows)


def _points(series: Series) -> list[_Point]:
    """Return the points of a series in order, without A/B runs, whose sides are compared with each other."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT m.run_id, m.environment_id, m.order_time, e.class_key, r.branch = ANY(%s), status, value
            FROM hud_measurement m
            JOIN hud_environment e ON e.id = m.environment_id
            JOIN hud_run r ON r.id = m.run_id AND r.base_interpreter = ''
            WHERE m.series_id = %s
            ORDER BY m.order_time, m.run_id, m.environment_id, m.repeat, m.side
            """,
            [stored_names(), series.pk],
        )
        rows = cursor.fetchall()
    points = []
    for (run_id, environment_id, time, class_key, is_baseline), group in groupby(rows, lambda row: row[:5]):
        outcomes = [row[5:] for row in group]
        medians = tuple(value for _status, value in outcomes if value is not None)
        statuses = {STATUS_NAMES.get(status, "failed") for status, _value in outcomes}
        # a process that failed does not hide the values of the others
        good, ran = statuses == {"ok"}, bool(medians) or not statuses <= NEVER_RAN
        points.append(_Point(run_id, environment_id, time, class_key, good, ran, is_baseline, medians))
    return points


def _verdict_rows(series: Series, since: datetime) -> Iterator[VerdictRow]:
    """Yield the rows of the points from `since` on. Points that never ran neither get nor influence one, and
    only points of the default branch become history."""
    rule = rule_of(series.metric)
    earlier: dict[str, list[_Point]] = {}
    for index, point in enumerate(point for point in _points(series) if point.ran):
        history = earlier.setdefault(point.class_key, [])
        if point.order_time >= since:
            verdict = _judge_point(history, point, rule)
            first_of_class = verdict.verdict == "new" and index > 0
            if first_of_class or verdict.verdict not in _SILENT:
                yield VerdictRow(
                    run_id=point.run_id,
                    series=series,
                    environment_id=point.environment_id,
                    order_time=point.order_time,
                    **asdict(verdict),
                )
        if point.is_baseline:
            history.append(point)


def _judge_point(history: Sequence[_Point], point: _Point, rule: Rule) -> Verdict:
    if rule.kind != "status":
        values = [median(earlier.medians) for earlier in history[-_HISTORY:] if earlier.medians]
        return judge(values, point.medians, rule)
    if not history:
        return Verdict("new")
    if history[-1].good == point.good:
        return Verdict("unchanged", baseline_n=len(history))
    return Verdict("improved" if point.good else "regressed", baseline_n=len(history))


def rule_of(metric: Metric) -> Rule:
    """Return the rule of a metric of the registry."""
    return Rule(
        direction=metric.direction,  # type: ignore[arg-type]  # the registry's words are the rule's
        kind=metric.kind,  # type: ignore[arg-type]
        relative_floor=metric.floor,
        prior_noise=prior_noise(metric.floor),
    )


def prior_noise(floor: float) -> float:
    """Return the assumed relative noise between processes of a short series, by its metric's floor.

    Measured on H200 cards: device time (floor 3 %) repeats within 0.2 %, but 1 % over two cards; call time
    (5 %) of small kernels moves by 3 to 7 % with its host; compile time (15 %) by 5 % and more.
    """
    return 0.01 if floor <= 0.03 else 0.03 if floor <= 0.05 else floor / 3
