"""What other tools mean by their records: one value per shape, device names, words for an outcome, unit and
direction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hud.ingest import ingest
from hud.models import Metric
from runner.formats.measurement import stored_knobs
from runner.formats.parameters import Parameters
from tests.support.observed import observe
from tests.support.records import as_list, v3_record


def helion(metric: str, values: list[float]) -> dict[str, Any]:
    """A record of helion's `benchmarks/run_linattn.py`."""
    return {
        "benchmark": {
            "name": "Helion Linear-Attention Benchmark",
            "extra_info": {"device": "NVIDIA B200", "backend": "triton"},
        },
        "model": {"name": "softmax"},
        "metric": {"name": metric, "benchmark_values": values},
        "shape": ["(4096, 256)", "(4096, 384)", "(4096, 512)"],
    }


def test_helion_s_values_are_one_for_each_shape() -> None:
    records = [helion("helion_speedup", [1.25, 0.0, -1.0]), helion("helion_accuracy", [1.0, 0.0, 1.0])]
    found = observe(json.dumps(records)).measurements
    assert {item.identity[:8] for item in found} == {
        (
            "helion",
            "softmax",
            json.dumps({"shape": shape}, separators=(",", ":")),
            "",
            "",
            "helion",
            "cuda",
            "b200",
        )
        for shape in records[0]["shape"]
    }
    assert {item.device_name for item in found} == {"NVIDIA B200"}
    speedups, accuracies = found[:3], found[3:]
    assert [(item.samples, item.status) for item in speedups] == [
        ([1.25], "ok"),
        ([], "failed"),
        ([], "failed"),
    ]
    assert [(item.samples, item.status) for item in accuracies] == [
        ([1.0], "ok"), ([0.0], "wrong"), ([1.0], "ok"),
    ]  # fmt: skip
    assert found[1].pointer == "/0/metric/benchmark_values/1"


def test_executorch_s_phones_are_told_apart_and_its_nights_are_one_series() -> None:
    found = {}
    for name, kind, arn in (
        ("Apple iPhone 15", "iOS 18.0", "1"), ("Apple iPhone 15", "iOS 18.0", "2"),
        ("Apple iPhone 16", "iOS 18.0", "3"), ("NVIDIA A100-SXM4-80GB", "12.8", "4"),
    ):  # fmt: skip
        record = v3_record("avg_inference_latency(ms)")
        record["benchmark"] |= {"name": "ExecuTorch", "extra_info": {"app_type": "IOS_APP", "job_arn": arn}}
        record["runners"] = [{"name": name, "type": kind}]
        (item,) = observe(json.dumps(record)).measurements
        found[arn] = item.suite, item.device, item.arch, item.knobs_key
    assert found["1"] == found["2"] != found["3"]
    assert found["3"][:3] == ("executorch", "", "apple-iphone-16")
    assert found["4"] == ("executorch", "cuda", "a100-80gb", '{"app_type":"IOS_APP"}')


def test_vllm_s_options_are_settings_but_where_its_output_goes() -> None:
    options = {
        "output_len": 128, "tensor_parallel_size": 2, "request_rate": 4.0, "enforce_eager": False,
        "tokenizer": None, "output_json": "results/2026-11-22.json", "download_dir": "/cache",
    }  # fmt: skip
    record = v3_record("median_ttft_ms")
    record["benchmark"] |= {"name": "vLLM benchmark", "extra_info": {"args": options}}
    (item,) = observe(json.dumps(record)).measurements
    assert item.suite == "vllm_benchmark"
    assert item.knobs == {"output_len": 128, "tensor_parallel_size": 2, "request_rate": 4.0}


def test_a_list_beside_no_shapes_is_a_list_of_samples() -> None:
    record = v3_record("latency", [1.0, 2.0])
    record["benchmark"]["extra_info"]["shape"] = [4096, 4096]  # of both
    (item,) = observe(json.dumps(record)).measurements
    assert item.samples == [1.0, 2.0]


