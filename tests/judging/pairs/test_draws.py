"""A/B comparisons at equal choices: the draw is the unit, stops keep the error rate, power is told."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import chain

import pytest

from runner.schema import draws as rules
from runner.schema.draws import (
    ChoiceNoise,
    Draw,
    Looks,
    Side,
    answer_of,
    choice_noise,
    code_change,
    comparison_processes,
    detects_percent,
    draws_of,
    draws_to_decide,
    enough,
    outliers,
    pinned_repeat,
    power,
    power_words,
)
from runner.schema.statistics import PAIR_ALPHA, PAIR_FLOOR, student_p, student_t, t_test
from tests.judging.simulation import Noisy


def at_ratios(base: Sequence[float], head: Sequence[float]) -> list[Draw]:
    """Return draws with these ratios, of the baseline and of the candidate."""
    own = [Draw(number, "base", 2.0, 2.0 * ratio) for number, ratio in enumerate(base)]
    return [*own, *(Draw(number, "new", 3.0, 3.0 * ratio) for number, ratio in enumerate(head))]


@pytest.mark.parametrize(("p", "degrees", "t"), [(0.05, 1, 12.706), (0.05, 30, 2.042), (0.005, 4, 5.598)])
def test_the_quantile_is_students(p: float, degrees: int, t: float) -> None:
    assert student_t(p, degrees) == pytest.approx(t, abs=5e-4)
    assert student_p(student_t(p, degrees), degrees) == pytest.approx(p)


def test_a_draw_averages_its_processes_geometrically() -> None:
    first, second = (pinned_repeat(5, number, repeated=False) for number in range(2))
    (draw,) = draws_of([(5, 0, first, 1.0), (5, 0, second, 4.0), (5, 1, first, 3.0)])
    assert (draw.number, draw.owner) == (5, "new")
    assert [draw.base, draw.head] == pytest.approx([2.0, 3.0])
    assert draw.log_ratio == pytest.approx(math.log(1.5))


def test_draws_are_made_of_the_processes_that_both_sides_have() -> None:
    first, second, again = (
        pinned_repeat(3, number, repeated=repeated)
        for number, repeated in ((0, False), (1, False), (0, True))
    )
    candidate = 5000
    made = draws_of([
        (3, 0, first, 2.0), (3, 0, second, 8.0), (3, 1, again, 1.0), (3, 1, first, 50.0),
        (3, 1, second, 4.0), (3, 1, candidate, 9.0), (2, 0, first, 1.0), (2, 1, first, 0.5),
        (5, 0, first, 1.0), (6, 0, first, 1.0), (6, 1, first, None), (7, 0, first, 0.0), (7, 1, first, 1.0),
    ])  # fmt: skip
    assert [(draw.number, draw.owner) for draw in made] == [(2, "base"), (3, "new")]
    assert [(draw.base, draw.head) for draw in made] == [(1.0, 0.5), pytest.approx((4.0, 2.0))]


def test_equal_numbers_of_draws_are_one_t_test_over_all() -> None:
    base, head = [1.031, 1.027, 1.034], [1.029, 1.036, 1.030]
    found = code_change(at_ratios(base, head))
    logs = [*map(math.log, base), *map(math.log, head)]
    assert found.ratio == pytest.approx(math.exp(sum(logs) / 6))
    low, high, p = t_test(logs)
    assert [found.low, found.high] == pytest.approx([math.exp(low), math.exp(high)])
    assert found.p == pytest.approx(p)
    assert (found.word, found.draws) == ("confirmed", (3, 3))


def test_the_owners_count_alike_however_many_draws_they_have() -> None:
    """The baseline's choice got 1 % slower, the candidate's as much faster: nothing is lost."""
    found = code_change(at_ratios([1.0094, 1.0096] * 4, [1 / 1.0094, 1 / 1.0096] * 2))
    assert found.ratio == pytest.approx(1.0, abs=1e-6)
    assert [found.at_base, found.at_head] == pytest.approx([1.0095, 1 / 1.0095])
    assert found.word == "dismissed"


def test_a_choice_that_got_worse_where_another_got_better_is_no_answer_on_the_code() -> None:
    found = code_change(at_ratios([1.029, 1.030, 1.031], [0.999, 1.0, 1.001]))
    assert found.word == "moved"
    assert found.at_base == pytest.approx(1.03)
    assert found.at_head == pytest.approx(1.0)
    assert code_change(at_ratios([1.019, 1.018, 1.017], [0.999, 1.0, 1.001])).word == "dismissed"


def test_code_that_is_slower_at_the_draws_of_both_owners_is_slower_whichever_choice_is_best() -> None:
    """layer_norm on an H200 without `triton.divisible_by_16`."""
    worse = code_change(at_ratios([1.32, 1.321, 1.322], [1.48, 1.481, 1.482]))
    assert worse.word == "confirmed"
    assert worse.at_base == pytest.approx(1.321)
    better = code_change(at_ratios([1 / 1.32, 1 / 1.321, 1 / 1.322], [1 / 1.48, 1 / 1.481, 1 / 1.482]))
    assert better.word == "confirmed"
    assert code_change(at_ratios([1.03, 1.031, 1.032], [0.97, 0.971, 0.972])).word == "moved"


def test_a_change_that_depends_on_the_choice_is_one_if_every_draw_shows_it() -> None:
    """gather_gemv on an H200, with every sixth row read twice: how much that costs depends on the choice."""
    base, head = [1.402, 2.857, 1.397], [1.372, 1.273, 1.465]
    assert code_change(at_ratios(base, head)).word == "confirmed"
    assert (
        code_change(at_ratios([1 / ratio for ratio in base], [1 / ratio for ratio in head])).word
        == "confirmed"
    )
    assert code_change(at_ratios(base, [1.372, 1.049, 1.465])).word == "inconclusive"


@pytest.mark.parametrize("most", [None, 24])
def test_unequal_numbers_of_draws_have_their_own_errors(most: int | None) -> None:
    step = 0.01
    base = [-step, 0.0, step]
    looks, error = Looks(7, most), math.sqrt(4 * step**2 / 5 * (1 / 3 + 1 / 4))
    apart = looks.limit(5, PAIR_ALPHA) * error
    for factor, is_moved in ((0.99, False), (1.01, True)):
        middle = factor * apart
        head = [middle - step, middle, middle + step, middle]
        found = code_change(at_ratios([*map(math.exp, base)], [*map(math.exp, head)]), most)
        assert (found.word == "moved") is is_moved
        total = sum((log - middle / 2) ** 2 for log in (*base, *head))
        own = math.sqrt(total / 6 * (1 / 3 + 1 / 4)) / 2
        assert found.p == pytest.approx(looks.p(middle / 2, own, 6))
        assert found.high == pytest.approx(math.exp(middle / 2 + looks.limit(6) * own))


@pytest.mark.simulation
def test_noise_alone_is_no_best_choice_that_moved() -> None:
    chance = random.Random(1)
    for noise in (0.002, 0.02, 0.05, 0.15):
        words = [
            code_change(chain.from_iterable(Noisy(noise).round(n, 0.03, chance) for n in (0, 2, 4))).word
            for _ in range(1000)
        ]
        assert words.count("moved") <= 10


def test_the_floor_is_two_percent_of_the_change_itself() -> None:
    assert PAIR_FLOOR == 0.02
    for ratio, word in (
        (1.019, "dismissed"),
        (1.0205, "confirmed"),
        (1 / 1.019, "dismissed"),
        (0.98, "confirmed"),
    ):
        exact = [ratio * factor for factor in (0.9999, 1.0, 1.0001)]
        assert code_change(at_ratios(exact, exact)).word == word
    # significant, and the interval reaches past the floor; the change itself does not
    small = code_change(at_ratios([1.016, 1.018, 1.020], [1.015, 1.018, 1.024]))
    assert small.p is not None
    assert small.high is not None
    assert small.p <= PAIR_ALPHA
    assert small.high > 1.02
    assert small.word == "inconclusive"


def test_a_p_above_the_limit_confirms_nothing() -> None:
    assert PAIR_ALPHA == 0.005
    wide = [1.02, 1.05, 1.085]
    found = code_change(at_ratios(wide, [1.02, 1.06, 1.07]))
    assert found.p is not None
    assert 0.002 < found.p < PAIR_ALPHA
    assert found.word == "confirmed"
    wider = code_change(at_ratios([1.01, 1.05, 1.09], [1.02, 1.06, 1.07]))
    assert wider.p is not None
    assert PAIR_ALPHA < wider.p < 0.02
    assert wider.word == "inconclusive"


def test_each_side_needs_three_draws() -> None:
    assert rules.LEAST_DRAWS == 3
    exact = [1.05, 1.0501, 1.0502, 1.05]
    assert code_change(at_ratios(exact[:3], exact[:3])).word == "confirmed"
    for base, head in ((2, 4), (4, 2), (1, 4), (0, 4), (0, 0)):
        found = code_change(at_ratios(exact[:base], exact[:head]))
        assert (found.word, found.draws) == ("inconclusive", (base, head))
        assert (found.ratio is not None) == (base > 1)
        assert (found.at_base is not None, found.at_head is not None) == (base > 0, head > 0)


def test_equal_values_have_an_answer() -> None:
    same = code_change(at_ratios([1.0] * 3, [1.0] * 3))
    assert (same.word, same.p, same.low, same.high) == ("dismissed", 1.0, 1.0, 1.0)
    other = code_change([Draw(n, owner, 1.0, 2.0) for owner in ("base", "new") for n in range(3)])
    assert (other.word, other.p) == ("confirmed", 0.0)
    huge = code_change([Draw(n, owner, 1e-300, 1e300) for owner in ("base", "new") for n in range(3)])
    assert huge.ratio is not None
    assert math.isfinite(huge.ratio)


# Early stops


def test_a_single_look_asks_for_nothing_more() -> None:
    least = 2 * rules.LEAST_DRAWS
    for looks in (Looks(6, None), Looks(40, None), Looks(least, least)):
        assert looks.factor == 1.0
        assert looks.limit(9) == student_t(rules.INTERVAL_ALPHA, 9)
        assert looks.p(1.0, 0.25, 9) == student_p(4.0, 9)
    assert rules.INTERVAL_ALPHA == 0.05


def test_early_looks_are_stricter_than_late_ones() -> None:
    assert rules.LOOKS_FACTOR == 1.08
    factors = [Looks(count, 24).factor for count in range(6, 28, 2)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] == pytest.approx(1.08 * 2)
    assert factors[-1] == factors[-2] == pytest.approx(1.08)
    p = [Looks(count, 24).p(1.0, 0.2, 5) for count in (6, 12, 24)]
    assert p == sorted(p, reverse=True)
    assert p[-1] > student_p(5.0, 5)
    assert 0.0 < Looks(6, 40).p(1.0, 1e-9, 5) < PAIR_ALPHA
    assert (Looks(6, 24).p(0.0, 0.0, 5), Looks(6, 24).p(1.0, 0.0, 5)) == (1.0, 0.0)


def test_a_clear_answer_ends_a_comparison_and_an_unclear_one_goes_on_to_the_end() -> None:
    clear, none = at_ratios([1.1, 1.101, 1.099], [1.1, 1.101, 1.099]), at_ratios([1.0] * 3, [1.0] * 3)
    unclear = at_ratios([1.0, 1.03, 0.98], [1.05, 0.99, 1.01])
    assert enough(clear, 10)
    assert enough(none, 10)
    assert not enough(unclear, 10)
    assert enough(unclear, 6)
    assert not enough(clear[:5], 10)
    early = at_ratios([1.02, 1.05, 1.085], [1.02, 1.06, 1.07])  # clear at a single look only
    assert (code_change(early).word, code_change(early, 10).word) == ("confirmed", "inconclusive")
    assert not enough(early, 10)


@pytest.mark.simulation
@pytest.mark.parametrize("most", [10, 24])
@pytest.mark.parametrize("noise", [0.002, 0.02, 0.05, 0.15])
def test_at_no_change_a_comparison_that_may_stop_confirms_in_one_percent(noise: float, most: int) -> None:
    limit = 0.01
    assert Noisy(noise).shares(0.0, most, 500)["confirmed"] <= limit
    assert Noisy(noise, slow_share=0.05).shares(0.0, most, 500)["confirmed"] <= limit
    for apart in (0.015, 0.03, 0.2):  # the best choices of both sides differ, and nothing is lost
        assert Noisy(noise, apart=apart).shares(0.0, most, 300)["confirmed"] <= limit


@pytest.mark.simulation
@pytest.mark.parametrize("noise", [0.001, 0.004, 0.007, 0.0099])
def test_below_one_percent_of_noise_the_plan_finds_three_percent_and_dismisses_one(noise: float) -> None:
    most = draws_to_decide(noise)
    assert most <= 2 * 14
    assert Noisy(noise).shares(0.03, most, 400)["confirmed"] >= rules.SURE
    assert Noisy(noise).shares(0.01, most, 400)["dismissed"] >= rules.SURE_OF_NOTHING
    assert Noisy(noise).shares(0.0, most, 400)["confirmed"] == 0.0


@pytest.mark.simulation
def test_slow_processes_cost_little_power() -> None:
    slow = Noisy(0.002, slow_share=0.05)
    assert slow.shares(0.03, 24, 300)["confirmed"] >= 0.9
    assert slow.shares(0.0, 24, 300)["dismissed"] >= 0.9


@pytest.mark.soak
@pytest.mark.parametrize("most", [6, 10, 24, 40])
@pytest.mark.parametrize("noise", [0.002, 0.02, 0.05, 0.15])
def test_error_rates_at_full_numbers(noise: float, most: int) -> None:
    cases = [
        Noisy(noise),
        Noisy(noise, slow_share=0.05),
        *(Noisy(noise, apart=x) for x in (0.015, 0.03, 0.2)),
    ]
    for case in cases:
        confirmed = case.shares(0.0, most, 2_000)["confirmed"]
        print(case, most, confirmed)
        assert confirmed <= 0.01


# Outliers


def far(base: Sequence[float], new: Sequence[float] = (), owner: Side = "base") -> list[int]:
    """Return the outliers among processes of the baseline and of the candidate with one side's choices."""
    sides: list[tuple[Side, float]] = [*(("base", x) for x in base), *(("new", x) for x in new)]
    return outliers([(owner, side, value) for side, value in sides])


