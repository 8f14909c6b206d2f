"""The suite `gpt_fast`: a small model in a fresh process, what its numbers mean, and gpt-fast's own files."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.cli.output import Output
from runner.launch.failures import TaskFailure
from runner.launch.launch import launch
from runner.measure.state.device import Device
from runner.schema.metrics import gpt_fast_target
from runner.schema.options import OptionValue
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult
from runner.suites import SUITES
from runner.suites.gpt_fast import run as gpt_fast
from runner.suites.gpt_fast.generate import Steps, compare, forced, steps
from runner.suites.gpt_fast.model import SHAPES, Transformer
from runner.system import machine
from tests.support.observed import observe

needs_compiler = pytest.mark.skipif(not machine.cpp_compiler(), reason="inductor needs a C++ compiler")
SMALL: dict[str, OptionValue] = {"layers": 1, "new_tokens": 8, "samples": 2, "repeat": 10, "budget_s": 0}
TOKENS = 14
PROMPT = 6
CPU = Device("cpu", "x86_64", "", 0, 1)


def task(case: str, dtype: str, **knobs: OptionValue) -> TaskSpec:
    return TaskSpec("gpt_fast", case, "inference", dtype, "inductor", "cpu", knobs=knobs)


def run(
    spec: TaskSpec, folder: Path, cache: Mapping[str, str], **variables: str
) -> tuple[TaskOutcome, dict[str, Any]]:
    environment = {**cache, "RUNNER_HOST": "box", **variables}
    outcome = launch(spec, folder, environment=environment)
    records = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return outcome, {record["metric"]["name"]: record for record in records}


@needs_compiler
@pytest.mark.parametrize(
    "case", ["toy-llama", pytest.param("toy-mixtral", marks=pytest.mark.soak)]
)  # which has twice the kernels
def test_tokens_are_generated_checked_and_timed(
    case: str, tmp_path: Path, inductor_cache: dict[str, str]
) -> None:
    outcome, found = run(task(case, "int8", caches="kept", **SMALL), tmp_path / "task", inductor_cache)
    assert outcome.status == "ok", outcome.reason + (tmp_path / "task" / "log").read_text()
    per_s = found["token_per_sec"]["metric"]["benchmark_values"]
    bandwidth = found["memory_bandwidth(GB/s)"]["metric"]
    assert len(per_s) == 2
    assert found["peak_rss_bytes"]["metric"]["benchmark_values"][0] > 1e6
    active = bandwidth["extra_info"]["active_weight_bytes"]
    assert bandwidth["benchmark_values"][0] == pytest.approx(active * per_s[0] / 1e9, rel=1e-5)
    assert len(found["compiled_latency_ms"]["metric"]["benchmark_values"]) >= 10
    assert found["speedup"]["metric"]["benchmark_values"][0] > 0
    assert found["compilation_time(s)"]["metric"]["benchmark_values"][0] > 0
    assert found["recompiles"]["metric"]["benchmark_values"] == [0.0]
    assert found["recompiles"]["metric"]["extra_info"]["relative_error_compiled"] < 0.1
    assert "gpu_busy_ms" not in found
    info = found["speedup"]["benchmark"]["extra_info"]
    assert info["knobs"] == {"layers": 1, "new_tokens": 8, "caches": "kept"}


@pytest.mark.soak
def test_a_failure_leaves_its_status_at_every_metric(tmp_path: Path, inductor_cache: dict[str, str]) -> None:
    spec = task("toy-llama", "bfloat16", caches="kept", **SMALL)
    outcome, found = run(spec, tmp_path / "task", inductor_cache, TORCHDYNAMO_DISABLE="1")
    assert (outcome.status, outcome.code) == ("failed", "not_compiled")
    assert {"token_per_sec", "compiled_latency_ms", "compilation_time(s)"} <= set(found)
    for record in found.values():
        assert "benchmark_values" not in record["metric"]
        assert record["metric"]["extra_info"]["code"] == "not_compiled"


def model(case: str, *, int8: bool) -> Transformer:
    torch.manual_seed(0)
    return Transformer(SHAPES[case], int8=int8, context=16, device="cpu")


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("case", ["toy-llama", "toy-mixtral"])
def test_rounding_alone_tells_the_model_from_itself_in_float32(case: str, int8: bool) -> None:
    built, plain = model(case, int8=int8), steps(temperature=0.8, top_k=20)
    found = compare(built, plain, plain, prompt=PROMPT, new_tokens=8)
    assert found["relative_error_compiled"] <= 0.03
    assert found["same_token"] == 1.0


def test_a_step_at_a_time_is_the_same_as_all_at_once() -> None:
    built, plain = model("toy-llama", int8=False), steps(temperature=0.8, top_k=20)
    tokens = torch.randint(256, (TOKENS,))
    with torch.no_grad():
        one_by_one = forced(built, plain, tokens, PROMPT)
        at_once = forced(built, plain, tokens, TOKENS)
    torch.testing.assert_close(one_by_one, at_once, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("case", ["toy-llama", "toy-mixtral"])
def test_a_wrong_step_is_found(case: str) -> None:
    built, plain = model(case, int8=True), steps(temperature=0.8, top_k=20)

    def late(
        subject: Transformer, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return plain.decode(subject, tokens, positions - 1)  # writes over the token before

    with pytest.raises(TaskFailure) as raised:
        compare(built, plain, Steps(plain.prefill, late), prompt=PROMPT, new_tokens=8)
    assert (raised.value.status, raised.value.code) == ("wrong", "fail_accuracy")


@pytest.mark.parametrize(
    ("case", "dtype"),
    [("Llama-2-7b-chat-hf", "bfloat16"), ("Llama-2-7b-chat-hf", "int8"), ("Mixtral-8x7B-v0.1", "int8")],
)
def test_active_bytes_are_those_that_gpt_fast_counts(case: str, dtype: str) -> None:
    """Its two targets are tokens by time and those times its bytes."""
    built = Transformer(SHAPES[case], int8=dtype == "int8", context=208, device="meta")
    per_s, gbps = (
        float(gpt_fast_target(case, dtype, metric) or 0)
        for metric in ("token_per_sec", "memory_bandwidth(GB/s)")
    )
    assert built.active_weight_bytes() == pytest.approx(gbps / per_s * 1e9, rel=0.01)


def test_weights_that_cannot_fit_are_never_allocated() -> None:
    class Small(Device):
        def free_bytes(self) -> int:
            return 2**30

    with pytest.raises(TaskFailure, match=r"need 1\d\.\d GiB, 1\.0 GiB are free") as raised:
        gpt_fast._build_model(task("Llama-2-7b-chat-hf", "bfloat16"), 208, Small("cpu", "cpu", "cpu", 0, 1))
    assert raised.value.status == "oom"


def test_the_small_models_have_no_target_and_no_real_one_has_none() -> None:
    for case in SUITES["gpt_fast"].cases:
        for dtype in case.dtypes:
            target = gpt_fast_target(case.name, dtype, "token_per_sec")
            assert (target is None) == case.name.startswith("toy-")


# ---- gpt-fast's own files


def record(metric: str, values: list[float] | None, target: str | None, **knobs: int) -> dict[str, Any]:
    said = {"status": "ok" if values else "oom", "target_arch": "a100-40gb"}
    return {
        "benchmark": {
            "name": "Compiler HUD gpt_fast",
            "mode": "inference",
            "dtype": "int8",
            "extra_info": {"device": "cuda", "arch": "NVIDIA H200", "dynamic": False, "knobs": knobs},
        },
        "model": {"name": "Llama-2-7b-chat-hf", "backend": "inductor", "origins": ["gpt_fast"]},
        "metric": {
            "name": metric,
            **({"benchmark_values": values} if values else {}),
            **({"target_value": target} if target else {}),
            "extra_info": said,
        },
    }


def finished(records: list[dict[str, Any]], **knobs: int) -> TaskResult:
    spec = dataclasses.replace(task("Llama-2-7b-chat-hf", "int8"), device="cuda", knobs=knobs)
    return TaskResult(spec, TaskOutcome("ok", "", ""), Path("folder"), records)


MODEL = [
    record("token_per_sec", [200.0, 210.0], "144"),
    record("memory_bandwidth(GB/s)", [1330.0, 1397.0], "957"),
    record("compilation_time(s)", [41.25], "136"),
]


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_its_files_go_through_the_door_and_come_out_equal(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "gpt_fast.csv"
    output = Output(path, "upstream", suites=["micro", "gpt_fast"], resume=False)
    output.add(finished([*MODEL, record("speedup", [2.0], None)]))
    output.add(finished([record("token_per_sec", [300.0], None, layers=2)], layers=2))
    output.add(finished([record("token_per_sec", None, None)], repeat=40))
    assert output.left_out() == (
        f"2 of 3 tasks left nothing in {path}: it cannot say layers (1); "
        "nothing was measured that it has a place for (1)"
    )
    theirs = observe(path.with_suffix(suffix).read_bytes(), path.with_suffix(suffix).name)
    ours = observe("\n".join(json.dumps(each) for each in MODEL))
    assert not theirs.faults
    assert [item.samples for item in theirs.measurements] == [[205.0], [1363.5], [41.25]]
    for their, our in zip(theirs.measurements, ours.measurements, strict=True):
        assert (their.identity, their.metric, their.target) == (our.identity, our.metric, our.target)
        assert their.target_arch == our.target_arch


def test_its_files_say_models_as_its_script_does(tmp_path: Path) -> None:
    path = tmp_path / "gpt_fast.csv"
    Output(path, "upstream", suites=["gpt_fast"], resume=False).add(finished(MODEL))
    first = next(csv.DictReader(path.read_text().splitlines()))
    assert (first["name"], first["target"], first["actual"], first["is_model"]) == (
        "Llama-2-7b-chat-hf",
        "144",
        "205.00",
        "True",
    )
    said = json.loads(path.with_suffix(".json").read_text().splitlines()[0])
    assert said["model"]["type"] == "OSS model"
    assert (said["metric"]["benchmark_values"], said["metric"]["target_value"]) == (["205.00"], 144)


def test_a_model_without_torchao_says_which_package_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    small = task("toy-llama", "bfloat16", quantization="int8", **SMALL)
    SUITES["gpt_fast"].check(small)
    assert SUITES["gpt_fast"].packages_of(small) == ("torchao",)
    with pytest.raises(TaskFailure) as caught:
        gpt_fast._build_model(small, TOKENS, CPU)
    assert (caught.value.status, caught.value.code) == ("unsupported", "no_torchao")
    assert "install torchao" in caught.value.reason
    for case, dtype in (("toy-llama", "int8"), ("toy-mixtral", "bfloat16")):
        with pytest.raises(BadRequest):
            SUITES["gpt_fast"].check(task(case, dtype, quantization="int8"))


def test_torchao_quantises_linear_layers_and_their_bytes_are_counted() -> None:
    pytest.importorskip("torchao")
    plain = gpt_fast._build_model(task("toy-llama", "bfloat16", **SMALL), TOKENS, CPU)
    model = gpt_fast._build_model(task("toy-llama", "bfloat16", quantization="int8", **SMALL), TOKENS, CPU)
    eager = steps(temperature=0.8, top_k=20)
    assert 0.5 < model.active_weight_bytes() / plain.active_weight_bytes() < 0.6
    assert compare(model, eager, eager, prompt=PROMPT, new_tokens=8)["same_token"] == 1.0
    with pytest.raises(TaskFailure) as caught:
        gpt_fast._build_model(task("toy-llama", "bfloat16", quantization="int4", **SMALL), TOKENS, CPU)
    assert caught.value.code == "no_quantisation"
