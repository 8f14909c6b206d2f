"""The suite `kernels`: a stored kernel of this CPU, and a Triton one with a stand-in of an autotuner."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runner.__main__ import main
from runner.launch.report import Report
from runner.measure.compiler.counters import modules
from runner.measure.kernels import tuning
from runner.measure.kernels.produced import produced
from runner.measure.timing.compile_time import forget_compiles
from runner.schema.compilations import SEARCHES_ON, digest
from runner.schema.replay import with_operands
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import Selection, plan
from runner.suites import kernels
from runner.suites.kernels import run as kernels_run
from runner.system import machine
from tests.measure.test_pinning import Autotuner, Config
from tests.suites.test_micro import records_in

needs_compiler = pytest.mark.skipif(not machine.cpp_compiler(), reason="inductor needs a C++ compiler")
TRITON = (
    "@triton.jit\ndef triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):\n    pass\n"
)
OPERANDS: list[list[Any]] = [["bfloat16", [64], [1]], ["bfloat16", [64], [1]]]
BINARY = "0123456789abcdef"
CASE = f"triton_poi_fused_add_0-{BINARY}"


def export(path: Path, *rows: dict[str, Any]) -> Path:
    data = json.dumps({"stream": "import", "arch": "", "items": rows}).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def triton_row(**about: Any) -> dict[str, Any]:
    code = with_operands(TRITON, OPERANDS, [64])
    return {"name": "triton_poi_fused_add_0", "binary": BINARY, "code": code, **about}


def spec(case: str, dtype: str, device: str = "cpu", **knobs: Any) -> TaskSpec:
    return TaskSpec("kernels", case, "inference", dtype, "inductor", device, knobs=knobs)


@needs_compiler
def test_a_kernel_of_this_cpu_is_timed_with_its_bytes(
    tmp_path: Path, inductor_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.watch()
    forget_compiles()
    torch.compile(lambda x: torch.softmax(x.sin(), -1))(torch.randn(64, 64))
    found = produced(modules())
    rows: list[dict[str, Any]] = [
        {"name": one.name, "binary": one.binary, "bytes": one.bytes, "code": found.code[one.binary]}
        for one in found.compiled.kernels
    ]
    monkeypatch.setenv(kernels.VARIABLE, str(export(tmp_path / "kernels.json.gz", *rows)))
    monkeypatch.setenv("RUNNER_CEILINGS", str(tmp_path / "ceilings.json"))
    (case,) = kernels.stored_kernels()
    assert kernels_run.run(spec(case, "float32", repeat=20), Report(tmp_path)) is None
    by_metric = {record["metric"]["name"]: record for record in records_in(tmp_path)}
    assert by_metric.keys() == {"compiled_latency_ms", "call_bandwidth_gbps"}
    latency = by_metric["compiled_latency_ms"]["metric"]
    assert len(latency["benchmark_values"]) == 20
    assert latency["extra_info"]["moved_bytes"] == rows[0]["bytes"]
    gbps = by_metric["call_bandwidth_gbps"]["metric"]["benchmark_values"][0]
    assert gbps == pytest.approx(rows[0]["bytes"] / latency["benchmark_values"][0] / 1e6, rel=1e-5)
    assert by_metric["call_bandwidth_gbps"]["model"]["name"] == case


def test_every_candidate_is_forced_and_the_one_of_the_model_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = Autotuner("0" * 16, [Config({"XBLOCK": 64}), Config({"XBLOCK": 128})])
    forced = []

    def call(operands: list[Any]) -> None:
        (launcher,) = tuner.launchers
        assert launcher.config.found_by_coordesc
        forced.append(launcher.config.kwargs["XBLOCK"])
        time.sleep(launcher.config.kwargs["XBLOCK"] / 1e5)  # how long this kernel runs

    module = SimpleNamespace(get_args=lambda: [torch.zeros(64), 64], call=call, tuner=tuner)
    monkeypatch.setattr(kernels_run, "imported", lambda _file, _name: module)
    texts = [
        f"XBLOCK={size} num_warps={warps} num_stages=1" for size, warps in ((128, 4), (256, 8), (64, 64))
    ]
    row = triton_row(config=texts[0], offered=[*texts, SEARCHES_ON], time_us=100.0)
    monkeypatch.setenv(kernels.VARIABLE, str(export(tmp_path / "kernels.json", row)))
    task = spec(CASE, "bfloat16", repeat=20, candidates="all")
    assert kernels_run.run(task, Report(tmp_path)) is None
    assert list(dict.fromkeys(forced)) == [128, 256]
    metrics = {record["metric"]["name"]: record["metric"] for record in records_in(tmp_path)}
    info = metrics["compiled_latency_ms"]["extra_info"]
    first, second, third = (info["candidates"][text] for text in texts)
    assert 1280 < first < second
    assert "out of resources" in third
    assert info["config"] == texts[0]
    (ratio, *_), (time_ms, *_) = (
        metrics[name]["benchmark_values"] for name in (kernels.IN_MODEL, "compiled_latency_ms")
    )
    assert ratio == pytest.approx(time_ms * 10, rel=1e-5)


def test_the_command_plans_the_kernels_of_the_device(
    tmp_path: Path, own_folders: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "")  # put back after the test
    cpp = with_operands('extern "C"  void kernel(const float* in_ptr0)\n{\n}\n', [["float32", [4], [1]]], [])
    other = {"name": "cpp_fused_0", "binary": digest("other"), "code": cpp}
    path = export(tmp_path / "kernels.json", triton_row(), other)
    for device, name, dtype in (
        ("cuda", CASE, "bfloat16"),
        ("cpu", f"cpp_fused_0-{digest('other')}", "float32"),
    ):
        for more, case in (([], kernels.ALL), (["--case", name], name)):
            assert main(["run", "kernels", "--file", str(path), "--device", device, "--dry-run", *more]) == 0
            (line,) = capsys.readouterr().out.splitlines()
            assert f"run kernels --file {path} --case {case} --mode inference --dtype {dtype} " in line
    assert main(["run", "kernels", "--file", str(path), "--case", "x-y", "--device", "cpu", "--dry-run"]) == 2


@needs_compiler
def test_kernels_after_one_that_takes_the_process_down_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "\n{\n    %s\n}\n"
    head = 'extern "C"  void kernel(const float* in_ptr0)'
    lines = ("", "__builtin_trap();", "", "volatile int* nothing = 0; *nothing = 1;", "")
    codes = [with_operands(head + body % line, [["float32", [4], [1]]], []) for line in lines]
    rows: list[dict[str, Any]] = [
        {"name": f"cpp_fused_{number}", "binary": BINARY, "code": code} for number, code in enumerate(codes)
    ]
    monkeypatch.setenv(kernels.VARIABLE, str(export(tmp_path / "kernels.json", *rows)))
    outcome = kernels_run.run(spec(kernels.ALL, "float32", repeat=20), Report(tmp_path))
    assert outcome is not None
    assert outcome.status == "crashed"
    statuses = {
        record["model"]["name"]: record["metric"]["extra_info"]["status"] for record in records_in(tmp_path)
    }
    assert list(statuses.values()) == ["ok", "crashed", "ok", "crashed", "ok"]
    assert [task.case for task in plan(Selection("kernels", "cpu"))] == [kernels.ALL]


def test_what_is_no_kernel_is_left_out_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: list[dict[str, Any]] = [{"name": "triton_ä"}, {"code": None}, {"bytes": -5}, {"offered": 5}]
    wrong += [{"time_us": value} for value in (float("inf"), float("nan"), "soon")]
    rows = [triton_row(**about) for about in ({"bytes": float("inf")}, *wrong, {})]
    monkeypatch.setenv(kernels.VARIABLE, str(export(tmp_path / "kernels.json", *rows)))
    assert [*kernels.stored_kernels()] == [CASE]
    assert len(caplog.records) == len(rows) - 1
    monkeypatch.setenv(kernels.VARIABLE, str(export(tmp_path / "none.json", *rows[:-1])))
    with pytest.raises(BadRequest, match="8 items"):
        kernels.stored_kernels()


def test_without_a_file_no_kernel_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an attached host and in the dashboard."""
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    with pytest.raises(BadRequest):
        TaskSpec.from_json(spec(CASE, "bfloat16").to_json())
    with pytest.raises(BadRequest):
        plan(Selection("kernels", "cuda"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x1f\x8b nothing",
        b"[]",
        b'{"items": [{"name": "a", "binary": "0123456789abcdef", "code": "no operands"}]}',
        json.dumps({"items": [triton_row(name="../a")]}).encode(),
        json.dumps({"items": [triton_row(time_us="soon")]}).encode(),
    ],
)
def test_what_is_no_export_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = tmp_path / "kernels.json"
    path.write_bytes(content)
    monkeypatch.setenv(kernels.VARIABLE, str(path))
    with pytest.raises(BadRequest):
        kernels.stored_kernels()
