"""The files of other tools that are read by a declaration alone, in samples of their shapes."""

from __future__ import annotations

import json

import pytest

from hud.ingest import ingest
from hud.models import Measurement, Run
from runner.formats import FORMATS, format_of, reasons
from runner.formats.errors import BadUpload
from runner.formats.format import Preview
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters
from tests.support.observed import SAMPLES, by_metric, observe, observe_sample

_OWN_READERS = {
    "baseline_time_torch_compile_inductor_max-autotune.json": "kernelbench",
    "dedicated_log_torch_trace_rank_0_sample.log": "torch_trace",
    "executorch_benchmark_results.json": "executorch",
    "github_action_benchmark_data.js": "github-action-benchmark",
    "google_benchmark.json": "google-benchmark",
    "gpt_fast_benchmark.csv": "gpt_fast",
    "helion_dashboard-data.json": "helion_dashboard",
    "helion_results.json": "helion",
    "inductor_huggingface_inference.csv": "expected_accuracy",
    "inductor_huggingface_training_graph_breaks.csv": "graph_breaks",
    "inductor_no_cudagraphs_torchbench_float32_training_cuda_accuracy.csv": "torchdynamo",
    "inductor_with_cudagraphs_huggingface_bfloat16_inference_cuda_performance.csv": "torchdynamo",
    "liger_all_benchmark_data.csv": "liger",
    "matmul-performance-fp16.csv": "perf_report",
    "metric_report.csv": "xla_report",
    "metrics-20260812093000.json": "userbenchmark",
    "mv3_mps_apple-iphone-15_ios-18.0.csv": "executorch_csv",
    "op_gemm.csv": "tritonbench",
    "operator_benchmark_compile_float32_cpu.csv": "operator_benchmark",
    "operator_summary.csv": "backendbench",
    "operatorbench_timm_float32.csv": "operatorbench",
    "pr_time_appended.txt": "pr_time",
    "pr_time_expected_results.csv": "pr_time",
    "pr_time_results.csv": "pr_time",
    "pytest_benchmark.json": "pytest-benchmark",
    "sglang_bench_one_batch.jsonl": "sglang",
    "sglang_bench_serving.jsonl": "llm_serving",
    "tritonbench_nightly.json": "tritonbench",
    "vllm_bench_serve.jsonl": "llm_serving",
    "xla_results.jsonl": "xla",
}


def test_every_sample_is_found_by_its_own_reader_and_by_no_other() -> None:
    others = {".md", ".sql", ".xz"}
    samples = {path.name: path for path in SAMPLES.iterdir() if path.suffix not in others}
    assert samples.keys() == _OWN_READERS.keys()
    for name, path in samples.items():
        preview = Preview(path.read_bytes())
        found = [kind for kind, item in FORMATS.items() if item.matches(preview)]
        assert found[0] == _OWN_READERS[name], name
        assert set(found[1:]) <= {"v3", "cachebench"}, name


def _values(name: str) -> dict[tuple[str, str, str], ParsedMeasurement]:
    parser = observe_sample(name)
    assert not parser.faults
    found = {(item.case, item.knobs_key, item.metric): item for item in parser.measurements}
    assert len(found) == len(parser.measurements)
    return found


def test_google_benchmark_s_repetitions_are_samples_and_its_aggregates_are_not() -> None:
    found = _values("google_benchmark.json")
    copied = found["BM_copy/8", '{"threads":1}', "real_time"]
    assert (copied.samples, copied.unit, copied.direction) == ([10.5, 11.5], "ns", "down")
    assert (copied.run.host, str(copied.run.order_time)) == ("bench-1", "2026-11-20 09:00:00+00:00")
    rate = found["BM_copy/8", '{"threads":1}', "bytes_per_second"]
    assert (rate.samples, rate.unit, rate.direction) == ([8e6, 7e6], "B/s", "up")
    alone = found["BM_sort", '{"threads":2}', "real_time"]
    assert (alone.samples, alone.unit) == ([2.5], "µs")
    assert found["BM_broken", "{}", "real_time"].status == "failed"
    skipped = observe_sample("google_benchmark.json").receipt.skipped
    assert [(entry["pointer"], entry["reason"]) for entry in skipped] == [
        ("/benchmarks/2", reasons.AGGREGATE)
    ]