def test_a_process_far_from_the_others_of_its_choice_is_repeated() -> None:
    assert rules.OUTLIER == 0.05
    assert far([1.0, 1.051, 1.0]) == [1]
    assert far([1.0, 1.049, 1.0]) == []
    assert far([1.0, 1 / 1.051], [1.0]) == [1]
    assert far([700.0], [740.0, 702.0, 701.0]) == [1]
    assert outliers([("base", "base", 1.0), ("new", "new", 2.0)]) == outliers([]) == []
    two_choices = outliers(
        [("base", "base", 1.0), ("new", "base", 2.0), ("base", "new", 1.0), ("new", "new", 2.2)]
    )
    assert two_choices == [1, 3], "of two, either may be slow"


ROUND: list[tuple[Side, Side]] = [("base", "base"), ("base", "base"), ("base", "new")]
ROUND += [("new", "new"), ("new", "new"), ("new", "base")]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("times", "repeated"),  # of ROUND
    [
        ((1.0, 1.04, 1.42, 1.7, 1.7, 1.2), 0),  # the code is slower at the choices of both
        ((1.0, 1.0, 1.051, 1.06, 1.06, 1.0), 0),
        ((1.0, 1.0, 1.049, 1.06, 1.06, 1.0), 1),  # at those of one side alone
        ((1.0, 1.0, 1.2, 1.0, 1.0, 1.2), 4),  # one slow process of each side
        ((1.0, 1.06, 1.42, 1.7, 1.7, 1.2), 4),  # a slow process, with slower code
        ((1.0, 1.0, 1.42, 1.7, 1.6, 1.2), 4),
    ],
)
def test_a_change_of_the_code_repeats_no_process_whichever_side_is_slower(
    times: tuple[float, ...], repeated: int, turned: bool
) -> None:
    """The second of a choice's two equal processes is the free one, which is never repeated."""
    other: dict[Side, Side] = {"base": "new", "new": "base"}
    places = [(other[owner], other[side]) if turned else (owner, side) for owner, side in ROUND]
    found = outliers([(*place, value) for place, value in zip(places, times, strict=True)])
    assert len([number for number in found if number not in (1, 4)]) == repeated