@pytest.mark.parametrize(
    ("word", "status"),
    [("timeout", "timed_out"), ("error", "failed"), ("FAIL", "failed"), ("Out of memory", "oom"),
     ("skipped", "not_run"), ("success", "ok"), ("fail_to_run", "failed"), ("eager_fail_to_run", "failed")],
)  # fmt: skip
def test_another_tool_s_word_for_an_outcome_is_kept_beside_ours(word: str, status: str) -> None:
    record = v3_record("odd", [0.0 if status != "ok" else 1.0])
    record["metric"]["extra_info"] = {"status": word}
    (item,) = observe(json.dumps(record)).measurements
    expected = ("ok", None, [1.0]) if status == "ok" else (status, word, [])
    assert (item.status, item.code, item.samples) == expected
    record["metric"].pop("benchmark_values")
    assert [item.status for item in observe(json.dumps(record)).measurements] == [status] * (status != "ok")


def test_a_target_of_0_is_none_and_a100_is_not_the_40_gb_card() -> None:
    record = v3_record()
    record["benchmark"]["extra_info"]["arch"] = "A100"
    (item,) = observe(json.dumps(record)).measurements
    assert (item.identity[7], item.target_arch) == ("a100", "a100-40gb")
    record["metric"]["target_value"] = 0
    assert observe(json.dumps(record)).measurements[0].target is None


@pytest.mark.django_db
def test_a_record_says_unit_and_direction_of_a_metric_nobody_knows() -> None:
    record = v3_record("goodput", [5.0])
    record["metric"]["extra_info"] = {"unit": "req/s", "direction": "higher_is_better"}
    known = v3_record("speedup", [5.0])
    known["metric"]["extra_info"] = {"unit": "ratio", "direction": "higher is better"}
    ingest(as_list(record, v3_record("odd", [1.0]), known), Parameters())
    meanings = {
        name: (unit, up) for name, unit, up in Metric.objects.values_list("name", "unit", "direction")
    }
    assert meanings["goodput"] == ("request/s", "up")
    assert meanings["odd"] == ("", "none")
    assert meanings["speedup"] == ("x", "up")


@pytest.mark.parametrize(
    ("device", "runner", "arch"),
    [
        ("cuda", {"gpu_info": "NVIDIA H200"}, "h200"),
        ("", {"gpu_info": "NVIDIA H200"}, "h200"),
        ("cpu", {"gpu_info": "NVIDIA H200"}, ""),
        ("cuda", {"type": "linux.idc.something", "gpu_info": "NVIDIA A10G"}, "a10g"),
        ("cuda", {"type": "linux.aws.a100", "gpu_info": "NVIDIA H200"}, "a100"),
    ],
)
def test_the_gpu_of_the_runner_is_the_arch_where_nothing_else_says_it(
    device: str, runner: dict[str, Any], arch: str
) -> None:
    record = v3_record(runners=[{"name": "box", **runner}])
    record["benchmark"]["extra_info"] = {"device": device}
    (found,) = observe(as_list(record)).measurements
    assert found.identity[7] == arch


def test_equal_knobs_of_different_types_are_different_texts() -> None:
    texts = [stored_knobs({"a": value}) for value in (1, True, 1.0, [1], 2**63)]
    assert texts == ['{"a":1}', '{"a":true}', '{"a":1.0}', '{"a":[1]}', '{"a":"9223372036854775808"}']


@pytest.mark.parametrize("separator", ["_", "-"])
def test_names_of_the_files_of_intel_s_ci(separator: str) -> None:
    name = separator.join(("inductor", "huggingface", "amp_fp16", "training", "xpu", "accuracy.csv"))
    found = observe("dev,name,batch_size,accuracy\nxpu,T5Small,4,pass\n", name).measurements[0]
    assert found.identity[2:7] == ('{"amp_dtype":"float16"}', "training", "amp", "inductor", "xpu")


def test_knobs_are_stored_the_same_whatever_was_read_before() -> None:
    for zero in (-0.0, 0.0, -0.0):
        assert stored_knobs({"alpha": zero}) == '{"alpha":0.0}'
    assert stored_knobs({"alpha": False}) == '{"alpha":false}'
    assert stored_knobs({"alpha": 1}) == '{"alpha":1}'