def test_pytest_benchmark_says_commit_branch_and_host() -> None:
    found = _values("pytest_benchmark.json")
    added = found["tests/test_add.py::test_add[16]", "{}", "time_median_s"]
    assert (added.samples, added.unit, added.direction) == ([0.0009, 0.0011, 0.0015], "s", "down")
    assert (added.run.commit, added.run.branch, added.run.host) == (
        "0123456789abcdef0123456789abcdef01234567", "main", "bench-1",
    )  # fmt: skip
    assert found["tests/test_add.py::test_sub", "{}", "time_median_s"].samples == [0.625]


@pytest.mark.django_db
def test_the_history_of_github_action_benchmark_is_a_point_for_each_commit() -> None:
    body = (SAMPLES / "github_action_benchmark_data.js").read_bytes()
    receipt = ingest(body, Parameters(filename="data.js"))
    assert (receipt.stored, receipt.skipped) == (3, [])
    runs = Run.objects.filter(pk__in=receipt.run_ids).order_by("order_time")
    assert [(run.commit[:2], run.repo, run.order_time.day) for run in runs] == [
        ("11", "someone/something", 18), ("22", "someone/something", 19),
    ]  # fmt: skip
    sorted_ = Measurement.objects.filter(series__experiment__case="sort/1000").order_by("order_time")
    assert [row.value for row in sorted_] == [1250, 1100]
    assert {row.series.metric.direction for row in sorted_} == {"down"}
    plain = body.partition(b"=")[2]
    assert len(observe(plain, "benchmark-data.json").measurements) == 3


def test_liger_s_table_says_everything() -> None:
    found = _values("liger_all_benchmark_data.csv")
    speed = found["rope", '{"T":1024,"num_heads":32,"operation":"forward"}', "latency_ms"]
    assert speed.identity[3:8] == ("inference", "bfloat16", "liger", "", "h200")
    assert (speed.samples, speed.unit, str(speed.run.order_time)) == (
        [0.25],
        "ms",
        "2026-11-18 09:00:00+00:00",
    )
    memory = found["rope", '{"T":1024,"num_heads":32,"operation":"full"}', "memory"]
    assert (memory.samples, memory.unit, memory.backend, memory.mode) == (
        [120.5],
        "MB",
        "huggingface",
        "training",
    )


def test_a_perf_report_has_a_column_for_each_provider() -> None:
    parser = observe_sample("matmul-performance-fp16.csv")
    first = parser.measurements[0]
    assert (first.case, first.knobs, first.backend) == (
        "matmul-performance-fp16", {"M": 256, "N": 256, "K": 256}, "cuBLAS",
    )  # fmt: skip
    assert (first.metric, first.samples, first.unit) == ("tflops", [2.5], "TFLOP/s")
    older = observe("N,Liger,Hugging Face\n1024.000000,5.5,5.6\n", "geglu.csv").measurements
    assert [(item.backend, item.samples, item.knobs) for item in older] == [
        ("Liger", [5.5], {"N": 1024}), ("Hugging Face", [5.6], {"N": 1024}),
    ]  # fmt: skip


def test_backendbench_s_zero_of_a_speedup_is_no_value() -> None:
    parser = observe_sample("operator_summary.csv", backend="flag_gems")
    add, mm = by_metric(parser, "add.Tensor"), by_metric(parser, "mm.default")
    assert (add["geomean_speedup"].samples, add["geomean_speedup"].backend) == ([1.0625], "flag_gems")
    assert (mm["geomean_speedup"].samples, mm["geomean_speedup"].status) == ([], "not_run")
    assert mm["correctness_rate"].samples == [0.5]