def test_the_order_of_processes_changes_no_outlier() -> None:
    chance = random.Random(3)
    sides: tuple[Side, Side] = ("base", "new")
    processes = [
        (chance.choice(sides), chance.choice(sides), math.exp(chance.gauss(0, 0.05))) for _ in range(30)
    ]
    places = set(outliers(processes))
    assert places
    for _ in range(20):
        order = chance.sample(range(30), 30)
        assert {order[place] for place in outliers([processes[place] for place in order])} == places


# Power


def test_a_number_that_may_not_decide_has_no_part_in_the_answer() -> None:
    def process(draw: int, side: int, value: float, quality: str = "") -> tuple[int, int, int, float, str]:
        return draw, side, pinned_repeat(draw, 0, repeated=False), value, quality

    clear = [process(draw, side, 1 + 0.1 * side + 0.001 * draw) for draw in range(6) for side in (0, 1)]
    busy = [process(6, 0, 1.0, "busy_cpu"), process(6, 1, 5.0)]
    draws, code = answer_of([*busy, *clear])
    assert [draw.number for draw in draws] == [0, 1, 2, 3, 4, 5]
    assert (code, code.word) == (code_change(draws), "confirmed")
    assert answer_of(iter([*clear, *busy]), 20) == (draws, code_change(draws, 20))
    shown, undecided = answer_of([(*one[:4], "throttled") for one in clear])  # none may decide
    assert shown == draws
    assert (undecided.word, undecided.draws, undecided.ratio) == ("inconclusive", (0, 0), None)


