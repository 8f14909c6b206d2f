"""The two spellings of arguments in the metrics of torchbench's userbenchmarks."""

from __future__ import annotations

import json

from hud.points.columns import COLUMNS
from runner.formats.metric_values import status_of_error
from runner.schema.metrics import role_of
from tests.support.observed import observe

# test_bench writes Python's list, group_bench (`userbenchmark/group_bench/run.py`) blanks between arguments
ARGUMENTS = {
    "--precision bf16 --torchdynamo inductor --inductor-compile-mode max-autotune": 4.391579,
    "--precision bf16 --torchdynamo inductor --quantization autoquant": 4.575485,
    "--precision bf16 --torchdynamo inductor --quantization int8dynamic": 4.41,
    "--precision bf16": 4.419304,
    "": 5.5,
}
COMMIT = "de1114554c38322273c066c091d455519d45472d"


def body(*, quoted: bool) -> str:
    names = {
        f"model=resnet50, test=eval, device=cuda, bs=None, extra_args={said}, metric=latencies": value
        for words, value in ARGUMENTS.items()
        for said in [str(words.split()) if quoted else words]
    }
    environ = {"pytorch_git_version": COMMIT, "pytorch_version": "2.9.0", "device": "NVIDIA L40S"}
    return json.dumps({"name": "torchao", "environ": environ, "metrics": names})


def test_both_spellings_are_one_and_keep_configurations_apart() -> None:
    plain, quoted = (observe(body(quoted=quoted)).measurements for quoted in (False, True))
    assert [item.identity for item in plain] == [item.identity for item in quoted]
    assert len({item.identity for item in plain}) == len(ARGUMENTS)
    assert [item.samples for item in plain] == [[value] for value in ARGUMENTS.values()]
    assert [item.backend for item in plain] == ["inductor"] * 3 + ["eager"] * 2
    assert [item.dtype for item in plain] == ["bfloat16"] * 4 + [""]
    assert plain[0].knobs == {"extra_args": "--inductor-compile-mode max-autotune"}
    assert {item.run.commit for item in plain} == {COMMIT}


def test_the_cpu_userbenchmark_measures_ms_and_gb() -> None:
    metrics = {"alexnet-eval_latency": 58.3, "alexnet-eval_cmem": 0.41, "alexnet-train_latency": 90.0}
    found = observe(json.dumps({"name": "cpu", "environ": {}, "metrics": metrics})).measurements
    assert [(item.mode, item.metric) for item in found] == [
        ("inference", "latencies"), ("inference", "cpu_peak_mem"), ("training", "latencies"),
    ]  # fmt: skip


def test_nan_is_no_failure_of_the_model() -> None:
    text = body(quoted=True).replace("4.419304", "NaN")
    parser = observe(text)
    assert [fault.malformed for fault in parser.faults] == [True]
    assert len(parser.measurements) == len(ARGUMENTS) - 1


def test_a_name_of_many_parts_takes_linear_time() -> None:
    """Each of these once took hours."""
    name = "model=a" + "".join(f", {part}=" * 60 for part in ("test", "device", "bs", "extra_args"))
    result = {"name": "torchao", "environ": {}, "metrics": {name: 1.0}}
    assert len(observe(json.dumps(result)).measurements) == 1
    name = "tritonbench_gemm[x" + "]-" * 200_000
    parser = observe(json.dumps({"tritonbench_gemm-pass": True, name: 1.0}))
    assert (len(parser.measurements), parser.receipt.skipped_total) == (1, 1)


def test_latencies_are_a_column_of_the_suite_and_a_chart_of_the_experiment() -> None:
    assert any("latencies" in column.metrics for column in COLUMNS)
    assert role_of("latencies", []) == "headline"


def test_a_time_limit_is_no_other_failure() -> None:
    assert status_of_error("Exceeded timeout: 3600") == ("timed_out", "Exceeded timeout: 3600")
