"""The places of processes in an A/B comparison, and which metrics a pinned process measures."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from runner.schema.compilations import COMPILED, Kernels, TimedChoice, candidate_pins, timed_kernels
from runner.schema.draws import (
    MAX_CANDIDATES,
    MAX_DRAWS,
    MAX_ROUNDS,
    PairPlace,
    is_candidate,
    pair_place,
    pinned_repeat,
    round_of,
)
from runner.schema.metrics import is_of_running

FREE = {"number": 3, "side": "new", "base": "a", "new": "b"}


def test_a_free_process_has_the_number_of_its_pair() -> None:
    assert pair_place(FREE) == PairPlace(3, 1, None)
    assert pair_place({**FREE, "side": "base"}) == PairPlace(3, 0, None)


def test_a_pinned_process_has_its_draw_and_a_number_of_its_own() -> None:
    pinned = {**FREE, "draw": "base", "round": 2}
    assert pair_place(pinned) == PairPlace(1000 + 2 * (20 * 6 + 2), 1, 6)
    assert pair_place({**pinned, "draw": "new", "repeated": True}) == PairPlace(1000 + 2 * 142 + 1, 1, 7)


def test_the_numbers_of_pinned_processes_are_distinct_and_fit_the_store() -> None:
    every = list(product(range(2 * MAX_DRAWS), range(MAX_ROUNDS), (False, True)))
    numbers = [pinned_repeat(draw, number, repeated=repeated) for draw, number, repeated in every]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) >= 1000
    assert 2 * max(numbers) + 1 < 2**15, "as an export writes it"
    assert [round_of(one) for one in numbers] == [(number, repeated) for _draw, number, repeated in every]


def test_a_process_at_a_candidate_is_of_no_draw() -> None:
    every = product(range(MAX_DRAWS), range(MAX_CANDIDATES))
    places = [
        pair_place({**FREE, "number": number, "draw": "base", "candidate": candidate})
        for number, candidate in every
    ]
    numbers = [place.repeat for place in places if place]
    assert len(set(numbers)) == len(places) == MAX_DRAWS * MAX_CANDIDATES
    assert all(map(is_candidate, numbers))
    assert 2 * max(numbers) + 1 < 2**15, "as an export writes it"
    assert not is_candidate(pinned_repeat(2 * MAX_DRAWS - 1, MAX_ROUNDS - 1, repeated=True))
    assert [round_of(one) for one in numbers] == [(one, False) for one in numbers]
    assert {place.draw for place in places if place} == set(range(0, 2 * MAX_DRAWS, 2))


def offering(offered: dict[str, list[str]]) -> Kernels:
    """Return kernels by slot with these candidates; unknown where there are none."""
    return {
        slot: TimedChoice("X=1", 1.0, frozenset(texts) if texts else None) for slot, texts in offered.items()
    }


def test_the_candidates_of_all_slots_that_differ_are_forced_in_turn() -> None:
    slots = "a" * 16, "b" * 16, "c" * 16, "d" * 16
    base = offering(dict(zip(slots, [["X=1", "X=2"], ["X=1"], ["X=3", "X=4"], ["X=1"]], strict=True)))
    new = offering({slots[0]: ["X=2", "X=1"], slots[1]: ["X=2", "X=4"], slots[2]: ["X=3"], slots[3]: []})
    assert candidate_pins(base, new) == [
        {slots[1]: "X=1", slots[2]: "X=3"},
        {slots[1]: "X=2", slots[2]: "X=4"},
        {slots[1]: "X=4", slots[2]: "X=3"},
    ]
    assert candidate_pins(base, base) == candidate_pins({}, new) == []
    assert candidate_pins(*(offering({slots[0]: [text]}) for text in ("no configuration", "nor this"))) == []


def test_the_timed_kernels_of_records_say_what_was_offered() -> None:
    about = {"kind": "pointwise", "choice": "c" * 16, "time_us": 3.0}
    kernels = [
        {"slot": "a", **about, "config": "X=1", "offered": ["X=1", "X=2"]},
        {"slot": "b", **about},
        {"slot": "c", **about, "kind": "library"},
        {"slot": "d", **about, "time_us": None},
    ]
    records: list[dict[str, Any]] = [
        {"metric": {"extra_info": {COMPILED: {"kernels": kernels}}}},
        {"metric": {}},
    ]
    assert timed_kernels(records) == {
        "a": TimedChoice("X=1", 3.0, frozenset({"X=1", "X=2"})),
        "b": TimedChoice("c" * 16, 3.0),
        "c": TimedChoice("c" * 16, 3.0, frozenset()),
    }


@pytest.mark.parametrize(
    "text", [None, 5, {}, {"number": 1}, {**FREE, "side": "left"}, {**FREE, "number": -1}]
)
def test_what_is_no_place_is_none(text: Any) -> None:
    assert pair_place(text) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"draw": "left"},
        {"draw": "new", "round": 20},
        {"draw": "new", "number": 20},
        {"draw": "base", "candidate": 200},
    ],
)
def test_a_draw_that_no_comparison_has_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no comparison"):
        pair_place({**FREE, **wrong})


def test_a_pinned_process_measures_how_its_code_runs() -> None:
    running = ("device_latency_ms", "speedup", "token_per_sec", "gpu_busy_ms", "kernel_count", "device_20th")
    compiling = ("cold_compile_s", "compilation_time(s)", "graph_breaks", "recompiles", "cache_hits")
    others = (
        "compiled_peak_memory_bytes",
        "peak_rss_bytes",
        "compression_ratio",
        "accuracy",
        "accuracy_cosine",
    )
    assert all(map(is_of_running, running))
    assert not any(map(is_of_running, (*compiling, *others)))
