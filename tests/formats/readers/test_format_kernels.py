"""Benchmarks of kernels: operator_benchmark, tritonbench, Helion, KernelBench, gpt-fast's first CSV."""

from __future__ import annotations

import json

import pytest

from runner.formats import format_of, reasons
from runner.schema.metrics import metric_info
from tests.support.observed import SAMPLES, by_metric, observe, observe_sample, skips
from tests.support.records import v3_record


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dedicated_log_torch_trace_rank_0_sample.log", "torch_trace"),
        ("operator_benchmark_compile_float32_cpu.csv", "operator_benchmark"),
        ("op_gemm.csv", "tritonbench"),
        ("tritonbench_nightly.json", "tritonbench"),
        ("helion_results.json", "helion"),
        ("baseline_time_torch_compile_inductor_max-autotune.json", "kernelbench"),
        ("inductor_huggingface_inference.csv", "expected_accuracy"),
        ("gpt_fast_benchmark.csv", "gpt_fast"),
        ("metric_report.csv", "xla_report"),
    ],
)
def test_a_format_is_known_by_its_content_under_any_name(name: str, expected: str) -> None:
    assert format_of("", (SAMPLES / name).read_bytes()).name == expected


def test_operator_benchmark_in_microseconds_by_case() -> None:
    parser = observe_sample("operator_benchmark_compile_float32_cpu.csv", arch="x86_64")
    first = by_metric(parser, "add_M8_N8_K8_cpu")
    latency = first["latency_us"]
    assert latency.identity[3:] == ("inference", "float32", "inductor", "cpu", "cpu-x86_64", False)
    assert (latency.samples, first["peak memory"].status) == ([2.5], "not_run")
    backward = by_metric(parser, "add_M8_N8_K8_cpu_bwdall_BACKWARD")["latency_us"]
    assert (backward.mode, backward.samples) == ("training", [37.25])
    product = by_metric(parser, "mm_size(2,2)_cuda_dtypetorch.bfloat16")
    assert (product["latency_us"].device, product["latency_us"].dtype) == ("cuda", "bfloat16")
    assert product["peak memory"].samples == [96.5]
    assert metric_info("latency_us").unit == "µs"
    assert skips(parser) == [(5, reasons.EMPTY_CELL)] * 2
    assert parser.unsaid == set()


def test_operator_benchmark_for_its_dashboard_has_the_same_identity() -> None:
    record = v3_record("latency", [2.5])
    record["benchmark"] = {
        "name": "PyTorch operator microbenchmark",
        "mode": "inference",
        "dtype": "float32",
        "extra_info": {"device": "cpu", "arch": "x86_64", "use_compile": True, "input_config": "M: 8"},
    }
    record["model"] = {"name": "add_M8_N8_K8_cpu", "type": "micro-benchmark", "origins": ["pytorch"]}
    (item,) = observe(json.dumps([record])).measurements
    (of_csv, *_others) = observe_sample(
        "operator_benchmark_compile_float32_cpu.csv", arch="x86_64"
    ).measurements
    assert (item.identity, item.metric) == (of_csv.identity, of_csv.metric)


def test_a_shape_of_tritonbench_is_an_experiment() -> None:
    parser = observe_sample("op_gemm.csv", arch="h100")
    found = {(item.knobs["shape"], item.backend, item.metric): item for item in parser.measurements}
    assert {item.case for item in parser.measurements} == {"gemm"}
    small = "(256, 256, 256)"
    assert found[small, "aten_matmul", "latency_ms"].samples == [0.0125]
    assert found[small, "triton_matmul", "tflops"].samples == [3.355]
    assert found[small, "triton_matmul", "accuracy"].code == "pass"
    assert found["(512, 512, 512)", "triton_matmul", "latency_ms"].status == "oom"
    assert found["(768, 768, 768)", "triton_matmul", "latency_ms"].samples == [0.0625]
    assert found["(768, 768, 768)", "triton_matmul", "accuracy"].status == "wrong"
    told = [reason for _line, reason in skips(parser)]
    assert told.count(reasons.NOT_A_NUMBER) == 2
    assert told.count(reasons.EMPTY_CELL) == 4
    assert told.count(reasons.AVERAGE_ROW) == 1
    assert metric_info("latency_ms").unit == "ms"


