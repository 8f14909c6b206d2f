"""The accepted level and what moves away from it, point by point."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hud.judging import levels
from hud.judging.levels import (
    Level,
    SeriesPoint,
    advance,
    advance_young,
    begin_anew,
    decides,
    level_before,
    mark,
    with_noise_of,
)
from hud.judging.verdict import FEWEST, Rule, Verdict, noise_of_median, series_noise

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
EXACT = Rule(kind="deterministic", relative_floor=0.0)
STATUS = Rule(kind="status")


def point(number: int, *values: float, card: str = "", good: bool = True, **other: object) -> SeriesPoint:
    return SeriesPoint(
        run_id=number,
        environment_id=1,
        time=BEGIN + timedelta(days=number),
        values=values,
        card=card,
        good=good,
        **other,  # type: ignore[arg-type]
    )


def quiet(count: int, *, card: str = "", noise: float = 0.003, seed: int = 1) -> Level:
    """Return a level of so many points around 10."""
    level, chance = Level(), random.Random(seed)
    for number in range(count):
        advance(level, point(number, 10 + chance.gauss(0, 10 * noise), card=card), Rule())
    return level


def follow(level: Level, *values: float, card: str = "", rule: Rule | None = None) -> list[Verdict]:
    """Judge further points with these values, one a day."""
    start = 1000 + level.taken + len(level.values) + len(level.moved)
    points = [point(start + number, value, card=card) for number, value in enumerate(values)]
    return [advance(level, each, rule or Rule()) for each in points]


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


def test_a_further_step_is_told_with_its_own_size() -> None:
    assert levels._TOLD == 20
    level = quiet(40)
    follow(level, *[11.0] * 25)
    assert level.move is not None
    assert (level.move.steps, len(level.move.told)) == (1, 20)
    follow(level, *[12.5] * 2)
    assert level.move.steps == 2
    counts = Level()
    for number in range(5):
        advance(counts, point(number, 3.0), EXACT)
    follow(counts, 4.0, 4.0, 5.0, rule=EXACT)
    assert counts.move is not None
    assert counts.move.steps == 2


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


def test_a_point_of_another_branch_changes_nothing() -> None:
    level = quiet(20)
    before = list(level.values)
    assert advance(level, point(90, 12.0, is_baseline=False), Rule()).verdict == "regressed"
    assert (level.values, level.move, level.points) == (before, None, 20)


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


def test_what_never_gave_a_value_does_not_get_worse() -> None:
    level = Level()
    begin_anew(level, point(1))
    assert advance(level, point(2), Rule()).verdict == "failed"
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
