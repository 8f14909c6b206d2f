"""Open, follow and close regressions of series that were just judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from hud.judging.levels import Level, Move, Point
from hud.judging.regressions.events import apply, record, set_state
from hud.judging.regressions.states import ACTIVE, AT_ONCE, SETTLED, Event, RegressionKind
from hud.judging.verdict import Verdict
from hud.models import Regression, Series

_AGREE = 2  # points that moved the same way open a suspect where no host repeats it
State = Regression.State


@dataclass(frozen=True)
class Judged:
    """A series in one class of environments after its newest point was judged."""

    series: Series
    class_key: str
    level: Level
    newest: Point
    verdict: Verdict


def settled(series_ids: Collection[int]) -> dict[tuple[int, str], list[datetime]]:
    """Return when a decision has ended the level of these series, by series and class."""
    found: dict[tuple[int, str], list[datetime]] = {}
    decided = Regression.objects.filter(series__in=series_ids, state__in=SETTLED)
    for series_id, class_key, since, points in decided.values_list("series", "class_key", "since", "points"):
        if points >= _AGREE:  # one point that nothing else agreed with was noise, and no level
            found.setdefault((series_id, class_key), []).append(since)
    return found


def update(judged: Sequence[Judged]) -> None:
    """Open, follow and close the regressions of series that were just judged: 2 statements where nothing has
    moved."""
    latest: dict[tuple[int, str], Regression] = {}
    found = Regression.objects.filter(series__in=[one.series.pk for one in judged]).order_by("pk")
    for regression in found:
        latest[regression.series_id, regression.class_key] = regression
    for one in judged:
        known = latest.get((one.series.pk, one.class_key))
        move = one.level.move
        if move and move.worse and not move.back:
            _follow(one, move, known)
        elif known and known.state in ACTIVE and known.kind in AT_ONCE:
            _come_back(one, move, known)


def _follow(one: Judged, move: Move, known: Regression | None) -> None:
    """Open a regression for the move, or bring the one that is there up to date."""
    regression = known if known and _is_same(known, move) else Regression()
    regression.kind = _kind(move)
    regression.series, regression.class_key = one.series, one.class_key
    is_new, before = regression.pk is None, regression.state
    is_sure = move.certain or move.points >= _AGREE
    if regression.state not in ACTIVE:
        if not is_sure:
            return  # one point is not yet the same thing again
        set_state(regression, Event.MOVED_AGAIN)
    regression.since, regression.points = move.time, move.points
    regression.first_run_id, regression.last_good_run_id = move.run_id, move.last_good_run
    regression.latest_run_id = one.newest.run_id
    regression.before, regression.after = one.verdict.baseline, move.latest
    regression.change, regression.factor = one.verdict.change, one.verdict.factor
    regression.save()
    if is_new:
        record(regression, "", regression.state, run_id=move.run_id)
    elif regression.state != before:
        record(regression, before, regression.state, event=Event.MOVED_AGAIN, run_id=move.run_id)
    if regression.state == State.SUSPECT and is_sure:
        apply(regression, Event.AGREED, run_id=one.newest.run_id)


def _is_same(regression: Regression, move: Move) -> bool:
    """Return whether the move is this regression's, going on or beginning again."""
    if regression.state in ACTIVE and regression.kind not in AT_ONCE:
        return not move.failed  # a step on top of what a look back has found
    return regression.state != State.ACCEPTED and regression.kind == _kind(move)


def _kind(move: Move) -> RegressionKind:
    return RegressionKind.FAILURE if move.failed else RegressionKind.STEP


def _come_back(one: Judged, move: Move | None, regression: Regression) -> None:
    """Close an active regression whose series is at its level again."""
    if regression.state == State.SUSPECT:
        apply(regression, Event.DISAGREED, run_id=one.newest.run_id)
    elif move is None:
        apply(regression, Event.RECOVERED, run_id=one.newest.run_id)
