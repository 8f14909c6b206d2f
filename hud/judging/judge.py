"""Verdict rows of touched series: read the history once, judge each point from the touched one on, write.

Ingest marks the run in its own transaction (`TouchedRun`), the judge marks the run's series once it is
complete (`Series.touched_at`); pages read what is written here and never compute history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from django.db import connection, transaction

from hud.judging.verdict import Rule, Verdict, judge
from hud.models import ACTIVE, NEVER_RAN, STATUS_NAMES, Measurement, Metric, Series
from hud.models import Verdict as VerdictRow
from runner.schema.statistics import median

_HISTORY = 100
_SILENT = {"unchanged", "new"}  # no row where there is nothing to say


@dataclass(frozen=True)
class _Point:
    run_id: int
    environment_id: int
    at: datetime
    class_key: str
    good: bool  # the status of each of its fresh processes is ok
    ran: bool  # else it could not run, or nobody let it
    medians: tuple[float, ...]  # one for each fresh process; empty where none gave a number


def work_off(limit: int = 200) -> int:
    """Judges up to `limit` touched series whose runs are complete; returns how many it did."""
    _mark_series()
    done = 0
    for series in _touched(limit):
        judge_series(series)
        done += 1
    return done


def _mark_series() -> None:
    """Marks the series of complete runs that got measurements. What comes in meanwhile brings a row of its
    own, in the transaction of its measurements, and so is never missed."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH taken AS (
                DELETE FROM hud_touchedrun t USING hud_run r
                WHERE r.id = t.run_id AND r.state <> ALL(%s) RETURNING t.run_id
            )
            UPDATE hud_series s SET touched_at = least(coalesce(s.touched_at, first.at), first.at)
            FROM (
                SELECT series_id, min(at) AS at FROM hud_measurement
                WHERE run_id IN (SELECT run_id FROM taken) GROUP BY series_id ORDER BY series_id
            ) AS first
            WHERE s.id = first.series_id
            """,
            [list(ACTIVE)],
        )


def _touched(limit: int) -> list[Series]:
    busy = Measurement.objects.filter(run__state__in=ACTIVE).values("series_id")
    return list(
        Series.objects.select_related("metric", "experiment")
        .filter(touched_at__isnull=False)
        .exclude(pk__in=busy)
        .order_by("touched_at")[:limit]
    )


def judge_series(series: Series) -> None:
    """Writes the verdicts of one series from its touched point on, in one transaction."""
    since = series.touched_at
    if since is None:
        return
    with transaction.atomic():
        # a measurement that comes in meanwhile marks its run, and with it this series, anew
        if not Series.objects.filter(pk=series.pk, touched_at=since).update(touched_at=None):
            return
        rows = list(_verdict_rows(series, _points(series), since))
        VerdictRow.objects.filter(series=series, at__gte=since).delete()
        VerdictRow.objects.bulk_create(rows)


def _points(series: Series) -> list[_Point]:
    """Without runs in pairs: they try something out, and their two sides are judged against each other."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT m.run_id, m.environment_id, m.at, e.class_key, m.status, m.value
            FROM hud_measurement m JOIN hud_environment e ON e.id = m.environment_id
            WHERE m.series_id = %s AND m.run_id NOT IN (SELECT id FROM hud_run WHERE base_environment <> '')
            ORDER BY m.at, m.run_id, m.environment_id, m.repeat, m.side
            """,
            [series.pk],
        )
        rows = cursor.fetchall()
    return [_point(list(group)) for _place, group in groupby(rows, key=lambda row: row[:4])]


def _point(rows: Sequence[tuple[Any, ...]]) -> _Point:
    """Of the rows of one run in one environment: a process that failed does not hide what the others gave."""
    run_id, environment_id, at, class_key = rows[0][:4]
    medians = tuple(row[5] for row in rows if row[5] is not None)
    statuses = {STATUS_NAMES.get(row[4], "failed") for row in rows}
    good, ran = statuses == {"ok"}, bool(medians) or not statuses <= NEVER_RAN
    return _Point(run_id, environment_id, at, class_key, good, ran, medians)


def _verdict_rows(series: Series, points: Sequence[_Point], since: datetime) -> Iterator[VerdictRow]:
    """What never ran is not judged, and nothing is judged against it."""
    rule = rule_of(series.metric)
    earlier: dict[str, list[_Point]] = {}
    for place, point in enumerate(point for point in points if point.ran):
        history = earlier.setdefault(point.class_key, [])
        if point.at >= since:
            verdict = _judge_status(history, point) if rule.kind == "status" else _judge(history, point, rule)
            first_of_class = verdict.verdict == "new" and place > 0
            if first_of_class or verdict.verdict not in _SILENT:
                yield _row(series, point, verdict)
        history.append(point)


def _judge(history: Sequence[_Point], point: _Point, rule: Rule) -> Verdict:
    values = [median(one.medians) for one in history[-_HISTORY:] if one.medians]
    return judge(values, point.medians, rule)


def _judge_status(history: Sequence[_Point], point: _Point) -> Verdict:
    """Of a metric that is a word, such as accuracy: passing or not is what changes."""
    if not history:
        return Verdict("new")
    if history[-1].good == point.good:
        return Verdict("unchanged", baseline_n=len(history))
    return Verdict("improved" if point.good else "regressed", baseline_n=len(history))


def _row(series: Series, point: _Point, verdict: Verdict) -> VerdictRow:
    return VerdictRow(
        run_id=point.run_id,
        series=series,
        environment_id=point.environment_id,
        verdict=verdict.verdict,
        change=verdict.change,
        noise=verdict.noise,
        factor=verdict.factor,
        baseline=verdict.baseline,
        baseline_n=verdict.baseline_n,
        at=point.at,
    )


def rule_of(metric: Metric) -> Rule:
    """The metric's rule from the registry."""
    return Rule(
        direction=metric.direction,  # type: ignore[arg-type]  # the registry's words are the rule's
        kind=metric.kind,  # type: ignore[arg-type]
        relative_floor=metric.floor,
        prior_noise=prior_noise(metric.floor),
    )


def prior_noise(floor: float) -> float:
    """Relative noise between processes that a short series is taken to have, by its metric's floor.

    Seen on H200 cards: device time (floor 3 %) repeats within 0.2 %, but 1 % over two cards; call time
    (5 %) of small kernels moves by 3 to 7 % with its host; compile time (15 %) by 5 % and more.
    """
    return 0.01 if floor <= 0.03 else 0.03 if floor <= 0.05 else floor / 3
