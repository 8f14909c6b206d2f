"""Moves away from the accepted level: further steps, second opinions, and their end."""

from __future__ import annotations

import random

import pytest

from hud.judging import levels
from hud.judging.levels import (
    Level,
    SeriesPoint,
    advance,
)
from hud.judging.verdict import Rule
from tests.judging.series_points import STATUS, follow, point, quiet


def test_three_points_at_the_level_end_a_move() -> None:
    assert levels._BACK == 3
    level = quiet(30)
    follow(level, 12.0, 12.0)
    follow(level, 10.0, 10.0)
    assert level.move is not None
    assert level.move.back == 2
    assert level.points == 30
    follow(level, 10.0)
    assert level.move is None
    assert level.points == 33  # those that came back join it together


def test_points_that_may_be_of_the_move_do_not_end_it() -> None:
    """Nights between the level and a small move of a noisy series are not surely at the level."""
    assert pytest.approx(20.72, abs=0.01) == levels._SURE
    noisy = quiet(40, noise=0.02)
    follow(noisy, 11.2, 11.2, 11.2)
    assert noisy.move is not None
    follow(noisy, 10.45, 10.45, 10.45)
    assert noisy.move is not None
    assert noisy.move.back == 3
    follow(noisy, *[9.95] * 4)
    assert noisy.move is None


def test_two_points_that_moved_alike_are_more_than_a_suspect() -> None:
    assert levels._AGREE == 2
    level = quiet(40, noise=0.01)
    (first,) = follow(level, 10.33)
    assert first.suspect
    assert level.move is not None
    assert not level.move.is_sure
    follow(level, 10.33)
    assert level.move.is_sure
    alone = quiet(40, noise=0.01)
    follow(alone, 10.33, 10.0)
    assert alone.move is None  # a suspect ends with the next point


def test_a_further_step_is_told_with_its_own_size() -> None:
    assert levels._TOLD == 20
    level = quiet(40)
    follow(level, *[11.0] * 25)
    assert level.move is not None
    assert (level.move.steps, len(level.move.told)) == (1, 20)
    follow(level, *[12.5] * 2)
    assert level.move.steps == 2


def test_a_repeat_in_the_same_place_agrees_with_a_suspect_or_ends_it() -> None:
    for value, certain in ((10.33, True), (10.0, None)):
        level = quiet(40, noise=0.01)
        advance(level, point(2000, 10.33, where="here"), Rule())
        elsewhere = point(2001, value, is_baseline=False, is_rerun=True, where="there")
        advance(level, elsewhere, Rule())
        assert level.move is not None
        assert not level.move.certain
        advance(level, point(2002, value, is_baseline=False, is_rerun=True, where="here"), Rule())
        assert (level.move.certain if level.move else None) is certain
        assert level.points == 40


def test_a_failure_is_a_move_of_its_own() -> None:
    level = quiet(20)
    follow(level, 12.0, 12.0)
    assert advance(level, point(5000), Rule()).verdict == "failed"
    assert level.move is not None
    assert (level.move.failed, level.move.points, level.move.latest) == (True, 1, None)


def test_a_status_that_fails_is_a_move_until_it_passes_three_times() -> None:
    level = Level()
    for number in range(5):
        advance(level, point(number), STATUS)
    passed = advance(level, point(5), STATUS)
    assert (passed.verdict, passed.baseline_n) == ("unchanged", 5)
    failed = advance(level, point(6, good=False), STATUS)
    assert (failed.verdict, failed.baseline_n) == ("regressed", 6)
    assert level.move is not None
    assert (level.move.run_id, level.move.worse, level.move.is_sure) == (6, True, True)
    for number in range(7, 10):
        advance(level, point(number), STATUS)
    assert level.move is None


def suspected(value: float = 10.33) -> Level:
    """Return a level of 40 points with 1 % noise and a suspect."""
    level = quiet(40, noise=0.01)
    advance(level, point(2000, value, where="here"), Rule())
    assert level.move is not None
    assert not level.move.is_sure
    return level


def rerun(*values: float, where: str = "here") -> SeriesPoint:
    return point(2001, *values, is_baseline=False, is_rerun=True, where=where)


def test_only_a_repeat_that_may_decide_does() -> None:
    branch = suspected()
    advance(branch, point(2001, 10.0, is_baseline=False, where="here"), Rule())
    assert branch.move is not None  # of another branch, not a rerun

    better = suspected(9.68)
    assert better.move is not None
    assert not better.move.worse
    advance(better, rerun(10.0), Rule())
    assert better.move is not None

    other_way = suspected()
    advance(other_way, rerun(8.0), Rule())
    assert other_way.move is not None
    assert not other_way.move.certain

    sure = quiet(40, noise=0.01)
    follow(sure, 12.0)
    assert sure.move is not None
    assert sure.move.is_sure  # one point is enough where it is certain
    advance(sure, rerun(10.0, where=""), Rule())
    assert sure.move is not None

    again = suspected(10.29)
    verdict = advance(again, rerun(10.29), Rule())
    assert again.move is not None
    assert again.move.certain
    assert verdict.suspect == (verdict.verdict == "inconclusive")


