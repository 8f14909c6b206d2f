"""Statistics that both halves share."""

from __future__ import annotations

import math

import numpy as np
import pytest

from runner.schema.statistics import block_standard_error, geometric_mean, median, spread, t_interval


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
    low, high = t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451 * math.sqrt(0.5)
    assert (low, high) == pytest.approx((3 - half, 3 + half), rel=1e-6)
    with pytest.raises(ValueError, match="two"):
        t_interval([1.0])


def test_t_interval_of_many_values_is_nearly_the_normal_one() -> None:
    values = list(np.random.default_rng(1).normal(size=400))
    low, high = t_interval(values)
    assert (high - low) / 2 == pytest.approx(1.96592 * np.std(values, ddof=1) / 20, rel=1e-5)
    many = list(np.random.default_rng(1).normal(size=90_000))
    low, high = t_interval(many)
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
