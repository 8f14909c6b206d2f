"""The torchdynamo suites: what their stages give, and what is left where one of them fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.formats.torchdynamo.names import backend_of
from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure.state.device import prepare
from runner.schema.compilations import BISECTED
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import Selection, plan
from runner.suites import suite_of
from runner.suites.torchdynamo import run as torchdynamo
from runner.system import machine
from tests.conftest import NO_HEADERS
from tests.suites.small_model import BLIND, BREAKS, UNTRACED

_QUICK: dict[str, Any] = {"repeat": 6, "budget_s": 0}
_CASES = {"huggingface": "BertForMaskedLM", "timm": "ghostnet_100"}


def task(
    backend: str = "aot_eager",
    *,
    case: str = "BertForMaskedLM",
    mode: str = "inference",
    dtype: str = "float32",
    dynamic: bool = False,
    device: str = "cpu",
    **knobs: Any,
) -> TaskSpec:
    return TaskSpec("huggingface", case, mode, dtype, backend, device, dynamic, knobs=knobs)


_SPECS = {
    "fine": task(**_QUICK),
    "training": task(mode="training", case=BREAKS, test="performance", keep_trace=True, **_QUICK),
    "dynamic": task(dynamic=True, dtype="amp", test="performance", **_QUICK),
    "wrong": task("relu_accuracy_error_TESTING_ONLY", explain=60, **_QUICK),
    "raises": task("relu_compile_error_TESTING_ONLY", **_QUICK),
    "unknown": task("nobodys_backend", **_QUICK),
    "exported": task("inductor_export", test="accuracy"),
    "precompiled": task("inductor", case=BREAKS, export="aot_precompile", test="accuracy"),
}
if machine.cpp_compiler():
    _SPECS["inductor"] = task("inductor", caches="kept", **_QUICK)
# these two change torch
_SPECS["untraced"] = task("inductor_export", case=UNTRACED, test="performance", **_QUICK)
_SPECS["blind"] = task(case=BLIND, test="performance", **_QUICK)


@dataclass
class Done:
    outcome: dict[str, str]
    records: list[dict[str, Any]]
    folder: Path

    def metric(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = [
            record["metric"] for record in self.records if record["metric"]["name"] == name
        ]
        assert len(found) == 1, (name, [record["metric"]["name"] for record in self.records])
        return found[0]

    def names(self) -> set[str]:
        """Metrics with a value."""
        return {
            record["metric"]["name"] for record in self.records if record["metric"].get("benchmark_values")
        }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, inductor_cache: dict[str, str]) -> dict[str, Done]:
    """Every task of this file, by one interpreter."""
    base = tmp_path_factory.mktemp("torchdynamo")
    for name, spec in _SPECS.items():
        (base / name).mkdir()
        (base / name / "spec.json").write_text(json.dumps(spec.to_json()))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **inductor_cache, **NO_HEADERS}
    subprocess.run(
        [sys.executable, "-m", "tests.suites.small_model", *(str(base / name) for name in _SPECS)],
        env=environment,
        check=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    return {name: read(base / name) for name in _SPECS}


def read(folder: Path) -> Done:
    lines = (folder / "results.jsonl").read_text().splitlines()
    return Done(
        json.loads((folder / "outcome.json").read_text()), [json.loads(line) for line in lines], folder
    )


def test_what_is_blind_is_said_without_generated_kernels_too(done: dict[str, Done]) -> None:
    found = done["blind"]
    assert found.outcome["status"] == "ok"
    assert "kernel_count" not in found.names()
    for name in ("recompiles", "graph_breaks", "speedup"):
        assert "blind: graph breaks — AttributeError" in found.metric(name)["extra_info"]["warning"]
    assert "warning" not in done["fine"].metric("graph_breaks")["extra_info"]


def test_every_stage_gives_its_numbers(done: dict[str, Done]) -> None:
    found = done["fine"]
    assert found.outcome["status"] == "ok"
    assert found.metric("accuracy")["extra_info"]["code"] == "pass"
    assert found.names() >= {
        *("speedup", "eager_latency_ms", "compiled_latency_ms", "back_to_back_latency_ms"),
        *("cold_compile_s", "warm_compile_s", "cache_hits", "cache_misses"),
        *("graph_breaks", "unique_graphs", "recompiles", "calls_captured", "cudagraph_skips"),
        *("peak_rss_bytes", "eager_peak_rss_bytes"),
    }
    for record in found.records:
        said = record["metric"]["extra_info"]
        assert {"unit", "direction", "status"} <= said.keys()
        assert record["dependencies"]["torch"]["version"]
    times = found.metric("compiled_latency_ms")
    assert len(times["benchmark_values"]) >= 6
    assert times["extra_info"]["clock"]
    assert found.metric("unique_graphs")["benchmark_values"] == [1.0]
    assert found.metric("recompiles")["benchmark_values"] == [0.0]
    assert found.metric("cold_compile_s")["extra_info"]["phases_s"]
    about = found.records[-1]["benchmark"]["extra_info"]
    assert about["parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert about["knobs"] == {}


def test_a_training_step_with_its_graph_breaks(done: dict[str, Done]) -> None:
    found = done["training"]
    assert found.outcome["status"] == "ok"
    breaks = found.metric("graph_breaks")
    assert breaks["benchmark_values"][0] >= 1
    kept = json.loads((found.folder / "artifacts" / "graph_breaks" / "graph_breaks.json").read_text())
    assert kept == breaks["extra_info"]["reasons"]
    assert found.metric("speedup")["extra_info"]["status"] == "ok"


def test_a_dynamic_batch_is_not_compiled_again(done: dict[str, Done]) -> None:
    found = done["dynamic"]
    assert found.metric("recompiles")["benchmark_values"] == [0.0]
    assert found.metric("speedup_other_batch")["extra_info"]["other_batch_size"] == 12
    assert found.records[0]["benchmark"]["extra_info"]["dynamic"] is True


def test_a_wrong_result_withholds_its_speedup(done: dict[str, Done]) -> None:
    found = done["wrong"]
    assert (found.outcome["status"], found.outcome["code"]) == ("wrong", "fail_accuracy")
    speedup = found.metric("speedup")
    assert "benchmark_values" not in speedup
    assert speedup["extra_info"]["status"] == "wrong"
    assert "eager_latency_ms" in found.names()


def test_only_what_inductor_compiles_is_explained(done: dict[str, Done]) -> None:
    accuracy = done["wrong"].metric("accuracy")["extra_info"]
    assert accuracy["explained"]["problem"].startswith("unsupported")
    assert accuracy["reason"].startswith(BISECTED)
    assert accuracy["code"] == "fail_accuracy"


def test_what_does_not_compile_leaves_the_eager_stage(done: dict[str, Done]) -> None:
    found = done["raises"]
    assert found.outcome["status"] == "failed"
    assert found.metric("accuracy")["extra_info"]["code"] == "fail_to_run"
    assert found.metric("speedup")["extra_info"]["status"] == "failed"
    assert found.metric("warm_compile_s")["extra_info"]["status"] == "not_run"
    assert "eager_peak_rss_bytes" in found.names()


@pytest.mark.parametrize(("asked", "status"), [("compile", "failed"), ("accuracy", "wrong")])
def test_only_the_failure_that_is_asked_for_is_minified_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, status: str
) -> None:
    stages: list[str] = []

    def run_stage(name: str, work: Any, **_about: Any) -> None:
        stages.append(name)
        assert work.keywords["wrong"] == (status == "wrong")
        (tmp_path / "artifacts" / "minifier").mkdir(parents=True)

    monkeypatch.setattr(torchdynamo, "run_stage", run_stage)
    runner = torchdynamo.StageRunner(task(minify=asked), Report(tmp_path), None, fresh=True)
    for found in ("timed_out", *{"wrong", "failed"} - {status}):
        runner._explained("accuracy", TaskFailure(found, "", ""))
    failures_of_others = list(stages)
    for _stage in ("accuracy", "compiles"):
        runner._explained("accuracy", TaskFailure(status, "", ""))
    assert (failures_of_others, stages) == ([], ["minify"])


@pytest.mark.parametrize(
    ("fitting", "tried"),
    [(2000, [1024]), (100, [1024, 512, 256, 128, 64]), (3, [1024, 512, 256, 128, 64, 32, 16, 8, 4, 3])],
)
def test_the_largest_batch_is_looked_for_as_by_the_harness(
    fitting: int, tried: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def run_stage(name: str, work: Any, **_about: Any) -> Any:
        if name == "place":
            return prepare("cpu"), machine.environment("cpu")
        sizes.append(work.args[0].knobs["batch_size"])
        if sizes[-1] > fitting:
            raise TaskFailure("oom", "out_of_memory", "")
        return None

    monkeypatch.setattr(torchdynamo, "run_stage", run_stage)
    spec = task(test="batch_size", device="cuda")
    assert torchdynamo.StageRunner(spec, Report(tmp_path), None, fresh=True).run() is None
    (record,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert (sizes, record["metric"]["name"]) == (tried, "largest_batch_size")
    assert record["metric"]["benchmark_values"] == [tried[-1]]


def test_no_search_takes_the_memory_of_a_machine(tmp_path: Path) -> None:
    found = torchdynamo.StageRunner(task(test="batch_size"), Report(tmp_path), None, fresh=True).run()
    assert found is not None
    assert (found.status, found.code) == ("unsupported", "no_gpu")


def test_a_backend_that_torch_does_not_have_is_unsupported(done: dict[str, Done]) -> None:
    found = done["unknown"]
    assert (found.outcome["status"], found.outcome["code"]) == ("unsupported", "no_such_backend")
    assert found.names() == set()
    assert found.metric("speedup")["extra_info"]["status"] == "unsupported"


def test_an_exported_model_is_checked_too(done: dict[str, Done]) -> None:
    assert done["exported"].metric("accuracy")["extra_info"]["code"] == "pass"
    assert done["exported"].records[0]["model"]["backend"] == "inductor_export"


def test_what_dynamo_does_not_count_is_no_0(done: dict[str, Done]) -> None:
    found = done["untraced"]
    assert found.outcome["status"] == "ok"
    assert {"speedup", "warm_compile_s"} <= found.names()
    assert {"unique_graphs", "graph_breaks", "recompiles", "cache_hits"} & found.names() == set()


def test_what_aot_precompile_refuses_says_why(done: dict[str, Done]) -> None:
    found = done["precompiled"]
    assert found.records[0]["model"]["backend"] == "aot_precompile"
    said = found.metric("accuracy")["extra_info"]
    assert said["status"] == found.outcome["status"] in {"failed", "unsupported"}
    assert "graph_break" in said["reason"] or "no aot_compile" in said["reason"]


@pytest.mark.skipif("inductor" not in _SPECS, reason="inductor needs a C++ compiler")
def test_inductor_with_kept_caches(done: dict[str, Done]) -> None:
    found = done["inductor"]
    assert found.outcome["status"] == "ok"
    assert "cold_compile_s" not in found.names()
    assert found.metric("cache_hits")["benchmark_values"][0] >= 1
    kernels = found.metric("kernel_count")
    assert kernels["benchmark_values"][0] >= 1
    assert kernels["extra_info"]["kernels_hash"]


@pytest.mark.parametrize(
    ("backend", "knobs", "device", "name"),
    [
        ("inductor", {}, "cuda", "inductor_cudagraphs"),
        ("inductor", {}, "cpu", "inductor"),
        ("inductor", {"cudagraphs": False}, "cuda", "inductor_no_cudagraphs"),
        ("inductor_no_cudagraphs", {"freezing": True}, "cuda", "inductor_no_cudagraphs_freezing"),
        ("inductor_cudagraphs_freezing", {}, "cpu", "inductor_freezing"),
        ("inductor_cpp_wrapper", {}, "cuda", "inductor_cpp_wrapper"),
        ("inductor", {"compile_mode": "max-autotune"}, "cuda", "inductor_cudagraphs_max_autotune"),
        (
            "inductor",
            {"compile_mode": "max-autotune-no-cudagraphs"},
            "cuda",
            "inductor_no_cudagraphs_max_autotune",
        ),
        ("inductor_max_autotune", {}, "cuda", "inductor_cudagraphs_max_autotune"),
        ("inductor", {"export": "aot_inductor"}, "cuda", "inductor_aot_inductor"),
        ("inductor_aot_inductor", {}, "cpu", "inductor_aot_inductor"),
        ("inductor", {"export": "aot_precompile"}, "cuda", "aot_precompile"),
        ("aot_eager", {}, "cuda", "aot_eager"),
    ],
)
def test_one_way_of_compiling_has_one_name(backend: str, knobs: Any, device: str, name: str) -> None:
    spec = task(backend, device=device, **knobs)
    assert backend_of(spec).name(device) == name
    assert suite_of(spec.suite).canonical(spec).identity() == {}
    again = task(name, device=device)
    if name != "aot_precompile":  # an exporter that is no name of dynamo's
        assert backend_of(again) == backend_of(spec)


def test_options_of_inductor_reach_it() -> None:
    spec = task("inductor_no_cudagraphs", device="cuda", coordinate_descent_tuning=True)
    spec = TaskSpec.from_json(
        {
            **spec.to_json(),
            "knobs": {**spec.knobs, "triton.multi_kernel": 1, "disable_split_reductions": True},
        }
    )
    assert backend_of(spec).options == {
        "triton.cudagraphs": False,
        "split_reductions": False,
        "coordinate_descent_tuning": True,
        "triton.multi_kernel": 1,
    }
    assert suite_of(spec.suite).canonical(spec).identity() == dict(spec.knobs)


def test_a_knob_at_its_default_makes_no_other_experiment() -> None:
    (plain,) = plan(Selection("huggingface", cases=["T5Small"], device="cpu", dtypes=["float32"]))
    (said,) = plan(
        Selection(
            "huggingface",
            cases=["T5Small"],
            device="cpu",
            dtypes=["float32"],
            knobs={"iterations": 2, "cudagraphs": True},
        )
    )
    assert said.fingerprint() == plain.fingerprint()
    assert task(repeat=50).identity() == {}
    assert task(channels_last=True).identity() == {"channels_last": True}


def test_a_backend_is_a_name_and_nothing_else() -> None:
    with pytest.raises(BadRequest, match="backend"):
        plan(Selection("huggingface", cases=["T5Small"], device="cpu", backends=["../x"]))
