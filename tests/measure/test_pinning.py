"""Pinned runs: the configuration of each kernel is forced, whatever the autotuner would take."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from runner.measure.kernels import tuning
from runner.schema.compilations import pinned, pinned_from_json
from runner.schema.suite import BadRequest

A, B, C = ("0123456789abcdef", "1" * 16, "2" * 16)


@dataclass
class Config:
    """Like Triton's."""

    kwargs: dict[str, int]
    num_warps: int = 4
    num_stages: int = 1


@dataclass
class Autotuner:
    """The part of CachingAutotuner that `tuning` uses; its first call takes the first candidate."""

    slot: str
    candidates: list[Config]
    launchers: list[Any] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)
    compiled: list[Config] = field(default_factory=list)

    @property
    def fn(self) -> Any:
        return SimpleNamespace(__name__=f"triton_{self.slot[:1]}")

    def precompile(self) -> None:
        self.launchers = [SimpleNamespace(config=config) for config in self.candidates]

    def _precompile_config(self, config: Config) -> Any:
        if config.num_warps > 32:
            raise RuntimeError("out of resources")
        self.compiled.append(config)
        return SimpleNamespace(make_launcher=lambda: SimpleNamespace(config=config))

    def run(self, *_args: Any, stream: int) -> Config:
        if not self.launchers:
            self.precompile()
        self.launchers = self.launchers[:1]
        config: Config = self.launchers[0].config
        return config


@pytest.fixture
def state() -> Iterator[None]:
    tuning.forget_pinned()
    yield
    tuning.forget_pinned()


def test_each_kernel_takes_its_stored_configuration(monkeypatch: pytest.MonkeyPatch, state: None) -> None:
    monkeypatch.setattr(Autotuner, "run", Autotuner.run)  # put back after the test
    choices = {A: "XBLOCK=8 num_warps=4", B: "XBLOCK=64 num_warps=8 num_stages=3", C: "YBLOCK=1 num_warps=2"}
    tuning.pin(Autotuner, choices, lambda autotuner: autotuner.slot)
    assert tuning.pinned_facts() == {}
    candidates = [Config({"XBLOCK": 4}), Config({"XBLOCK": 8})]
    first, compiled, other, unknown = (Autotuner(slot, candidates) for slot in (A, B, C, "3" * 16))
    for _call in range(2):
        assert first.run(stream=0) is candidates[1]
        assert compiled.run(stream=0) == Config({"XBLOCK": 64}, 8, 3)
        assert other.run(stream=0) is unknown.run(stream=0) is candidates[0]
    assert len(compiled.compiled) == 1
    assert not first.compiled
    facts = tuning.pinned_facts()["pinned"]
    assert (facts["forced"], facts["without_choice"]) == (2, ["triton_3"])
    assert facts["failed"][0].startswith("triton_2: ValueError")
    assert facts["slots"] == [C, "3" * 16] == list(tuning.unpinned())
    assert "1 kernels have no stored choice (triton_3)" in tuning.pinned_warning()
    late = Autotuner(A, candidates)
    late.precompile()  # as by inductor's compile workers
    assert late.run(stream=0) is candidates[1]


def test_what_can_be_forced_is_names_and_integers() -> None:
    kernels = [(A, "XBLOCK=1 num_warps=4"), (A, "XBLOCK=2 num_warps=4"), (B, ""), (C, "ALLOW_TF32=True")]
    assert pinned(kernels) == {A: "XBLOCK=1 num_warps=4"}
    assert pinned_from_json({A: "XBLOCK=1"}) == {A: "XBLOCK=1"}
    wrong: Any
    for wrong in ([], {A: 1}, {A: "XBLOCK=1;"}, {A: "__import__('os')=1"}, {"x": "XBLOCK=1"}, {A: "X=1\n"}):
        with pytest.raises(BadRequest):
            pinned_from_json(wrong)