def test_the_noise_is_that_of_processes_that_repeat_a_choice() -> None:
    assert rules.LEAST_REPEATS == 2
    assert choice_noise([[1.0], [5.0]]) == ChoiceNoise(rules.ASSUMED_NOISE)
    assert choice_noise([]).assumed
    assert rules.ASSUMED_NOISE == 0.01
    found = choice_noise(
        [[math.exp(0.01), math.exp(-0.01)], [3.0], [7 * math.exp(0.02), 7.0, 7 * math.exp(-0.02)]]
    )
    assert found.noise == pytest.approx(math.sqrt((2 * 0.01**2 + 2 * 0.02**2) / 3))
    assert (found.processes, found.degrees, found.assumed) == (5, 3, False)


@pytest.mark.simulation
@pytest.mark.parametrize(("noise", "count"), [(0.004, 6), (0.009, 6), (0.009, 10), (0.02, 24)])
@pytest.mark.parametrize("effect", [0.0, 0.01, 0.03, -0.03])
def test_the_power_is_that_of_simulated_comparisons(noise: float, count: int, effect: float) -> None:
    chance = random.Random(f"{noise} {count} {effect}")
    words = []
    for _ in range(1500):
        draws = []
        for number in range(count):
            base, head = (math.exp(chance.gauss(0, noise)) for _side in range(2))
            draws.append(Draw(number, "base" if number % 2 else "new", base, head * (1 + effect)))
        words.append(code_change(draws).word)
    expected = power(noise, count, effect)
    assert words.count("confirmed") / 1500 == pytest.approx(expected.confirmed, abs=0.035)
    assert words.count("dismissed") / 1500 == pytest.approx(expected.dismissed, abs=0.035)


