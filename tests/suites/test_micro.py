"""The suite `micro`: one real kernel through inductor in a fresh process, and what it refuses to pass off."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.exc import InductorError

from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure import ceilings
from runner.measure.recorder import Result
from runner.schema.metrics import GPT_FAST_SIZES
from runner.schema.options import OptionValue
from runner.schema.protocol import version
from runner.schema.suite import TaskSpec
from runner.suites import suite_of
from runner.suites.micro import SIZES, size_metrics
from runner.suites.micro import run as micro
from runner.suites.micro.kernels import KERNELS
from runner.system import machine

needs_compiler = pytest.mark.skipif(not machine.cpp_compiler(), reason="inductor needs a C++ compiler")


def layer_norm(*sizes: int) -> TaskSpec:
    knobs: dict[str, OptionValue] = {"D": list(sizes), "repeat": 20} if sizes else {"repeat": 20}
    return TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu", knobs=knobs)


@pytest.fixture
def folder(tmp_path: Path, inductor_here: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task's folder. Its task runs in the tests' process, where torch is imported already."""
    monkeypatch.setenv("RUNNER_HOST", "box")
    monkeypatch.setenv("RUNNER_CEILINGS", str(tmp_path / "ceilings.json"))
    return tmp_path


def records_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


@needs_compiler
def test_a_kernel_is_compiled_checked_and_timed(folder: Path) -> None:
    assert micro.run(layer_norm(256), Report(folder)) is None
    records = records_in(folder)
    by_metric = {record["metric"]["name"]: record for record in records}
    assert len(by_metric) == len(records)
    for name in ("eager_latency_ms", "compiled_latency_ms", "call_bandwidth_gbps", "memory_bandwidth(GB/s)"):
        values = by_metric[name]["metric"]["benchmark_values"]
        assert len(values) >= 20
        assert min(values) > 0
    compiled = by_metric["compiled_latency_ms"]["metric"]["benchmark_values"]
    bandwidth = by_metric["call_bandwidth_gbps"]["metric"]["benchmark_values"]
    assert bandwidth[0] == pytest.approx(2 * 4096 * 256 * 2 / (compiled[0] * 1e6), rel=1e-5)
    counted = by_metric["kernel_count"]["metric"]
    assert counted["benchmark_values"][0] >= 1
    assert counted["extra_info"]["kernels"]
    assert by_metric["recompiles"]["metric"]["benchmark_values"] == [0.0]
    record = by_metric["speedup"]
    assert record["model"] == {
        "name": "layer_norm",
        "type": "benchmark",
        "backend": "inductor",
        "origins": ["micro"],
    }
    assert record["benchmark"]["extra_info"]["knobs"] == {"D": 256}
    assert record["metric"]["extra_info"]["n"] >= 20
    assert record["runners"][0]["name"] == "box"
    assert record["runners"][0]["extra_info"]["runner"] == version()
    assert record["dependencies"]["torch"]["version"]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    phases = [(event["phase"], event["done"], event["total"], event["label"]) for event in events]
    assert phases[0] == ("compile", 0, 1, "D=256")
    assert phases[-1] == ("finished", 1, 1, "")


def test_a_missing_cpp_compiler_is_a_failure_with_its_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "empty"))
    with inductor_config.patch({"cpp.cxx": ("/nonexistent/g++",)}), pytest.raises(InductorError) as raised:
        micro.run(layer_norm(256), Report(folder))
    failure = failure_of(raised.value)
    assert (failure.status, failure.code) == ("failed", "no_cpp_compiler")
    assert "install g++" in failure.reason
    records = records_in(folder)
    assert records
    for record in records:
        assert "benchmark_values" not in record["metric"]
        assert record["metric"]["extra_info"]["code"] == "no_cpp_compiler"


def test_eager_code_is_never_passed_off_as_inductors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(TaskFailure) as raised:
        micro.run(layer_norm(256), Report(folder))
    assert (raised.value.status, raised.value.code) == ("failed", "not_compiled")
    assert not any("benchmark_values" in record["metric"] for record in records_in(folder))


Measured = dict[int, list[Result] | Exception]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """What each size gives, in place of measuring it."""
    given: Measured = {}

    def measure(_spec: object, size: int, *_rest: object) -> list[Result]:
        found = given[size]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(micro, "_measure", measure)
    monkeypatch.setitem(SIZES, "cpu", (256, 512))
    return given


def results(gbps: list[float], speedup: float) -> list[Result]:
    return [
        Result("memory_bandwidth(GB/s)", gbps, "clock"),
        Result("speedup", [speedup], "clock", n=len(gbps)),
        Result("compiled_latency_ms", [1.0], "clock"),
    ]


def means_in(folder: Path, sizes: str = "256,512") -> dict[str, dict[str, Any]]:
    """The metric of each record of the mean, by name."""
    return {
        record["metric"]["name"]: record["metric"]
        for record in records_in(folder)
        if record["benchmark"]["extra_info"]["knobs"] == {"D": "mean", "sizes": sizes}
    }


