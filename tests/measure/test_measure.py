"""The clocks, the check before them, and what is said of the machine. What needs a GPU is not tested here."""

from __future__ import annotations

import itertools
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from runner.launch.failures import TaskFailure, failure_of
from runner.launch.report import Report
from runner.measure import accuracy, ceilings
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import Device, GpuState, device_state, environment, prepare, warning
from runner.measure.timing import graph_replay
from runner.measure.timing.call_time import TimingPlan, interleaved_timings, pipelined_ms
from runner.schema.records import NO_WARNING, MeasurementWarning
from runner.schema.suite import TaskSpec
from runner.suites.micro.kernels import KERNELS
from runner.system import machine

SPEC = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cpu")
CPU = Device("cpu", "x86_64", "Xeon", 0, 1)
GPU = Device("cuda", "NVIDIA H200", "GPU-1", 60 * 2**20, 1)


class _Clock:
    """Counts calls, and says a time of its own for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs_ms: dict[str, float]) -> None:
        self.calls: list[str] = []
        self.now_s = 0.0
        self._costs_ms = costs_ms
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)

    def call(self, name: str) -> Any:
        def run() -> None:
            self.calls.append(name)
            self.now_s += self._costs_ms[name] / 1e3

        return run


def test_eager_and_compiled_take_turns_and_the_turns_change(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch, {"eager": 3.0, "compiled": 2.0})
    times = interleaved_timings(clock.call("eager"), clock.call("compiled"), CPU, TimingPlan(20, 0.0))
    timed = clock.calls[10:]  # after five warm calls of each
    assert timed[:6] == ["eager", "compiled", "compiled", "eager", "eager", "compiled"]
    assert times.eager == pytest.approx([3.0] * 20)
    assert times.compiled == pytest.approx([2.0] * 20)
    assert times.speedup == pytest.approx(1.5)


def test_pairs_end_when_the_ratio_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch, {"eager": 3.0, "compiled": 2.0})
    times = interleaved_timings(clock.call("eager"), clock.call("compiled"), CPU, TimingPlan(30, 1e9))
    assert len(times.eager) == 30


def test_pairs_of_a_noisy_ratio_go_on_to_the_end_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch, {"eager": 10.0, "compiled": 10.0})
    costs = itertools.cycle([10.0] * 30 + [40.0] * 30)  # slow stretches, as on a shared machine

    def eager() -> None:
        clock.now_s += next(costs) / 1e3

    times = interleaved_timings(eager, clock.call("compiled"), CPU, TimingPlan(30, 4.0))
    assert 60 < len(times.eager) < 300
    assert len(times.eager) == len(times.compiled)


def test_back_to_back_time_is_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(monkeypatch, {"compiled": 0.5})
    assert pipelined_ms(clock.call("compiled"), CPU, windows=3) == pytest.approx([0.5] * 3)
    assert len(clock.calls) == 1 + 3 * 20


def test_rounding_is_right_and_worse_is_wrong() -> None:
    reference = torch.randn(1000, dtype=torch.float64)
    eager = reference.bfloat16()
    found = accuracy.check(eager.clone(), eager, reference)
    assert found["relative_error_compiled"] == found["relative_error_eager"]
    assert found["relative_error_eager"] == pytest.approx(0.0017, rel=0.2)
    with pytest.raises(TaskFailure) as refusal:
        accuracy.check((reference * 1.02).bfloat16(), eager, reference)
    assert (refusal.value.status, refusal.value.code) == ("wrong", "fail_accuracy")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_result_that_is_no_number_is_wrong(bad: float) -> None:
    reference = torch.randn(10, dtype=torch.float64)
    broken = reference.bfloat16()
    broken[3] = bad
    with pytest.raises(TaskFailure, match="relative error"):
        accuracy.check(broken, reference.bfloat16(), reference)


def test_another_shape_or_type_is_another_function() -> None:
    reference = torch.randn(10, dtype=torch.float64)
    with pytest.raises(TaskFailure, match="not the same function"):
        accuracy.check(reference.float(), reference.bfloat16(), reference)


@pytest.mark.parametrize("case", ["layer_norm", "gemv", "gather_gemv", "mlp_layer_norm_gelu"])
def test_eager_kernels_agree_with_their_reference(case: str) -> None:
    kernel = KERNELS[case](64, torch.bfloat16, "cpu")
    with torch.no_grad():
        eager, function = kernel.eager(*kernel.operands), kernel.function(*kernel.operands)
        accuracy.check(function, eager, kernel.reference())


def test_bytes_and_flops_are_those_of_the_script() -> None:
    assert KERNELS["layer_norm"](64, torch.bfloat16, "cpu").moved_bytes == 2 * 4096 * 64 * 2
    assert KERNELS["gemv"](64, torch.int8, "cpu").moved_bytes == 64 * 64
    assert KERNELS["gather_gemv"](64, torch.bfloat16, "cpu").moved_bytes == 2 * 64 * 64 * 2
    assert KERNELS["mlp_layer_norm_gelu"](64, torch.bfloat16, "cpu").flops == 4 * 64 * 14336


def test_operands_of_one_round_are_four_times_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "free_bytes", lambda _self: 2**40)
    operands = (torch.zeros(2**20, dtype=torch.uint8),)
    assert graph_replay._sets(operands, GPU, 2**20) == (240, "")
    assert graph_replay._sets(operands, GPU, 2**30) == (4, "")  # large ones rotate too


def test_of_large_operands_that_are_hardly_touched_as_many_sets_as_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Device, "free_bytes", lambda _self: 100 * 2**20)
    sets, note = graph_replay._sets((torch.zeros(2**20, dtype=torch.uint8),), GPU, 2**17)
    assert sets == 60
    assert "cache" in note


def test_operands_that_do_not_fit_are_said_to_be_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "free_bytes", lambda _self: 2**20)
    with pytest.raises(TaskFailure) as refusal:
        graph_replay._sets((torch.zeros(2**20, dtype=torch.uint8),), GPU, 2**20)
    assert refusal.value.status == "oom"


def test_readings_of_a_ceiling_are_one_a_day_and_seven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "ceilings.json"
    assert machine.ceilings(path) == {}
    for day in range(1, 10):
        monkeypatch.setattr(machine, "today", lambda day=day: f"2026-11-{day:02}")
        machine.add_reading(path, "GPU-1", "copy_gbps", 1.0, "2.11")
        machine.add_reading(path, "GPU-1", "copy_gbps", float(day), "2.11")
    (readings,) = json.loads(path.read_text())["accelerators"]["GPU-1"].values()
    assert [reading["value"] for reading in readings] == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    assert machine.ceilings(path) == {"GPU-1": {"copy_gbps": {"value": 6.0, "day": "2026-11-09"}}}


def test_a_broken_file_of_ceilings_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "ceilings.json"
    path.write_text("{")
    machine.add_reading(path, "cpu", "copy_gbps", 20.0, "2.13")
    assert machine.ceilings(path)["cpu"]["copy_gbps"]["value"] == 20.0


def test_a_ceiling_is_read_once_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_CEILINGS", str(tmp_path / "ceilings.json"))
    monkeypatch.setattr(ceilings, "_BLOCK_BYTES", {"cpu": 2**16})
    taken: list[float] = []
    read = ceilings.read
    monkeypatch.setattr(ceilings, "read", lambda name, device: taken.extend(read(name, device)))
    first = ceilings.ceiling(ceilings.COPY, CPU)
    assert first > 0
    samples = len(taken)
    assert samples >= 20
    assert ceilings.ceiling(ceilings.COPY, CPU) == first
    assert len(taken) == samples


def fake_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_gpus_are_those_that_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, 'echo "0, NVIDIA H200, GPU-5c6e, 143771, 580.159.04"')
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (gpu,) = machine.gpus()
    assert (gpu.index, gpu.name, gpu.uuid, gpu.driver) == (0, "NVIDIA H200", "GPU-5c6e", "580.159.04")
    assert gpu.memory_bytes == 143771 * 2**20


@pytest.mark.parametrize(
    ("visible", "left"), [("1", [1]), ("GPU-b,0", [1, 0]), ("0,7,1", [0]), ("", []), ("-1", [])]
)
def test_gpus_that_are_hidden_from_this_process_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, left: list[int]
) -> None:
    """A batch system gives one card of many to a job: the others are somebody else's."""
    lines = [f"{index}, NVIDIA H200, GPU-{name}, 143771, 580" for index, name in enumerate("ab")]
    fake_nvidia_smi(tmp_path, monkeypatch, "\n".join(f'echo "{line}"' for line in lines))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpu.index for gpu in machine.gpus()] == [0, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in machine.gpus()] == left


