"""Look back over series for what no single point shows: small steps, and drift.

It runs while nothing waits for a verdict, for series whose newest point came since the last look. A small
step or a drift is closed by the next look that does not find it any more, once its level is back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import numpy as np
from django.db import transaction
from django.db.models import F

from hud.judging.change_points import change_points
from hud.judging.judge import read_points
from hud.judging.levels import SeriesPoint
from hud.judging.regressions.events import apply, close, record
from hud.judging.rules.thresholds import Thresholds
from hud.judging.verdict import SMALL_STEP, Array, series_noise
from hud.models import Regression, Series, SeriesState
from hud.states.regressions import ACTIVE, AT_ONCE, Event, RegressionKind
from runner.schema.statistics import median

MOST_POINTS = 200  # that one look reads of a series
_FEWEST_POINTS = 12  # for a step
_FEWEST_OF_DRIFT = 60
_RECENT = 10  # points whose median stands for now in a drift
_EARLIER = 20  # points of the median that it is compared with
_BACK = (45, 90)  # points from there to now
_LASTS = 10  # points of a level that is better than the accepted one, for what follows to be worse
_LEAST_DRIFT = 0.03
_CERTAIN = 3.5  # standard errors
_WITHIN = 0.5  # of the change of a drift, that happens inside levels


@dataclass(frozen=True)
class Found:
    """A step for the worse that still holds. `first` is the index of its first point."""

    first: int
    before: float
    after: float
    kind: RegressionKind = RegressionKind.SMALL_STEP


def look_back(limit: int = 50) -> int:
    """Look at up to `limit` series, those with the newest points first; return how many."""
    timings = SeriesState.objects.filter(headline=True, series__metric__kind="timing")
    unseen = timings.exclude(seen_run=F("run_id")).order_by("-order_time", "pk")
    states = list(unseen.select_related("series__metric", "series__experiment")[:limit])
    starts = {one: datetime.fromisoformat(one.level["start"]) for one in states if one.level.get("start")}
    latest_first = sorted(starts.items(), key=lambda item: item[1], reverse=True)  # the earliest counts
    history = dict(read_points({state.series_id: start for state, start in latest_first}))
    thresholds = Thresholds.read()
    for state in states:
        with transaction.atomic():
            Series.objects.select_for_update().get(pk=state.series_id)  # the judge takes it first too
            active = Regression.objects.filter(series=state.series_id, class_key=state.class_key)
            known = active.filter(state__in=ACTIVE).select_for_update().first()
            points = [
                point
                for point in history.get((state.series_id, state.class_key), [])
                if state in starts
                if point.is_baseline and point.values and point.time >= starts[state]
                if point.card in ("", *state.level.get("cards", ()))
            ]
            _look(state, points[-MOST_POINTS:], known, thresholds)
            SeriesState.objects.filter(pk=state.pk, run=state.run_id).update(seen_run=state.run_id)
    return len(states)


def find(values: Sequence[float], direction: str, least: float = SMALL_STEP) -> Found | None:
    """Return a drift for the worse, or the newest step for the worse that the last level still shows."""
    if direction == "none":
        return None
    step, (change, points) = _step(values, direction, least), drift(values) or (0.0, 0)
    is_worse = bool(change) and (change > 0) == (direction == "down")
    if is_worse and (step is None or _climbs(values)):
        after = median(list(values[-_RECENT:]))
        return Found(max(len(values) - points, 1), after / (1 + change), after, RegressionKind.DRIFT)
    return step


def _step(values: Sequence[float], direction: str, least: float) -> Found | None:
    starts = change_points(values, min_relative=least) if len(values) >= _FEWEST_POINTS else []
    if not starts:
        return None
    bounds = [0, *starts, len(values)]
    levels = [median(list(values[a:b])) for a, b in pairwise(bounds)]
    earlier = zip(levels[:-1], pairwise(bounds[:-1]), strict=True)
    usual = [levels[0], *(level for level, (a, b) in earlier if b - a >= _LASTS)]
    best = min(usual) if direction == "down" else max(usual)
    index = len(levels) - 2 - levels[-2::-1].index(best)  # the last level that was the best one
    is_worse = (levels[-1] > best) == (direction == "down")
    if not is_worse or best == 0 or abs(levels[-1] / best - 1) < least:
        return None
    return Found(starts[index], best, levels[-1])


def drift(values: Sequence[float]) -> tuple[float, int] | None:
    """Return the relative change of the median of the newest ten nights against 45 or 90 nights ago, and how
    many nights ago it began; None if it is not sure.

    `values` is oldest first; at least 60 are needed. Steps of at least 3 % are change points, not drift: they
    are taken out first.
    """
    recent = values[-(max(_BACK) + _EARLIER) :]
    if len(values) < _FEWEST_OF_DRIFT or not all(value > 0 for value in recent):
        return None
    flat = np.log(recent)
    for step in change_points(recent, min_relative=_LEAST_DRIFT):
        before, after = flat[max(0, step - _RECENT) : step], flat[step : step + _RECENT]
        flat[step:] -= np.median(after) - np.median(before)
    now = float(np.median(flat[-_RECENT:]))
    # the scatter of two medians, each of ten nights
    error = series_noise(np.exp(flat).tolist(), 0.01) * math.sqrt(2 * math.pi / 2 / _RECENT)
    least = max(math.log1p(_LEAST_DRIFT), _CERTAIN * error)
    earlier = {back: flat[-_EARLIER - back : -back] for back in _BACK}
    steps = {back: now - float(np.median(part)) for back, part in earlier.items() if len(part) >= _RECENT}
    changes = [math.expm1(step) for step in steps.values() if abs(step) > least]
    return (max(changes, key=abs), len(flat) - _onset(flat)) if changes else None


def _onset(logs: Array) -> int:
    """Return the last point of a level that, followed by a straight line, fits the values best."""
    nights, ones = np.arange(len(logs)), np.ones(len(logs))

    def misfit(first: int) -> float:
        ramp = np.stack([ones, np.maximum(nights - first, 0)], axis=1)
        return float(np.sum((logs - ramp @ np.linalg.lstsq(ramp, logs, rcond=None)[0]) ** 2))

    return min(range(1, len(logs) - _RECENT), key=misfit)


def _climbs(values: Sequence[float]) -> bool:
    """Return whether positive values move within their levels, as in a drift, rather than between them."""
    logs = np.log([value for value in values if value > 0])
    bounds = [0, *change_points(np.exp(logs).tolist()), len(logs)]
    parts = [logs[first:end] for first, end in pairwise(bounds)]
    total = float(np.median(parts[-1]) - np.median(parts[0]))
    within = sum(
        float(np.polyfit(range(len(part)), part, 1)[0]) * (len(part) - 1) for part in parts if len(part) > 1
    )
    return len(parts) == 1 or (total != 0 and within / total >= _WITHIN)


def _look(
    state: SeriesState, points: Sequence[SeriesPoint], known: Regression | None, thresholds: Thresholds
) -> None:
    if known and (known.kind in AT_ONCE or state.level.get("move")):
        return  # the judge follows it
    rule = thresholds.of(state.series.experiment, state.series.metric)
    values = [median(point.values) for point in points]
    move = find(values, rule.direction, rule.small_step)
    if not move:
        if known and not (values and _lasts(known, values)):
            close(known, run_id=state.run_id)
        return
    regression = known or Regression(series=state.series, class_key=state.class_key, state="open")
    regression.kind = move.kind
    regression.since, regression.first_run_id = points[move.first].time, points[move.first].run_id
    regression.last_good_run_id = points[move.first - 1].run_id
    regression.latest_run_id, regression.points = points[-1].run_id, len(points) - move.first
    regression.before, regression.after = move.before, move.after
    regression.change = move.after / move.before - 1
    noise = points[-1].noise or 0.0
    step = abs(math.log(move.after / move.before)) if move.after / move.before > 0 else 0.0
    regression.factor = step / (noise / math.sqrt(regression.points)) if noise else None
    regression.save()
    if known is None:
        record(regression, "", run_id=regression.first_run_id)
    elif known.state == Regression.State.SUSPECT:
        apply(known, Event.AGREED, run_id=state.run_id)


def _lasts(known: Regression, values: Sequence[float]) -> bool:
    """Return whether the newest level is nearer to the regression's size than to what was before. A step
    that is older than all that a look reads is none any more, and as slow as ever."""
    before, after = known.before, known.after
    if known.state == Regression.State.SUSPECT or before is None or after is None or before == after:
        return False
    newest = max(change_points(list(values), min_relative=SMALL_STEP), default=0)
    now = median(list(values[min(newest, max(len(values) - _RECENT, 0)) :]))
    return (now - before) / (after - before) > 1 / 2
