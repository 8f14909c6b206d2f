"""Open, follow and close regressions of series that were just judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from hud.judging.levels import Level, Move, Point
from hud.judging.regressions.events import apply, record, set_state
from hud.judging.regressions.states import ACTIVE, AT_ONCE, Event, RegressionKind
from hud.judging.verdict import Verdict
from hud.models import Regression, RegressionEvent, Series

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
    is_headline: bool = True


def settled(series_ids: Collection[int]) -> dict[tuple[int, str], list[datetime]]:
    """Return when a decision has ended the level of these series, by series and class."""
    found: dict[tuple[int, str], list[datetime]] = {}
    decided = RegressionEvent.objects.filter(regression__series__in=series_ids, level_since__isnull=False)
    names = ("regression__series", "regression__class_key", "level_since")
    for series_id, class_key, since in decided.values_list(*names):
        found.setdefault((series_id, class_key), []).append(since)
    return found


def update(judged: Sequence[Judged]) -> None:
    """Open, follow and close the regressions of series that were just judged: 2 statements where nothing has
    moved."""
    latest: dict[tuple[int, str], Regression] = {}
    series_ids = [one.series.pk for one in judged]
    found = Regression.objects.filter(series__in=series_ids).order_by("pk").select_for_update()
    for regression in found:
        latest[regression.series_id, regression.class_key] = regression
    for one in judged:
        known = latest.get((one.series.pk, one.class_key))
        move = one.level.move
        if not one.is_headline:
            if known and known.state in ACTIVE:  # device time has come to an experiment of call time
                _close(known, one.newest.run_id)
        elif move and move.worse and not move.back:
            _follow(one, move, known)
        elif known and known.state in ACTIVE and known.kind in AT_ONCE:
            _come_back(one, move, known)


def _follow(one: Judged, move: Move, known: Regression | None) -> None:
    """Open a regression for the move, or bring the one that is there up to date."""
    regression = known if known and _is_same(known, move) else Regression()
    regression.kind = _kind(move)
    regression.series, regression.class_key = one.series, one.class_key
    if known is regression and _is_decided(known, move):
        return
    is_new, before = regression.pk is None, regression.state
    is_sure = move.certain or move.points >= _AGREE
    if regression.state not in ACTIVE:
        if not is_sure:
            return  # one point is not yet the same thing again
        set_state(regression, Event.MOVED_AGAIN)
        regression.opened = timezone.now()
        regression.repeat_run = regression.pairs_run = regression.concluded_run = None
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
    if regression.state in ACTIVE:
        return True
    return regression.state != State.ACCEPTED and regression.kind == _kind(move)


def _is_decided(regression: Regression, move: Move) -> bool:
    """Return whether somebody has dismissed just these points."""
    same = move.time == regression.since and move.points <= regression.points
    return regression.state == State.DISMISSED and same


def _kind(move: Move) -> RegressionKind:
    return RegressionKind.FAILURE if move.failed else RegressionKind.STEP


def _come_back(one: Judged, move: Move | None, regression: Regression) -> None:
    """Close an active regression whose series is at its level again."""
    if regression.state == State.SUSPECT or move is None:
        _close(regression, one.newest.run_id)


def _close(regression: Regression, run_id: int) -> None:
    event = Event.DISAGREED if regression.state == State.SUSPECT else Event.RECOVERED
    apply(regression, event, run_id=run_id)
