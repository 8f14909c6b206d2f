"""Judge new measurements: from a series' state, so that the cost does not grow with its history.

Ingestion marks the run in its own transaction (`UnjudgedRun`). Once the run is complete, its series are
marked (`Series.touched_at`) and judged. `SeriesState` holds what the next point is judged against, and marks:
where an older point has changed, the series is judged again from the last mark before it. Pages read these
rows and compute no history.

The canaries of a night are judged before the rest of it. Half of each round goes to the newest measurements,
half to those that wait longest: a backfill of old data delays the verdicts of today's runs by one round, and
is itself never set aside.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Exists, F, OuterRef, Q, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from hud.judging import levels
from hud.judging.levels import Level, SeriesPoint
from hud.judging.regressions import fleet, follow
from hud.judging.regressions.canaries import IS_CANARY
from hud.judging.regressions.follow import BEFORE_ALL, Judged
from hud.judging.rules.thresholds import Thresholds, metrics_by_class, opens_regressions
from hud.judging.verdict import Rule, Verdict
from hud.models import ACTIVE, NEVER_RAN, STATUS_CODES, VERDICT_CODES, Point, Series, SeriesState
from hud.points.write import count_points, touch_runs
from hud.runs.branches import stored_names
from hud.sql import fetch_tuples, given_rows, insert, real
from runner.schema.statistics import median
from runner.suites import CEILINGS

ClassKey = tuple[int, str]  # a series, and a class of environments
logger = logging.getLogger(__name__)
_RECENT = 60  # values that a state keeps for sparklines
_LONG = 500  # points of a history; a longer one counts as this
_POINTS_A_ROUND = 5000  # of histories that are judged again, while new points wait
_TONIGHT = timedelta(days=2)
_KEY = ("series_id", "order_time", "run_id", "environment_id")  # of a point


def process_pending(limit: int = 400, *, on_progress: Callable[[], None] = lambda: None) -> int:
    """Judge up to `limit` touched series whose runs are complete; return how many, or if none the runs whose
    series were marked. `on_progress` is called after them."""
    marked = _mark_series(limit // 2)
    first = {"stream": OuterRef("stream__reference"), "touched_at__isnull": False}
    reference = Series.objects.filter(experiment=OuterRef("experiment"), metric=OuterRef("metric"), **first)
    touched = Series.objects.select_related("metric", "experiment").filter(touched_at__isnull=False)
    # its level may have to judge the series
    touched = touched.filter(Q(stream__reference=None) | ~Exists(reference))
    tonight = touched.filter(IS_CANARY, touched_until__gt=timezone.now() - _TONIGHT)
    pending = {series.pk: series for series in tonight.order_by("pk")[:limit]}
    if not pending:
        newest = touched.order_by(F("touched_until").desc(nulls_last=True), "-pk")[: limit - limit // 2]
        oldest = touched.order_by("touched_at", "pk")[: limit // 2]
        pending = {series.pk: series for series in (*newest, *oldest)}
    histories = _histories(list(pending.values()))
    if fresh := [series for series in pending.values() if series.pk not in histories]:
        _judge_or_log(fresh)
        on_progress()
    chosen: list[Series] = []
    room = _POINTS_A_ROUND
    for series in (series for series in pending.values() if series.pk in histories):
        if not chosen or histories[series.pk] <= room:
            chosen.append(series)
            room -= histories[series.pk]
    _judge_or_log(chosen)
    if any(series.experiment.suite == CEILINGS for series in pending.values()):
        fleet.act()  # before the rest of the night
    on_progress()
    return len(pending) or marked


def _histories(pending: Sequence[Series]) -> dict[int, int]:
    """Return how many points of the series, counted up to `_LONG`, have to be judged again: of those that
    have no state or a changed point before their newest."""
    rows = fetch_tuples(
        """
        SELECT s.id, (SELECT count(*) FROM (
            SELECT FROM hud_point p WHERE p.series_id = s.id
                AND (state.newest IS NULL OR p.order_time >= s.touched_at) LIMIT %s
        ) AS points)
        FROM hud_series s CROSS JOIN LATERAL (
            SELECT max(order_time) AS newest FROM hud_seriesstate WHERE series_id = s.id
        ) AS state
        WHERE s.id = ANY(%s) AND (state.newest IS NULL OR s.touched_at <= state.newest)
        """,
        [_LONG, [series.pk for series in pending]],
    )
    return dict(rows)


def _judge_or_log(pending: Sequence[Series]) -> None:
    """Judge the series together; one that cannot be judged must not stop the verdicts of all others."""
    if not pending:
        return
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
    # a measurement that arrives meanwhile adds its own row in its transaction, so that none is missed
    ((count,),) = fetch_tuples(
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
                SELECT m.series_id, min(m.order_time) AS first, max(m.order_time) AS last
                FROM (SELECT DISTINCT run_id FROM taken) AS own CROSS JOIN LATERAL (
                    SELECT series_id, order_time FROM hud_point WHERE run_id = own.run_id OFFSET 0
                ) AS m GROUP BY m.series_id ORDER BY m.series_id
            ) AS points
            WHERE s.id = points.series_id
        )
        SELECT count(DISTINCT run_id) FROM taken
        """,
        {"active": list(ACTIVE), "limit": limit},
    )
    return int(count)


