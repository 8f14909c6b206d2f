"""Open, follow and close regressions of series that were just judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.utils import timezone

from hud.judging.levels import Level, Move, SeriesPoint
from hud.judging.regressions import canaries, known_failures
from hud.judging.regressions.events import apply, close, record, set_state
from hud.judging.regressions.explain import name_causes
from hud.judging.regressions.states import ACTIVE, AT_ONCE, TOLD, Event, RegressionKind
from hud.judging.rules.thresholds import Judging
from hud.judging.verdict import Verdict
from hud.models import Regression, RegressionEvent, Series
from runner.schema.statistics import median

_FEWEST = 20  # earlier points without which nothing is called a drift
_BEFORE = 10  # points before a move whose median tells a drift from a step
BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
State = Regression.State


@dataclass
class Judged:
    """A series in one class of environments, while it is judged."""

    series: Series
    class_key: str
    judging: Judging
    is_headline: bool = False
    level: Level = field(default_factory=Level)
    recent: list[float | None] = field(default_factory=list)  # values of its newest points, oldest first
    until: datetime = BEFORE_ALL  # the newest point that the level knows
    newest: SeriesPoint | None = None
    verdict: Verdict | None = None  # of the newest
    reference: tuple[int, Level] | None = None  # a stream whose level judges it while it has none of its own

    @property
    def run_id(self) -> int:
        assert self.newest
        return self.newest.run_id


def settled(series_ids: Collection[int]) -> dict[tuple[int, str], list[datetime]]:
    """Return when a decision has ended the level of these series, by series and class."""
    found: dict[tuple[int, str], list[datetime]] = {}
    decided = RegressionEvent.objects.filter(regression__series__in=series_ids, level_since__isnull=False)
    names = ("regression__series", "regression__class_key", "level_since")
    for series_id, class_key, since in decided.values_list(*names):
        found.setdefault((series_id, class_key), []).append(since)
    return found


def update(judged: Sequence[Judged]) -> None:
    """Open, follow and close the regressions of series that were just judged, and check their hosts: 2
    statements where nothing has moved."""
    followed = []
    latest: dict[tuple[int, str], Regression] = {}
    series_ids = [one.series.pk for one in judged]
    found = Regression.objects.filter(series__in=series_ids).order_by("pk").select_for_update()
    for regression in found:
        key = regression.series_id, regression.class_key
        if key not in latest or latest[key].state not in ACTIVE:
            latest[key] = regression
    known_reasons = known_failures.reasons(
        (one.series, one.until) for one in judged if one.level.move and _fails(one, one.level.move)
    )
    for one in judged:
        known = latest.get((one.series.pk, one.class_key))
        move = one.level.move
        if not one.is_headline:
            if known and known.state in ACTIVE:  # device time has come to an experiment of call time
                close(known, run_id=one.run_id)
        elif move and move.worse and not move.back:
            followed += _follow(one, move, known, known_reasons.get(one.series.pk, ""))
        elif known and known.state in ACTIVE and known.kind in AT_ONCE:
            _come_back(one, move, known)
    canary_runs = {one.run_id for one in judged if canaries.is_canary(one.series)}
    if followed or canary_runs:
        canaries.watch(followed, canary_runs)
        name_causes(followed)


def _follow(one: Judged, move: Move, known: Regression | None, reason: str) -> list[Regression]:
    """Open a regression for the move, or bring the one that is there up to date; return it, or nothing for a
    move that opens none. A failure with a `reason` is known."""
    if reason:
        if known and known.state in ACTIVE and known_failures.is_failure(known):
            known_failures.end(known, reason, run_id=one.run_id)
        return []
    kind = _kind(one, move, known)
    regression = known if known and _is_same(known, kind) else Regression()
    regression.kind = kind
    regression.series, regression.class_key = one.series, one.class_key
    if known is regression and _is_decided(known, move):
        return []
    is_new, before = regression.pk is None, regression.state
    superseded = _size(regression) if regression.state in TOLD and move.steps > regression.steps else ""
    if regression.state not in ACTIVE:
        if not move.is_sure:
            return []  # one point is not yet the same thing again
        set_state(regression, Event.MOVED_AGAIN)
        regression.opened = timezone.now()
        regression.repeat_run = regression.pairs_run = regression.concluded_run = None
    regression.since, regression.points, regression.steps = move.time, move.points, move.steps
    regression.first_run_id, regression.last_good_run_id = move.run_id, move.last_good_run
    regression.latest_run_id = one.run_id
    assert one.verdict
    regression.before, regression.after = one.verdict.baseline, move.latest
    regression.change, regression.factor = one.verdict.change, one.verdict.factor
    regression.save()
    if is_new:
        record(regression, "", regression.state, run_id=move.run_id)
    elif regression.state != before:
        record(regression, before, regression.state, event=Event.MOVED_AGAIN, run_id=move.run_id)
    elif superseded:
        note = f"{_size(regression)} supersedes {superseded}"
        record(regression, before, before, event=Event.MOVED_FURTHER, run_id=one.run_id, note=note)
    if regression.state == State.SUSPECT and move.is_sure:
        apply(regression, Event.AGREED, run_id=one.run_id)
    return [regression]


def _fails(one: Judged, move: Move) -> bool:
    return move.worse and (move.failed or one.series.metric.kind == "status")


def _size(regression: Regression) -> str:
    if regression.change is not None:
        return f"{regression.change:+.1%}"
    return "" if regression.after is None else f"{regression.after:g}"


def _is_same(regression: Regression, kind: RegressionKind) -> bool:
    """Return whether a move of this kind is this regression's, going on or beginning again."""
    if regression.state in ACTIVE:
        return True
    return regression.state != State.ACCEPTED and regression.kind == kind


def _is_decided(regression: Regression, move: Move) -> bool:
    """Return whether somebody has dismissed just these points."""
    same = move.time == regression.since and move.points <= regression.points
    return regression.state == State.DISMISSED and same


def _kind(one: Judged, move: Move, known: Regression | None) -> RegressionKind:
    """Return the kind of a move: what had come half of the way before it is a drift and no step."""
    if move.failed:
        return RegressionKind.FAILURE
    if known and known.state in ACTIVE and known.kind in {RegressionKind.STEP, RegressionKind.DRIFT}:
        return RegressionKind(known.kind)
    earlier = [value for value in one.recent[: -move.points] if value is not None]
    assert one.verdict
    level, after = one.verdict.baseline, move.latest
    if one.series.metric.kind != "timing" or len(earlier) < _FEWEST or level is None or after is None:
        return RegressionKind.STEP
    came = median(earlier[-_BEFORE:]) - level
    is_drift = abs(came) >= abs(after - level) / 2 and (came > 0) == (after > level)
    return RegressionKind.DRIFT if is_drift else RegressionKind.STEP


def _come_back(one: Judged, move: Move | None, regression: Regression) -> None:
    """Close an active regression whose series is at its level again."""
    if regression.state == State.SUSPECT or move is None:
        close(regression, run_id=one.run_id)
