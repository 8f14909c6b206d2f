"""Same-choice time and regret, by kernels that an H200 measured."""

from __future__ import annotations

import pytest

from hud.judging.choices import Regret, autotune_regret, same_choice_ratios

# gather_gemv[D=4096] int8 in 14 compilations on one H200: GB/s by configuration
GATHER_GEMV = {
    "MLLLS": [2904],
    "1/1024/4": [2872],
    "4/4096/8": [2859, 2854, 2859, 2853],
    "8/4096/8": [2680, 2680],
    "8/2048/8": [2645],
    "1/2048/8": [2482],
    "1/4096/8": [2363],
    "2/2048/16": [1801, 1807, 1808],
}
DRAWS = [[("slot", choice, 16_777.0 / gbps)] for choice, seen in GATHER_GEMV.items() for gbps in seen]
# Five kernels of mobilenetv2_100 in four compilations in a row, ms: each has two levels
MOBILENET = {
    "hardtanh_11": (0.138, 0.138, 0.138, 0.215),
    "hardtanh_18": (0.104, 0.104, 0.160, 0.104),
    "hardtanh_5": (0.086, 0.054, 0.054, 0.055),
    "hardtanh_22": (0.057, 0.057, 0.085, 0.085),
    "no_training_3": (0.033, 0.054, 0.053, 0.033),
}
COMPILATIONS = [
    [
        (name, "slow" if times[place] > 1.2 * min(times) else "fast", 1000 * times[place])
        for name, times in MOBILENET.items()
    ]
    for place in range(4)
]


def test_the_regret_of_one_kernel() -> None:
    found = autotune_regret(DRAWS)
    assert found is not None
    assert found.value == pytest.approx(0.14, abs=0.02)  # of choices seen twice the best has 2856.5 GB/s
    assert 0.02 < found.value - found.spread < found.value + found.spread < 0.25
    assert (found.compilations, found.at_least) == (14, True)
    assert autotune_regret(DRAWS[:9]) is None


def test_the_regret_of_one_choice_is_none_at_all() -> None:
    times_us = {"c": 0.1, "b": 0.2, "a": 0.3}  # their sum depends on the order
    regret = autotune_regret([[(slot, "only", time_us) for slot, time_us in times_us.items()]] * 10)
    assert regret
    assert (regret.value, regret.spread) == (0.0, 0.0)


def test_the_regret_of_a_model_adds_the_best_of_each_slot_and_leaves_other_programs_out() -> None:
    other = [[("another", "fast", 1.0)]] * 20
    found = autotune_regret([*other, *(COMPILATIONS * 3)])
    assert found is not None
    assert (found.compilations, found.at_least) == (12, False)
    best = sum(1000 * min(times) for times in MOBILENET.values())
    mean = sum(1000 * sum(times) / 4 for times in MOBILENET.values())
    assert found.value == pytest.approx(1 - best / mean, abs=0.003)


def test_the_same_choices_take_the_same_time_and_slower_code_shows_under_any_draw() -> None:
    totals = [sum(time for _slot, _choice, time in drawn) for drawn in COMPILATIONS]
    assert max(totals) / min(totals) > 1.15
    assert same_choice_ratios(COMPILATIONS, COMPILATIONS) == pytest.approx([1] * 4, abs=0.01)
    slower = [[(slot, choice, 1.03 * time) for slot, choice, time in drawn] for drawn in COMPILATIONS]
    assert same_choice_ratios(COMPILATIONS, slower) == pytest.approx([1.03] * 4, abs=0.01)


def test_the_medians_stay_when_the_code_gets_slower_for_good() -> None:
    slower = [[("slot", "choice", 12.0)]] * 200
    assert same_choice_ratios([[("slot", "choice", 10.0)]] * 15 + slower, slower[:1]) == [1.2]


def test_choices_that_are_not_known_leave_no_ratio_where_they_take_most_of_the_time() -> None:
    history = [[("a", "x", 1.0), ("b", "x", 2.0)]]
    own = [[("a", "x", 7.0), ("c", "x", 3.0)], [("a", "x", 6.9), ("c", "x", 3.1)], []]
    assert same_choice_ratios(history, own) == [7.0, None, None]
    assert same_choice_ratios([], own) == [None, None, None]


def test_slower_code_at_one_choice_is_no_bad_luck() -> None:
    before, after = ([[("a", "x", us), ("b", "x", 5.0)]] for us in (10.0, 12.0))
    found = autotune_regret([*before * 30, *after * 10])
    assert found is not None
    assert (found.value, found.spread) == pytest.approx((0.0, 0.0), abs=1e-12)


def test_choices_seen_once_leave_a_regret_open_where_they_are_more_than_a_tenth() -> None:
    def regret(times: list[tuple[str, float]]) -> Regret | None:
        return autotune_regret([[("slot", choice, us)] for choice, us in times])

    usual = [("a", 10.0)] * 9
    found = regret([*usual, ("once", 5.0)])
    assert found is not None
    assert (found.at_least, found.value) == (False, 0.0)  # a tenth, and its time is of no choice seen twice
    more = regret([*usual[:8], ("once", 5.0), ("again", 5.0)])
    assert more is not None
    assert more.at_least
    twice = regret([*usual[:8], ("b", 5.0), ("b", 5.0)])
    assert twice is not None
    assert twice.value == pytest.approx(1 - 5 / 9)
    never = regret([(str(number), 10.0 + number) for number in range(10)])
    assert never is not None
    assert never.value == 0.0
    assert regret([]) is regret(usual) is None
    nothing = regret([("a", 0.0)] * 10)
    assert nothing is not None
    assert (nothing.value, nothing.spread) == (0.0, 0.0)
    short = regret([("a", 0.25)] * 10)
    assert short is not None
    assert short.value == 0.0
    small = regret([("a", 0.5)] * 5 + [("b", 1.0)] * 5)
    assert small is not None
    assert small.value == pytest.approx(1 / 3)


def test_a_median_is_of_the_first_twenty() -> None:
    history = [[("slot", "a", 10.0)]] * 10 + [[("slot", "a", 12.0)]] * 10 + [[("slot", "a", 12.0)]] * 5
    assert same_choice_ratios(history, [[("slot", "a", 11.0)]]) == [1.0]
    assert same_choice_ratios([[("slot", "a", 0.5)]], [[("slot", "a", 0.5), ("no", "b", 0.0)]]) == [1.0]