def test_the_mean_is_derived_from_the_full_set(tmp_path: Path, measured: Measured) -> None:
    measured[256], measured[512] = results([10.0, 20.0], 0.5), results([60.0, 30.0, 90.0], 2.0)
    assert micro.run(layer_norm(), Report(tmp_path)) is None
    means = means_in(tmp_path)
    assert set(means) == {"memory_bandwidth(GB/s)", "speedup"}
    assert means["memory_bandwidth(GB/s)"]["benchmark_values"] == [20.0, 37.5, 55.0]
    assert means["speedup"]["benchmark_values"] == [1.0]
    assert means["speedup"]["extra_info"]["n"] == 2
    assert all("target_value" not in mean for mean in means.values()), "gpt-fast's are a GPU's"


def test_a_noisy_mean_lies_between_the_medians_of_its_sizes(tmp_path: Path, measured: Measured) -> None:
    """Samples in the order of their rank, not of their time: 40, 10, 10 and 10, 10, 40 make no 25."""
    measured[256], measured[512] = results([40.0, 10.0, 10.0], 1.0), results([10.0, 10.0, 40.0], 1.0)
    micro.run(layer_norm(), Report(tmp_path))
    assert means_in(tmp_path)["memory_bandwidth(GB/s)"]["benchmark_values"] == [10.0, 10.0, 40.0]


@pytest.mark.parametrize(("device", "target"), [("cuda", ("950", "a100-40gb")), ("cpu", (None, None))])
def test_gpt_fasts_target_belongs_to_the_gpu(device: str, target: tuple[str | None, str | None]) -> None:
    spec = dataclasses.replace(layer_norm(), device=device)
    mean = next(one for one in micro._means(spec, [results([1.0], 1.0)]) if one.metric.startswith("memory"))
    assert (mean.target, mean.facts.get("target_arch")) == target


def test_gpt_fasts_sizes_have_a_mean_of_their_own_on_a_cpu(tmp_path: Path, measured: Measured) -> None:
    measured.update({size: results([10.0], 1.0) for size in GPT_FAST_SIZES})
    task = layer_norm(*reversed(GPT_FAST_SIZES))
    assert micro.run(task, Report(tmp_path)) is None
    sizes = "1024,4096,8192,16384"
    assert set(means_in(tmp_path, sizes)) == {"memory_bandwidth(GB/s)", "speedup"}
    suite = suite_of("micro")
    (mean,) = (one for one in suite.expected(task, {}) if "sizes" in one.knobs)
    assert mean.knobs == {"D": "mean", "sizes": sizes}
    assert suite.asked_knobs(mean.knobs) == {"D": [*GPT_FAST_SIZES]}
    assert (
        suite.complete_knobs({"D": "mean"}, "cpu")
        != mean.knobs
        == suite.complete_knobs({"D": "mean"}, "cuda")
    )


def test_part_of_the_set_has_no_mean(tmp_path: Path, measured: Measured) -> None:
    measured[256] = results([10.0], 1.0)
    micro.run(layer_norm(256), Report(tmp_path))
    assert {record["benchmark"]["extra_info"]["knobs"]["D"] for record in records_in(tmp_path)} == {256}


def test_a_wrong_size_withholds_its_numbers_and_the_mean_only(tmp_path: Path, measured: Measured) -> None:
    measured[256] = TaskFailure("wrong", "fail_accuracy", "off by 2 %")
    measured[512] = results([10.0], 1.0)
    failure = micro.run(layer_norm(), Report(tmp_path))
    assert failure is not None
    assert (failure.status, failure.code) == ("wrong", "fail_accuracy")
    by_size: dict[Any, list[dict[str, Any]]] = {}
    for record in records_in(tmp_path):
        by_size.setdefault(record["benchmark"]["extra_info"]["knobs"]["D"], []).append(record["metric"])
    assert set(by_size) == {256, 512}
    assert all("benchmark_values" not in metric for metric in by_size[256])
    assert all(metric["extra_info"]["status"] == "wrong" for metric in by_size[256])
    assert all(metric["extra_info"]["status"] == "ok" for metric in by_size[512])


def test_a_failure_that_all_sizes_share_ends_the_task(tmp_path: Path, measured: Measured) -> None:
    measured[256] = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        micro.run(layer_norm(), Report(tmp_path))
    assert {record["metric"]["extra_info"]["status"] for record in records_in(tmp_path)} == {"crashed"}


def test_the_batched_mlp_is_of_flops_not_of_bytes() -> None:
    batched = KERNELS["mlp_batched"](64, torch.bfloat16, "cpu")
    vector = KERNELS["mlp_layer_norm_gelu"](64, torch.bfloat16, "cpu")
    assert batched.flops == batched.operands[1].shape[0] * vector.flops
    assert (batched.ceiling, batched.of_gpt_fast) == (ceilings.MATMUL, False)
    expected = size_metrics("mlp_batched", "cuda")
    assert "share_of_ceiling" in expected
    assert not any(metric.endswith("_gbps") for metric in expected)
