"""gpt-fast, operatorbench, pr_time_benchmarks, PyTorch/XLA, torchbench's userbenchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.formats import format_of, reasons
from runner.formats.measurement import ParsedMeasurement
from runner.formats.readers.gpt_fast import GptFastFiles
from runner.schema.metrics import metric_info
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult
from runner.suites import suite_of
from tests.support.finished import record
from tests.support.observed import by_metric, observe, observe_sample, skips

# ---- gpt-fast


def test_gpt_fast_s_models_and_micro_benchmarks_are_two_suites() -> None:
    header = "name,metric,target,actual,dtype,device,arch,is_model\n"
    observer = observe(
        header
        + "gemv,memory_bandwidth(GB/s),870,1954.39,int8,cuda,NVIDIA H200,False\n"
        + "Llama-2-7b-chat-hf,token_per_sec,144,210.5,int8,cuda,NVIDIA H200,True\n"
    )
    micro, model = observer.measurements
    sizes = '{"D":"mean","sizes":"1024,4096,8192,16384"}'
    assert micro.identity[:6] == ("micro", "gemv", sizes, "inference", "int8", "inductor")
    assert (micro.samples, micro.target, micro.target_arch) == ([1954.39], 870.0, "a100-40gb")
    assert model.identity[:3] == ("gpt_fast", "Llama-2-7b-chat-hf", "{}")
    assert model.identity[7] == "h200"


def test_means_over_other_sizes_are_another_experiment(tmp_path: Path) -> None:
    """And a file with gpt-fast's own sizes has no other columns than its script's."""
    identities = []
    for knobs, columns in (({"D": [1024, 4096, 8192, 16384]}, 8), ({}, 9)):
        task = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cpu", knobs=knobs)
        (mean,) = (one.knobs for one in suite_of("micro").expected(task, {}) if "sizes" in one.knobs)
        row = record(None, "memory_bandwidth(GB/s)", [1.5])
        row["benchmark"]["extra_info"] |= {"device": "cpu", "arch": "x86_64", "knobs": mean}
        files = GptFastFiles(tmp_path / f"{columns}.csv").add(
            TaskResult(task, TaskOutcome("ok"), tmp_path, [row])
        )
        for path in files:
            body = path.read_text()
            (item,) = observe(body, path.name).measurements
            assert item.knobs == mean
            identities.append(item.identity)
        assert len(files[0].read_text().partition("\n")[0].split(",")) == columns
    assert len({*identities}) == 2, "each of them in CSV and JSON"


def test_gpt_fast_s_first_files_had_fewer_columns() -> None:
    body = "name,metric,target,actual,percentage\ngather_gemv,memory_bandwidth(GB/s),990,1002.5,101.26\n"
    item = observe(body, device="cuda", dtype="int8").measurements[0]
    assert item.identity[0] == "micro"
    assert (item.identity[4], item.identity[6], item.target) == ("int8", "cuda", 990.0)


def test_a_value_of_gpt_fast_that_is_no_number_is_a_fault_with_its_line() -> None:
    header = "name,metric,target,actual,dtype,device,arch,is_model\n"
    body = header + "gemv,token_per_sec,many,1,int8,cuda,x,False\ngemv,token_per_sec,1,,int8,cuda,x,False\n"
    observer = observe(body)
    assert [(fault.pointer, fault.line) for fault in observer.faults] == [("/target", 2)]
    assert skips(observer) == [(3, reasons.EMPTY_CELL)]


# ---- operatorbench


def _operators(**given: str) -> dict[tuple[str, str], ParsedMeasurement]:
    observer = observe_sample("operatorbench_timm_float32.csv", **given)
    assert not observer.receipt.skipped
    assert not observer.faults
    return {(item.identity[5], item.metric): item for item in observer.measurements}


def test_operatorbench_s_backends_and_the_column_that_no_row_has() -> None:
    found = _operators(device="cuda")
    assert {key: item.samples[0] for key, item in found.items()} == {
        ("inductor", "20th"): 1.25,
        ("inductor", "50th"): 1.5,
        ("inductor", "80th"): 2.0,
        ("autotune", "20th"): 1.5,
        ("autotune", "50th"): 1.75,
        ("autotune", "80th"): 2.25,
        ("inductor/autotune", "20th"): 1.0,
        ("inductor/autotune", "50th"): 1.125,
        ("inductor/autotune", "80th"): 1.25,
        ("inductor+autotune", "elapsed"): 12.5,
        ("eager", "abs"): 0.025,
        ("inductor", "abs"): 0.0125,
        ("autotune", "abs"): 0.01125,
    }
    identity = found["inductor", "50th"].identity
    assert identity[:5] == ("operators", "aten.add.Tensor", '{"inputs":"timm"}', "inference", "float32")


def test_operatorbench_s_mean_times_are_seconds_on_a_cpu() -> None:
    found = _operators(device="cpu")
    assert found["eager", "abs"].samples == [25.0]
    assert found["inductor", "50th"].samples == [1.5]


@pytest.mark.parametrize(("given", "warned"), [({}, 1), ({"device": "cuda"}, 0), ({"device": "cpu"}, 0)])
def test_operatorbench_s_unit_without_a_device_is_warned_of(given: dict[str, str], warned: int) -> None:
    observer = observe("operator,inductor 50th,inductor abs\naten.mm.default,0.75,0.5\n", **given)
    assert sum("taken as a GPU's, in ms" in words for words in observer.receipt.warnings) == warned
    assert len(observer.receipt.warnings) == warned
    assert not observe("operator,inductor 50th\naten.mm.default,0.75\n").receipt.warnings


def test_operatorbench_s_old_header() -> None:
    body = "Operator,inductor 20th,inductor 50th,inductor 80th\naten.mm.default,0.5,0.75,1.0\n"
    observer = observe(body, dtype="float16")
    assert [item.metric for item in observer.measurements] == ["20th", "50th", "80th"]
    short = observe("operator,inductor 50th,elapsed,inductor abs\naten.mm.default,0.75\n")
    assert skips(short) == [(2, reasons.SHORT_ROW)]
    long = observe("operator,inductor 50th\naten.mm.default,0.75,1\n")
    assert long.faults[0].line == 2


# ---- pr_time_benchmarks


def test_instruction_counts_and_their_expected_values() -> None:
    results = observe_sample("pr_time_results.csv").measurements
    assert [item.samples for item in results] == [[3086359081.0], [40859830085.0]]
    assert results[1].identity == (
        "pr_time_benchmarks", "add_loop_inductor_dynamic_gpu", "{}", "", "", "inductor", "cuda", "", True,
    )  # fmt: skip
    expected = observe_sample("pr_time_expected_results.csv")
    assert skips(expected) == []
    assert [item.case for item, _margin in expected.expected] == [
        "add_loop_eager",
        "add_loop_inductor_dynamic_gpu",
    ]
    assert all(item.target and margin for item, margin in expected.expected)


def test_the_arch_of_the_host_is_not_that_of_its_gpu() -> None:
    body = "add_eager_gpu,compile_time_instruction_count,5\nadd_eager,compile_time_instruction_count,5\n"
    for arch, expected in (("x86_64", ["", "cpu-x86_64"]), ("h100", ["h100", "h100"])):
        items = observe(body, arch=arch).measurements
        assert [item.device for item in items] == ["cuda", "cpu"]
        assert [item.arch for item in items] == expected


def test_the_json_of_an_instruction_count_is_the_same_experiment() -> None:
    record = {
        "benchmark": {
            "name": "pr_time_benchmarks",
            "extra_info": {"is_dynamic": False, "device": "cpu", "description": "a loop over 100 add node"},
        },
        "model": {"name": "add_loop_eager", "type": "add_loop", "backend": "eager"},
        "metric": {"name": "compile_time_instruction_count", "benchmark_values": [3086359081]},
    }
    from_json = observe(json.dumps([record])).measurements[0]
    from_csv = observe_sample("pr_time_results.csv").measurements[0]
    assert (from_json.identity, from_json.samples) == (from_csv.identity, from_csv.samples)


def test_the_results_of_upstream_s_own_test_mix_three_and_four_columns() -> None:
    observer = observe("a, instruction count, 90\nb, memory, 200, 0.1\n")
    assert [(item.identity[1], item.metric, item.samples) for item in observer.measurements] == [
        ("a", "instruction count", [90.0]),
        ("b", "memory", [200.0]),
    ]
    wrong = observe("a,m,90\nb,m,many\nc,m\n")
    assert [(fault.pointer, fault.line) for fault in wrong.faults] == [("/value", 2), ("", 3)]


# ---- PyTorch/XLA


def test_an_experiment_of_xla_keeps_its_axes_and_its_repeats() -> None:
    observer = observe_sample("xla_results.jsonl")
    eval_run = next(item for item in observer.measurements if item.metric == "total_time")
    assert eval_run.identity == (
        "xla", "resnet18", '{"batch_size":16,"origin":"torchbench"}', "inference", "", "inductor", "cuda",
        "a100-40gb", False,
    )  # fmt: skip
    assert eval_run.samples == [4.5, 0.011, 0.0105]
    assert eval_run.run.order_time is not None
    train = [item for item in observer.measurements if item.identity[3] == "training"]
    assert {item.identity[5] for item in train} == {"openxla"}
    assert json.loads(train[0].identity[2]) == {"origin": "torchbench", "xla": "PJRT"}
    assert train[0].identity[6:8] == ("tpu", "v4-8")


def test_xla_s_maps_become_a_metric_for_each_number() -> None:
    observer = observe_sample("xla_results.jsonl")
    found = {item.metric: item.samples for item in observer.measurements if item.identity[1] == "resnet18"}
    assert found["dynamo_counters.stats.calls_captured"] == [69.0]
    assert found["inductor_ops.aten::add.num_of_calls"] == [3.0, 3.0, 3.0]
    assert found["xla_unlowered_ops.aten::nonzero.self_cpu_time_s"] == [0.001, 0.001, 0.001]


def test_both_spellings_of_xla_s_execution_counters_are_one_metric() -> None:
    observer = observe_sample("xla_results.jsonl")
    assert by_metric(observer, "dlrm")["xla_ExecuteTime_time_s"].samples == [0.1, 0.1, 0.1]
    item = by_metric(observer, "dlrm")["total_time"]
    assert json.loads(item.identity[2]) == {
        "batch_size": 16,
        "iterations_per_run": 2,
        "keep_model_data_on_cuda": True,
        "origin": "torchbench",
        "xla": "PJRT",
        "xla_flags": "--xla_foo=1",
    }
    assert item.identity[5:8] == ("xla", "cpu", "amd-epyc-7b13")


def test_xla_s_errors_and_verdicts_are_statuses() -> None:
    observer = observe_sample("xla_results.jsonl")
    found = {(item.identity[1], item.metric): (item.status, item.code) for item in observer.measurements}
    assert found["maml", "total_time"] == ("unsupported", "SKIP")
    assert found["yolov3", "total_time"][0] == "oom"
    assert found["sam", "total_time"][0] == "timed_out"
    assert found["hf_Bert", "verification_code"] == ("ok", "PASS")
    assert found["hf_GPT2", "verification_code"] == ("wrong", "FAIL")
    assert ("hf_GPT2", "total_time") not in found, "nothing was to be measured beside the verification"
    assert found["sam", "verification_code"] == ("not_run", "VERIFIER_DIDNT_RUN")
    assert found["resnet18", "total_time"] == ("ok", None)


def test_the_one_line_of_xla_s_documentation_may_be_printed_over_many() -> None:
    value: dict[str, Any] = {
        "model": {"suite_name": "torchbench", "model_name": "llama"},
        "experiment": {
            "accelerator": "cuda",
            "xla": "PJRT",
            "dynamo": "openxla",
            "test": "eval",
            "batch_size": 1,
        },
        "repeat": 5,
        "iterations_per_run": 1,
        "metrics": {"total_time": [2.0, 1.0], "per_iter_time": []},
        "timestamp": "1755000000",
        "verification_code": "VERIFIER_SKIPPED",
    }
    observer = observe(json.dumps(value, indent=2))
    assert [item.metric for item in observer.measurements] == ["verification_code", "total_time"]
    skipped = {"pointer": "/metrics/per_iter_time", "reason": reasons.NULL_VALUE, "kind": "ignored"}
    assert observer.receipt.skipped == [skipped]


@pytest.mark.parametrize(
    ("metrics", "pointer"),
    [({"total_time": ["fast"]}, "/metrics/total_time"), ({"total_time": [True]}, "/metrics/total_time")],
)
def test_a_value_of_xla_that_is_no_number_is_a_fault(metrics: dict[str, Any], pointer: str) -> None:
    good = {"model": {"model_name": "a"}, "experiment": {}, "metrics": {"total_time": [1]}}
    observer = observe("\n".join(map(json.dumps, (good, {**good, "metrics": metrics}, {"model": {}}))))
    assert [(fault.pointer, fault.line) for fault in observer.faults] == [(pointer, 2), ("", 3)]
    assert len(observer.measurements) == 1


def test_a_graph_break_s_reason_is_cut_to_a_name_of_its_own() -> None:
    counters = {"graph_break": {"x" * 300: 1, "x" * 299 + "y": 2}}
    body = {"model": {"model_name": "a"}, "experiment": {}, "metrics": {"dynamo_counters": [counters]}}
    names = [item.metric for item in observe(json.dumps(body)).measurements]
    assert len(set(names)) == 2
    assert all(len(name) == 200 for name in names)


# ---- torchbench's userbenchmarks


def test_a_userbenchmark_s_names_are_taken_apart() -> None:
    observer = observe_sample("metrics-20260812093000.json")
    bert = [item for item in observer.measurements if item.identity[1] == "BERT_pytorch"]
    assert {(item.identity[3], item.metric): item.samples for item in bert} == {
        ("inference", "latencies"): [11.25],
        ("inference", "gpu_peak_mem"): [1.5],
        ("training", "latencies"): [30.5],
    }
    training = next(item for item in bert if item.identity[3] == "training")
    assert training.identity == (
        "torchbench", "BERT_pytorch", '{"batch_size":8}', "training", "float16", "inductor", "cuda",
        "a100-40gb", False,
    )  # fmt: skip
    assert training.environment.torch == "2.13.0.dev20260811+cu130"
    assert training.environment.torch_git.startswith("00391a7e")
    assert training.run.order_time is not None
    assert training.run.order_time.isoformat() == "2026-08-12T09:30:00+00:00"


def test_words_in_a_userbenchmark_s_values_are_failures() -> None:
    observer = observe_sample("metrics-20260812093000.json")
    found = {(item.identity[1], item.metric): (item.status, item.code) for item in observer.measurements}
    assert found["resnet50", "latencies"][0] == "oom"
    assert found["sam", "latencies"] == ("unsupported", "not_implemented")
    assert found["dlrm", "accuracy"] == ("ok", "pass")
    assert found["dlrm", "memleak"] == ("wrong", "True")
    assert skips(observer) == [(None, reasons.NULL_VALUE)]


def test_other_userbenchmarks_name_their_metrics_as_they_like() -> None:
    observer = observe_sample("metrics-20260812093000.json")
    found = {
        (item.identity[0], item.identity[1], item.metric): item.samples for item in observer.measurements
    }
    assert found["torchbench", "resnet18", "iter_latencies"] == [3.5, 3.625, 3.25]
    assert found["test_bench", "BERT_pytorch, Adam, cuda, (pt2) default", "value"] == [0.015625]


def test_a_boolean_in_a_userbenchmark_is_a_fault() -> None:
    body = {"name": "n", "environ": {}, "metrics": {"a": True, "b": [1, "x"]}}
    assert [fault.pointer for fault in observe(json.dumps(body)).faults] == ["/metrics/a", "/metrics/b"]


# ---- PyTorch/XLA's report


def test_the_report_of_xla_has_the_identities_of_its_lines() -> None:
    parser = observe_sample("metric_report.csv")
    found = by_metric(parser, "resnet18")
    median = found["median_total_time"]
    assert median.identity[3:8] == ("inference", "", "openxla", "cuda", "a100-40gb")
    assert median.knobs == {"xla": "PJRT", "batch_size": 32, "origin": "torchbench"}
    values = {name: item.samples for name, item in found.items()}
    assert values["median_total_time"] == [0.25]
    assert values["xla_compile_time"] == [3.5]
    assert values["std_total_time"] == [0.0125]
    assert (metric_info("median_total_time").unit, metric_info("median_total_time").direction) == (
        "s",
        "down",
    )
    failed = by_metric(parser, "sam")["median_total_time"]
    assert (failed.status, failed.mode, failed.backend) == ("oom", "training", "inductor")
    assert reasons.NO_VALUE_WRITTEN in {reason for _line, reason in skips(parser)}


def test_the_report_of_xla_as_lines() -> None:
    said = {"suite_name": "torchbench", "model_name": "dlrm", "xla": "None"}
    said |= {"accelerator": "NVIDIA A100", "accelerator_model": "NVIDIA A100"}
    said |= {"dynamo": "inductor", "test": "eval", "run_status": "success"}
    line = {"metrics": {"batch_size": -1, "median_total_time": 0.5}, "dimensions": said}
    failed: dict[str, Any] = {
        "metrics": {"median_total_time": -1},
        "dimensions": {**said, "model_name": "sam"},
    }
    failed["error_message"] = "RuntimeError: a"
    body = f"{json.dumps(line)}\n{json.dumps(failed)}\n"
    assert format_of("", body.encode()).name == "xla_report"
    found = {item.case: item for item in observe(body).measurements}
    assert (found["dlrm"].samples, found["dlrm"].knobs) == ([0.5], {"origin": "torchbench"})
    assert found["dlrm"].device == ""
    assert (found["sam"].status, found["sam"].code) == ("failed", "RuntimeError: a")


def test_a_failed_run_in_the_report_of_xla_has_failed_without_a_message_too() -> None:
    header = "suite_name,model_name,accelerator,xla,dynamo,test,run_status,error_message,median_total_time\n"
    body = header + "torchbench,sam,cuda,PJRT,openxla,eval,failure,,-1\n"
    found = by_metric(observe(body), "sam")["median_total_time"]
    assert (found.status, found.samples) == ("failed", [])


# ---- Intel's expected accuracy


def test_expected_accuracy_of_xpu_by_dtype() -> None:
    parser = observe_sample("inductor_huggingface_inference.csv")
    found = {(item.case, item.dtype, item.knobs.get("amp_dtype")): item for item, _margin in parser.expected}
    item = found["BertForMaskedLM", "float32", None]
    assert (item.status, item.code, item.device, item.suite) == (
        "wrong", "fail_accuracy", "xpu", "huggingface",
    )  # fmt: skip
    assert (item.mode, item.backend) == ("inference", "inductor")
    assert found["BertForMaskedLM", "amp", "float16"].code == "eager_fail_to_run"
    assert (len(parser.expected), parser.measurements) == (7, [])
    assert skips(parser) == [(5, reasons.EMPTY_CELL)] * 2
