"""A change of torch's internals stops no measurement, and the record names the notes that were lost by it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch._dynamo import utils

from runner.launch.report import Report
from runner.measure.compiler import compiled
from runner.measure.compiler.counters import blind, forget, graph_facts, note
from runner.measure.kernels import produced, tuning
from runner.measure.recorder import Recorder
from runner.measure.state.device import Device
from runner.measure.timing import gpu_active_time
from runner.schema.compilations import COMPILED, Compiled
from runner.schema.suite import TaskSpec
from runner.system.interpreters import Interpreter, canary

EMPTY = SimpleNamespace()
WRAPPER = """# AOT ID: ['0_inference']
async_compile = AsyncCompile()
triton_poi_fused_sin_0 = async_compile.triton('triton_poi_fused_sin_0', '''
@triton_heuristics.pointwise(
''')
def call(args):
    buf0 = empty_strided_cuda((4096, ), (1, ), torch.float32)
    # Original ATen: [aten.sin]
    triton_poi_fused_sin_0.run(buf0, 4096, stream=stream0)
"""


@pytest.fixture
def wrapper(tmp_path: Path) -> SimpleNamespace:
    """Return a stand-in for a loaded wrapper with a Triton kernel."""
    path = tmp_path / "wrapper.py"
    path.write_text(WRAPPER)
    config = SimpleNamespace(kwargs={"XBLOCK": 256}, num_warps=4, num_stages=1)
    autotuner = SimpleNamespace(launchers=[SimpleNamespace(config=config, cache_hash="abc")])
    return SimpleNamespace(__file__=str(path), call=print, triton_poi_fused_sin_0=autotuner)


def record(*modules: Any) -> Compiled:
    """Return what a record says of a compilation that loaded these wrappers."""
    return msgspec.convert(produced.produced([*modules]).facts([])[COMPILED], Compiled)


def test_the_first_failure_of_a_note_is_kept_in_one_line() -> None:
    for error in (KeyError("a\nb"), ValueError("later")):
        with note("phases"):
            raise error
    assert blind == {"phases": "KeyError: 'a\\nb'"}
    with pytest.raises(KeyboardInterrupt), note("choices"):
        raise KeyboardInterrupt


def test_nothing_is_blind_where_everything_is_there(wrapper: SimpleNamespace) -> None:
    found = record(wrapper)
    assert not found.blind
    (kernel,) = found.kernels
    assert kernel.config == "XBLOCK=256 num_warps=4 num_stages=1"
    assert kernel.origins == ("aten.sin",)


def _no_launchers(_patch: pytest.MonkeyPatch, wrapper: Any) -> None:
    del wrapper.triton_poi_fused_sin_0.launchers


def _no_autotuner(_patch: pytest.MonkeyPatch, wrapper: Any) -> None:
    del wrapper.triton_poi_fused_sin_0


def _no_hash(_patch: pytest.MonkeyPatch, wrapper: Any) -> None:
    del wrapper.triton_poi_fused_sin_0.launchers[0].cache_hash


def _other_names(_patch: pytest.MonkeyPatch, wrapper: Any) -> None:
    path = Path(wrapper.__file__)
    path.write_text(path.read_text().replace("triton_poi", "pallas_poi"))
    wrapper.pallas_poi_fused_sin_0 = wrapper.triton_poi_fused_sin_0


def _other_calls(_patch: pytest.MonkeyPatch, wrapper: Any) -> None:
    path = Path(wrapper.__file__)
    path.write_text(path.read_text().replace(".run(", ".start("))


def _no_breaks(patch: pytest.MonkeyPatch, _wrapper: Any) -> None:
    patch.delattr(utils, "graph_break_reasons")


def _no_guards(patch: pytest.MonkeyPatch, _wrapper: Any) -> None:
    patch.delattr(utils, "guard_failures")


def _no_times(patch: pytest.MonkeyPatch, _wrapper: Any) -> None:
    patch.delattr(utils, "compilation_time_metrics")


@pytest.mark.parametrize(
    ("broken", "name", "reason"),
    [
        (_no_launchers, "choices", "AttributeError"),
        (_no_autotuner, "choices", "AttributeError"),
        (_no_hash, "choices", "AttributeError"),
        (_other_names, "kernel_count", "LookupError"),
        (_other_calls, "kernels", "LookupError"),
        (_no_breaks, "graph breaks", "AttributeError"),
        (_no_guards, "graph breaks", "AttributeError"),
        (_no_times, "phases", "AttributeError"),
    ],
)
def test_what_torch_has_no_more_is_blind_in_the_record(
    monkeypatch: pytest.MonkeyPatch,
    wrapper: SimpleNamespace,
    broken: Callable[[pytest.MonkeyPatch, Any], None],
    name: str,
    reason: str,
) -> None:
    broken(monkeypatch, wrapper)
    found = record(wrapper)
    assert list(found.blind) == [name]
    assert found.blind[name].startswith(f"{reason}: ")
    assert bool(found.kernels) == (name != "kernels"), "the other notes are taken"


def test_kernels_that_are_not_recognised_are_not_counted_as_none(
    monkeypatch: pytest.MonkeyPatch, wrapper: SimpleNamespace, tmp_path: Path
) -> None:
    _other_names(monkeypatch, wrapper)
    spec = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cpu")
    recorder = Recorder(spec, Report(tmp_path), Device("cpu", "x86_64", "Xeon", 0, 1))
    recorder.add(produced.produced([wrapper]).count(1, []), knobs={})
    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    metric = json.loads(line)["metric"]
    assert metric["name"] == "kernel_count"
    assert "benchmark_values" not in metric
    info = metric["extra_info"]
    assert (info["status"], info["code"]) == ("unsupported", "blind")
    assert info["reason"].startswith("blind: kernel_count — LookupError")
    assert list(info[COMPILED]["blind"]) == ["kernel_count"]


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda: tuning._noting(lambda _self, _launcher: 1.0, tuning._note_time)(EMPTY, EMPTY),
        lambda: tuning._noting(lambda _self: 1.0, lambda *_: None, tuning._note_offers)(EMPTY),
        lambda: tuning._noting(lambda _self, _stream, _launcher: 1.0, tuning._note_files)(EMPTY, 0, EMPTY),
    ],
)
def test_a_changed_autotuner_works_on_and_its_choices_are_blind(wrapped: Callable[[], float]) -> None:
    assert wrapped() == 1.0
    assert blind["choices"].startswith("AttributeError: ")


def test_an_autotuner_that_is_not_there_is_blind_only_with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.triton_heuristics", SimpleNamespace())
    monkeypatch.setattr(tuning, "find_spec", lambda _name: None)
    tuning.watch.__wrapped__()
    assert not blind
    monkeypatch.setattr(tuning, "find_spec", lambda name: name == "triton")
    tuning.watch.__wrapped__()
    assert blind["choices"].startswith("ImportError: ")


def test_a_profile_that_fails_costs_times_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_active_time, "profile", lambda *_args, **_named: {"traceEvents": []})
    assert produced.profiled_steps(print, Device("cuda", "H200", "GPU-1", 0, 1)) == []
    assert blind["kernels"] == "ValueError: the profiler saw no kernel"


def test_the_canary_says_which_notes_this_torch_takes(inductor_cache: dict[str, str]) -> None:
    answer = canary("cpu", Interpreter(sys.executable, {**inductor_cache, "CUDA_VISIBLE_DEVICES": ""}))
    assert answer["noted"] == ["kernels", "kernel_count", "phases", "graph breaks"]
    assert answer["blind"] == {}
    assert answer["compiled_s"] > 0
    assert "no program" in canary("cpu", Interpreter("/nonexistent/no program"))["error"]


def test_a_canary_compiles_into_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default one may belong to another user of the same name."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "[\\"$TORCHINDUCTOR_CACHE_DIR\\", \\"$TRITON_CACHE_DIR\\"]"\n')
    python.chmod(0o755)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/of/another")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/of/another")
    first, second = (canary("cpu", Interpreter(str(python))) for _ in range(2))
    assert len({*first, *second, "/of/another", ""}) == 6
    assert not any(Path(folder).exists() for folder in (*first, *second))


def test_a_note_that_stays_empty_is_blind_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_options: torch.sin)
    monkeypatch.setattr(compiled, "produced", lambda *_args: produced.Produced(graph_facts()))
    forget()
    answer = compiled.compile_small("cpu")
    assert answer["noted"] == []
    assert sorted(answer["blind"]) == ["graph breaks", "kernel_count", "kernels", "phases"]
