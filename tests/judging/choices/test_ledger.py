"""The choice ledger: what is proven, what the draw costs, and what is returned for certain."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hud.judging.ledger import Ledger, Process, choice_ledger


def drawn(times: Sequence[tuple[str, float]], *, cards: int = 2, slot: str = "slot") -> list[Process]:
    return [
        Process(number // 3, f"card {number % cards}", {slot: choice}) for number, choice in enumerate(times)
    ]


def ledger_of(processes: Sequence[Process]) -> Ledger:
    ledger = choice_ledger(processes)
    assert ledger is not None
    return ledger


def noisy(chance: random.Random, gain: float) -> Ledger:
    """Return the ledger of 40 compilations with four choices, one of them faster by `gain`."""
    choices = [chance.choice("abcd") for _number in range(40)]
    return ledger_of(
        drawn([(name, 10.0 * (1 - gain * (name == "a")) * chance.gauss(1, 0.01)) for name in choices])
    )


def test_a_better_choice_returns_what_the_others_would_have_saved() -> None:
    (slot,) = ledger_of(drawn([("fast", 8.0), ("slow", 12.0)] * 10)).slots
    assert [(one.choice, one.time_us, one.elected, one.proven_by) for one in slot.choices] == [
        ("fast", 8.0, 10, ""),  # on one card, as every second compilation is
        ("slow", 12.0, 10, ""),
    ]
    ledger = ledger_of(drawn([("fast", 8.0), ("slow", 12.0), ("slow", 12.0)] * 10))
    assert ledger.cost == pytest.approx(1 - 8 / (32 / 3))
    (slot,) = ledger.slots
    assert [one.proven_by for one in slot.choices] == ["cards", "cards"]
    assert slot.returns_us == pytest.approx(32 / 3 - 8)
    assert 0.1 < ledger.returns < ledger.cost
    more = ledger_of(drawn([("fast", 8.0), ("slow", 12.0), ("slow", 12.0)] * 60))
    assert ledger.returns < more.returns < 0.25


def test_a_draw_that_is_luck_returns_nothing_and_a_gain_its_lower_bound() -> None:
    chance = random.Random(7)
    luck = [noisy(chance, 0.0) for _ in range(200)]
    assert sum(ledger.returns > 0 for ledger in luck) <= 10
    assert max(ledger.returns for ledger in luck) < 0.01
    gains = [noisy(chance, 0.1) for _ in range(200)]
    true_gain = 0.075 / 0.975
    assert sum(ledger.returns > true_gain for ledger in gains) <= 10
    assert sum(ledger.returns for ledger in gains) / 200 > 0.6 * true_gain


def test_the_fastest_time_seen_proves_nothing() -> None:
    usual = [("usual", 10.0 + number % 3 / 100) for number in range(12)]
    once = ledger_of(drawn([("once", 5.0), *usual]))
    assert [one.proven_by for one in once.slots[0].choices] == ["", "cards"]
    assert once.cost == pytest.approx(-0.042, abs=0.01)
    assert once.returns == 0.0
    one_card = ledger_of(drawn([*[("fast", 5.0)] * 6, *usual], cards=1))
    assert (one_card.proven, one_card.returns) == (0, 0.0)


def test_three_forced_processes_prove_a_choice_where_it_was_forced() -> None:
    usual = drawn([("usual", 10.0), ("other", 12.0)] * 6, cards=1)
    pairs = [Process(9, "card 0", {"slot": ("rare", 8.0)}, frozenset({"slot"})) for _ in range(3)]
    ledger = ledger_of([*usual, *pairs])
    assert [(one.choice, one.elected, one.forced, one.proven_by) for one in ledger.slots[0].choices] == [
        ("rare", 0, 3, "pairs"),
        ("usual", 6, 0, ""),
        ("other", 6, 0, ""),
    ]
    assert (ledger.compilations, ledger.mean_us) == (12, 11.0)
    assert ledger.cost == pytest.approx(1 - 8 / 11)
    left_out = [Process(9, "card 0", one.kernels, frozenset()) for one in pairs]
    assert not ledger_of([*usual, *left_out]).proven
    assert not ledger_of([*usual, *pairs[1:]]).proven


def test_it_is_of_the_newest_program_and_needs_ten_compilations() -> None:
    former = drawn([("a", 10.0)] * 30, slot="former")
    now = drawn([("a", 10.0), ("b", 12.0)] * 5)
    assert ledger_of([*former, *now]).compilations == 10
    assert choice_ledger([*former, *now[1:]]) is None
    assert choice_ledger([]) is None
    still = ledger_of(former)
    assert (still.slots, still.cost, still.mean_us) == ((), 0.0, 10.0)
    assert [(one.slot, one.returns_us, bool(one.best)) for one in still.alike] == [("former", 0.0, True)]