def test_power_grows_with_draws_and_repeats_and_falls_with_noise_and_looks() -> None:
    usual = power(0.009, 8, 0.03).confirmed
    assert usual < power(0.009, 10, 0.03).confirmed
    assert usual > power(0.01, 8, 0.03).confirmed
    assert usual > power(0.009, 8, 0.03, most=8).confirmed
    assert power(0.009, 8, 0.03, repeats=2) == power(0.009 / math.sqrt(2), 8, 0.03)
    for effect, confirmed in ((0.0, 0.0), (0.02, 0.0), (0.021, 1.0)):
        assert power(0.0, 6, effect).confirmed == confirmed == 1 - power(0.0, 6, effect).dismissed


def test_power_is_said_with_its_time_and_where_the_noise_is_assumed() -> None:
    known, assumed = ChoiceNoise(0.005, 4, 3), ChoiceNoise()
    assert power_words(known, 6, process_s=12.0) == "6 draws find 2.5 % in 95 %, about 4 min"
    assert power_words(known, 6, 2, process_s=1.0) == "6 draws find 2.3 % in 95 %, about 1 min"
    assert power_words(assumed, 10) == "10 draws find 2.8 % in 95 %, noise assumed"
    assert (comparison_processes(6), comparison_processes(6, 2)) == (20, 32)


def test_plans_say_what_they_find() -> None:
    assert (rules.SURE, rules.SURE_OF_NOTHING, rules.FOUND, rules.NOTHING) == (0.95, 0.9, 0.03, 0.01)
    assert draws_to_decide(0.5) == rules.MOST_DRAWS == 400
    decided = draws_to_decide(0.009)
    assert (
        power(0.009, decided, 0.01, decided).dismissed
        >= 0.9
        > power(0.009, decided - 2, 0.01, decided - 2).dismissed
    )
    found = detects_percent(0.009, 6)
    assert power(0.009, 6, found / 100).confirmed == pytest.approx(0.95, abs=1e-4)
    assert detects_percent(0.009, 6, repeats=4) < found
    assert detects_percent(0.3, 6) > 100
