"""The suite `cache`: a cold and a warm process of a small model, and cachebench's own file."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.cli.output import Output
from runner.launch.failures import TaskFailure
from runner.launch.launch import launch
from runner.launch.report import Report
from runner.measure.compiler.counters import Counts
from runner.measure.state.device import prepare
from runner.measure.timing.compile_time import FirstCalls
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult
from runner.suites import SUITES
from runner.suites.cache import ORIGINS
from runner.suites.cache import run as cache
from runner.suites.cache.run import Compiled
from runner.system import machine
from tests.conftest import NO_HEADERS
from tests.support.observed import observe

needs_compiler = pytest.mark.skipif(not machine.cpp_compiler(), reason="inductor needs a C++ compiler")
SPEC = TaskSpec("cache", "BertForMaskedLM", "inference", "bfloat16", "inductor", "cpu")
TINY = dataclasses.replace(SPEC, dtype="float32", knobs={"size": "tiny"})
COMPILED = Compiled(
    first=FirstCalls([20_100.0], [100.0], settled=True, phases_s={"inductor_compile": 12.0}),
    counted=Counts({}, {}, {"fxgraph_cache_miss": 1}),
    warm_up_difference_s=25.0,
    cache_bytes=1000,
    cache_entries=10,
    result=64.0,
)
WARM = dataclasses.replace(
    COMPILED,
    first=dataclasses.replace(COMPILED.first, compiling_ms=[5_100.0]),
    counted=Counts({}, {}, {"fxgraph_cache_hit": 1}),
    warm_up_difference_s=15.0,
    result=64.1,
)


def records_in(folder: Path) -> dict[str, Any]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    return {record["metric"]["name"]: record for record in map(json.loads, lines)}


@needs_compiler
def test_a_warm_process_finds_what_a_cold_one_left(tmp_path: Path, inductor_cache: dict[str, str]) -> None:
    environment = {"RUNNER_HOST": "box", "TMPDIR": inductor_cache["TMPDIR"], **NO_HEADERS}
    command = [sys.executable, "-m", "tests.suites.small_model", str(tmp_path / "task")]
    outcome = launch(TINY, tmp_path / "task", environment=environment, command=command)
    assert outcome.status == "ok", outcome.reason + (tmp_path / "task" / "log").read_text()
    found = records_in(tmp_path / "task")
    value = {name: record["metric"]["benchmark_values"][0] for name, record in found.items()}
    assert value["cold_compile_s"] > 0
    assert value["warm_to_cold_ratio"] == pytest.approx(
        value["warm_compile_s"] / value["cold_compile_s"], rel=1e-5
    )
    assert value["cache_hits"] >= 1
    assert value["cache_misses"] == 0
    assert value["cache_entries"] > 1
    assert value["cache_bytes"] > 1000
    assert found["cold_compile_s"]["benchmark"]["extra_info"]["knobs"] == {
        "size": "tiny",
        "origin": "huggingface",
    }
    assert not list((tmp_path / "task").glob("caches_*"))


def stages(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> None:
    """Answers of the stages, in place of compiling."""

    def answer(name: str, _work: Any, **_kept: Any) -> Any:
        told = answers[name]
        if isinstance(told, TaskFailure):
            raise told
        return told

    monkeypatch.setattr(cache, "run_stage", answer)


def test_three_metrics_of_cachebench_and_ours_under_their_true_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dataclasses.replace(WARM.first, compiling_ms=[10_100.0])
    second = dataclasses.replace(WARM, first=first, warm_up_difference_s=5.0)
    answers = {"cold_0": COMPILED, "warm_0": WARM, "cold_1": COMPILED, "warm_1": second}
    stages(monkeypatch, answers)
    spec = dataclasses.replace(SPEC, knobs={"repeat": 2})
    assert cache.run(spec, Report(tmp_path)) is None
    found = {name: record["metric"]["benchmark_values"] for name, record in records_in(tmp_path).items()}
    assert found == {
        "cold_compile_s": [20.0, 20.0],
        "warm_compile_s": [5.0, 10.0],
        "warm_to_cold_ratio": [0.25, 0.5],
        "compile_time_reduction": [0.75, 0.5],
        "cache_hits": [1.0, 1.0],
        "cache_misses": [0.0, 0.0],
        "cache_bytes": [1000.0, 1000.0],
        "cache_entries": [10.0, 10.0],
        "Cold compile time (s)": [25.0, 25.0],
        "Warm compile time (s)": [15.0, 5.0],
        "Speedup (%)": [60.0],
    }


def test_another_result_from_the_cache_withholds_all_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages(monkeypatch, {"cold_0": COMPILED, "warm_0": dataclasses.replace(WARM, result=60.0)})
    failure = cache.run(SPEC, Report(tmp_path))
    assert failure is not None
    assert (failure.status, failure.code) == ("wrong", "fail_accuracy")
    for record in records_in(tmp_path).values():
        assert "benchmark_values" not in record["metric"]
        assert record["metric"]["extra_info"]["status"] == "wrong"


def test_a_dead_process_is_told_at_every_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages(monkeypatch, {"cold_0": COMPILED, "warm_0": TaskFailure("crashed", "SIGSEGV", "by SIGSEGV")})
    failure = cache.run(SPEC, Report(tmp_path))
    assert failure is not None
    found = records_in(tmp_path)
    assert {"cold_compile_s", "Speedup (%)"} <= set(found)
    assert {record["metric"]["extra_info"]["code"] for record in found.values()} == {"SIGSEGV"}


def test_its_models_are_those_of_two_suites_cachebenchs_own_first() -> None:
    names = [case.name for case in SUITES["cache"].cases]
    assert len(set(names)) == len(names) == len(ORIGINS)
    assert {"BertForMaskedLM", "GPT2ForSequenceClassification"} <= set(names[:8])
    for case in SUITES["cache"].cases:
        offered = {item.name: item.dtypes for item in SUITES[ORIGINS[case.name]].cases}
        assert set(case.dtypes) <= set(offered[case.name])


def test_cachebenchs_file_goes_through_the_door_and_comes_out_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages(monkeypatch, {"cold_0": COMPILED, "warm_0": WARM})
    prepare("cpu")
    kept = []
    for name, spec in (
        ("plain", SPEC),
        ("tiny", dataclasses.replace(SPEC, knobs={"size": "tiny"})),
        ("float32", dataclasses.replace(SPEC, dtype="float32")),
    ):
        folder = tmp_path / name
        folder.mkdir()
        assert cache.run(spec, Report(folder)) is None
        kept.append(TaskResult(spec, TaskOutcome("ok", "", ""), folder, list(records_in(folder).values())))
    path = tmp_path / "cachebench.json"
    output = Output(path, "upstream", suites=["cache"], resume=False)
    for finished in reversed(kept):
        output.add(finished)
    arch = kept[0].records[0]["benchmark"]["extra_info"]["arch"]  # which its file does not say
    theirs = observe(path.read_bytes(), "cachebench.json", arch=arch)
    assert not theirs.faults
    own = [json.dumps(record) for record in kept[0].records if "(" in record["metric"]["name"]]
    ours = observe("\n".join(own))
    assert len(theirs.measurements) == 3
    for their, our in zip(theirs.measurements, ours.measurements, strict=True):
        assert (their.identity, their.metric, their.samples) == (our.identity, our.metric, our.samples)