def judge_series(pending: Sequence[Series]) -> None:
    """Write verdicts, states and regressions of touched series, in a fixed number of statements."""
    with transaction.atomic():
        touched = _take(pending)
        by_id = {series.pk: series for series in pending if series.pk in touched}
        if not by_id:
            return
        thresholds = Thresholds.read()
        rules = {pk: thresholds.of(series.experiment, series.metric) for pk, series in by_id.items()}
        present = _stored(by_id, rules)
        known = {series_id for series_id, _class in present}
        begin = {pk: since if pk in known else BEFORE_ALL for pk, since in touched.items()}
        for (series_id, _class), state in present.items():
            # a suspect's newest point is judged again too: what comes may be a repeat that agrees with it
            move, since = state.level.move, touched[series_id]
            if state.until >= since or (move and move.worse and not move.is_sure):
                level, until = levels.level_before(state.level, since)
                state.recent = state.recent[: level.taken - state.level.taken] if until else []
                state.level, state.until, state.newest = level, until or BEFORE_ALL, None
                begin[series_id] = min(begin[series_id], state.until)
        settled = follow.settled([pk for pk, since in touched.items() if begin[pk] < since])
        rows: list[dict[str, Any]] = []
        references = _references(by_id.values())
        seen = {series_id for (series_id, _class), state in present.items() if state.until > BEFORE_ALL}
        for (series_id, class_key), points in read_points(begin):
            key = series_id, class_key
            state = present.setdefault(key, Judged(by_id[series_id], class_key, rules[series_id]))
            state.reference = references.get(key)
            new = take_points(state, points, settled.get(key, []), is_first=series_id not in seen)
            rows += (row for row in new if row["order_time"] >= touched[series_id])
            seen.add(series_id)
        _find_headlines(present)
        _write_judgements(rows)
        for state in present.values():
            if state.newest is None:
                SeriesState.objects.filter(series=state.series, class_key=state.class_key).delete()
        judged = [state for state in present.values() if state.verdict]
        _write_states(judged)
        follow.update(judged)


def _take(pending: Sequence[Series]) -> dict[int, datetime]:
    """Clear the marks of the series that still have them, and return these. A measurement that arrives
    meanwhile marks its run, and so its series, again."""
    rows = fetch_tuples(
        """
        UPDATE hud_series s SET touched_at = NULL, touched_until = NULL
        FROM unnest(%s::int[], %s::timestamptz[]) AS seen(id, touched_at)
        WHERE s.id = seen.id AND s.touched_at = seen.touched_at RETURNING s.id, seen.touched_at
        """,
        [[series.pk for series in pending], [series.touched_at for series in pending]],
    )
    return dict(rows)


def _find_headlines(present: Mapping[ClassKey, Judged]) -> None:
    """Set which series may open a regression in which class: call time only where that class has no device
    time, so that a rerun by this runner does not silence another harness's nights of the experiment. Device
    time that waits, of a class not known yet, takes nothing from a series that could open one before."""
    names = metrics_by_class({state.series.experiment_id for state in present.values()})
    for (_series_id, class_key), state in present.items():
        names.setdefault((state.series.experiment_id, class_key), set()).add(state.series.metric.name)
    for (_series_id, class_key), state in present.items():
        experiment_id = state.series.experiment_id
        waiting = set() if state.is_headline else names.get((experiment_id, None), set())
        beside = names[experiment_id, class_key] | waiting
        state.is_headline = opens_regressions(state.rule, state.series.metric, beside)


