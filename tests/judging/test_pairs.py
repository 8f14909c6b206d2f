"""Two environments measured in turn: the statistics of pairs."""

from __future__ import annotations

import math
import random

import pytest

from hud.judging.pairs import compare_kernels, judge_pairs
from runner.schema.statistics import paired_change, student_p, t_interval


@pytest.mark.parametrize(
    ("degrees", "t"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (11, 2.201), (30, 2.042)]
)
def test_the_p_value_is_students(degrees: int, t: float) -> None:
    assert student_p(t, degrees) == pytest.approx(0.05, abs=1e-4)
    assert student_p(-t, degrees) == student_p(t, degrees)
    assert student_p(0.0, degrees) == 1.0
    assert student_p(math.inf, degrees) == 0.0


def test_p_and_interval_agree() -> None:
    chance = random.Random(1)
    for _ in range(200):
        pairs = [(1.0, math.exp(chance.gauss(0.01, 0.01))) for _ in range(chance.randint(2, 20))]
        found = paired_change(pairs, is_exact=True)  # by the pairs alone
        assert found.low is not None
        assert found.high is not None
        assert found.p is not None
        if abs(found.p - 0.05) > 1e-4:
            assert (found.low > 0 or found.high < 0) == (found.p < 0.05)
        assert (found.low, found.high) == t_interval(found.ratios)


def words(change: float, pairs: int, *, noise: float = 0.01) -> dict[str, float]:
    """Shares of the words over 400 simulated runs; each process has noise of its own."""
    chance = random.Random(pairs)
    found = {"confirmed": 0.0, "dismissed": 0.0, "inconclusive": 0.0}
    for _ in range(400):
        base = [math.exp(chance.gauss(0, noise)) for _ in range(pairs)]
        new = [(1 + change) * math.exp(chance.gauss(0, noise)) for _ in range(pairs)]
        found[judge_pairs(base, new, direction="down").word] += 1 / 400
    return found


def test_five_pairs_tell_five_percent_apart() -> None:
    assert words(0.05, 5)["confirmed"] > 0.94
    assert words(-0.05, 5)["confirmed"] > 0.94
    assert words(0.02, 12)["confirmed"] > 0.87


def test_nothing_is_confirmed_where_nothing_changed() -> None:
    for count in (5, 8, 12):
        assert words(0.0, count)["confirmed"] <= 0.005
    assert words(0.0, 12)["dismissed"] > 0.9
    assert words(0.0, 4) == {"confirmed": 0.0, "dismissed": 0.0, "inconclusive": pytest.approx(1.0)}


def test_the_direction_says_what_is_better() -> None:
    slower = [1.05, 1.06, 1.05, 1.04, 1.05]
    assert judge_pairs([1.0] * 5, slower, direction="down").better is False
    assert judge_pairs([1.0] * 5, slower, direction="up").better is True
    assert judge_pairs([1.0] * 5, slower, direction="none").better is None
    assert judge_pairs(slower, slower, direction="up").word == "dismissed"


def test_any_change_of_a_count_is_confirmed() -> None:
    assert judge_pairs([100.0] * 5, [101.0] * 5, direction="down", kind="deterministic").word == "confirmed"
    assert judge_pairs([0.0] * 5, [0.0] * 5, direction="down", kind="deterministic").word == "dismissed"
    assert judge_pairs([0.0] * 5, [1.0] * 5, direction="down", kind="deterministic").change is None


def test_base_new_and_change_are_consistent() -> None:
    """Their medians rise, and the change over the pairs is a fall."""
    base, new = [1.044, 1.0, 1.1, 8.0, 1.04], [1.111, 1.1, 1.2, 1.3, 1.1]
    found = judge_pairs(base, new, direction="up")
    assert found.base is not None
    assert found.head is not None
    assert found.change is not None
    assert found.head / found.base - 1 == pytest.approx(found.change.change)
    counted = judge_pairs([5.0] * 3, [0.0] * 3, direction="none", kind="deterministic")
    assert (counted.base, counted.head) == (5.0, 0.0)


def test_a_side_without_a_value_makes_no_pair() -> None:
    found = judge_pairs([1.0, 2.0, None], [1.0, None, 3.0], direction="down")
    assert (found.pairs, found.word, found.base, found.head) == (1, "inconclusive", 1.0, 1.0)
    alone = judge_pairs([1.0, 2.0], [None, None], direction="down")
    assert (alone.pairs, alone.base, alone.head) == (0, 1.5, None)
    assert judge_pairs([1.0], [None], direction="down").change is not None


def compilations(
    chance: random.Random, count: int, *, slower: float = 1.0, slow_share: float = 0.4
) -> list[dict[str, tuple[str, float]]]:
    """Return the kernels of a model in which each of 40 slots draws one of two choices 1.5 times apart."""
    drawn = []
    for _ in range(count):
        kernels = {}
        for slot in range(40):
            slow = chance.random() < slow_share
            us = (10 + slot) * (1.5 if slow else 1.0) * slower * math.exp(chance.gauss(0, 0.005))
            kernels[f"slot {slot}"] = ("slow" if slow else "fast", us)
        drawn.append(kernels)
    return drawn


def test_equal_choices_show_what_the_lottery_hides() -> None:
    chance = random.Random(2)
    found = compare_kernels(compilations(chance, 5), compilations(chance, 5, slower=1.03))
    assert found.equal == "confirmed"
    assert found.ratio == pytest.approx(1.03, abs=0.006)
    assert found.p is not None
    assert found.p <= 0.005
    assert found.frequencies == "cannot_tell"
    same = compare_kernels(compilations(chance, 5), compilations(chance, 5))
    assert same.equal == "dismissed"
    assert compare_kernels(compilations(chance, 3), compilations(chance, 3)).equal == "inconclusive"


def test_choices_that_come_more_often_are_told_from_slower_ones() -> None:
    chance = random.Random(3)
    found = compare_kernels(compilations(chance, 7), compilations(chance, 7, slow_share=0.8))
    assert (found.equal, found.frequencies) == ("dismissed", "yes")
    many = compare_kernels(compilations(chance, 20), compilations(chance, 20))
    assert many.frequencies == "no"


def test_slots_of_one_side_are_named() -> None:
    base, head = [{"a": ("x", 1.0), "b": ("x", 2.0)}] * 5, [{"a": ("x", 1.0), "c": ("y", 3.0)}] * 5
    found = compare_kernels(base, head)
    assert (found.only_base, found.only_head) == (("b",), ("c",))
    assert found.coverage == pytest.approx(0.25)
    nothing = compare_kernels([], [])
    assert (nothing.equal, nothing.frequencies, nothing.ratio) == ("inconclusive", "cannot_tell", None)


def test_pairs_beyond_any_ratio_have_a_finite_change() -> None:
    verdict = judge_pairs([1e-300] * 5, [1e300] * 5, direction="down")
    assert verdict.word == "confirmed"
    assert verdict.change is not None
    assert verdict.change.change is not None
    assert math.isfinite(verdict.change.change)
