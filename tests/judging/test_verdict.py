"""Verdicts on numbers: floors, noise, direction, exact metrics, and what never changes them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.judging import verdict as rules
from hud.judging.verdict import Rule, judge, judge_points, noise_of_median, point_factors, series_noise
from runner.schema.statistics import MAD_TO_SD

POSITIVE = st.floats(1e-6, 1e9)


def night(level: float, noise: float, count: int, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [level * math.exp(draw.gauss(0, noise)) for _ in range(count)]


def test_without_history_a_value_is_new_and_without_samples_it_failed() -> None:
    assert judge([], [1.0], Rule()).verdict == "new"
    failed = judge([1.0, 2.0], [], Rule())
    assert (failed.verdict, failed.baseline_n) == ("failed", 2)


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
    verdict = judge([10.0] * 30, [10.4], Rule(relative_floor=0.05))
    assert (verdict.verdict, verdict.reason) == ("unchanged", "within_floor")


def test_a_noisy_series_has_suspects_before_it_has_changes() -> None:
    history = night(10, 0.05, 40)
    words = [judge(history, [value], Rule()) for value in (10.9, 11.8, 14.0)]
    assert [word.verdict for word in words] == ["unchanged", "inconclusive", "regressed"]
    assert [word.suspect for word in words] == [False, True, False]
    assert [word.reason for word in words] == ["within_noise", "suspect", ""]
    assert [word.baseline_n for word in words] == [40] * 3


def test_the_absolute_floor_counts_too() -> None:
    assert judge([0.001] * 20, [0.002], Rule(absolute_floor=0.01)).verdict == "unchanged"
    assert judge([10.0] * 20, [12.0], Rule(absolute_floor=2.0)).reason == "within_floor", "the floor itself"
    assert judge([10.0] * 20, [12.0], Rule(absolute_floor=1.9)).verdict == "regressed"


def test_one_earlier_value_leans_on_the_prior() -> None:
    assert judge([10.0], [10.6], Rule(prior_noise=0.015)).verdict == "inconclusive"
    lone = judge([10.0], [12.0], Rule(prior_noise=0.015))
    assert (lone.verdict, lone.reason) == ("inconclusive", "few_compilations")


def test_few_compilations_call_only_the_certain_a_regression() -> None:
    history = night(10, 0.005, 4)
    assert judge(history, [20.0], Rule()).verdict == "regressed"
    assert judge(history, [10.6], Rule()).verdict == "inconclusive"
    assert judge([*history, 10.0, 10.0], [10.9], Rule()).verdict == "regressed"
    assert judge([10.0, 10.01, 10.0], [20.0], Rule()).verdict == "regressed"
    assert judge([10.0, 10.01], [20.0], Rule()).verdict == "inconclusive"
    assert rules.FEWEST == 5
    assert judge([10.0] * 5, [11.0], Rule(prior_noise=0.005)).verdict == "regressed", "no longer few"
    near = judge([10.0, 10.3, 10.1], [10.15], Rule())
    assert (near.verdict, near.reason) == ("unchanged", "within_floor")
    quiet = judge([10.0, 10.3], [10.4], Rule(prior_noise=0.03))
    assert (quiet.verdict, quiet.suspect, quiet.reason) == ("inconclusive", False, "few_compilations")
    assert judge([10.0], [12.0], Rule()).suspect, "beyond the noise, but few"


def certain(history: list[float], samples: list[float]) -> bool:
    """Return whether an unknown variant is called changed against this level."""
    known: list[str | None] = ["known"] * len(history)
    found = judge(history, samples, Rule(prior_noise=0.001), groups=known, group="unknown")
    return found.verdict in {"improved", "regressed"}


def test_an_exact_test_needs_one_in_a_thousand_and_a_change_beyond_the_range() -> None:
    assert rules._EXACT_P == 0.001
    # ranks: 2 of C(n + m, m) orders are as extreme, of values too far apart for Student's t
    wide = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
    assert certain(wide, [45.0] * 5)
    assert certain(wide[:6], [45.0] * 6)
    assert not certain(wide[:5], [6.5, 200.0])  # the median within the range
    assert not certain([10.0, 10.1, 10.2, 10.3], [10.0, 20.0])  # a new value among the old ones
    assert not certain([10.0, 10.1, 10.2, 10.3], [20.0, 10.3])
    assert not certain([20.0, 20.1, 20.2, 20.3], [10.0, 20.0])
    assert certain([20.0, 20.1, 20.2, 20.3], [10.0])
    # Student's t against the level's scatter, at least 0.5 %
    scatter = [10 * math.exp(x) for x in (-0.05, 0.0, 0.05)]  # a deviation of 5 %
    limit = 31.599 * 0.05 * math.sqrt(1 + 1 / 3)  # t of two degrees at p = .001
    assert certain(scatter, [10 * math.exp(1.01 * limit)])
    assert not certain(scatter, [10 * math.exp(0.99 * limit)])
    pair = 31.599 * 0.05 * math.sqrt(1 / 2 + 1 / 3)
    assert certain(scatter, [10 * math.exp(1.01 * pair)] * 2)
    assert not certain(scatter, [10 * math.exp(0.99 * pair)] * 2)
    still = 31.599 * rules._VARIANT_NOISE * math.sqrt(1 + 1 / 3)
    assert certain([10.0] * 3, [10 * math.exp(1.01 * still)])
    assert not certain([10.0] * 3, [10 * math.exp(0.99 * still)])
    assert not certain([10.0, 10.0], [20.0])  # two earlier values have no scatter to speak of


def lottery(count: int, seed: int) -> tuple[list[float], list[str | None]]:
    """Values of five variants up to 40 % apart, each with 0.3 % noise."""
    draw = random.Random(seed)
    drawn = [draw.randrange(5) for _ in range(count)]
    return [10 * 1.08**variant * math.exp(draw.gauss(0, 0.003)) for variant in drawn], [
        f"v{variant}" for variant in drawn
    ]


def test_a_known_variant_is_judged_against_its_own_values() -> None:
    seen = 0
    for seed in range(100):
        values, groups = lottery(61, seed)
        history, value, earlier, group = values[:-1], values[-1], groups[:-1], groups[-1]
        assert judge(history, [value], Rule(), groups=earlier, group=group).verdict == "unchanged"
        seen += judge(history, [1.03 * value], Rule(), groups=earlier, group=group).verdict == "regressed"
        # the same 3 % in a variant never seen is one more draw
        unknown = judge(history, [1.03 * value], Rule(), groups=earlier, group="other")
        assert (unknown.verdict, unknown.reason) in {
            ("inconclusive", "unknown_variant"),
            ("unchanged", "within_floor"),
        }
        assert judge(history, [2 * max(values)], Rule(), groups=earlier, group="other").verdict == "regressed"
    assert seen >= 90


def test_more_samples_count_for_more() -> None:
    history = night(10, 0.01, 60)
    alone, repeated = judge(history, [10.35], Rule()), judge(history, [10.35, 10.35], Rule())
    assert (alone.verdict, alone.suspect, repeated.verdict) == ("inconclusive", True, "regressed")


def test_any_change_of_an_exact_metric_counts() -> None:
    exact = Rule(kind="deterministic", relative_floor=0.0)
    assert judge([3.0, 3.0], [3.0], exact).verdict == "unchanged"
    assert judge([0.0], [1.0], exact).verdict == "regressed"
    assert judge([1.0], [0.0], exact).verdict == "improved"


def test_a_metric_without_direction_is_never_better_or_worse() -> None:
    found = judge([1.0] * 20, [2.0], Rule(direction="none"))
    assert (found.verdict, found.suspect, found.reason) == ("inconclusive", False, "no_direction")
    assert judge([1.0] * 20, [2.0], Rule()).reason == ""


def test_values_that_are_not_numbers_are_refused() -> None:
    for history, samples in (([math.nan], [1.0]), ([1.0], [math.inf])):
        with pytest.raises(ValueError, match="finite"):
            judge(history, samples, Rule())
    with pytest.raises(ValueError, match="group"):
        judge([1.0, 2.0], [1.0], Rule(), groups=["a"])


def test_values_that_are_not_positive_are_compared_with_the_larger_one() -> None:
    down = judge([0.0] * 20, [0.0], Rule())
    assert (down.verdict, down.change, down.reason) == ("unchanged", None, "within_floor")
    assert judge([0.0] * 20, [1.0], Rule()).verdict == "regressed"
    assert judge([1.0] * 20, [0.0], Rule()).verdict == "improved"
    small = judge([-100.0] * 20, [-101.5], Rule())
    assert small.reason == "within_floor"
    assert small.change == pytest.approx(-0.015)
    assert judge([-100.0] * 20, [-103.0], Rule(prior_noise=0.001)).verdict == "improved"
    assert judge([0.5] * 20, [0.505], Rule()).reason == "within_floor"
    assert judge([0.5] * 20, [0.55], Rule(prior_noise=0.001)).factor == pytest.approx(
        judge([5.0] * 20, [5.5], Rule(prior_noise=0.001)).factor or 0.0
    )
    assert judge([1e-300] * 20, [1e300], Rule()).change is None


def test_the_noise_of_a_median_is_that_of_its_samples() -> None:
    assert pytest.approx(math.sqrt(math.pi / 2)) == rules._OF_MEDIAN
    assert noise_of_median([8.0]) == noise_of_median([0.0, 0.0]) == 0.0
    assert noise_of_median([8.0, 10.0, 12.0]) == pytest.approx(rules._OF_MEDIAN * 2 / math.sqrt(3) / 10)
    assert noise_of_median([-9.0, -11.0]) == pytest.approx(
        rules._OF_MEDIAN * math.sqrt(2) / math.sqrt(2) / 10
    )


def logs(*steps: float) -> list[float]:
    return [10 * math.exp(step) for step in steps]


def test_the_noise_of_a_series_leans_on_the_prior_while_it_is_short() -> None:
    assert (rules._SHORT, rules._NOISE_WINDOW) == (8, 100)
    assert series_noise(logs(0.0, 0.5), 0.02) == 0.02
    # ± 1 % around the median; the prior counts as four values
    own = series_noise(logs(-0.01, 0.01, -0.01, 0.01), 0.02)
    assert own == pytest.approx(math.sqrt((3 * 0.01**2 + 4 * 0.02**2) / 7))
    three = series_noise(logs(-0.01, 0.0, 0.01), 0.02)
    assert three == pytest.approx(math.sqrt((2 * (2 * 0.01**2 / 3) + 4 * 0.02**2) / 6))
    # of 16 values the prior stands for one: 4 · (8 / 16)²
    assert series_noise(logs(*[-0.01, 0.01] * 8), 0.02) == pytest.approx(
        math.sqrt((15 * 0.01**2 + 0.02**2) / 16)
    )
    assert series_noise([10.0] * 50 + [11.0] * 101, 0.02) == pytest.approx(0.002), "a tenth of the prior"
    assert series_noise([10.0] * 20, 0.03) == pytest.approx(math.sqrt(0.64 * 0.03**2 / 19.64))


def test_far_differences_count_as_three_deviations() -> None:
    steps = [0.0, 0.01, 0.0, 0.01, 0.0, 0.01, 0.0, 1.0, 0.01, 0.0, 0.01]
    differences = [abs(b - a) for a, b in itertools.pairwise(steps)]
    limit = 3 * MAD_TO_SD * 0.01
    own = math.sqrt(sum(min(one, limit) ** 2 for one in differences) / len(differences) / 2)
    off = sorted(abs(step - 0.01) for step in steps)
    around = math.sqrt(sum(min(one, 3 * MAD_TO_SD * off[5]) ** 2 for one in off) / len(off))
    assert around <= 1.3 * own
    weight = 4 * (8 / 11) ** 2
    expected = math.sqrt((10 * around**2 + weight * 0.02**2) / (10 + weight))
    assert series_noise(logs(*steps), 0.02) == pytest.approx(expected)


def test_a_slow_wave_of_a_series_is_noise_of_its_own() -> None:
    """Neighbours of a wave differ by little, although its values do by much: they are correlated."""
    steps = [0.01 * x for x in [0, 1, 1, 0, -1, -1] * 10]
    values = np.array(steps)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, 3, mode="edge"), 7)
    rest = values - np.median(windows, axis=1)
    lag = float(np.mean(rest[1:] * rest[:-1])) / float(np.mean(rest**2))
    assert 0.3 < lag < 0.8
    assert rules._lag_1(values) == pytest.approx(lag)
    assert rules._lag_1(values[:12]) > 0
    assert (
        rules._lag_1(values[:11]) == rules._lag_1(np.zeros(20)) == rules._lag_1(np.array([0.0, 1] * 10)) == 0
    )
    wave = np.sin(np.arange(60) / 4) * 0.1  # neighbours differ by a sixth of what the values do
    own = math.sqrt(float(np.mean(np.diff(wave) ** 2)) / 2)
    weight = 4 * (8 / 60) ** 2
    raised = own / math.sqrt(1 - min(rules._lag_1(wave), 0.8))
    assert series_noise(logs(*wave), 0.001) == pytest.approx(
        math.sqrt((59 * raised**2 + weight * 1e-6) / (59 + weight)), rel=1e-6
    )


def test_a_step_in_the_history_is_not_noise() -> None:
    stepped = night(10, 0.005, 30) + night(13, 0.005, 30, seed=2)
    assert series_noise(stepped, 0.015) < 0.01


@pytest.mark.simulation
def test_quiet_series_are_left_alone_and_seven_percent_is_seen_at_once() -> None:
    """60 nights of 1 % noise: at most 60 suspects and 2 flags in 4,000 quiet series, 7 % seen in at least
    95 %, 5 % after one repeat."""
    found = [
        judge(night(10, 0.01, 60, seed), night(10, 0.01, 1, seed + 10**6), Rule()) for seed in range(2000)
    ]
    assert sum(verdict.suspect for verdict in found) <= 40
    assert sum(verdict.verdict in {"regressed", "improved"} for verdict in found) <= 1
    seen = repeated = 0
    for seed in range(500):
        history, noise = night(10, 0.01, 60, seed), night(1, 0.01, 2, seed + 10**6)
        seen += judge(history, [10.7 * noise[0]], Rule()).verdict == "regressed"
        first = judge(history, [10.5 * noise[0]], Rule())
        second = judge(history, [10.5 * value for value in noise], Rule())
        repeated += (first.suspect or first.verdict == "regressed") and second.verdict == "regressed"
    assert seen >= 475
    assert repeated >= 475


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


def test_pairs_at_once_are_as_certain_as_one_by_one() -> None:
    pairs = [(10.0, 10.1, 0.005, 20), (10.0, 9.0, 0.02, 3), (1.0, 1.0, 0.01, 200)]
    found = [
        judge_points([base], [head], Rule(), noise=noise, points=points).factor
        for base, head, noise, points in pairs
    ]
    bases, heads, noises, points = np.array(pairs).T
    steps = np.abs(np.log(heads / bases))
    assert point_factors(steps, noises, points.astype(int)).tolist() == pytest.approx(found)


def test_a_point_against_another_one() -> None:
    both = [
        judge_points([10.0], [], Rule(), noise=0.01, points=20),
        judge_points([], [10.0], Rule(), noise=0.01, points=20),
    ]
    assert [(found.verdict, found.baseline_n) for found in both] == [("failed", 1), ("new", 0)]
    exact = Rule(kind="deterministic", relative_floor=0.0)
    counted = judge_points([3.0, 4.0, 4.0], [5.0], exact, noise=None, points=20)
    assert (counted.verdict, counted.baseline, counted.change) == ("regressed", 4.0, 0.25)
    assert judge_points([10.0], [11.0], Rule(), noise=0.005, points=20).verdict == "regressed"
    assert judge_points([10.0] * 3, [11.0] * 3, Rule(), noise=0.005, points=2).verdict == "regressed"
    for base, points in (([10.0] * 6, 1), ([10.0, 10.0], 2)):
        few = judge_points(base, [11.0], Rule(), noise=0.005, points=points)
        assert (few.verdict, few.reason) == ("inconclusive", "few_compilations")
    # five compilations are enough: of one each, or of five in two points
    assert judge_points([10.0], [11.0], Rule(), noise=0.005, points=5).verdict == "regressed"
    assert judge_points([10.0] * 9, [20.0] * 9, Rule(), noise=0.005, points=1).verdict == "regressed"


def test_few_of_a_variant_call_only_the_certain_a_regression() -> None:
    groups = ["a"] * 10 + ["b"]
    history = [*night(10, 0.003, 10), 13.0]
    few = judge(history, [13.6], Rule(), groups=groups, group="b")
    assert (few.verdict, few.reason, few.baseline) == ("inconclusive", "few_compilations", 13.0)
    assert judge([*history, 13.01], [13.6], Rule(), groups=[*groups, "b"], group="b").verdict == "regressed"
    for count, word in ((4, "inconclusive"), (5, "regressed")):  # inside the range of all that is known
        values, names = [10.0, 10.01, 12.0, 12.01, 12.0][:count], list("aabbb")[:count]
        assert judge(values, [11.5], Rule(), groups=names, group="a").verdict == word
    assert judge(history, [20.0] * 3, Rule(), groups=groups, group="b").verdict == "regressed"


def test_the_noise_inside_variants() -> None:
    def noise(values: list[float], groups: Sequence[str | None]) -> float | None:
        return judge(values, [values[0]], Rule(prior_noise=0.07), groups=groups, group="a").noise

    step = 0.02
    logs = [-step, 0.0, step, -step, 0.0, step]
    pairs = [(10 if n < 3 else 20) * math.exp(log) for n, log in enumerate(logs)]
    assert noise(pairs, ["a"] * 3 + ["b"] * 3) == pytest.approx(step)  # 4 squares over 4 degrees
    assert noise([*pairs, 77.0], ["a"] * 3 + ["b"] * 3 + ["c"]) == pytest.approx(step)
    assert noise([*pairs, 77.0], ["a"] * 3 + ["b"] * 3 + [None]) == pytest.approx(step)
    assert noise(pairs[:5], ["a"] * 3 + ["b"] * 2) == pytest.approx(
        math.sqrt((2 * step**2 + step**2 / 2) / 3)
    )
    assert noise(pairs[:4], ["a"] * 3 + ["b"]) == 0.07  # of two degrees of freedom
    assert noise([10.0] * 8, ["a"] * 8) == 0.005
    far = [10 * math.exp(log) for log in (-0.01, 0.01, -0.01, 0.01, 0.0, 0.0, 0.9)]
    limit = 3 * 1.4826 * 0.01
    assert noise(far, ["a"] * 7) == pytest.approx(math.sqrt((4 * 0.01**2 + limit**2) / 6))


def test_what_an_exact_verdict_says() -> None:
    found = judge([2.0, 4.0], [5.0], Rule(kind="deterministic", relative_floor=0.0))
    assert (found.verdict, found.change, found.noise) == ("regressed", 0.25, 0.0)
    assert (found.factor, found.baseline, found.baseline_n) == (None, 4.0, 2)
