"""Same-choice time, drift, aggregates and false discovery control."""

from __future__ import annotations

import numpy as np
import pytest

from hud.judging.aggregates import (
    compare_means,
    discoveries,
    hud_geometric_mean,
    moved_side,
    pass_rate,
)
from hud.judging.choices import same_choice_ratios
from hud.judging.regressions.look_back import drift
from hud.judging.rules.thresholds import least_change, prior_noise
from hud.judging.verdict import Rule, judge
from runner.schema.metrics import metric_info

KERNELS = 40


def compilation(chance: np.random.Generator, factor: float = 1.0) -> list[tuple[str, str, float]]:
    """Return the kernels of a model most of whose slots draw one of two choices 1.5 times apart."""
    slow = chance.random(KERNELS) < 0.3
    times = np.linspace(8, 80, KERNELS) * np.where(slow, 1.5, 1.0)
    times *= factor * np.exp(chance.normal(0, 0.005, KERNELS))
    return [(str(slot), str(slow[slot]), float(times[slot])) for slot in range(KERNELS)]


def test_two_percent_of_all_kernels_is_found_the_same_night() -> None:
    chance = np.random.default_rng(1)
    floor = metric_info("same_choice_ratio").floor
    rule = Rule(relative_floor=least_change(floor), prior_noise=prior_noise(floor))
    earlier: list[list[tuple[str, str, float]]] = []
    points: list[float] = []
    for night in range(60):
        drawn = compilation(chance)
        (ratio,) = same_choice_ratios(earlier, [drawn])
        if ratio is not None and len(points) >= 20:
            assert judge(points, [ratio], rule).verdict == "unchanged"
            (shifted,) = same_choice_ratios(earlier, [compilation(chance, 1.02)])
            assert judge(points, [shifted or 0.0], rule).verdict == "regressed", night
        earlier.append(drawn)
        points += [ratio] if ratio is not None else []
    assert len(points) > 50


def test_kernels_never_seen_and_without_a_time_do_not_count() -> None:
    before = [[("a", "x", 10.0), ("b", "x", 20.0)], [("a", "x", 10.0), ("b", "x", 20.0), ("c", "x", 0.0)]]
    own = [
        [("a", "x", 10.0), ("b", "x", 20.0)],
        [("a", "x", 11.0), ("b", "x", 22.0), ("c", "x", 1.0), ("d", "x", 0.0)],
        [("a", "x", 30.0), ("b", "y", 1.0)],
        [("a", "x", 10.0), ("b", "y", 20.0)],
        [("b", "x", 0.0)],
    ]
    ratios = same_choice_ratios(before, own)
    assert ratios[:3] == pytest.approx([1.0, 1.1, 3.0])
    assert ratios[3:] == [None, None]
    assert same_choice_ratios([], own) == [None] * 5


def nights(count: int, seed: int, *, a_night: float = 0.0, since: int = 60) -> list[float]:
    chance = np.random.default_rng(seed)
    climb = a_night * np.maximum(np.arange(count) - since, 0)
    return list(np.exp(chance.normal(0, 0.01, count) + climb))


def test_drift_is_reported_within_45_nights_and_a_step_is_none() -> None:
    found = 0
    for seed in range(20):
        quiet, climbing = nights(150, seed), nights(106, seed, a_night=0.001)
        stepped = [value * (1.05 if night >= 80 else 1.0) for night, value in enumerate(quiet)]
        assert drift(quiet) is None
        assert drift(stepped) is None
        found += any(drift(climbing[:count]) for count in range(95, 107))
    assert found >= 19
    assert drift(nights(59, 1, a_night=0.01, since=0)) is None


def test_aggregates_compare_the_same_cases() -> None:
    base, head = {"a": 1.0, "b": 2.0, "gone": 9.0}, {"a": 1.1, "b": 2.2, "new": 0.1, "bad": 0.0}
    found = compare_means(base, head)
    assert (found.matched, found.only_base, found.only_head) == (("a", "b"), ("gone",), ("new",))
    assert found.ratio == pytest.approx(1.1)
    assert found.low == pytest.approx(1.1)
    assert compare_means({}, head).ratio is None
    wild = compare_means({"a": 1e-300, "b": 1e300}, {"a": 1e300, "b": 1e-300})
    assert wild.high is not None
    assert np.isfinite(wild.high)
    ratio = compare_means({"a": 1e-300}, {"a": 1e300}).ratio
    assert ratio is not None
    assert np.isfinite(ratio)
    rate = pass_rate({"a": True, "b": False}, ["a", "b", "c"])
    assert (rate.passed, rate.expected, rate.missing) == (1, 3, ("c",))


def test_the_formula_of_the_hud() -> None:
    assert hud_geometric_mean([2.0, 0.0, 0.5, 0.0]) == 1.0
    assert hud_geometric_mean([0.0]) == hud_geometric_mean([]) == 0.0


def test_the_side_of_a_ratio_that_moved_is_named() -> None:
    assert moved_side((10.0, 9.0), (5.0, 5.01), noise=0.01) == "eager"
    assert moved_side((10.0, 10.1), (5.0, 6.0), noise=0.01) == "compiled"
    assert moved_side((10.0, 9.0), (5.0, 6.0), noise=0.01) == "both"
    assert moved_side((10.0, 10.0), (5.0, 5.0), noise=0.01) == "neither"


def test_a_night_of_chance_has_no_discoveries() -> None:
    chance = np.random.default_rng(3)
    quiet = chance.random(4000).tolist()
    assert sum(discoveries(quiet)) <= 1
    assert discoveries([1e-6, *quiet, 1e-7])[0]
    assert discoveries([]) == []
    assert discoveries([0.01, 0.04, 0.03, 0.9]) == [True, False, False, False]
