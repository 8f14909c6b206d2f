"""Change points on series with known truth, and what must never change them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.judging.change_points import change_points
from tests.judging.change_points.truth import KINDS, SIGNALS, Score, grouped, series


def test_steps_and_bumps_are_found_in_every_kind_of_noise() -> None:
    """A small part of what `make bench PART=judgement` scores."""
    total = Score()
    for kind in KINDS:
        for signal in SIGNALS:
            for seed in range(6):
                one = series(kind, signal, seed)
                total.add(one.truth, change_points(one.values), len(one.values))
    assert total.precision >= 0.92
    assert total.recall >= 0.9
    assert total.per_1000 <= 0.5


@pytest.mark.parametrize("size", [0.02, 0.05])
def test_a_step_is_found_inside_variants(size: float) -> None:
    for seed in range(10):
        one = grouped("a fifth unknown", size, seed)
        found = change_points(one.values, groups=one.groups)
        assert len(found) == 1
        assert abs(found[0] - one.truth[0]) <= 3


@pytest.mark.parametrize("what", ["quiet", "renamed", "new label", "a fifth unknown"])
def test_names_of_variants_alone_are_no_change(what: str) -> None:
    for seed in range(10):
        one = grouped(what, 0.0, seed)
        assert change_points(one.values, groups=one.groups) == []


def test_a_change_of_the_mixture_is_found() -> None:
    hits = 0
    for seed in range(20):
        one = grouped("mixture", 0.0, seed)
        found = change_points(one.values, groups=one.groups)
        hits += any(abs(place - one.truth[0]) <= 10 for place in found)
    assert hits >= 18


def test_the_index_counts_nights_without_a_value() -> None:
    values = [10.0, None, 10.1, None] * 10 + [12.0, None, 12.1, None] * 10
    assert change_points(values) == [40]
    assert change_points(values, groups=[None] * 80) == [40]


def test_slow_drift_is_no_change_point() -> None:
    draw = random.Random(4)
    assert change_points([math.exp(night * 0.001 + draw.gauss(0, 0.01)) for night in range(200)]) == []


def test_small_steps_are_none() -> None:
    assert change_points([10.0] * 50 + [10.05] * 50) == []
    assert change_points([10.0] * 50 + [10.05] * 50, min_relative=0.003) == [50]


def test_what_is_not_a_number_is_refused() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            change_points([1.0, bad, 1.0, 1.0])
    with pytest.raises(ValueError, match="group"):
        change_points([1.0, 2.0], groups=["a"])


VALUES = st.lists(
    st.one_of(st.none(), st.floats(-1e300, 1e300), st.sampled_from([0.0, 1.0, 1.1])), max_size=60
)


@settings(max_examples=150, deadline=None)
@given(VALUES, st.randoms(use_true_random=False))
def test_any_finite_series_gets_an_answer(values: list[float | None], draw: random.Random) -> None:
    groups = [draw.choice(["a", "b", None]) for _ in values]
    for found in (change_points(values), change_points(values, groups=groups)):
        assert found == sorted(set(found))
        assert all(values[place] is not None for place in found)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(KINDS)), st.sampled_from(SIGNALS), st.integers(0, 10**6))
def test_scale_and_direction_do_not_matter(kind: str, signal: str, seed: int) -> None:
    one = series(kind, signal, seed, n=100)
    values = [value for value in one.values if value is not None]
    found = change_points(values)
    assert change_points([value * 2**20 for value in values]) == found
    assert change_points([-value for value in values]) == found
    assert change_points(values) == found
