"""torchdynamo's CSVs and the JSON lines beside them: headers of all ages, rows of failures, wrong names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hud.ingest import BadUpload
from runner.formats import reasons
from runner.formats.format import LocatedRecord
from runner.formats.torchdynamo import lists
from tests.support.observed import SAMPLES, SHIPPED, by_metric, observe, observe_sample, skips
from tests.support.records import as_lines

GIVEN = {"suite": "huggingface", "mode": "inference", "dtype": "bfloat16", "backend": "inductor"}
PERFORMANCE = "inductor_with_cudagraphs_huggingface_bfloat16_inference_cuda_performance.csv"
ACCURACY = "inductor_no_cudagraphs_torchbench_float32_training_cuda_accuracy.csv"


def test_the_file_s_name_says_what_the_columns_do_not() -> None:
    observer = observe_sample(PERFORMANCE)
    first = observer.measurements[0]
    assert first.identity[:8] == (
        "huggingface", "BertForMaskedLM", "{}", "inference", "bfloat16", "inductor_cudagraphs", "cuda", "",
    )  # fmt: skip
    assert (first.metric, first.samples) == ("speedup", [1.5])


def test_a_parameter_wins_over_the_name_and_the_content_over_both() -> None:
    observer = observe_sample(PERFORMANCE, dtype="float16", backend="aot_eager", device="cpu", suite="other")
    suite, _case, _knobs, _mode, dtype, backend, device, _arch, _dynamic = observer.measurements[0].identity
    assert (suite, dtype, backend, device) == ("other", "float16", "aot_eager", "cuda")


def test_the_row_of_a_failure_is_a_status_and_never_a_number() -> None:
    observer = observe_sample(PERFORMANCE)
    failed = by_metric(observer, "XLNetLMHeadModel")
    assert {name: (item.samples, item.status) for name, item in failed.items()} == {
        "speedup": ([], "failed"),
        "abs_latency": ([], "failed"),
    }
    assert skips(observer) == [(3, reasons.FILLED_UP)]
    assert failed["speedup"].identity[2] == "{}", "a batch size of 0 is none"


ALL_COLUMNS = "speedup,abs_latency,compilation_latency,compression_ratio,calls_captured,graph_breaks"


@pytest.mark.parametrize("cells", ["0.0,0.0,0.0,0.0,0,0", "0.0,0.0,12.5,0.0,3,0"])
def test_no_zero_of_a_failed_row_is_a_measured_value(cells: str) -> None:
    observer = observe(f"dev,name,batch_size,{ALL_COLUMNS}\ncuda,XLNetLMHeadModel,8,{cells}\n", PERFORMANCE)
    measured = by_metric(observer, "XLNetLMHeadModel")
    values = dict(zip(ALL_COLUMNS.split(","), map(float, cells.split(",")), strict=True))
    assert {name: (item.samples, item.status) for name, item in measured.items()} == {
        name: ([value], "ok") if value else ([], "failed") for name, value in values.items()
    }
    assert measured["graph_breaks"].code == measured["speedup"].code


def test_a_zero_of_a_model_that_ran_is_a_value_where_it_can_be_one() -> None:
    observer = observe(
        f"dev,name,batch_size,{ALL_COLUMNS}\ncuda,T5Small,8,1.5,2.0,0.0,1.0,3,0\n", PERFORMANCE
    )
    measured = by_metric(observer, "T5Small")
    assert (measured["graph_breaks"].samples, measured["graph_breaks"].status) == ([0.0], "ok")
    assert (measured["compilation_latency"].samples, measured["compilation_latency"].status) == (
        [],
        "not_run",
    )


@pytest.mark.parametrize(("word", "status"), [("fail_to_run", "failed"), ("OOM", "oom")])
def test_an_accuracy_that_says_a_failure_makes_its_row_s_zeros_that_failure(word: str, status: str) -> None:
    body = f"dev,name,batch_size,accuracy,compilation_latency,graph_breaks\ncuda,resnet18,4,{word},0.0,0\n"
    for item in by_metric(observe(body, ACCURACY), "resnet18").values():
        assert (item.samples, item.status, item.code) == ([], status, word)
    wrong = by_metric(observe(body.replace(word, "fail_accuracy"), ACCURACY), "resnet18")
    assert wrong["accuracy_graph_breaks"].samples == [0.0], "it ran"


def test_a_batch_size_that_is_not_the_model_s_own_is_a_knob() -> None:
    observer = observe_sample(PERFORMANCE)
    assert by_metric(observer, "BertForMaskedLM")["speedup"].identity[2] == "{}"
    assert by_metric(observer, "T5Small")["speedup"].identity[2] == '{"batch_size":8}'


def test_an_accuracy_run_s_numbers_are_another_run_s() -> None:
    observer = observe_sample(ACCURACY)
    passed = by_metric(observer, "resnet18")
    assert (passed["accuracy"].status, passed["accuracy"].code) == ("ok", "pass")
    assert passed["accuracy_compilation_latency"].samples == [8.25]
    assert passed["accuracy_graph_breaks"].samples == [0.0]
    assert passed["accuracy"].identity[2:6] == ("{}", "training", "float32", "inductor_no_cudagraphs")
    assert "compilation_latency" not in passed
    assert by_metric(observer, "yolov3")["accuracy"].status == "wrong"
    assert by_metric(observer, "sam")["accuracy"].code == "eager_fail_to_run"
    assert set(by_metric(observer, "sam")) == {"accuracy"}
    assert by_metric(observer, "dlrm")["accuracy"].status == "timed_out"
    assert skips(observer) == [(4, reasons.FILLED_UP), (5, reasons.FILLED_UP)]


def test_a_word_that_the_harness_does_not_write_is_no_pass() -> None:
    observer = observe("dev,name,batch_size,accuracy\ncuda,x,1,sort_of_fine\n")
    assert (observer.measurements[0].status, observer.measurements[0].code) == ("cannot_tell", "sort_of_fine")


def test_old_headers_have_fewer_columns_and_new_ones_more() -> None:
    old = (
        "dev,name,batch_size,speedup,abs_latency,compilation_latency,compression_ratio\n"
        "cpu,a,1,2.0,5.0,7.0,1.1\n"
    )
    assert [item.metric for item in observe(old).measurements] == [
        "speedup", "abs_latency", "compilation_latency", "compression_ratio",
    ]  # fmt: skip
    new = (
        "dev,name,batch_size,tag,speedup,abs_latency,baseline,speedup_vs_baseline,cache_lookup_latency\n"
        "cuda,a,1,main,2.0,5.0,0.0,0.0,12.5\n"
    )
    found = by_metric(observe(new), "a")
    assert found["speedup"].identity[2] == '{"batch_size":1,"tag":"main"}'
    assert found["cache_lookup_latency"].samples == [12.5]
    assert (found["baseline"].samples, found["baseline"].status) == ([], "not_run")


def test_a_failure_s_row_under_a_header_with_a_tag_stands_one_place_before() -> None:
    body = "dev,name,batch_size,tag,accuracy,graph_breaks\ncuda,a,0,timeout,0,0\ncuda,b,1,main,pass,3\n"
    found = by_metric(observe(body), "a")
    assert (found["accuracy"].status, found["accuracy"].code) == ("timed_out", "timeout")
    assert found["accuracy"].identity[2] == "{}"
    speed = "dev,name,batch_size,tag,speedup,abs_latency\ncuda,a,0,0.000000,0.000000,0\n"
    failed = by_metric(observe(speed), "a")
    assert (failed["speedup"].status, failed["speedup"].identity[2]) == ("failed", "{}")


def test_a_row_shorter_than_the_header_keeps_what_it_has() -> None:
    observer = observe("dev,name,batch_size,speedup,abs_latency,graph_breaks\ncuda,a,4,2.0,5.0\n")
    assert [item.metric for item in observer.measurements] == ["speedup", "abs_latency"]
    assert skips(observer) == [(2, reasons.SHORT_ROW)]
    short = observe("dev,name,batch_size,speedup,abs_latency,graph_breaks\ncuda,a,0,0.0,0.0\n")
    assert [item.status for item in short.measurements] == ["failed", "failed"]
    assert skips(short) == [(2, reasons.FILLED_UP)]


def test_the_other_kinds_of_table() -> None:
    tolerance = by_metric(observe("dev,name,batch_size,max,mean,std\ncpu,a,4,0.25,0.125,0.5\n"), "a")
    assert set(tolerance) == {"tolerance_max", "tolerance_mean", "tolerance_std"}
    statistics = "dev,name,batch_size,total_aot_graphs,ok_aot_graphs\ncuda,a,4,3,2\n"
    assert set(by_metric(observe(statistics), "a")) == {"total_aot_graphs", "ok_aot_graphs"}
    in_accuracy = by_metric(observe(statistics, "x_accuracy_stats.csv"), "a")
    assert set(in_accuracy) == {"accuracy_total_aot_graphs", "accuracy_ok_aot_graphs"}
    coverage = (
        "dev,name,batch_size,graphs,graph_calls,captured_ops,total_ops,pct_ops,pct_time\n"
        "cpu,a,4,1,2,3,4,0.75,0.5\n"
    )
    assert by_metric(observe(coverage), "a")["pct_ops"].samples == [0.75]


# ---- compile phases: the columns of one model, the rows of several


def test_rows_under_another_model_s_header_are_left_out() -> None:
    path = SHIPPED / "pytorch-h200" / "hf_infer_perf_compilation_metrics.csv"
    observer = observe(path.read_bytes(), path.name, **GIVEN)
    assert {item.identity[1] for item in observer.measurements} == {"DistillGPT2"}
    assert len(observer.measurements) == 59
    guards = by_metric(observer, "DistillGPT2")["build_guards"]
    assert guards.samples == [0.192629], "not the 8.86 s that stand under this name in another model's row"
    assert skips(observer) == [
        (2, reasons.ANOTHER_HEADER),
        (4, reasons.ANOTHER_HEADER),
        (5, reasons.UNTOLD_HEADER),
    ]
    assert len(observer.receipt.warnings) == 1


def test_rows_that_all_fit_are_kept_with_a_warning() -> None:
    header = "dev,name,batch_size,_compile.compile_inner,gc\n"
    body = f"{header}cuda,a,1,2.500000,0.125000\ncuda,b,1,3.500000,0.250000\n"
    observer = observe(body)
    assert [item.samples for item in observer.measurements] == [[2.5], [0.125], [3.5], [0.25]]
    assert len(observer.receipt.warnings) == 1
    alone = observe(f"{header}cuda,a,1,2.500000,0.125000\n")
    assert (len(alone.measurements), alone.receipt.warnings) == (2, [])


def test_the_json_lines_name_every_phase_themselves() -> None:
    """The script formats these numbers first, so that its writer takes them for words."""
    observer = observe(as_lines(side_record("_compile.compile_inner", None, ["10.279673"])))
    assert (observer.measurements[0].samples, observer.measurements[0].code) == ([10.279673], None)


# ---- lists of graph breaks


def test_a_list_of_graph_breaks_becomes_counts() -> None:
    observer = observe_sample("inductor_huggingface_training_graph_breaks.csv")
    found = {(item.identity[1], item.metric): item for item in observer.measurements}
    assert {key: item.samples for key, item in found.items()} == {
        ("T5Small", "graph_breaks_listed"): [3.0],
        ("T5Small", "unique_graph_breaks_listed"): [2.0],
        ("DistillGPT2", "graph_breaks_listed"): [1.0],
        ("DistillGPT2", "unique_graph_breaks_listed"): [1.0],
    }
    item = found["T5Small", "graph_breaks_listed"]
    assert item.identity[0] == "huggingface"
    assert item.identity[3] == "training"


def test_a_list_of_graph_breaks_keeps_its_reasons_in_the_record() -> None:
    name = "inductor_huggingface_training_graph_breaks.csv"
    items = lists.GRAPH_BREAKS.read((SAMPLES / name).read_bytes(), name)
    records = [item.record for item in items if isinstance(item, LocatedRecord)]
    said = [record.metric.extra_info for record in records]
    assert {"reasons": ["Data-dependent branching, jump", "call_function\nprint"]} in said


def test_a_list_without_repetitions_is_another_metric() -> None:
    observer = observe("model,reason,user_stack\na,r1,s\na,r2,s\n", "x_graph_breaks_deduped.csv")
    assert [(item.metric, item.samples) for item in observer.measurements] == [
        ("graph_breaks_listed_deduped", [2.0])
    ]
    assert len(observer.receipt.warnings) == 1


# ---- what is wrong


@pytest.mark.parametrize(
    ("body", "pointer", "line"),
    [
        ("dev,name,batch_size,speedup\ncuda,a,1,fast\n", "/speedup", 2),
        ("dev,name,batch_size,speedup\ncuda,a,1,1.0\n\ncuda,b,1,nan\n", "/speedup", 4),
        ("dev,name,batch_size,speedup\ncuda,a,1,1e400\n", "/speedup", 2),
        ("dev,name,batch_size,speedup\ncuda,a,many,1.0\n", "/batch_size", 2),
        ("dev,name,batch_size,speedup\ncuda,a,1,1.0,2.0\n", "", 2),
        ("dev,name,batch_size,speedup\ncuda,,1,1.0\n", "/name", 2),
        ("dev,name,batch_size,speedup\ncuda,a\n", "", 2),
        ("model,reason,user_stack\na,b\n", "", 2),
    ],
)
def test_a_wrong_cell_is_a_fault_with_its_line(body: str, pointer: str, line: int) -> None:
    observer = observe(body)
    assert [(fault.pointer, fault.line) for fault in observer.faults] == [(pointer, line)]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"dev,name,batch_size,speedup\ncuda,a,1,1.0\ncuda,\xff\xfe,1,2.0\n", None),
        (b'dev,name,batch_size,speedup\ncuda,"a,1,1.0\n', 2),
        (b"dev,name,batch_size,speedup\ncuda,a\0,1,1.0\n", 2),
    ],
)
def test_a_body_that_is_no_text_table_is_refused(body: bytes, line: int | None) -> None:
    with pytest.raises(BadUpload) as caught:
        observe(body)
    assert line is None or caught.value.faults[0].line == line


# ---- the JSON lines beside the CSVs


def side_record(
    metric: str, values: list[Any] | None, words: list[str] | None = None, **info: Any
) -> dict[str, Any]:
    """One line of a side file; keywords are command-line arguments."""
    arguments = {
        "device": "cuda",
        "quantization": None,
        "batch_size": None,
        "disable_cudagraphs": False,
        "inductor_config": None,
        "inductor_compile_mode": None,
        "iterations_per_run": 1,
        "threads": None,
        "output": "results/x.csv",
        **info,
    }
    said = {"extra_info": {"benchmark_values": words}} if words else {}
    return {
        "benchmark": {
            "name": "TorchInductor",
            "mode": "inference",
            "dtype": "bfloat16",
            "extra_info": arguments,
        },
        "model": {"name": "resnet50", "type": "OSS model", "backend": "inductor", "origins": ["torchbench"]},
        "metric": {"name": metric, **({"benchmark_values": values} if values else {}), **said},
    }


def identity_of(record: dict[str, Any], **given: str) -> tuple[Any, ...]:
    observer = observe(as_lines(record), **given)
    assert not observer.faults
    return observer.measurements[0].identity


@pytest.mark.parametrize(
    ("arguments", "backend"),
    [
        ({}, "inductor_cudagraphs"),
        ({"disable_cudagraphs": True}, "inductor_no_cudagraphs"),
        ({"device": "cpu"}, "inductor"),
        ({"device": "cpu", "freezing": True}, "inductor_freezing"),
        ({"freezing": True}, "inductor_cudagraphs_freezing"),
        ({"inductor_compile_mode": "max-autotune"}, "inductor_cudagraphs_max_autotune"),
        ({"inductor_compile_mode": "reduce-overhead"}, "inductor_cudagraphs_reduce_overhead"),
        ({"inductor_config": ["cpp_wrapper=True"], "disable_cudagraphs": True}, "inductor_cpp_wrapper"),
        ({"inductor_config": ["cpp_wrapper=1"]}, "inductor_cudagraphs_cpp_wrapper"),
        ({"inductor_config": ["triton.cudagraphs=0"]}, "inductor_no_cudagraphs"),
        ({"export_aot_inductor": True, "disable_cudagraphs": True}, "inductor_aot_inductor"),
        (
            {
                "disable_cudagraphs": True,
                "output": "/r/inductor_cpp_wrapper_torchbench_amp_training_cuda_x.csv",
            },
            "inductor_cpp_wrapper",
        ),
        (
            {"output": "inductor_max_autotune_torchbench_bfloat16_inference_cuda_performance.csv"},
            "inductor_cudagraphs_max_autotune",
        ),
    ],
)
def test_a_compiler_s_name_follows_from_the_arguments(arguments: dict[str, Any], backend: str) -> None:
    assert identity_of(side_record("speedup", [1.5], **arguments))[5] == backend


@pytest.mark.parametrize(
    ("flag", "backend"), [("export", "inductor_export"), ("aot_precompile", "aot_precompile"), ("xla", "xla")]
)
def test_flags_that_choose_another_compiler(flag: str, backend: str) -> None:
    record = side_record("speedup", [1.5])
    record["benchmark"]["extra_info"][flag], record["model"]["backend"] = True, None
    assert identity_of(record)[5] == backend


@pytest.mark.parametrize(
    ("arguments", "knobs"),
    [
        ({"quantization": "int8dynamic"}, {"quantization": "int8dynamic"}),
        ({"iterations_per_run": 4}, {"iterations_per_run": 4}),
        ({"channels_last": True}, {"channels_last": True}),
        ({"threads": 8}, {}),
        ({"threads": 8, "device": "cpu"}, {"threads": 8}),
        ({"batch_size": 32}, {}),
        ({"batch_size": 64}, {"batch_size": 64}),
        ({"inductor_config": ["b=2", "a=x", "cpp_wrapper=0"]}, {"inductor_config": "a=x,b=2"}),
        ({"cold_start_latency": True}, {}),
        ({"warm_start_latency": True}, {"warm_start_latency": True}),
        ({"use_warm_peak_memory": True, "dashboard": True}, {}),
        ({"use_warm_peak_memory": True}, {"use_warm_peak_memory": True}),
        ({"dynamic_shapes": True, "dynamic_batch_only": True}, {}),
        ({"dynamic_shapes": True, "dynamic_batch_only": False}, {"dynamic_dimensions": "all"}),
        ({"repeat": 50, "timeout": 5, "only": "resnet50", "filter": ["x"], "verbose": True}, {}),
        ({"accuracy": True, "batch_size": 4}, {}),
        ({"accuracy": True, "cosine": True}, {"cosine": True}),
    ],
)
def test_arguments_that_change_a_number_s_meaning_are_knobs(
    arguments: dict[str, Any], knobs: dict[str, Any]
) -> None:
    assert json.loads(identity_of(side_record("speedup", [1.5], **arguments))[2]) == knobs


def test_dynamic_shapes_and_an_empty_suite() -> None:
    record = side_record("speedup", [1.5], dynamic_shapes=True)
    assert identity_of(record)[8] is True
    record["model"]["origins"] = [""]
    assert identity_of(record)[0] == "torchbench", "only torchbench has a model of this name"
    assert identity_of(record, suite="timm_models")[0] == "timm"
    record["model"]["name"] = "nobody_s_model"
    assert identity_of(record)[0] == "torchdynamo"


def test_a_tag_is_a_knob_and_no_metric() -> None:
    lines = as_lines(
        side_record("tag", None, ["my-branch"], tag="my-branch"),
        side_record("speedup", [1.5], tag="my-branch"),
    )
    observer = observe(lines)
    assert skips(observer) == [(1, reasons.TAG)]
    assert json.loads(observer.measurements[0].identity[2]) == {"tag": "my-branch"}


def test_an_accuracy_s_code_comes_as_a_list_or_as_its_json_text() -> None:
    as_text = side_record("accuracy", None, accuracy=True)
    as_text["metric"]["extra_info"] = {"benchmark_values": '["fail_accuracy"]'}
    for record in (side_record("accuracy", None, ["fail_accuracy"], accuracy=True), as_text):
        item = observe(as_lines(record)).measurements[0]
        assert (item.metric, item.status, item.code) == ("accuracy", "wrong", "fail_accuracy")


def test_the_script_s_own_file_does_not_say_whether_cuda_graphs_were_on() -> None:
    def said(device: str, **given: str) -> tuple[str, bool]:
        observer = observe(
            f"dev,name,batch_size,speedup\n{device},a,1,1.5\n", "speedup_inductor.csv", **given
        )
        return observer.measurements[0].backend, "backend" in observer.unsaid

    assert said("cuda") == ("inductor", True)
    assert said("cpu") == ("inductor", False)
    for backend in ("inductor_cudagraphs", "inductor_no_cudagraphs"):
        assert said("cuda", backend=backend) == (backend, False)


@pytest.mark.parametrize(
    ("given", "device", "backend", "dynamic"),
    [
        ("inductor", "cuda", "inductor_cudagraphs", False),
        ("inductor", "cpu", "inductor", False),
        ("inductor_with_cudagraphs", "cuda", "inductor_cudagraphs", False),
        ("inductor_no_cudagraphs", "cuda", "inductor_no_cudagraphs", False),
        ("inductor_no_cudagraphs", "cpu", "inductor", False),
        ("inductor_dynamic", "cuda", "inductor_cudagraphs", True),
        ("dynamic_inductor", "cuda", "inductor_cudagraphs", True),
        ("inductor_with_cudagraphs_freezing", "cuda", "inductor_cudagraphs_freezing", False),
        ("inductor_cudagraphs_low_precision", "cuda", "inductor_cudagraphs_low_precision", False),
        ("inductor_cpp_wrapper", "cuda", "inductor_cpp_wrapper", False),
        ("inductor_aot_inductor", "cuda", "inductor_aot_inductor", False),
        ("aot_inductor", "cuda", "inductor_aot_inductor", False),
        ("inductor_export", "cuda", "inductor_export", False),
        ("inductor_something_new", "cuda", "inductor_something_new", False),
        ("aot_eager", "cuda", "aot_eager", False),
    ],
)
def test_a_compiler_s_name_that_is_given_means_the_same(
    given: str, device: str, backend: str, dynamic: bool
) -> None:
    body = f"dev,name,batch_size,speedup\n{device},a,1,1.5\n"
    identity = observe(body, backend=given).measurements[0].identity
    assert (identity[5], identity[8]) == (backend, dynamic)


@pytest.mark.parametrize(
    ("name", "said"),  # suite, mode, dtype, backend, device, dynamic
    [
        ("inductor_timm_training", ("timm", "training", "", "inductor", "rocm", False)),
        ("inductor_torchbench_dynamic_training", ("torchbench", "training", "", "inductor", "rocm", True)),
        ("dynamic_aot_eager_timm_training", ("timm", "training", "", "aot_eager", "rocm", True)),
        (
            "cpu_inductor_timm_amp_freezing_inference",
            ("timm", "inference", "amp", "inductor_freezing", "cpu", False),
        ),
        (
            "dynamic_cpu_aot_inductor_amp_freezing_torchbench_inference",
            ("torchbench", "inference", "amp", "inductor_aot_inductor_freezing", "cpu", True),
        ),
    ],
)
def test_what_ci_expects_is_no_measurement(name: str, said: tuple[Any, ...]) -> None:
    body = (
        "name,accuracy,graph_breaks\n\n\n\nresnet50,pass,0\n\n\n\nhf_Reformer,fail_accuracy,26\nmoco,pass\n"
    )
    observer = observe(body, f"{name}.csv" if "cpu" in name else f"rocm/{name}.csv")
    found = {item.metric: item for item, _margin in observer.expected if item.case == "hf_Reformer"}
    assert (found["accuracy"].status, found["accuracy_graph_breaks"].samples) == ("wrong", [26.0])
    suite, *axes, dynamic = said
    assert found["accuracy"].identity == (suite, "hf_Reformer", "{}", *axes, "", dynamic)
    assert skips(observer) == [(10, reasons.EMPTY_CELL)]
    assert observer.measurements == []
    assert observer.receipt.warnings == []
    assert observer.unsaid == set()


@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("ci_expected_accuracy/rocm/inductor_torchbench_training.csv", "rocm"),
        ("ci_expected_accuracy/cuda13.0/inductor_torchbench_training.csv", "cuda"),
        ("ci_expected_accuracy\\cu124\\inductor_torchbench_training.csv", "cuda"),
        ("xpu/inductor_torchbench_training.csv", "xpu"),
        ("ci_expected_accuracy/inductor_torchbench_training.csv", ""),
        ("cuda-machine/notes/inductor_torchbench_training.csv", ""),
        ("ci_expected_accuracy/cpu_inductor_torchbench_training.csv", "cpu"),
    ],
)
def test_the_folder_says_the_device_of_what_ci_expects(path: str, device: str) -> None:
    ((item, _margin),) = observe("name,accuracy\nresnet50,pass\n", path).expected
    assert item.device == device


def test_what_ci_expects_of_inductor_holds_with_and_without_cuda_graphs() -> None:
    body = "name,accuracy\nresnet50,pass\n"
    ((item, _margin),) = observe(body, "inductor_timm_training.csv", device="cuda").expected
    assert item.backend == "inductor"
    ((item, _margin),) = observe(body, "x.csv", device="cuda", backend="inductor_cudagraphs").expected
    assert item.backend == "inductor_cudagraphs"


def test_the_oldest_lists_of_what_ci_expects_have_graph_breaks_alone() -> None:
    observer = observe("name,graph_breaks\nhf_Reformer,26\nx,many\n", "inference_torchbench.csv")
    ((item, _margin),) = observer.expected
    assert (item.metric, item.samples) == ("accuracy_graph_breaks", [26.0])
    assert [(fault.pointer, fault.line) for fault in observer.faults] == [("/graph_breaks", 3)]