def _stored(by_id: Mapping[int, Series], rules: Mapping[int, Rule]) -> dict[ClassKey, Judged]:
    """Return the stored states of these series."""
    columns = ("series_id", "class_key", "headline", "recent", "run_id", "environment_id", "order_time")
    stored = SeriesState.objects.filter(series__in=by_id)
    rows = stored.values_list(*columns, Cast("level", TextField()))
    states = {}
    for pk, class_key, is_headline, recent, run_id, environment_id, time, text in rows:
        level = msgspec.json.decode(text, type=Level)
        newest = SeriesPoint(run_id, environment_id, time, () if recent[-1] is None else (recent[-1],))
        judged = Judged(by_id[pk], class_key, rules[pk], is_headline, level, recent, time, newest)
        states[pk, class_key] = judged
    return states


def _references(taken: Iterable[Series]) -> dict[ClassKey, tuple[int, Level]]:
    """Return the reference stream of each series, and its level there, by series and class: 1 statement."""
    rows = fetch_tuples(
        """
        SELECT own.id, t.class_key, s.reference, t.level::text FROM unnest(%s::int[]) AS own(id)
        CROSS JOIN LATERAL (  -- OFFSET 0: own look-up each, whatever the planner knows
            SELECT experiment_id, metric_id,
                (SELECT reference_id FROM hud_stream WHERE id = hud_series.stream_id) AS reference
            FROM hud_series WHERE id = own.id OFFSET 0
        ) s CROSS JOIN LATERAL (
            SELECT id FROM hud_series WHERE experiment_id = s.experiment_id AND metric_id = s.metric_id
                AND stream_id = s.reference OFFSET 0
        ) r CROSS JOIN LATERAL (
            SELECT class_key, level FROM hud_seriesstate WHERE series_id = r.id OFFSET 0
        ) t
        """,
        [[series.pk for series in taken]],
    )
    return {
        (series_id, class_key): (stream_id, msgspec.json.decode(level, type=Level))
        for series_id, class_key, stream_id, level in rows
    }


def take_points(
    judged: Judged, points: Sequence[SeriesPoint], settled: Sequence[datetime], *, is_first: bool
) -> Iterable[dict[str, Any]]:
    """Judge the points that the level does not know; yield the columns of each new one. At each time in
    `settled` a person or a comparison in pairs has ended the level. The first point of the series is new;
    that of another class says so."""
    reference_id, reference = judged.reference or (None, Level())
    is_referred = levels.decides(reference, judged.rule)
    ends = sorted(end for end in settled if end > judged.until)
    for point in [point for point in points if point.time > judged.until]:
        if point.is_baseline and point.time > judged.until:
            levels.mark(judged.level, point.time, judged.until)
        stream_id, rule = None, judged.rule
        if is_referred:
            rule = levels.with_noise_of(reference, judged.level, rule)
        if point.is_baseline and ends and point.time >= ends[0]:
            ends = [end for end in ends if end > point.time]
            levels.begin_anew(judged.level, point)
            verdict = Verdict("unchanged")
        elif is_referred and not levels.decides(judged.level, rule):
            levels.advance_young(judged.level, point, rule)
            stream_id = reference_id
            verdict = levels.assess(reference, point, judged.rule)
        else:
            verdict = levels.advance(judged.level, point, rule)
        if judged.rule.judged is False:
            verdict = Verdict("unchanged", reason="not_judged")
        if point.is_baseline:
            judged.recent = [*judged.recent, median(point.values) if point.values else None][-_RECENT:]
            judged.level.taken += 1
            judged.newest, judged.verdict, judged.until = point, verdict, point.time
            judged.is_own = stream_id is None
        is_other_class = verdict.verdict == "new" and not is_first
        yield {
            "series_id": judged.series.pk,
            "order_time": point.time,
            "run_id": point.run_id,
            "environment_id": point.environment_id,
            "verdict": VERDICT_CODES[verdict.verdict],
            "change": verdict.change,
            "noise": verdict.noise,
            "factor": verdict.factor,
            "level": verdict.baseline,
            "level_points": verdict.baseline_n,
            "level_stream_id": stream_id,
            "verdict_reason": verdict.reason or ("other_class" if is_other_class else None),
        }


