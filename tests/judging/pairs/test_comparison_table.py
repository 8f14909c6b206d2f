"""Tests of the guide's table: simulated comparisons of stored compilations, at equal choices and fresh."""

from __future__ import annotations

import random

import pytest

from tests.judging import simulation
from tests.judging.simulation import Case

pytestmark = pytest.mark.simulation

CASES = simulation.cases()
KNOWN = [case for case in CASES if not case.noise.assumed and case.noise.noise < 0.01]
GEMV = [case for case in CASES if case.name == "gather_gemv"]


@pytest.mark.parametrize("name", simulation.TABLES)
def test_the_guide_has_the_table_of_these_rules(name: str) -> None:
    """Write them anew with `python -m tests.judging.simulation`."""
    _before, inside, _after = simulation.in_guide(name)
    assert inside == simulation.TABLES[name]()


def test_the_noise_of_a_choice_is_known_of_each_program() -> None:
    assert [case.name for case in KNOWN] == ["MobileNetV2", "DistillGPT2", "layer_norm", "gather_gemv"]
    assert all(case.noise.processes >= simulation.FEWEST_REPEATED for case in KNOWN)


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: case.name)
@pytest.mark.parametrize("rounds", simulation.PLANS)
def test_where_the_noise_is_known_and_small_draws_decide(case: Case, rounds: int) -> None:
    at_once = {
        effect: simulation.cell(case, "equal choices", effect, rounds, 400) for effect in (0.0, 0.01, 0.03)
    }
    assert at_once[0.03]["confirmed"] >= 0.95
    assert at_once[0.01]["dismissed"] >= 0.9
    assert at_once[0.0]["confirmed"] <= 0.01


@pytest.mark.soak
def test_the_table_at_full_numbers() -> None:
    print("\n" + simulation.table(20_000))
    for case in KNOWN:
        for rounds in simulation.PLANS:
            assert simulation.cell(case, "equal choices", 0.03, rounds, 20_000)["confirmed"] >= 0.95
            assert simulation.cell(case, "equal choices", 0.01, rounds, 20_000)["dismissed"] >= 0.9
            assert simulation.cell(case, "equal choices", 0.0, rounds, 20_000)["confirmed"] <= 0.01


@pytest.mark.parametrize("case", GEMV, ids=lambda case: case.title)
@pytest.mark.parametrize("rounds", simulation.PLANS)
def test_heuristics_that_drop_the_best_configurations_are_named_choice(case: Case, rounds: int) -> None:
    chance = random.Random(rounds)
    answers = [simulation.without_best(case, 3, rounds, chance) for _ in range(100)]
    assert sum(found.choice.worse is True for found, _dismissed in answers) >= 95
    assert not any(dismissed for _found, dismissed in answers)
    same = [simulation.without_best(case, 0, rounds, chance) for _ in range(100)]
    assert not any(found.choice.word == "confirmed" for found, _dismissed in same)
    # quiet enough to dismiss, where the suspect's choice was drawn
    assert 30 <= sum(dismissed for _found, dismissed in same) <= 90