def test_tritonbench_s_nightly_result() -> None:
    parser = observe_sample("tritonbench_nightly.json")
    found = {(item.case, item.knobs.get("shape"), item.metric): item for item in parser.measurements}
    latency = found["gemm", "(256, 256, 256)", "latency_ms"]
    assert latency.identity[3:8] == ("inference", "bfloat16", "triton_matmul", "", "h100")
    assert (latency.samples, latency.run.commit, latency.environment.torch_git) == (
        [0.01],
        "c" * 40,
        "a" * 40,
    )
    assert found["gemm", None, "accuracy"].code == "pass"
    assert found["softmax", "4096", "tflops"].mode == "training"
    assert [entry["reason"] for entry in parser.receipt.skipped] == [
        reasons.NULL_VALUE,
        reasons.AVERAGE_ROW,
        reasons.AVERAGE_ROW,
    ]


def test_a_shape_of_helion_is_an_experiment_and_no_sample() -> None:
    parser = observe_sample("helion_results.json")
    assert len(parser.measurements) == 9
    found = {(item.knobs["shape"], item.metric): item for item in parser.measurements}
    speedup = found["(2048, 4096)", "helion_speedup"]
    assert (speedup.samples, speedup.backend) == ([2.0], "helion")
    assert (speedup.arch, speedup.device) == ("b200", "cuda")
    assert found["(2048, 2048)", "helion_speedup"].status == "failed"
    assert found["(2048, 2048)", "helion_accuracy"].status == "wrong"
    assert found["(2048, 1024)", "torch_compile_speedup"].backend == "torch_compile"
    records = json.loads((SAMPLES / "helion_results.json").read_text())
    records[0]["shape"].pop()
    assert observe(json.dumps(records)).faults[0].pointer == "/0/metric/benchmark_values"


def test_kernelbench_s_baselines() -> None:
    parser = observe_sample("baseline_time_torch_compile_inductor_max-autotune.json")
    first = by_metric(parser, "level1/1_Square_matmul")
    mean = first["latency_ms"]
    assert mean.identity[3:8] == ("inference", "", "inductor_max_autotune", "cuda", "h100")
    assert [first[name].samples for name in ("latency_ms", "latency_min_ms", "latency_max_ms")] == [
        [2.5],
        [2.49],
        [2.7],
    ]
    assert len(parser.measurements) == 12
    assert [entry["pointer"] for entry in parser.receipt.skipped] == ["/level2/2_Left_out.py"]
    body = (SAMPLES / "baseline_time_torch_compile_inductor_max-autotune.json").read_bytes()
    assert observe(body, "times.json").receipt.warnings, "nothing says the backend"


def test_gpt_fast_s_first_csv_measured_tokens_per_second() -> None:
    parser = observe_sample("gpt_fast_benchmark.csv", arch="a100-40gb")
    found = {item.dtype: item for item in parser.measurements}
    assert (found["int8"].metric, found["int8"].samples, found["int8"].target) == (
        "token_per_sec",
        [158.25],
        155,
    )
    assert found["bfloat16"].suite == "gpt_fast"


def test_gpt_fast_s_second_csv_has_columns_for_two_metrics() -> None:
    body = (
        "name,mode,token_per_sec[target],token_per_sec[actual],token_per_sec[pct],memory_bandwidth[target],"
        "memory_bandwidth[actual],memory_bandwidth[pct]\n"
        "Llama-2-7b-chat-hf,int8,144,156.140930,108.43%,1066,1032.153076,96.82%\n"
    )
    assert [
        (item.suite, item.case, item.dtype, item.backend, item.metric, item.samples, item.target)
        for item in observe(body).measurements
    ] == [
        ("gpt_fast", "Llama-2-7b-chat-hf", "int8", "inductor", "token_per_sec", [156.14093], 144),
        ("gpt_fast", "Llama-2-7b-chat-hf", "int8", "inductor", "memory_bandwidth(GB/s)", [1032.153076], 1066),
    ]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("results/timing/MI250/baseline_time_torch.json", "eager"),
        ("baseline_time_torch_compile_matx3.json", "inductor"),
        ("tk/baseline_time_torch_compile_mode_max-autotune.json", "inductor_max_autotune"),
        ("baseline_time_torch_compile_inductor_max-autotune-no-cudagraphs.json",
         "inductor_max_autotune_no_cudagraphs"),
        ("baseline_time_torch_compile_cudagraphs.json", "cudagraphs"),
    ],
)  # fmt: skip
def test_kernelbench_s_file_names_say_what_was_compiled(name: str, backend: str) -> None:
    body = '{"level_tk": {"KernelBench/level1/1_Square.py": {"mean": 1, "num_trials": 100}}}'
    (item,) = observe(body, name).measurements
    assert (item.case, item.backend) == ("level_tk/1_Square", backend)
