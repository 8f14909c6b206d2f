"""Statistics that both halves share."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runner.schema.statistics import (
    SEVERITY_ORDER,
    block_standard_error,
    geometric_mean,
    median,
    pair_middles,
    paired_change,
    quantiles,
    severity,
    spread,
    spread_of,
    steady,
    student_p,
    t_test,
    value_of,
    welch,
)


def test_median_of_an_even_number_is_the_middle_of_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


@pytest.mark.parametrize("function", [median, geometric_mean])
def test_nothing_has_no_middle(function: object) -> None:
    with pytest.raises(ValueError, match="data"):
        function([])  # type: ignore[operator]


def test_spread_is_relative_and_deaf_to_one_outlier() -> None:
    quiet = [99.0, 100.0, 101.0, 100.0, 99.0, 101.0, 100.0]
    assert spread(quiet) == pytest.approx(0.0148, abs=1e-4)
    assert spread([*quiet, 1e6]) < 0.02
    assert spread([value * 1000 for value in quiet]) == pytest.approx(spread(quiet))


@pytest.mark.parametrize("values", [[], [5.0], [0.0, 0.0, 0.0]])
def test_spread_is_zero_where_it_says_nothing(values: list[float]) -> None:
    assert spread(values) == 0.0


def test_geometric_mean_takes_a_slowdown_as_it_is() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="positive"):
        geometric_mean([1.0, 0.0])


def test_t_interval_is_students() -> None:
    low, high, _p = t_test([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451 * math.sqrt(0.5)
    assert (low, high) == pytest.approx((3 - half, 3 + half), rel=1e-6)


def test_t_interval_of_many_values_is_nearly_the_normal_one() -> None:
    values = list(np.random.default_rng(1).normal(size=400))
    low, high, _p = t_test(values)
    assert (high - low) / 2 == pytest.approx(1.96592 * np.std(values, ddof=1) / 20, rel=1e-5)
    many = list(np.random.default_rng(1).normal(size=90_000))
    low, high, _p = t_test(many)
    assert (high - low) / 2 == pytest.approx(1.96 * np.std(many, ddof=1) / 300, rel=2e-3)


def test_blocks_see_the_error_that_correlated_samples_hide() -> None:
    steps = np.random.default_rng(2).normal(size=2000)
    walk = [0.0]
    for step in steps:
        walk.append(0.9 * walk[-1] + step)
    independent = float(np.std(walk, ddof=1) / math.sqrt(len(walk)))
    assert block_standard_error(walk) > 2 * independent


def test_blocks_say_nothing_of_a_few_samples() -> None:
    assert block_standard_error([1.0] * 19) == math.inf
    assert block_standard_error([1.0] * 20) == 0.0


def test_blocks_are_the_parts_of_the_samples() -> None:
    values = [float(block) for block in range(10) for _ in range(3)]
    assert block_standard_error([*values, 99.0]) == pytest.approx(np.std(range(10), ddof=1) / math.sqrt(10))


def test_severity_follows_the_order_and_an_unknown_word_is_a_failure() -> None:
    assert sorted(SEVERITY_ORDER, key=severity) == list(reversed(SEVERITY_ORDER))
    assert severity("whatever") == severity("failed")


def test_a_value_follows_its_rule() -> None:
    values = [9.0, 1.0, 2.0, 4.0]
    assert [value_of(values, rule) for rule in ("median", "steady", "sum")] == [3.0, 2.0, 16.0]
    assert steady(values) == values[1:]
    assert steady([9.0]) == [9.0]
    assert value_of([9.0], "steady") == 9.0
    assert spread_of(values, "sum") == 0.0
    values = [99.0, 1.0, 1.1, 1.3]
    assert spread(values) != spread(values[1:])
    assert spread_of(values, "median") == spread(values)
    assert spread_of(values, "steady") == spread(values[1:])
    assert steady([9.0, 1.0]) == [1.0]


def test_the_spread_of_two_and_of_nearly_nothing() -> None:
    assert spread([99.0, 101.0]) == pytest.approx(0.014826)
    assert spread([-1e300, 1e-320, 1e300]) == 0.0


def test_a_test_of_equal_values() -> None:
    assert t_test([0.0, 0.0]) == (0.0, 0.0, 1.0)
    assert t_test([2.0, 2.0]) == (2.0, 2.0, 0.0)
    assert welch([1.0, 1.0], [1.0, 1.0]) == (0.0, 0.0, 1.0)
    assert welch([1.0, 1.0], [3.0, 3.0]) == (2.0, 2.0, 0.0)


def test_welch_is_between_the_tests_of_one_and_of_both_sides() -> None:
    base, head = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9], [27.1, 22.0, 20.8, 23.4, 23.4, 23.5]
    low, high, p = welch(base, head)
    assert (low + high) / 2 == pytest.approx(2.3667, abs=1e-3)
    error = math.sqrt(np.var(base, ddof=1) / 6 + np.var(head, ddof=1) / 6)
    assert (high - low) / 2 == pytest.approx(2.3646 * error, rel=1e-3)  # 7.8 degrees, seven whole ones
    assert p == pytest.approx(student_p(2.36667 / error, 7), rel=1e-4)


def test_pairs_take_the_surer_of_two_tests_at_twice_its_p() -> None:
    pairs = [(1.0, 1.05), (2.0, 2.12), (3.0, 3.14), (4.0, 4.21), (5.0, 5.27)]
    found = paired_change(pairs)
    low, high, p = t_test(found.ratios)
    assert (found.low, found.high, found.p) == (low, high, 2 * p)
    assert paired_change(pairs, is_exact=True).p == p
    alike = [(1.0, 1.05), (1.01, 1.05), (1.0, 1.06), (1.01, 1.05), (1.0, 1.05)]
    sides = welch([math.log(old) for old, _new in alike], [math.log(new) for _old, new in alike])
    by_pairs = t_test(paired_change(alike).ratios)
    assert sides[2] < by_pairs[2]
    assert (paired_change(alike).low, paired_change(alike).p) == (sides[0], 2 * sides[2])
    assert paired_change([(1.0, 1.1), (1.1, 1.0), (1.0, 1.0)]).p == 1.0
    lone = paired_change([(1.0, 2.0)])
    assert (lone.low, lone.high, lone.p, lone.is_exact) == (None, None, None, False)
    assert paired_change([], is_exact=True).is_exact is True
    assert paired_change([]).change is None
    assert paired_change([(0.0, 0.0), (0.0, 0.0)]).ratios == (0.0, 0.0)
    for word, ratio, width in (
        ("confirmed", 1.3, 0.005),
        ("dismissed", 1.0, 0.001),
        ("inconclusive", 1.0, 0.02),
    ):
        assert paired_change([(1.0, ratio * (1 + width * place)) for place in range(5)]).word == word
    assert paired_change([(4.0, 5.0)] * 5, is_exact=True).word == "confirmed"
    assert paired_change([(4.0, 4.0)] * 5, is_exact=True).word == "dismissed"


def test_the_middles_of_pairs() -> None:
    assert pair_middles([(1.0, 2.0), (4.0, 8.0)]) == pytest.approx((2.0, 4.0))
    assert pair_middles([(0.0, 3.0), (0.0, 3.0), (8.0, 3.0)]) == (0.0, 3.0)
    with pytest.raises(ValueError, match="data"):
        pair_middles([])


def test_quantiles_are_numpys_and_of_weights_the_first_that_reach() -> None:
    values = [5.0, 1.0, 9.0, 2.0, 7.0]
    assert quantiles(values) == pytest.approx(np.quantile(values, [0.2, 0.5, 0.8]))
    assert quantiles([3.0]) == [3.0, 3.0, 3.0]
    assert quantiles([3.0, 1.0, 2.0], [5, 2, 3]) == [1.0, 2.0, 3.0]
    assert quantiles([3.0, 1.0, 2.0], [1, 8, 1]) == [1.0, 1.0, 1.0]
