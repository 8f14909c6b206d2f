"""The accepted level: what joins it, where it begins anew, and what is judged against it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from hud.judging import levels
from hud.judging.levels import (
    Level,
    advance,
    advance_young,
    begin_anew,
    decides,
    level_before,
    mark,
    with_noise_of,
)
from hud.judging.verdict import FEWEST, Rule, noise_of_median, series_noise
from tests.judging.series_points import BEGIN, EXACT, STATUS, follow, point, quiet


def test_three_better_points_in_a_row_are_the_new_level() -> None:
    assert levels._STAYS == 3
    level = quiet(20)
    follow(level, 8.0, 8.01)
    assert level.move is not None
    assert not level.move.worse
    assert max(level.values) > 9
    follow(level, 7.99)
    assert level.move is None
    assert level.values == [8.0, 8.01, 7.99]
    assert level.points == 3
    assert level.start == BEGIN + timedelta(days=1020)


def test_better_points_that_do_not_stay_leave_the_level() -> None:
    level = quiet(20)
    follow(level, 8.0, 8.0, 10.0, 10.0)
    assert level.move is not None
    follow(level, 10.0)
    assert level.move is None
    assert min(level.values) > 9
    follow(level, 8.0, 8.0)
    assert min(level.values) > 9


def test_worse_points_are_never_the_level_however_many() -> None:
    level = quiet(20)
    words = {verdict.verdict for verdict in follow(level, *[12.0] * 30)}
    assert words == {"regressed"}
    assert max(level.values) < 10.2
    assert level.move is not None
    assert (level.move.points, level.move.worse, level.move.last_good_run) == (30, True, 19)


def test_five_points_make_a_card_one_of_the_level() -> None:
    assert levels._OF_CARD == 5
    level = quiet(20, card="a")
    for count in range(1, 5):
        (verdict,) = follow(level, 11.0, card="b")
        assert (verdict.verdict, verdict.reason) == ("inconclusive", "other_card")
        assert (level.cards, level.strangers) == (["a"], {"b": count})
        assert max(level.values) < 10.2
    follow(level, 11.0, card="b")
    assert (level.cards, level.strangers) == (["a", "b"], {})
    assert level.values[-1] == 11.0
    assert follow(level, 11.5, card="b")[0].reason != "other_card"


def test_two_other_cards_that_moved_are_no_matter_of_the_card() -> None:
    level = quiet(20, card="a")
    assert follow(level, 12.0, card="b")[0].reason == "other_card"
    assert follow(level, 12.0, card="c")[0].verdict == "regressed"
    begin_anew(level, point(3000, 12.0, card="c"))
    assert (level.cards, level.strangers, level.values, level.points) == (["c"], {}, [12.0], 1)


def test_a_timing_needs_two_runs_and_five_compilations() -> None:
    assert levels._RUNS == 2
    level = Level()
    advance(level, point(0, 10.0, 10.0, 10.01, 9.99, 10.0, groups=("v",) * 5), Rule())
    assert len(level.values) == FEWEST
    assert not decides(level, Rule())
    (verdict,) = [advance(level, point(1, *[20.0] * 5), Rule())]
    assert (verdict.verdict, verdict.reason) == ("inconclusive", "few_runs")
    assert not decides(quiet(FEWEST - 1), Rule())
    assert decides(quiet(FEWEST), Rule())
    assert decides(quiet(2), EXACT)
    assert not decides(quiet(1), EXACT)


def young(*values: float | None, reference: Level | None = None, rule: Rule | None = None) -> Level:
    """Return the level of a series whose points, one a day, are judged by a reference until it decides."""
    level, rule = Level(), rule or Rule()
    for number, value in enumerate(values):
        own = with_noise_of(reference or quiet(20), level, rule)
        advance_young(level, point(number, *(() if value is None else (value,))), own)
    return level


def test_the_larger_part_of_its_times_is_a_young_level() -> None:
    level = young(40.0, 40.1, 42.5, 42.6)
    assert (level.values, level.points) == ([40.0, 40.1], 2)
    assert level.move is not None
    assert level.move.points == 2  # as many as those at the level are not the larger part
    for values in ((40.0, 40.1, 42.5, 42.6, 42.4), (40.0, 40.1, 38.0, 38.1, 37.9)):
        level = young(*values)
        assert (level.values, level.points, level.move) == ([*values[2:]], 3, None)
        assert level.start == BEGIN + timedelta(days=2)
    assert young(40.0, 40.1, None, None, None).values == [40.0, 40.1]  # failures are no level
    assert young(3.0, 4.0, 4.0, 4.0, rule=EXACT).values == [
        3.0
    ]  # what is counted has no noise to be told from


def test_what_moved_counts_for_a_young_level_to_decide() -> None:
    level = young(40.0, 40.1, 40.1, 42.5)
    assert not decides(level, Rule())
    assert decides(young(40.0, 40.1, 40.1, 42.5, 42.5), Rule())
    assert decides(young(3.0, 4.0, rule=EXACT), EXACT)


def test_a_young_level_assumes_the_noise_of_its_reference_or_its_own_range() -> None:
    rule, reference = Rule(prior_noise=0.015), quiet(20)
    noise = series_noise(reference.values, 0.015)
    assert noise < 0.005

    def assumed(*values: float) -> float:
        return with_noise_of(reference, Level(values=[*values]), rule).prior_noise

    assert assumed(10.0) == noise
    assert assumed(10.0, 10.01) == noise
    assert assumed(10.0, 10.08) == pytest.approx(0.08 / 10.08)
    assert assumed(-10.0, -10.08) == pytest.approx(0.08 / 10.08)
    assert assumed(10.0, 12.0) == 0.015  # not more than the metric's
    assert assumed(*[10.0] * (FEWEST - 1)) == noise
    for values in ([10.0] * FEWEST, [], [0.0]):  # enough of its own, or nothing to divide by
        assert with_noise_of(reference, Level(values=values), rule) == rule
    assert with_noise_of(reference, Level(values=[10.0]), EXACT) == EXACT


def test_a_level_keeps_a_hundred_values() -> None:
    assert levels.KEPT == 100
    level = quiet(130)
    assert (len(level.values), len(level.groups), level.points) == (100, 100, 130)


def test_a_late_point_is_judged_from_the_newest_mark_before_it() -> None:
    assert (levels._EACH, levels._MARKS) == (50, 5)
    level, chance = Level(), random.Random(4)
    for number in range(400):
        each = point(number, 10 + chance.gauss(0, 0.03))
        mark(level, each.time, each.time)
        advance(level, each, Rule())
        level.taken += 1
    assert [one.taken for one in level.marks] == [150, 200, 250, 300, 350]
    before, until = level_before(level, BEGIN + timedelta(days=260))
    assert (before.points, before.taken, until) == (250, 250, BEGIN + timedelta(days=250))
    assert [one.taken for one in before.marks] == [150, 200]
    assert level_before(level, BEGIN) == (Level(), None)


def test_a_status_that_never_passed_does_not_get_worse() -> None:
    level = Level()
    words = [advance(level, point(n, good=False), STATUS).verdict for n in range(3)]
    assert words == ["new", "unchanged", "unchanged"]
    assert level.move is None
    assert advance(level, point(4), STATUS).verdict == "improved"


def test_a_point_of_another_branch_changes_nothing() -> None:
    level = quiet(20)
    before = list(level.values)
    assert advance(level, point(90, 12.0, is_baseline=False), Rule()).verdict == "regressed"
    assert (level.values, level.move, level.points) == (before, None, 20)


def test_what_never_gave_a_value_does_not_get_worse() -> None:
    level = Level()
    begin_anew(level, point(1))
    assert advance(level, point(2), Rule()).verdict == "failed"
    assert level.move is None


def by_variant() -> Level:
    level, chance = Level(), random.Random(5)
    for number in range(20):
        name, usual = (("a", 10.0), ("b", 13.0))[number % 2]
        advance(level, point(number, usual * (1 + chance.gauss(0, 0.003)), groups=(name,)), Rule())
    return level


@pytest.mark.parametrize(
    ("values", "groups", "word"),
    [
        ((10.0, 13.0), ("a", "b"), "unchanged"),
        ((10.6, 13.8), ("a", "b"), "regressed"),
        ((9.4, 12.2), ("a", "b"), "improved"),
        ((13.8,), ("b",), "regressed"),
        ((13.0,), ("b",), "unchanged"),
        ((13.0, 13.0), ("a", "b"), "regressed"),  # half of them took 30 % longer than their variant
        ((10.6, 99.0), ("a", "new"), "regressed"),  # by the known one
        ((10.0, 99.0), ("a", "new"), "unchanged"),
        ((12.5, 12.6), ("new", "newer"), "inconclusive"),
        ((12.5,), ("new",), "inconclusive"),
        ((12.5, 10.6), (None, "a"), "regressed"),
    ],
)
def test_compilations_are_compared_with_those_of_their_variant(
    values: tuple[float, ...], groups: tuple[str | None, ...], word: str
) -> None:
    level = by_variant()
    verdict = levels.assess(level, point(99, *values, groups=groups), Rule())
    assert verdict.verdict == word
    if word == "inconclusive":
        assert verdict.reason == "unknown_variant"
    elif len(values) > 1:
        assert verdict.baseline == pytest.approx(11.5, abs=0.1)


def test_variants_of_no_time_are_compared_as_values() -> None:
    level = Level()
    for number in range(8):
        advance(level, point(number, 0.0, 0.0, groups=("a", "b")), Rule())
    assert levels.assess(level, point(9, 0.0, 0.0, groups=("a", "b")), Rule()).verdict == "unchanged"


def test_what_moved_or_came_back_keeps_its_variants() -> None:
    better = by_variant()
    for number, name in enumerate("abc"):
        advance(better, point(100 + number, 5.0 + number / 100, groups=(name,)), Rule())
    assert better.move is None
    assert (better.values, better.groups) == ([5.0, 5.01, 5.02], ["a", "b", "c"])
    back = by_variant()
    follow_in = [("a", 12.0), ("a", 12.0), ("a", 10.01), ("b", 13.01), ("a", 9.99)]
    for number, (name, value) in enumerate(follow_in):
        advance(back, point(100 + number, value, groups=(name,)), Rule())
    assert back.move is None
    assert (back.values[-3:], back.groups[-3:]) == ([10.01, 13.01, 9.99], ["a", "b", "a"])


def test_a_mark_is_before_its_own_points_and_holds_no_marks() -> None:
    level = Level()
    for number in range(101):
        each = point(number, 10.0)
        mark(level, each.time, each.time)
        advance(level, each, Rule())
        level.taken += 1
    assert [one.taken for one in level.marks] == [1, 50, 100]
    assert b'"marks":[]' in bytes(level.marks[-1].level)
    before, _until = level_before(level, level.marks[1].time)
    assert before.points == 1


def test_a_point_that_may_not_decide_has_no_verdict_and_changes_nothing() -> None:
    level = quiet(20)
    undecided = advance(level, point(1000, 20.0, quality="busy_cpu"), Rule())
    assert (undecided.verdict, undecided.reason, undecided.suspect) == ("inconclusive", "busy_cpu", False)
    assert (level.points, level.move) == (20, None)
    assert advance(level, point(1001, quality="busy_cpu"), Rule()).verdict == "failed"


def test_a_derived_metric_has_the_noise_of_its_own_compilations() -> None:
    derived = Rule(is_derived=True, prior_noise=0.0001, relative_floor=0.01)
    level = Level()
    wide, own = (9.0, 10.0, 11.0), noise_of_median([9.0, 10.0, 11.0])
    for number, (values, expected) in enumerate(
        [(wide, own), ((10.0,) * 3, own / math.sqrt(2)), (wide, own * math.sqrt(2 / 3))]
    ):
        advance(level, point(number, *values), derived)
        assert level.own_noise == pytest.approx(expected)
    assert advance(level, point(3, *[10.0] * 3), derived).noise == pytest.approx(own * math.sqrt(2 / 3))
    assert levels.assess(level, point(4, 8.0, 10.0, 12.0), derived).noise == pytest.approx(2 * own)
    plain = replace(derived, is_derived=False)
    assert levels.assess(level, point(4, 8.0, 10.0, 12.0), plain).noise == pytest.approx(0.0001, rel=0.5)


def test_a_regret_moves_by_three_half_intervals() -> None:
    assert levels._OF_INTERVAL == 3.0
    regret = Rule(is_derived=True, prior_noise=0.001, absolute_floor=0.01)
    level = Level()
    for number in range(20):
        advance(level, point(number, 0.2), regret)
    found = [
        levels.assess(level, point(30, value, spread=spread), rule).reason
        for value, spread, rule in (
            (0.259, 0.02, regret),
            (0.261, 0.02, regret),
            (0.209, None, regret),
            (0.211, None, regret),
            (0.259, 0.02, replace(regret, is_derived=False)),
            (0.259, 0.02, replace(regret, absolute_floor=0.0)),
        )
    ]
    assert found == ["within_floor", "", "within_floor", "", "", ""]