@pytest.mark.parametrize("script", ["exit 9", 'echo "No devices were found"', ""])
def test_an_nvidia_smi_that_fails_lists_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, script)
    assert machine.gpus() == []


def test_a_host_without_a_cpp_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    assert machine.cpp_compiler() == ""


def test_a_gpu_that_is_shared_or_slowed_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, monkeypatch, 'echo "9000, 97, 80, 690.1, 1200, 1980, 0x0000000000000044"')
    state = device_state(GPU)
    assert state is not None
    free = GpuState("4", "0", "35", "70", "1980", "1980", "0x0000000000000001")
    assert warning([free, free]) == NO_WARNING
    slowed = "slowed by power cap (1200 MHz); slowed by thermal limit (hardware) (1200 MHz)"
    assert warning([free, state]) == MeasurementWarning(slowed, "throttled")
    others = "9000 MiB of GPU memory were in use before the start"
    assert warning([state, free]) == MeasurementWarning(others)
    assert warning([None]) == NO_WARNING


def test_a_gpu_of_our_own_weights_at_its_full_clock_is_no_warning() -> None:
    of_smi = ("13829", "98", "48", "492.8", "1980", "1980", "0x0000000000000004")
    capped = GpuState(*of_smi, own_memory_mib=13400)
    others = "13829 MiB of GPU memory were in use before the start"
    assert warning([capped, capped]) == NO_WARNING
    assert warning([replace(capped, own_memory_mib=0)]) == MeasurementWarning(others)
    for clock, quality in (("1900", ""), ("1755", "throttled")):  # a heavy model's, and another's
        slowed = MeasurementWarning(f"slowed by power cap ({clock} MHz)", quality)
        assert warning([capped, replace(capped, sm_clock=clock)]) == slowed


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_device_that_is_not_there_is_unsupported() -> None:
    with pytest.raises(TaskFailure) as refusal:
        prepare("cuda")
    assert (refusal.value.status, refusal.value.code) == ("unsupported", "no_cuda")


