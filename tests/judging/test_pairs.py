"""Two environments measured in turn: the statistics of pairs."""

from __future__ import annotations

import math
import random

import pytest

from hud.judging.pairs import judge_pairs
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
        found = paired_change(pairs)
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
    assert words(0.05, 5)["confirmed"] > 0.99
    assert words(-0.05, 5)["confirmed"] > 0.99
    assert words(0.02, 12)["confirmed"] > 0.87


def test_nothing_is_confirmed_where_nothing_changed() -> None:
    for count in (5, 8, 12):
        assert words(0.0, count)["confirmed"] < 0.05
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
