"""Quarantines over simulated fleets: what drifts is taken out, what moves together is not."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hud.states.fleet import Card, Reading, Review, review

START = datetime(2026, 1, 1, 4, 10, tzinfo=UTC)
CEILINGS = {"copy": 4000.0, "read": 4300.0, "matmul": 700.0}


class Fleet:
    """Cards whose readings are a level of their own with noise; `night` adds one of each."""

    def __init__(self, hosts: int = 6, cards: int = 2, noise: float = 0.003, seed: int = 1) -> None:
        self.random, self.noise, self.nights = random.Random(seed), noise, 0
        names = [(host, card) for host in range(hosts) for card in range(cards)]
        self.cards = {
            10 * host + card: Card(10 * host + card, f"host-{host}", {name: [] for name in CEILINGS})
            for host, card in names
        }
        self.levels = {
            pk: {name: level * self.random.uniform(0.98, 1.02) for name, level in CEILINGS.items()}
            for pk in self.cards
        }

    def night(self, factors: dict[int, float] | None = None, throttled: set[int] | None = None) -> Review:
        self.nights += 1
        for pk in self.cards:
            self.read(pk, (factors or {}).get(pk, 1.0), throttled=pk in (throttled or ()))
        return self.apply()

    def read(self, pk: int, factor: float = 1.0, *, throttled: bool = False) -> None:
        time = START + timedelta(days=self.nights, minutes=pk)
        for name, level in self.levels[pk].items():
            value = level * factor * self.random.gauss(1, self.noise)
            self.cards[pk].readings[name].append(Reading(time, value, throttled))

    def apply(self) -> Review:
        answer = review([card for card in self.cards.values() if card.readings["copy"]])
        for pk in answer.quarantined:
            self.cards[pk] = replace(self.cards[pk], since=self.cards[pk].newest)
        for pk in answer.released:
            self.cards[pk] = replace(self.cards[pk], since=None)
        return answer

    @property
    def quarantined(self) -> set[int]:
        return {pk for pk, card in self.cards.items() if card.since}


@pytest.mark.parametrize("noise", [0.001, 0.003, 0.006])
def test_steady_cards_stay(noise: float) -> None:
    for seed in range(10):
        fleet = Fleet(noise=noise, seed=seed)
        assert not any(fleet.night().quarantined for _night in range(60))


@pytest.mark.parametrize(("factor", "expected"), [(0.95, {21}), (1.06, {21}), (0.985, set())])
def test_a_card_that_moves_is_taken_out_the_same_night(factor: float, expected: set[int]) -> None:
    fleet = Fleet()
    for _night in range(10):
        fleet.night()
    answer = fleet.night({21: factor})
    assert (set(answer.quarantined), answer.together) == (expected, "")
    assert all("copy" in reason for reason in answer.quarantined.values())


def test_a_slow_drift_is_seen() -> None:
    fleet = Fleet()
    nights = (fleet.night({21: 0.997**night}).quarantined for night in range(40))
    assert [set(found) for found in nights if found] == [{21}]


def test_a_card_that_is_slowed_is_taken_out_without_a_baseline() -> None:
    assert set(Fleet().night(throttled={30}).quarantined) == {30}


@pytest.mark.parametrize(("hosts", "blamed"), [(1, True), (3, True), (4, False), (6, False)])
def test_where_most_hosts_move_together_no_card_is_blamed(hosts: int, blamed: bool) -> None:
    fleet = Fleet()
    for _night in range(10):
        fleet.night()
    moved = {10 * host: 0.94 for host in range(hosts)}
    answer = fleet.night(moved)
    assert set(answer.quarantined) == (moved.keys() if blamed else set())
    assert bool(answer.together) != blamed


def test_the_order_in_which_hosts_read_does_not_matter() -> None:
    for order in itertools.islice(itertools.permutations(range(4)), 24):
        fleet = Fleet(hosts=4, cards=1)
        for _night in range(10):
            fleet.night()
        fleet.nights += 1
        for host in order:
            fleet.read(10 * host, 0.94 if host < 3 else 1.0)
            fleet.apply()
        assert fleet.quarantined == set()


def test_three_good_readings_bring_a_card_back() -> None:
    fleet = Fleet()
    for _night in range(10):
        fleet.night()
    fleet.night({21: 0.9})
    for factor, is_out in ((1.0, True), (1.0, True), (0.9, True), (1.0, True), (1.0, True), (1.0, False)):
        fleet.night({21: factor})
        assert fleet.quarantined == ({21} if is_out else set())
    assert not fleet.night().quarantined


def test_a_host_that_was_away_is_not_judged_by_an_old_reading() -> None:
    fleet = Fleet(hosts=2, cards=1)
    for _night in range(10):
        fleet.night()
    fleet.nights += 1
    fleet.read(0, 0.9)
    fleet.nights += 3
    fleet.read(10)
    assert not fleet.apply().quarantined