def test_the_environment_says_what_it_measures_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = environment(prepare("cpu"))
    assert found.torch == torch.__version__
    assert found.torch_git == torch.version.git_version
    assert (found.gpu, found.cuda, found.gpu_uuid) == ("", "", "")
    assert found.cpu
    assert found.packages["numpy"]
    assert found.variables["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    assert found.variables["OMP_NUM_THREADS"] == "1"
    assert "TORCHINDUCTOR_CACHE_DIR" not in found.variables
    assert found.fingerprint() == environment(prepare("cpu")).fingerprint()


@pytest.mark.parametrize(
    ("variable", "asked", "threads"), [("2,1", None, 2), ("1", 2, 2), ("many", None, 0), ("", None, 0)]
)
def test_threads_are_the_task_s_then_the_variable_s_then_all(
    variable: str, asked: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    device = prepare("cpu", asked)
    assert device.threads == torch.get_num_threads() == (threads or machine.usable_cpus())
    assert environment(device).variables.get("OMP_NUM_THREADS", "") == variable


def test_a_result_becomes_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_HOST", "box")
    recorder = Recorder(SPEC, Report(tmp_path), CPU)
    result = Result("speedup", [1.5, 1.7, 1.6], "some clock", n=30, facts={"more": "x"})
    recorder.add(result, knobs={"D": 256}, warning=MeasurementWarning("hot"))
    recorder.missing(["speedup"], TaskFailure("oom", "out_of_memory", "too large"), knobs={"D": 512})
    good, missing = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert good["benchmark"]["name"] == "Compiler HUD micro"
    assert good["benchmark"]["extra_info"]["knobs"] == {"D": 256}
    assert good["model"] == {"name": "gemv", "type": "benchmark", "backend": "inductor", "origins": ["micro"]}
    assert good["metric"]["benchmark_values"] == [1.5, 1.7, 1.6]
    said = good["metric"]["extra_info"]
    assert (said["unit"], said["direction"], said["clock"], said["n"]) == ("x", "up", "some clock", 30)
    assert (said["status"], said["warning"], said["more"]) == ("ok", "hot", "x")
    assert good["runners"][0]["name"] == "box"
    assert good["timestamp"] == missing["timestamp"]
    assert "benchmark_values" not in missing["metric"]
    assert missing["metric"]["extra_info"]["status"] == "oom"


# compiled, back to back and device time (ms) and speedup of layer_norm at D=4096, as an H200 measured them
@pytest.mark.parametrize(
    ("times_ms", "speedup", "is_possible"),
    [
        ((0.082155, 0.06766826, 0.02583808), 0.6167135, True),
        ((0.009498, 0.0001661364, 4.807075e-05), 5.577529, False),  # a result kept from the first call
        ((0.00247518, 0.001573428, 0.0005171154), 0.4968621, False),  # clocks that run 50 times too slow
    ],
)
def test_beside_an_impossible_time_no_clock_decides(
    times_ms: tuple[float, ...], speedup: float, is_possible: bool, tmp_path: Path
) -> None:
    card = Device("cuda", "NVIDIA H200", "GPU-of-a-test", 0, 1)
    recorder = Recorder(SPEC, Report(tmp_path), card, known_environment=environment(CPU))
    names = ("compiled_latency_ms", "back_to_back_latency_ms", "device_latency_ms")
    facts = {"moved_bytes": 2 * 4096 * 4096 * 2}
    results = [Result(name, [time_ms], facts=facts) for name, time_ms in zip(names, times_ms, strict=True)]
    recorder.add(*results, Result("speedup", [speedup]), Result("recompiles", [0.0]), knobs={})
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    statuses = [json.loads(line)["metric"]["extra_info"]["status"] for line in lines]
    assert statuses == ["ok" if is_possible else "impossible"] * 4 + ["ok"]


def test_a_result_that_is_no_number_has_failed_and_costs_no_other(tmp_path: Path) -> None:
    report = Report(tmp_path)
    recorder = Recorder(SPEC, report, CPU)
    recorder.add(Result("speedup", [1.5, math.nan]), knobs={})
    marked = {"status": "cannot_tell", "code": "eager_two_runs_differ"}
    recorder.add(Result("speedup", [math.inf], facts=marked), knobs={})
    facts = {"far": math.inf, "deep": {"list": [1.0, math.nan]}, "said": "a\0b\udc80", "n": 7}
    recorder.add(Result("speedup", [2.5], facts=facts), knobs={})
    lines = (tmp_path / "results.jsonl").read_text()
    bad, doubted, good = (json.loads(line)["metric"] for line in lines.splitlines())
    assert "benchmark_values" not in bad
    assert "benchmark_values" not in doubted
    assert (bad["extra_info"]["status"], bad["extra_info"]["code"]) == ("failed", "not_finite")
    assert "1 of 2 samples" in bad["extra_info"]["reason"]
    assert doubted["extra_info"]["code"] == "eager_two_runs_differ"
    assert report.not_finite is not None
    assert report.not_finite.reason == bad["extra_info"]["reason"]
    assert good["benchmark_values"] == [2.5]
    said = good["extra_info"]
    assert (said["n"], said["deep"], said["said"]) == (7, {"list": [1.0, None]}, "a\\x00b\\udc80")
    assert said["not_finite"] == "far is inf, deep.list is nan"


def test_what_no_database_takes_is_said_with_escapes(tmp_path: Path) -> None:
    failure = failure_of(ValueError("a\0b \x1b[1m\udc80 ü\nsecond line"))
    assert failure.reason == str(failure) == "ValueError: a\\x00b \\x1b[1m\\udc80 ü"
    Report(tmp_path).outcome("failed", "a\0", "b\0")
    assert json.loads((tmp_path / "outcome.json").read_text())["reason"] == "b\\x00"


class InductorError(Exception):
    """Named as torch's."""


def test_an_exception_behind_an_exception_says_what_happened() -> None:
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        except RuntimeError as inner:
            raise InductorError("compilation failed") from inner
    except InductorError as error:
        found = failure_of(error)
    assert (found.status, found.code) == ("oom", "out_of_memory")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (MemoryError(), "oom", "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"), "oom", "out_of_memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "crashed", "device_error"),
        (
            RuntimeError("CUDA error: operation failed due to a previous error during capture"),
            "failed",
            "not_capturable",
        ),
        (InductorError("InvalidCxxCompiler: No working C++ compiler found"), "failed", "no_cpp_compiler"),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), "failed", "no_c_compiler"),
        (ModuleNotFoundError("No module named 'torch'"), "failed", "no_torch"),
        (KeyError("x"), "failed", "KeyError"),
        (TaskFailure("unsupported", "no_cuda", "no GPU"), "unsupported", "no_cuda"),
    ],
)
def test_an_exception_becomes_a_status(error: Exception, status: str, code: str) -> None:
    found = failure_of(error)
    assert (found.status, found.code) == (status, code)
    assert found.reason