@pytest.mark.parametrize(
    ("name", "backend", "values"),
    [
        ("sglang_bench_serving.jsonl", "sglang", {"output_throughput": 1015.5, "p99_ttft_ms": 150}),
        ("vllm_bench_serve.jsonl", "vllm", {"total_token_throughput": 9035.3, "mean_tpot_ms": 65.7}),
    ],
)
def test_results_of_servers_name_their_model(name: str, backend: str, values: dict[str, float]) -> None:
    found = by_metric(observe_sample(name), "meta-llama/Llama-3.1-8B-Instruct")
    assert {metric: found[metric].samples[0] for metric in values} == values
    assert {(item.backend, item.mode) for item in found.values()} == {(backend, "inference")}
    assert found["request_throughput"].direction == "up"
    nameless = json.loads((SAMPLES / name).read_text()) | {"model_id": None, "server_info": None}
    with pytest.raises(BadUpload):
        format_of("", json.dumps(nameless).encode())


def test_sglang_s_batches_are_told_apart_by_their_lengths() -> None:
    found = _values("sglang_bench_one_batch.jsonl")
    small = found["llama-8b", '{"batch_size":1,"input_len":1024,"output_len":8}', "prefill_latency"]
    large = found["llama-8b", '{"batch_size":8,"input_len":1024,"output_len":8}', "overall_throughput"]
    assert (small.samples, small.unit, small.direction) == ([0.05], "s", "down")
    assert (large.samples, large.unit, large.direction) == ([22933], "token/s", "up")


def test_executorch_s_older_results_name_model_backend_and_phone() -> None:
    found = _values("executorch_benchmark_results.json")
    latency = found["mv3", '{"os":"Android 13"}', "avg_inference_latency(ms)"]
    assert latency.identity[3:8] == ("inference", "q8", "xnnpack", "", "samsung-sm-s901u1")
    by_job = observe_sample("mv3_mps_apple-iphone-15_ios-18.0.csv").measurements
    assert [(item.case, item.backend, item.arch, item.samples[0]) for item in by_job[::2]] == [
        ("mv3", "mps", "apple-iphone-15", 4), ("mv3", "mps", "apple-iphone-15", 4.5),
    ]  # fmt: skip
    assert {item.run.external_id for item in by_job} == {
        "15615480751/43993124686/1", "15604974289/43958007180/1",
    }  # fmt: skip
    assert observe("workflow_id,job_id,granularity_bucket,a(ms)\n1,2,2026-06-12T17:00:00Z,3\n").faults


def test_helion_s_dashboard_has_the_series_of_its_benchmark() -> None:
    items = observe_sample("helion_dashboard-data.json").measurements
    first = items[0]
    assert (first.suite, first.case, first.backend, first.arch) == ("helion", "softmax", "helion", "mi325x")
    assert (first.knobs, first.metric, first.samples) == ({"shape": "(4096, 256)"}, "helion_speedup", [1.25])
    assert len({item.run for item in items}) == 2
    failed = next(item for item in items if item.metric == "triton_speedup" and not item.samples)
    assert failed.status == "failed"


@pytest.mark.django_db
def test_all_rows_that_were_appended_to_a_pr_time_file_are_stored() -> None:
    receipt = ingest((SAMPLES / "pr_time_appended.txt").read_bytes(), Parameters())
    assert (receipt.stored, receipt.skipped) == (5, [])
    values = Measurement.objects.filter(series__experiment__case="add_loop_eager").order_by("repeat")
    assert [row.value for row in values] == [2810523067, 2553096030, 2555760601]


@pytest.mark.parametrize(
    "name", ["google_benchmark.json", "pytest_benchmark.json", "helion_dashboard-data.json"]
)
def test_another_shape_inside_is_a_fault(name: str) -> None:
    value = json.loads((SAMPLES / name).read_text())
    listed = value.get("benchmarks") or value["summary"]
    listed[0] = 3
    assert observe(json.dumps(value)).faults