def _write_judgements(rows: Sequence[dict[str, Any]]) -> None:
    """Write the judge's columns of points. A verdict that differs from an earlier one of the same point says
    which it superseded. Runs count their points that regressed."""
    if not rows:
        return
    regressed = VERDICT_CODES["regressed"]
    values = {name: f"given.{name}" for name in rows[0] if name not in _KEY}
    values |= {name: f"({real(values[name])})::real" for name in ("change", "noise", "factor")}
    judged = fetch_tuples(
        f"""
        UPDATE hud_point p SET {", ".join(f"{name} = {value}" for name, value in values.items())},
            superseded = nullif(coalesce(p.verdict, p.superseded), given.verdict)
        FROM {given_rows(Point, rows[0])}
        WHERE {" AND ".join(f"p.{name} = given.{name}" for name in _KEY)}
            AND ({", ".join(f"p.{name}" for name in values)})
            IS DISTINCT FROM ({", ".join(values.values())})
        RETURNING p.run_id, p.verdict, p.superseded
        """,  # noqa: S608 — names of columns  # nosec B608
        [msgspec.json.encode(rows).decode()],
    )
    counted = {run for run, *verdicts in judged if regressed in verdicts}
    count_points(counted)
    touch_runs({row["run_id"] for row in rows} - counted)  # also where only a state changes


def _write_states(judged: Sequence[Judged]) -> None:
    """Insert or update the states of series."""
    rows = [
        {
            "series_id": state.series.pk,
            "class_key": state.class_key,
            "level": state.level,
            "run_id": state.newest.run_id,
            "environment_id": state.newest.environment_id,
            "order_time": state.newest.time,
            "headline": state.is_headline,
            "points": state.level.points,
            "recent": state.recent,
        }
        for state in judged
        if state.newest
    ]
    if not rows:
        return
    changed = [f"{name} = excluded.{name}" for name in rows[0] if name not in {"series_id", "class_key"}]
    insert(SeriesState, rows, f"(series_id, class_key) DO UPDATE SET {', '.join(changed)}")


def read_points(begin: dict[int, datetime]) -> Iterable[tuple[ClassKey, list[SeriesPoint]]]:
    """Return the points of each series from its time on, by class and in order; not what never ran."""
    rows = fetch_tuples(
        """
        SELECT w.id, e.class_key, p.value, p.values, p.variants, p.run_id, p.environment_id, p.order_time,
            coalesce(e.facts->>'gpu_uuid', ''), p.status = %s,
            p.branch = ANY(%s) AND NOT p.rerun AND p.quality IS NULL, p.rerun, coalesce(p.quality, ''),
            concat_ws('/', r.host_name, e.facts->>'gpu_uuid', r.interpreter), p.noise, p.spread
        FROM unnest(%s::int[], %s::timestamptz[]) AS w(id, since)
        CROSS JOIN LATERAL (  -- OFFSET 0: else the planner may read the whole table
            SELECT * FROM hud_point WHERE series_id = w.id AND order_time >= w.since OFFSET 0
        ) p
        JOIN hud_environment e ON e.id = p.environment_id
        JOIN hud_run r ON r.id = p.run_id
            AND r.state <> ALL(%s)  -- the judge is told of it when it is complete
        WHERE p.value IS NOT NULL OR p.status <> ALL(%s)
        ORDER BY w.id, p.order_time, p.run_id, p.environment_id
        """,
        [
            STATUS_CODES["ok"],
            stored_names(),
            list(begin),
            list(begin.values()),
            list(ACTIVE),
            [STATUS_CODES[name] for name in NEVER_RAN],
        ],
    )
    points: dict[ClassKey, list[SeriesPoint]] = {}
    for series_id, class_key, value, values, variants, run_id, environment_id, time, *about in rows:
        each = values or [value]
        measured = zip(each, variants or [None] * len(each), strict=True) if value is not None else ()
        known = [(own, variant) for own, variant in measured if own is not None]
        samples, groups = tuple(own for own, _ in known), tuple(variant for _, variant in known)
        point = SeriesPoint(run_id, environment_id, time, samples, groups, *about)  # in the fields' order
        points.setdefault((series_id, class_key), []).append(point)
    return points.items()
