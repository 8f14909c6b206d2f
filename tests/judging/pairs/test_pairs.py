"""Two environments measured in turn: the statistics of pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from hud.judging import choices
from hud.judging.pairs import (
    compare_kernels,
    judge_pairs,
)
from runner.schema.compilations import (
    ONE_SIDED,
    OTHER_CANDIDATES,
    SEARCHES_ON,
    UNSEEN_CHOICE,
    Kernels,
    TimedChoice,
    draw_obstacle,
    shown_word,
)
from runner.schema.draws import Draw, Side, choice_noise, code_change
from runner.schema.statistics import (
    PAIR_ALPHA,
    geometric_mean,
    paired_change,
    student_p,
    t_test,
    welch,
)


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
        found = paired_change(pairs, is_exact=True)  # by the pairs alone
        assert found.low is not None
        assert found.high is not None
        assert found.p is not None
        if abs(found.p - 0.05) > 1e-4:
            assert (found.low > 0 or found.high < 0) == (found.p < 0.05)
        assert (found.low, found.high) == t_test(found.ratios)[:2]


def words(change: float, pairs: int, *, noise: float = 0.01) -> dict[str, float]:
    """Shares of the words over 400 simulated runs; each process has noise of its own."""
    chance = random.Random(pairs)
    found = {"confirmed": 0.0, "dismissed": 0.0, "inconclusive": 0.0}
    for _ in range(400):
        base = [math.exp(chance.gauss(0, noise)) for _ in range(pairs)]
        new = [(1 + change) * math.exp(chance.gauss(0, noise)) for _ in range(pairs)]
        found[judge_pairs(base, new, direction="down").change.word] += 1 / 400
    return found


@pytest.mark.simulation
def test_five_pairs_tell_five_percent_apart() -> None:
    assert words(0.05, 5)["confirmed"] > 0.94
    assert words(-0.05, 5)["confirmed"] > 0.94
    assert words(0.02, 12)["confirmed"] > 0.87


@pytest.mark.simulation
def test_nothing_is_confirmed_where_nothing_changed() -> None:
    for count in (5, 8, 12):
        assert words(0.0, count)["confirmed"] <= 0.005
    assert words(0.0, 12)["dismissed"] > 0.9
    assert words(0.0, 4) == {"confirmed": 0.0, "dismissed": 0.0, "inconclusive": pytest.approx(1.0)}


def test_the_direction_says_what_is_better() -> None:
    slower = [1.05, 1.06, 1.05, 1.04, 1.05]
    assert judge_pairs([1.0] * 5, slower, direction="down").better is False
    assert judge_pairs([1.0] * 5, slower, direction="up").better is True
    assert judge_pairs([1.0] * 5, slower, direction="none").better is None
    assert judge_pairs(slower, slower, direction="up").change.word == "dismissed"


def test_any_change_of_a_count_is_confirmed() -> None:
    assert (
        judge_pairs([100.0] * 5, [101.0] * 5, direction="down", kind="deterministic").change.word
        == "confirmed"
    )
    assert (
        judge_pairs([0.0] * 5, [0.0] * 5, direction="down", kind="deterministic").change.word == "dismissed"
    )
    assert judge_pairs([0.0] * 5, [1.0] * 5, direction="down", kind="deterministic").change.change is None


def test_base_new_and_change_are_consistent() -> None:
    """Their medians rise, and the change over the pairs is a fall."""
    base, new = [1.044, 1.0, 1.1, 8.0, 1.04], [1.111, 1.1, 1.2, 1.3, 1.1]
    found = judge_pairs(base, new, direction="up")
    assert found.base is not None
    assert found.head is not None
    assert found.head / found.base - 1 == pytest.approx(found.change.change)
    counted = judge_pairs([5.0] * 3, [0.0] * 3, direction="none", kind="deterministic")
    assert (counted.base, counted.head) == (5.0, 0.0)


def test_a_side_without_a_value_makes_no_pair() -> None:
    found = judge_pairs([1.0, 2.0, None], [1.0, None, 3.0], direction="down")
    assert (found.pairs, found.change.word, found.base, found.head) == (1, "inconclusive", 1.0, 1.0)
    alone = judge_pairs([1.0, 2.0], [None, None], direction="down")
    assert (alone.pairs, alone.base, alone.head) == (0, 1.5, None)
    other = judge_pairs([None, None], [1.0, 2.0], direction="down")
    assert (other.change.word, other.base, other.head, other.better) == ("inconclusive", None, 1.5, None)
    with pytest.raises(ValueError, match="zip"):
        judge_pairs([1.0], [1.0, 2.0], direction="down")
    none = judge_pairs([0.0] * 5, [1.0] * 5, direction="down")
    assert (none.change.change, none.change.word) == (None, "inconclusive")
    assert judge_pairs([1.0], [None], direction="down").change.ratios == ()


# Kernels

BLOCKS = frozenset({"slow", "fast"})


def compilations(
    chance: random.Random, count: int, *, slower: float = 1.0, slow_share: float = 0.4
) -> list[dict[str, TimedChoice]]:
    """Return the kernels of a model in which each of 40 slots draws one of two choices 1.5 times apart."""
    drawn = []
    for _ in range(count):
        kernels = {}
        for slot in range(40):
            slow = chance.random() < slow_share
            us = (10 + slot) * (1.5 if slow else 1.0) * slower * math.exp(chance.gauss(0, 0.005))
            kernels[f"slot {slot}"] = TimedChoice("slow" if slow else "fast", us, BLOCKS)
        drawn.append(kernels)
    return drawn


def one(choice: str, time_us: float, offered: Iterable[str] | None = "ab", slot: str = "s") -> Kernels:
    """Return the kernels of a process that has one."""
    return {slot: TimedChoice(choice, time_us, None if offered is None else frozenset(offered))}


def draws(ratio: float) -> list[Draw]:
    owners: list[Side] = ["base", "new"]
    return [Draw(n, owners[n % 2], 1.0, ratio * (1 + 0.001 * (n % 3))) for n in range(6)]


def test_the_code_is_judged_by_draws_alone() -> None:
    chance = random.Random(2)
    base, head = compilations(chance, 5), compilations(chance, 5, slower=1.03)
    found = compare_kernels(base, head, draws=draws(1.03))
    assert found.code == code_change(draws(1.03))
    assert (found.code.word, found.choice.word == "confirmed") == ("confirmed", False)
    assert compare_kernels(base, head).code.word == "inconclusive"
    assert compare_kernels(base, head, draws=draws(1.03), most=10).code == code_change(draws(1.03), 10)
    apart = [replace(draw, head=draw.head * (1.03 if draw.owner == "new" else 1.0)) for draw in draws(1.0)]
    assert compare_kernels(base, head, draws=apart).code.word == "moved"


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_side_that_no_longer_searches_on_has_lost_what_was_found_by_searching(is_swapped: bool) -> None:
    """gather_gemv int8 on an H200: three draws of each side, with coordinate descent and without."""
    start, best = "R0_BLOCK=2048 num_warps=16", "R0_BLOCK=4096 num_warps=8"
    searching, alone = {start, SEARCHES_ON}, {start}
    base = [one(best, time_us, searching) for time_us in (11.968, 11.935, 12.032)]
    head = [one(start, time_us, alone) for time_us in (23.04, 23.36, 23.424)]
    timed = [
        (one(choice, us, searching), one(choice, us, alone)) for choice, us in ((best, 12.0), (start, 23.2))
    ] * 3
    if is_swapped:
        base, head, timed = head, base, [(new, old) for old, new in timed]
    change = choices.choice_change(base, head, timed)
    assert (change.same_candidates, change.word, change.worse) == (False, "confirmed", not is_swapped)
    assert change.best_ratio == pytest.approx(12.0 / 23.2 if is_swapped else 23.2 / 12.0, rel=0.02)
    assert (change.differing_candidates, change.untimed) == (1, 0), "a search is no configuration to time"
    both = {one["s"].choice: replace(one["s"], offered=frozenset(searching)) for one in (*base, *head)}
    alike = [[{"s": both[one["s"].choice]} for one in side] for side in (base, head)]
    assert (
        choices.choice_change(alike[0], alike[1], timed).word == "inconclusive"
    )  # three draws may all miss it


def test_choices_that_come_more_often_are_told() -> None:
    chance = random.Random(3)
    found = compare_kernels(compilations(chance, 7), compilations(chance, 7, slow_share=0.8)).choice
    assert (found.frequencies, found.same_candidates, found.differing) == ("yes", True, ())
    assert found.ratio == pytest.approx(1.17, abs=0.05)  # 20 % more would be 1.4 / 1.2
    assert (found.word, found.worse) == ("confirmed", True)
    assert found.p is not None
    assert found.p <= PAIR_ALPHA
    better = compare_kernels(compilations(chance, 7, slow_share=0.8), compilations(chance, 7)).choice
    assert (better.word, better.worse) == ("confirmed", False)
    assert (
        compare_kernels(compilations(chance, 3), compilations(chance, 3)).choice.frequencies == "cannot_tell"
    )


def test_choices_come_as_often_only_where_many_say_so() -> None:
    assert (choices._ENOUGH, choices._ALIKE_P) == (20, 0.1)
    alike = [one("ab"[n % 2], 1.0) for n in range(20)]
    assert compare_kernels(alike, alike).choice.frequencies == "no"
    assert compare_kernels(alike, alike[:19]).choice.frequencies == "cannot_tell"
    unlike = [one("ab"[n % 20 >= 14], 1.0) for n in range(20)]
    found = compare_kernels([one("ab"[n % 20 >= 9], 1.0) for n in range(20)], unlike).choice
    assert found.frequencies_p is not None
    assert found.frequencies_p > PAIR_ALPHA
    assert (found.frequencies == "no") == (found.frequencies_p > 0.1)


def test_the_p_of_exchanged_draws_is_exact_where_they_are_few() -> None:
    assert choices._SHUFFLES == 4000
    found = compare_kernels([one("a", 1.0)] * 3, [one("b", 1.0)] * 3).choice
    assert found.frequencies_p == pytest.approx(2 / math.comb(6, 3))
    many = compare_kernels([one("a", 1.0)] * 8, [one("b", 1.1)] * 8).choice  # 12,870 exchanges: a sample
    assert many.frequencies_p is not None
    assert 1 / 4001 <= many.frequencies_p <= 5 / 4001
    assert many == compare_kernels([one("a", 1.0)] * 8, [one("b", 1.1)] * 8).choice


def test_equal_draws_of_equal_candidates_are_no_change_of_choice() -> None:
    found = compare_kernels([one("a", 1.0)] * 3, [one("a", 1.3)] * 3).choice
    assert (found.word, found.ratio, found.low, found.high, found.p) == ("dismissed", 1.0, 1.0, 1.0, 1.0)
    unknown = compare_kernels([one("a", 1.0, None)] * 3, [one("a", 1.3, None)] * 3).choice
    assert (unknown.same_candidates, unknown.word) == (None, "inconclusive")
    library = compare_kernels([one("", 1.0, "")] * 3, [one("", 1.0, "")] * 3).choice
    assert (library.same_candidates, library.word) == (True, "dismissed")
    half = compare_kernels([one("a", 1.0), one("a", 1.0, None)], [one("a", 1.0)] * 2).choice
    assert half.same_candidates is None
    assert compare_kernels([one("a", 1.0)], [one("a", 1.0)] * 2).choice.ratio is None


def test_a_side_that_lost_its_best_choice_is_worse() -> None:
    base = [one("a", 1.0), one("b", 1.2), one("b", 1.21)]
    head = [one("b", 1.2, "b"), one("b", 1.19, "b"), one("b", 1.2, "b")]
    found = compare_kernels(base, head, pinned=[(one("a", 1.01), one("a", 1.01, "b"))])
    assert (found.choice.same_candidates, found.choice.differing) == (False, ("s",))
    assert found.choice.best_ratio == pytest.approx(1.2 / 1.007, abs=0.005)
    assert found.choice.best_p is not None
    assert found.choice.best_p <= PAIR_ALPHA
    assert (found.choice.word, found.choice.worse) == ("confirmed", True)
    gained = compare_kernels(head, base, pinned=[(one("a", 1.01, "b"), one("a", 1.01))]).choice
    assert (gained.word, gained.worse) == ("confirmed", False)


def test_a_lost_candidate_that_nobody_drew_is_timed_on_both_sides_and_counts() -> None:
    base = [one("b", 1.2, "abc"), one("b", 1.21, "abc"), one("b", 1.2, "abc")]
    head = [one("b", 1.2, "b"), one("b", 1.19, "b"), one("b", 1.2, "b")]
    unknown = compare_kernels(base, head).choice
    assert (unknown.word, unknown.differing_candidates, unknown.untimed) == ("inconclusive", 3, 2)
    at_a = one("a", 1.01, "abc"), one("a", 1.0, "b")
    whole = compare_kernels(base, head, pinned=[(base[0], head[0])], candidates=[at_a])
    assert whole.equal_choice_percent == 100.0
    found = whole.choice
    assert (found.word, found.worse, found.differing_candidates, found.untimed) == ("confirmed", True, 3, 1)
    assert found.best_ratio == pytest.approx(1.2 / 1.005, abs=0.01)
    on_one_side = one("c", 1.0), one("b", 1.2, "b")
    one_side = compare_kernels(base, head, pinned=[(base[0], head[0])], candidates=[on_one_side])
    assert (one_side.choice.untimed, one_side.equal_choice_percent) == (2, 100.0)
    slower = compare_kernels(base, head, pinned=[(one("a", 1.3), one("a", 1.3, "b"))]).choice
    assert (slower.word, slower.best_ratio, slower.same_candidates) == ("inconclusive", 1.0, False)


def test_of_many_lost_candidates_one_is_the_fastest_by_chance() -> None:
    names = "abcdefghij"
    base, head = ([one("z", us, offered) for us in (1.0, 1.02, 0.98)] for offered in (f"z{names}", "z"))
    alone = compare_kernels(base, head, pinned=[(one("a", 0.95), one("a", 0.95))]).choice
    among = [(one(name, 0.95 if name == "a" else 1.2), one(name, 0.95)) for name in names]
    many = compare_kernels(base, head, pinned=[(x, x) for x, _y in among]).choice
    assert alone.best_p is not None
    assert many.best_p is not None
    assert many.best_p > 5 * alone.best_p


def test_a_lost_choice_that_is_no_better_is_named_and_no_change() -> None:
    base = [one("a", 1.0), one("b", 0.99), one("b", 1.0), one("a", 1.01)]
    found = compare_kernels(base, [one("b", 1.0, "b")] * 4)
    assert (found.choice.same_candidates, found.choice.differing) == (False, ("s",))
    assert found.choice.word == "inconclusive"
    never = compare_kernels([one("a", 1.0, "a")] * 3, [one("b", 1.0, "bc")] * 3).choice
    assert never.differing == ("s",)
    found_by_search = compare_kernels(
        [one("a", 1.0, "x"), one("a", 1.1, "x")], [one("a", 1.0, "y")] * 3
    ).choice
    assert (found_by_search.best_ratio, found_by_search.best_p) == (1.0, 1.0)
    explored = compare_kernels([one("q", 0.7, "ab"), one("a", 1.0)], [one("a", 1.0, "a")] * 3).choice
    assert explored.best_ratio == 1.0  # a choice that neither side was offered may come on both
    untimed = compare_kernels([one("a", 1.0, "a")] * 2, [one("b", 0.0, "b")] * 2).choice
    assert (untimed.ratio, untimed.best_ratio, untimed.word) == (None, None, "inconclusive")
    assert (untimed.same_candidates, untimed.differing, untimed.frequencies) == (False, ("s",), "cannot_tell")
    assert untimed.frequencies_p == pytest.approx(2 / math.comb(4, 2))
    lone = compare_kernels([one("a", 1.0, "a")], [one("a", 1.0)]).choice
    assert (lone.same_candidates, lone.differing, lone.frequencies_p) == (False, ("s",), None)
    half_timed = compare_kernels([one("a", 0.0)] * 2, [one("b", 1.0)] * 2).choice
    assert half_timed.ratio is None


def test_a_choice_that_came_without_being_offered_is_not_lost() -> None:
    base = [one("b", 2.0, "b"), one("a", 1.0, "b")]  # a search went on from b and came to a
    sides = base, [one("a", 1.01), one("a", 1.0)]
    for found in (compare_kernels(*sides).choice, compare_kernels(*sides[::-1]).choice):
        assert (found.differing, found.best_ratio, found.best_p) == (("s",), 1.0, 1.0)


def test_a_change_of_the_code_is_none_of_the_choice() -> None:
    def side(factor: float, other: str) -> list[Kernels]:
        return [one("a", factor), one("a", factor * 1.001), one(other, factor)]

    found = compare_kernels(side(1.0, "b"), side(1.2, "c")).choice
    assert found.ratio == pytest.approx(1.0, abs=0.001)


def test_the_fastest_choices_of_all_slots_add_up_with_the_noise_of_those_that_differ() -> None:
    offered = ({"s": "ab", "t": "x", "u": "mn"}, {"s": "b", "t": "xy", "u": "mo"})

    def kernels(side: int, s: tuple[str, float], t: tuple[str, float], u: float) -> Kernels:
        drawn = {"s": s, "t": t, "u": ("m", u)}
        return {slot: TimedChoice(*choice, frozenset(offered[side][slot])) for slot, choice in drawn.items()}

    base = [kernels(0, ("a", 1.0), ("x", 3.0), 5.0), kernels(0, ("b", 2.0), ("x", 3.06), 5.1)]
    head = [kernels(1, ("b", 2.02), ("y", 2.7), 5.0), kernels(1, ("b", 2.0), ("x", 3.0), 5.2)]
    found = compare_kernels(base, head).choice
    assert found.differing == ("s", "t", "u")

    middle = [math.sqrt(3.0 * 3.06), math.sqrt(2.02 * 2.0), math.sqrt(5.0 * 5.1), math.sqrt(5.0 * 5.2)]
    half = geometric_mean([middle[1] / 2.0, 3.0 / middle[0], middle[3] / middle[2]]) ** 0.5
    a, b, x, y = 1.0 * half, math.sqrt(2.0 * middle[1]), math.sqrt(middle[0] * 3.0), 2.7 / half
    m = math.sqrt(middle[2] * middle[3])
    totals = a + x + m, b + y + m
    noise = choice_noise([[3.0, 3.06], [2.02, 2.0], [5.0, 5.1], [5.0, 5.2]])
    variance = (a**2 + x**2 / 3) / totals[0] ** 2 + (b**2 / 3 + y**2) / totals[1] ** 2
    log = math.log(totals[1] / totals[0])
    assert found.best_ratio == pytest.approx(math.exp(log))
    p = student_p(log / noise.noise / math.sqrt(variance), 4)
    assert found.best_p == pytest.approx(2 * p), "two candidates are lost, a and y"
    expected = [math.log(a + x + m), math.log(b + x + m)], [math.log(b + y + m), math.log(b + x + m)]
    assert found.ratio == pytest.approx(math.exp(sum(expected[1]) / 2 - sum(expected[0]) / 2))
    low, high, _p = welch(*expected)
    assert [found.low, found.high] == pytest.approx([math.exp(low), math.exp(high)])
    assert found.p == 1.0


def test_without_a_repeated_choice_the_fastest_one_has_no_p() -> None:
    base = [one("a", 1.0), one("b", 2.0)]
    lost = compare_kernels(base, [one("c", 3.0, "cd"), one("d", 4.0, "cd")]).choice
    assert lost.best_ratio == pytest.approx(3.0)
    assert (lost.best_p, lost.word) == (None, "inconclusive")
    exact = compare_kernels(base, [one("b", 2.0, "b")] * 2).choice
    assert exact.best_ratio == pytest.approx(2.0)
    assert (exact.best_p, exact.word) == (0.0, "confirmed")


def test_the_expected_time_is_of_the_slots_whose_candidates_differ() -> None:
    def both(choice: str, other: str, offered: str) -> Kernels:
        return {
            **one(choice, 1.0 if choice == "a" else 2.0, offered),
            **one(other, 5.0 + ord(other), "xy", "t"),
        }

    found = compare_kernels([both("a", "x", "ab")] * 6, [both("b", "y", "b")] * 6).choice
    assert found.ratio == pytest.approx(2.0)
    assert (found.word, found.worse) == ("confirmed", True)


def test_slots_of_one_side_are_named_with_their_time() -> None:
    base = [{**one("x", 1.0, slot="a"), **one("x", us, slot="b")} for us in (2.0, 4.0)]
    head = [{**one("x", 1.0, slot="a"), **one("y", 5.0, slot="c")}, {**one("x", 1.0, slot="a")}]
    found = compare_kernels(base, head)
    assert (found.only_base, found.only_head) == (("b",), ("c",))
    assert (found.only_base_us, found.only_head_us) == (3.0, 2.5)
    assert (found.code.word, found.choice.word == "confirmed") == ("inconclusive", False)
    same = compare_kernels(base, base)
    assert (same.only_base, same.only_head, same.only_base_us, same.only_head_us) == ((), (), 0.0, 0.0)
    assert (same.choice.frequencies, same.equal_choice_percent) == ("cannot_tell", None)


def test_what_was_not_at_equal_choices_is_named_with_its_share() -> None:
    alike = {**one("x", 80.0, slot="a"), **one("x", 10.0, slot="b")}
    other = {**one("x", 80.0, slot="a"), **one("y", 30.0, slot="c")}
    found = compare_kernels([alike], [other], pinned=[(alike, other), (alike, alike)])
    assert found.equal_choice_percent == pytest.approx(100 * (1 - 40 / 380))
    assert [*found.unequal_percent] == ["c", "b"]  # the largest first
    assert found.unequal_percent == {"c": pytest.approx(3000 / 380), "b": pytest.approx(1000 / 380)}
    twice = compare_kernels([alike], [other], pinned=[(alike, other)] * 2)
    assert twice.unequal_percent == {"c": pytest.approx(3000 / 200), "b": pytest.approx(1000 / 200)}


def test_only_an_answer_without_open_questions_dismisses() -> None:
    base, head = [one("a", 1.0), one("b", 1.1)] * 2, [one("b", 1.1), one("a", 1.0)] * 2

    def obstacle(suspect: Kernels, drawn: Kernels | None = None) -> str:
        return draw_obstacle(base, head, "cuda", [suspect], [drawn] if drawn else [])

    assert draw_obstacle(base, head, "cuda") == obstacle(one("b", 1.3)) == ""
    assert draw_obstacle(base, [*head, one("c", 1.0)], "cuda") == UNSEEN_CHOICE
    assert draw_obstacle([*base, one("c", 1.0)], head, "cuda") == ""
    assert obstacle(one("c", 1.3)) == obstacle(one("a", 1.3, slot="t")) == UNSEEN_CHOICE
    assert obstacle(one("c", 1.3), one("c", 2.0)) == "", "the baseline drew it elsewhere"
    for offered in ("b", None):
        assert draw_obstacle(base, [one("b", 1.1, offered)] * 2, "cuda") == OTHER_CANDIDATES
    more = one("a", 1.0, slot="t")
    for old, new in ((base, [{**head[0], **more}]), ([{**base[0], **more}], head)):
        assert draw_obstacle(old, new, "cuda") == ONE_SIDED
    assert draw_obstacle(base, [], "cuda") == draw_obstacle([], [], "cuda") == OTHER_CANDIDATES
    assert draw_obstacle([], [], "cpu") == "", "where nothing is tuned"
    assert [shown_word("dismissed", ""), shown_word("dismissed", ONE_SIDED)] == ["dismissed", "same code"]
    assert shown_word("confirmed", ONE_SIDED) == "confirmed"


def test_pairs_beyond_any_ratio_have_a_finite_change() -> None:
    verdict = judge_pairs([1e-300] * 5, [1e300] * 5, direction="down")
    assert verdict.change.word == "confirmed"
    assert verdict.change.change is not None
    assert math.isfinite(verdict.change.change)