def test_a_second_suspect_is_judged_with_the_first() -> None:
    level = suspected()
    assert follow(level, 10.33)[0].verdict == "regressed"
    other_way = suspected(9.68)
    (second,) = follow(other_way, 10.33)
    assert second.suspect  # both together say nothing
    elsewhere = suspected()
    assert advance(elsewhere, rerun(10.33, where="there"), Rule()).suspect
    failed = quiet(40, noise=0.01)
    advance(failed, point(2000), Rule())
    assert follow(failed, 10.33)[0].suspect


def test_named_differences_are_no_suspects() -> None:
    level = quiet(40, noise=0.01, card="a")
    (other,) = follow(level, 10.33, card="b")
    assert (other.reason, other.suspect) == ("other_card", False)
    assert advance(level, point(3000, card="b"), Rule()).verdict == "failed"
    once = Level()
    advance(once, point(0, *[10.0] * 40, groups=("v",) * 40), Rule())
    few = advance(once, point(1, 10.4), Rule())
    assert (few.reason, few.suspect) == ("few_runs", False)
    twice = Level()
    for number in range(2):
        advance(twice, point(number, 10.0, 10.01, 9.99, groups=("v",) * 3), Rule())
    assert advance(twice, point(2, 20.0), Rule()).verdict == "regressed"


@pytest.mark.parametrize("direction", ["down", "up"])
def test_further_steps_go_the_worse_way(direction: str) -> None:
    sign = 1 if direction == "down" else -1
    rule = Rule(direction=direction)  # type: ignore[arg-type]
    level, chance = Level(), random.Random(6)
    for number in range(40):
        advance(level, point(number, 10 + chance.gauss(0, 0.1)), rule)
    assert level.values[-1] == pytest.approx(10, abs=0.4)
    follow(level, *[10 * 1.1**sign] * 6, rule=rule)
    assert level.move is not None
    assert (level.move.worse, level.move.steps, len(level.move.told)) == (True, 1, 6)
    assert min(level.move.told) > 0.08
    beyond = 10 * 1.14**sign  # more than a suspect of a further step, and not surely one
    follow(level, beyond, rule=rule)
    assert (level.move.steps, level.move.further) == (1, 1)
    follow(level, 10 * 1.1**sign, rule=rule)
    assert (level.move.steps, level.move.further) == (1, 0)
    follow(level, beyond, beyond, rule=rule)
    assert (level.move.steps, level.move.further, len(level.move.told)) == (2, 0, 1)
    follow(level, 10 * 1.25**sign, rule=rule)
    assert level.move.steps == 3  # one that is sure
    better = 10 * 1.3**-sign
    follow(level, better, better, rule=rule)
    assert level.move.steps == 3


def test_any_further_count_is_a_step() -> None:
    rule = Rule(kind="deterministic", relative_floor=2.0)
    level = Level()
    for number in range(5):
        advance(level, point(number, 3.0), rule)
    follow(level, 5.0, 5.0, 6.0, rule=rule)
    assert level.move is not None
    assert level.move.steps == 2


def test_quiet_points_of_a_move_tell_its_size_too() -> None:
    noisy = quiet(40, noise=0.02)
    follow(noisy, 11.2, 11.2, 11.2, 10.45, 11.2)
    assert noisy.move is not None
    assert len(noisy.move.told) == 5
    sharp = quiet(40)
    follow(sharp, 12.0, 12.0, 10.0, 12.0)
    assert sharp.move is not None
    assert len(sharp.move.told) == 3
    better = quiet(40)
    follow(better, 8.0, 8.0)
    assert better.move is not None
    assert better.move.told == []


def test_the_second_run_that_moved_is_the_one_that_agreed() -> None:
    level = suspected()
    assert level.move
    assert level.move.agreed_run is None
    for number in (2001, 2002):
        advance(level, point(number, 10.33), Rule())
        assert level.move.agreed_run == 2001
    one_run = suspected()
    assert one_run.move
    advance(one_run, point(2000, 10.33, card="b"), Rule())
    assert (one_run.move.points, one_run.move.agreed_run) == (1, None)
    sure = quiet(40, noise=0.01)
    follow(sure, 12.0)
    assert sure.move
    sure.move.latest = 10.3
    assert follow(sure, 10.29)[0].suspect
    assert sure.move.certain, "it was called regressed before"
