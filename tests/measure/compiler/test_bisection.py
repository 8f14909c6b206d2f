"""The part of the compiler at fault, by torch's bisector."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._inductor import config, cpu_vec_isa
from torch._inductor.compiler_bisector import CompilerBisector

from runner.measure.compiler.bisection import explain
from runner.measure.compiler.compiled import by_inductor
from runner.measure.forked import run_stage
from runner.measure.timing.compile_time import forget_compiles
from runner.schema.compilations import Explanation, explained_in
from runner.system import machine


@pytest.fixture(autouse=True)
def _torch_as_before() -> Iterator[None]:
    yield
    forget_compiles()


def _backend() -> str:
    """Return dynamo's backend that the bisector tries."""
    return CompilerBisector.get_backend() or ""


@pytest.mark.skipif(not machine.cpp_compiler(), reason="inductor needs a C++ compiler")
def test_a_planted_bug_of_a_lowering_is_named(monkeypatch: pytest.MonkeyPatch, inductor_here: None) -> None:
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)  # to find them takes longer than the rest
    # as torch 2.11, whose bisector notes the names in the process that compiles: a fork's are lost
    monkeypatch.setattr(CompilerBisector, "get_call_counter_debug_info", lambda *_names: None)
    x = torch.randn(64)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.sin(x)) * 2

    def works(_left_s: float) -> bool:
        forget_compiles()
        return bool(torch.allclose(by_inductor(function, {})(x), function(x)))

    # not by monkeypatch, which would delete the setting from torch's class of them
    with config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        found = explain(works, 600)
    assert (found.backend, found.subsystem, found.detail) == ("inductor", "lowerings", "relu")
    assert explained_in(f"{found.text()}; differs; by much") == "inductor, lowerings, number 1 (relu)"


def test_a_bug_before_inductor_is_named_by_its_backend() -> None:
    assert explain(lambda _left_s: _backend() == "eager", 60) == Explanation("aot_eager")


def test_a_fork_has_the_part_that_is_tried(tmp_path: Path) -> None:
    def works(left_s: float) -> bool:
        return bool(run_stage("tried", _backend, folder=tmp_path, timeout_s=left_s) == "eager")

    assert explain(works, 60) == Explanation("aot_eager")


def test_a_failure_that_does_not_come_again_is_told() -> None:
    found = explain(lambda _left_s: True, 60)
    assert not found.backend
    assert found.problem


@pytest.mark.parametrize("limit_s", [0.0, 60.0])
def test_what_is_known_when_the_time_is_over_is_told(limit_s: float) -> None:
    calls = itertools.count()

    def works(_left_s: float) -> bool:
        if next(calls) == 6:  # five backends, then a first subsystem of inductor
            raise TimeoutError
        return _backend() != "inductor"

    found = explain(works, limit_s)
    assert found.backend == ("inductor" if limit_s else "")
    assert not found.subsystem
    assert found.problem
