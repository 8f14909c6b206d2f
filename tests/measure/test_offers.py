"""The configurations that an autotuner could choose from are known, whoever compiled them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from runner.measure.kernels import tuning
from runner.measure.kernels.tuning import chosen
from runner.schema.compilations import SEARCHES_ON


@dataclass
class Config:
    """Like Triton's."""

    kwargs: dict[str, int]
    num_warps: int = 4
    num_stages: int = 1
    num_ctas: int = 1


def compiled(*configs: Config) -> list[Any]:
    return [SimpleNamespace(config=config, cache_hash="abc") for config in configs]


@dataclass
class Autotuner:
    """A stand-in for inductor's CachingAutotuner: the last candidate does not compile, and a further
    one is made of the first."""

    configs: list[Config] | None
    compile_results: list[Any] = field(default_factory=list)
    launchers: list[Any] = field(default_factory=list)
    inductor_meta: dict[str, Any] = field(default_factory=dict)

    def precompile(self) -> None:
        if self.configs:
            self.compile_results = compiled(*self.configs[:-1])
        self.compile_results += compiled(Config({"XBLOCK": 1}, 16))
        self.configs = None
        self.launchers = list(self.compile_results)


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Autotuner,
        "precompile",
        tuning._noting(Autotuner.precompile, tuning._note_offers, tuning._note_offers),
    )


def offered(autotuner: Autotuner) -> tuple[str, ...]:
    autotuner.launchers = autotuner.launchers[:1]  # as after tuning
    return chosen(autotuner, "").offered


ALL = (
    "XBLOCK=1 num_warps=16 num_stages=1",
    "XBLOCK=4 num_warps=4 num_stages=1",
    "XBLOCK=8 num_warps=2 num_stages=3",
)


def test_candidates_that_do_not_compile_and_those_that_are_added_are_offered(noting: None) -> None:
    autotuner = Autotuner([Config({"XBLOCK": 4}), Config({"XBLOCK": 8}, 2, 3)])
    autotuner.precompile()
    assert offered(autotuner) == ALL


def test_candidates_that_a_worker_compiled_are_offered(noting: None) -> None:
    autotuner = Autotuner(None, compiled(Config({"XBLOCK": 4}), Config({"XBLOCK": 8}, 2, 3)))
    autotuner.precompile()
    assert offered(autotuner) == ALL


def test_a_search_that_goes_on_from_the_best_is_among_the_offered(noting: None) -> None:
    configs = [Config({"XBLOCK": 4}), Config({"XBLOCK": 8}, 2, 3)]
    autotuner = Autotuner(configs, inductor_meta={"coordinate_descent_tuning": True})
    autotuner.precompile()
    assert {*offered(autotuner)} == {*ALL, SEARCHES_ON}


def test_a_kernel_says_what_it_takes_and_which_candidates_spill() -> None:
    autotuner = Autotuner([])
    times = iter((inf, 0.5))
    bench = tuning._noting(lambda _self, _launcher: next(times), tuning._note_time)
    about = {"cache_hash": "abc", "n_regs": 40, "shared": 512}
    spilling, winner = (
        SimpleNamespace(config=Config({"XBLOCK": size}), n_spills=spills, **about)
        for size, spills in ((8, 64), (4, 0))
    )
    for launcher in (spilling, winner):
        bench(autotuner, launcher)
    autotuner.launchers = [winner]
    taken = chosen(autotuner, "")
    assert (taken.registers, taken.spills, taken.shared_bytes) == (40, 0, 512)
    assert taken.skipped == (("XBLOCK=8 num_warps=4 num_stages=1", 64),)


def test_nothing_is_offered_where_nothing_was_watched() -> None:
    autotuner = Autotuner([Config({"XBLOCK": 4}), Config({"XBLOCK": 8})])
    autotuner.precompile()
    assert offered(autotuner) == ()


def test_more_candidates_than_are_kept_are_unknown(noting: None) -> None:
    """Two lists that differ only in what is cut off would look alike."""
    many = Autotuner([Config({"XBLOCK": size}) for size in range(2, 66)])
    many.precompile()
    assert offered(many) == ()
    few = Autotuner([Config({"XBLOCK": size}) for size in range(2, 65)])
    few.precompile()
    assert len(offered(few)) == tuning._MOST_OFFERED
