"""Rules by which a move away from its level opens, keeps or ends a series' regression. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hud.judging.levels import Move
from hud.states.regressions import ACTIVE, TOLD, Event, RegressionKind, RegressionState
from runner.schema.statistics import median

if TYPE_CHECKING:
    from hud.models import Regression

_FEWEST = 20  # earlier points without which nothing is called a drift
_BEFORE = 10  # points before a move whose median tells a drift from a step


def follow(
    move: Move, kind: RegressionKind, known: Regression | None
) -> tuple[RegressionState | None, Event | None] | None:
    """Return the state of the regression that a move for the worse opens, None where the known one goes on,
    then with the event; None for a move that opens nothing.

    A move beyond doubt is open at once, any other a suspect until another run says the same. A regression
    that was resolved or dismissed begins again with a move of its kind, but not with one point alone, nor
    with the points that were dismissed. What gets worse than was told supersedes it.
    """
    first = RegressionState.OPEN if move.is_sure and not move.agreed_run else RegressionState.SUSPECT
    if known is None or known.state == RegressionState.ACCEPTED:
        return first, None
    if known.state in ACTIVE:
        is_further = known.state in TOLD and move.steps > known.steps
        return None, Event.MOVED_FURTHER if is_further else None
    if known.kind != kind:
        return first, None
    is_same = move.time == known.since and move.points <= known.points
    if not move.is_sure or (known.state == RegressionState.DISMISSED and is_same):
        return None
    return None, Event.MOVED_AGAIN


def kind_of(
    move: Move,
    known: Regression | None,
    recent: Sequence[float | None],
    level: float | None,
    *,
    is_timing: bool,
) -> RegressionKind:
    """Return the kind of a move from this level: what had come half of the way before it is a drift and no
    step. `recent` are the values of the series' newest points, oldest first."""
    if move.failed:
        return RegressionKind.FAILURE
    if known and known.state in ACTIVE and known.kind in {RegressionKind.STEP, RegressionKind.DRIFT}:
        return RegressionKind(known.kind)
    earlier = [value for value in recent[: -move.points] if value is not None]
    if not is_timing or len(earlier) < _FEWEST or level is None or move.latest is None:
        return RegressionKind.STEP
    came = median(earlier[-_BEFORE:]) - level
    is_drift = abs(came) >= abs(move.latest - level) / 2 and (came > 0) == (move.latest > level)
    return RegressionKind.DRIFT if is_drift else RegressionKind.STEP
