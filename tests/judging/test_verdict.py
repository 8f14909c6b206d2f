"""Verdicts on numbers: floors, noise, direction, exact metrics, and what never changes them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.judging.verdict import Rule, judge, series_noise

POSITIVE = st.floats(1e-6, 1e9)


def night(level: float, noise: float, count: int, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [level * math.exp(draw.gauss(0, noise)) for _ in range(count)]


def test_without_history_a_value_is_new_and_without_samples_it_failed() -> None:
    assert judge([], [1.0], Rule()).verdict == "new"
    assert judge([1.0], [], Rule()).verdict == "failed"


@pytest.mark.parametrize(("direction", "word"), [("down", "regressed"), ("up", "improved")])
def test_a_step_past_floor_and_noise_has_a_direction(direction: str, word: str) -> None:
    history = night(10, 0.005, 30)
    verdict = judge(history, [11.0], Rule(direction=direction))  # type: ignore[arg-type]
    assert verdict.verdict == word
    assert verdict.change == pytest.approx(0.10, abs=0.01)
    assert verdict.noise == pytest.approx(0.005, rel=0.6)
    assert verdict.factor is not None
    assert verdict.factor > 3.5


def test_within_the_floor_nothing_changed_however_quiet_the_series() -> None:
    assert judge([10.0] * 30, [10.4], Rule()).verdict == "unchanged"


def test_a_noisy_series_cannot_tell() -> None:
    verdict = judge(night(10, 0.05, 40), [10.9], Rule())
    assert verdict.verdict == "inconclusive"


def test_the_absolute_floor_counts_too() -> None:
    assert judge([0.001] * 20, [0.002], Rule(absolute_floor=0.01)).verdict == "unchanged"


def test_one_earlier_value_leans_on_the_prior() -> None:
    assert judge([10.0], [10.6], Rule(prior_noise=0.015)).verdict == "inconclusive"
    assert judge([10.0], [12.0], Rule(prior_noise=0.015)).verdict == "regressed"


def test_any_change_of_an_exact_metric_counts() -> None:
    exact = Rule(kind="deterministic", relative_floor=0.0)
    assert judge([3.0, 3.0], [3.0], exact).verdict == "unchanged"
    assert judge([0.0], [1.0], exact).verdict == "regressed"
    assert judge([1.0], [0.0], exact).verdict == "improved"


def test_a_metric_without_direction_is_never_better_or_worse() -> None:
    assert judge([1.0] * 20, [2.0], Rule(direction="none")).verdict == "inconclusive"


def test_values_that_are_not_numbers_are_refused() -> None:
    for history, samples in (([math.nan], [1.0]), ([1.0], [math.inf])):
        with pytest.raises(ValueError, match="finite"):
            judge(history, samples, Rule())


def test_a_step_in_the_history_is_not_noise() -> None:
    stepped = night(10, 0.005, 30) + night(13, 0.005, 30, seed=2)
    assert series_noise(stepped, 0.015) < 0.01


def test_quiet_series_are_left_alone_and_seven_percent_is_seen_at_once() -> None:
    """60 nights of 1 % noise: at most 2 flags in 4,000 quiet series, 7 % seen in at least 95 %."""
    flags = sum(
        judge(night(10, 0.01, 60, seed), night(10, 0.01, 1, seed + 10**6), Rule()).verdict
        in {"regressed", "improved"}
        for seed in range(4000)
    )
    seen = sum(
        judge(night(10, 0.01, 60, seed), night(10.7, 0.01, 1, seed + 10**6), Rule()).verdict == "regressed"
        for seed in range(1000)
    )
    assert flags <= 2
    assert seen >= 950


@settings(max_examples=200)
@given(st.lists(POSITIVE, min_size=1, max_size=40), POSITIVE, POSITIVE)
def test_the_mirror_direction_gives_the_mirror_word(history: list[float], value: float, other: float) -> None:
    mirror = {"improved": "regressed", "regressed": "improved"}
    up = judge(history, [value], Rule(direction="up")).verdict
    down = judge(history, [value], Rule(direction="down")).verdict
    assert mirror.get(up, up) == down
    if up == "improved" and other > value:
        assert judge(history, [other], Rule(direction="up")).verdict == "improved"


@settings(max_examples=200)
@given(st.lists(st.floats(-1e9, 1e9), max_size=30), st.lists(st.floats(-1e9, 1e9), max_size=5))
def test_any_finite_numbers_get_a_verdict(history: list[float], samples: list[float]) -> None:
    verdict = judge(history, samples, Rule())
    for value in (verdict.change, verdict.noise, verdict.factor, verdict.baseline):
        assert value is None or math.isfinite(value)
