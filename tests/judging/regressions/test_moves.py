"""Tests of the rules by which a move opens, keeps or ends a regression, and of drifts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hud.judging.levels import Move
from hud.judging.regressions import moves
from hud.judging.regressions.moves import follow, kind_of
from hud.models import Regression
from hud.states.regressions import ACTIVE, Event, RegressionKind, RegressionState

NIGHT = datetime(2026, 1, 1, tzinfo=UTC)
STEP, DRIFT, FAILURE = RegressionKind.STEP, RegressionKind.DRIFT, RegressionKind.FAILURE
S = RegressionState


def known(state: str, of_kind: str = STEP, steps: int = 1) -> Regression:
    return Regression(state=state, kind=of_kind, since=NIGHT, points=2, steps=steps)


def move(points: int = 1, *, certain: bool = False, latest: float | None = 12.0, **more: object) -> Move:
    return Move(
        1,
        NIGHT,
        None,
        worse=True,
        points=points,
        certain=certain,
        latest=latest,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("first", "state"),
    [
        (move(1), S.SUSPECT),
        (move(1, certain=True), S.OPEN),
        (move(2), S.OPEN),
        (move(2, agreed_run=7), S.SUSPECT),  # it is noted first, then what agreed
    ],
)
@pytest.mark.parametrize("earlier", [None, known(S.ACCEPTED), known(S.RESOLVED, FAILURE)])
def test_a_new_regression_is_a_suspect_or_open(
    first: Move, state: RegressionState, earlier: Regression | None
) -> None:
    assert follow(first, STEP, earlier) == (state, None)


@pytest.mark.parametrize("state", ACTIVE)
def test_what_goes_on_keeps_its_state_also_as_another_kind(state: RegressionState) -> None:
    for kind in (STEP, FAILURE):
        assert follow(move(1), kind, known(state)) == (None, None)
    further = follow(move(4, steps=2), STEP, known(state))
    assert further == (None, None if state == S.SUSPECT else Event.MOVED_FURTHER)
    assert follow(move(4, steps=2), STEP, known(state, steps=2)) == (None, None)


@pytest.mark.parametrize("state", [S.RESOLVED, S.DISMISSED])
def test_a_regression_begins_again_with_a_sure_move_of_its_kind(state: RegressionState) -> None:
    later = replace(move(1, certain=True), time=NIGHT + timedelta(days=9))
    assert follow(later, STEP, known(state)) == (None, Event.MOVED_AGAIN)
    assert follow(replace(later, certain=False), STEP, known(state)) is None, "one point"
    assert follow(replace(later, certain=False, points=2), STEP, known(state)) is not None
    assert follow(later, FAILURE, known(state)) == (S.OPEN, None)


def test_points_that_were_dismissed_do_not_begin_again() -> None:
    assert follow(move(2), STEP, known(S.DISMISSED)) is None
    assert follow(move(3), STEP, known(S.DISMISSED)) is not None, "there is one more"
    assert follow(move(2), STEP, known(S.RESOLVED)) is not None
    other = replace(move(2), time=NIGHT + timedelta(days=1))
    assert follow(other, STEP, known(S.DISMISSED)) is not None


def kind(
    away: Move, recent: list[float | None], earlier: Regression | None = None, *, is_timing: bool = True
) -> str:
    return kind_of(away, earlier, recent, 10.0, is_timing=is_timing)


def test_what_came_half_of_the_way_before_is_a_drift() -> None:
    assert (moves._FEWEST, moves._BEFORE) == (20, 10)
    level: list[float | None] = [10.0] * 10
    for before, word in ((11.0, DRIFT), (10.99, STEP), (9.0, STEP)):
        assert kind(move(1), [*level, *[before] * 10, 12.0]) == word
    assert kind(move(1, latest=8.0), [*level, *[9.0] * 10, 8.0]) == DRIFT
    assert kind(move(1, latest=8.0), [*level, *[11.0] * 10, 8.0]) == STEP
    # the ten points before the move count, the move's own points do not
    assert kind(move(1), [*level, *[11.0] * 4, *[10.0] * 6, 12.0]) == STEP
    assert kind(move(1), [*level, *[10.0] * 4, *[11.0] * 6, 12.0]) == DRIFT
    assert kind(move(6), [*level, *level, *[11.5] * 6]) == STEP
    assert kind(move(2), [*level, *[11.0] * 10, 12.0, 12.0]) == DRIFT
    assert kind(move(1), [None, *level, *[11.0] * 10, None, 12.0]) == DRIFT


def test_without_enough_earlier_values_a_move_is_a_step() -> None:
    level: list[float | None] = [10.0] * 10
    assert kind(move(1), [*level[1:], *[11.0] * 10, 12.0]) == STEP, "19 points"
    assert kind(move(1), [None, *level[1:], *[11.0] * 10, 12.0]) == STEP
    drifting = [*level, *[11.0] * 10, 12.0]
    assert kind(move(1), drifting, is_timing=False) == STEP
    assert kind(move(1, latest=None), drifting) == STEP
    assert kind_of(move(1), None, drifting, None, is_timing=True) == STEP


def test_a_failure_is_one_and_what_goes_on_keeps_its_kind() -> None:
    drifting: list[float | None] = [*[10.0] * 10, *[11.0] * 10, 12.0]
    assert kind(move(1, failed=True), drifting) == FAILURE
    assert kind(move(1, failed=True), drifting, known(S.OPEN)) == FAILURE
    assert kind(move(1), drifting, known(S.OPEN, STEP)) == STEP
    assert kind(move(1), [10.0], known(S.CONFIRMED, DRIFT)) == DRIFT
    for ended in (S.RESOLVED, S.DISMISSED, S.ACCEPTED):
        assert kind(move(1), drifting, known(ended, STEP)) == DRIFT
    for other in (FAILURE, RegressionKind.SMALL_STEP, RegressionKind.CHOICE):
        assert kind(move(1), drifting, known(S.OPEN, other)) == DRIFT
