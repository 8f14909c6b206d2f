"""Autotune regret: the mean compilation against the best choices seen twice."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hud.judging.regret import autotune_regret, saving_us


@dataclass
class Seen:
    slot: str
    n: int
    median_us: float
    only_in: int | None = None


def test_the_best_choice_is_one_seen_twice() -> None:
    choices = [
        Seen("mm", 8, 100.0),
        Seen("mm", 3, 150.0),
        Seen("mm", 1, 50.0, only_in=4),
        Seen("add", 12, 20.0),
    ]
    totals = [120.0] * 8 + [170.0] * 3 + [70.0]
    found = autotune_regret(totals, choices)
    assert found
    mean = sum(totals) / 12
    assert found.value == pytest.approx(1 - 120.0 / mean, abs=0.05)
    assert saving_us(choices[:3], 12) == pytest.approx((3 * 50.0 - 50.0) / 12)
    assert found.low <= found.value <= found.high
    assert not found.at_least  # one of twelve compilations


def test_unlike_draws_need_ten_compilations_and_may_be_a_lower_bound() -> None:
    choices = [Seen("mm", 1, 100.0 + place, only_in=place) for place in range(10)]
    assert autotune_regret([100.0] * 9, choices[:9]) is None
    found = autotune_regret([100.0 + place for place in range(10)], choices)
    assert found
    assert found.at_least
    assert found.value == pytest.approx(0.0)


def test_the_measured_kernel_loses_a_sixth() -> None:
    """gather_gemv int8, D=4096, on one H200: fourteen compilations, eight kernels (2026-11-22)."""
    gbps = [2904, 2872, 2859, 2854, 2859, 2853, 2680, 2680, 2645, 2482, 2363, 1801, 1807, 1808]
    groups = [
        [2904],
        [2872],
        [2859, 2854, 2859, 2853],
        [2680, 2680],
        [2645],
        [2482],
        [2363],
        [1801, 1807, 1808],
    ]
    work = 1e6
    times = [work / rate for rate in gbps]
    choices = [
        Seen("mv", len(group), work / group[len(group) // 2], None if len(group) > 1 else place)
        for place, group in enumerate(groups)
    ]
    found = autotune_regret(times, choices)
    assert found
    assert found.value == pytest.approx(0.14, abs=0.02)
    assert found.at_least
