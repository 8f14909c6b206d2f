"""Warnings of imprecise measurements: too few pairs, drift, a busy host."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from runner.launch.report import Report
from runner.measure.recorder import Recorder, Result
from runner.measure.state.device import CpuState, Device, cpu_state, device_state, warning
from runner.measure.timing.call_time import PairedTimes, facts, latency_results, standard_error
from runner.measure.timing.call_time import warning as timing_warning
from runner.schema.records import NO_WARNING, MeasurementWarning
from runner.schema.suite import TaskSpec
from runner.suites.operators import run as operators
from runner.suites.operators.inputs import Call
from runner.suites.operators.one import Measured
from runner.system.machine import busy_seconds

CPU = Device("cpu", "x86_64", "a processor", 0, 2)
BUSY = MeasurementWarning("busy", "busy_cpu")
STEADY = [10.0, 10.01, 9.99, 10.0] * 10


def pairs(compiled: Sequence[float], eager: Sequence[float] = STEADY) -> PairedTimes:
    return PairedTimes(list(eager[: len(compiled)]), list(compiled))


def test_a_precise_speedup_has_no_warning() -> None:
    said = facts(pairs([5.0] * 40))
    assert "warning" not in said
    assert said["median_of_pair_ratios"] == pytest.approx(2.0)
    assert said["log_ratio_standard_error"] < 0.005


def test_an_imprecise_speedup_has_a_warning() -> None:
    noisy = [5.0] * 10 + [5.5] * 10 + [4.6] * 10 + [5.2] * 10
    error = standard_error(pairs(noisy).log_ratios)
    words = f"uncertain by ±{error:.1%} (one standard error, 40 pairs); the aim is ±0.5%"
    assert facts(pairs(noisy))["warning"] == words
    assert timing_warning(pairs([5.0] * 9)).text == "only 9 pairs: too few to estimate the precision"
    assert timing_warning(pairs([5.0])).text.startswith("only 1 pair")


@pytest.mark.parametrize("count", [10, 14, 19])
def test_ten_pairs_are_enough_for_a_standard_error(count: int) -> None:
    assert 0 < standard_error([0.1, 0.3, 0.2, 0.4, 0.1] * 2 + [0.3] * (count - 10)) < 0.1
    assert math.isinf(standard_error([0.1] * 9))
    assert "log_ratio_standard_error" in facts(pairs([5.0] * count))


def test_a_ratio_of_medians_far_from_the_pairs_is_a_warning() -> None:
    """Two modes that both sides share: in each pair compiled is the slower one."""
    eager = [1.0] * 21 + [100.0] * 19
    compiled = [1.2] * 19 + [120.0] * 21
    times = PairedTimes(eager, [mine * 1.2 for mine in eager])
    assert "ratio of medians" not in timing_warning(times).text
    words = "the median of the pairs' ratios is 0.833, the ratio of medians 0.00833"
    assert timing_warning(PairedTimes(eager, compiled)).text.endswith(words)


def test_a_record_joins_the_warnings_of_its_result_and_its_host(tmp_path: Path) -> None:
    spec = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cpu")
    recorder = Recorder(spec, Report(tmp_path), CPU)
    recorder.add(Result("speedup", [1.5], facts={"warning": "of 3 pairs only"}), knobs={}, warning=BUSY)
    recorder.add(Result("eager_latency_ms", [1.0]), knobs={})
    recorder.add(Result("recompiles", [0.0], facts={"warning": "of its own"}), knobs={}, warning=BUSY)
    recorder.add(Result("kernel_count", [3.0]), knobs={}, warning=BUSY)  # no clock, nothing to disturb
    found = [json.loads(line)["metric"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    words = [one["extra_info"].get("warning") for one in found]
    qualities = [one["extra_info"].get("quality") for one in found]
    assert qualities == ["busy_cpu", None, None, None]
    assert words == ["of 3 pairs only; busy", None, "of its own", None]


def state(at_s: float, busy_s: float, own_s: float, threads: int = 2, processors: int = 2) -> CpuState:
    return CpuState(at_s, busy_s, own_s, processors, threads)


def test_the_record_of_an_operator_s_call_has_the_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _threads: None)
    states = iter([state(0, 100, 50), state(10, 119, 57), state(20, 129, 67)])
    monkeypatch.setattr(operators, "device_state", lambda _device: next(states))
    three = pairs([5.0] * 3)
    results = [*latency_results(three, "a clock"), Result("kernel_count", [1.0])]
    numbers = {"call": three.speedup, "call_quality": timing_warning(three).quality, "upstream": [1.0, 1.0]}
    monkeypatch.setattr(operators, "measure", lambda *_given: Measured(results, numbers, {}, None, None))
    spec = TaskSpec("operators", "aten.neg.default", "inference", "float32", "inductor", "cpu")
    calls = [Call("aten.neg.default", f"((T([{size}], f32),), {{}})", 1) for size in (1, 2)]
    operators.measure_all(spec, Report(tmp_path), calls, [0, 1], tmp_path / "marks")
    found = [json.loads(line)["metric"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    words = [one["extra_info"].get("warning") for one in found if one["name"] == "speedup"]
    few = "only 3 pairs: too few to estimate the precision"
    busy = "other processes kept 1.2 of 2 processors busy while 2 threads measured"
    assert words == [f"{few}; {busy}", few]
    qualities = [one["extra_info"].get("quality") for one in found if one["name"] == "speedup"]
    assert qualities == ["busy_cpu", None]
    assert [one["extra_info"].get("warning") for one in found if one["name"] == "kernel_count"] == [None] * 2
    marks = [json.loads(line) for line in (tmp_path / "marks").read_text().splitlines()]
    operators.summarise(spec, Report(tmp_path), calls, {}, marks)
    found = [json.loads(line)["metric"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    summary = {one["name"]: one["extra_info"] for one in found if one["name"] in {"50th", "call_50th", "abs"}}
    assert {name: info["quality"] for name, info in summary.items()} == dict.fromkeys(summary, "busy_cpu")
    assert len(summary) == 3


def noisy(spread: float) -> PairedTimes:
    """Forty pairs whose mean log ratio is known to about `spread` ÷ √10, in ten blocks."""
    compiled = [5.0 * math.exp(spread * (-1) ** block) for block in range(10) for _ in range(4)]
    return pairs(compiled)


def test_a_ratio_known_to_more_than_a_tenth_may_not_decide() -> None:
    assert timing_warning(noisy(0.25)).quality == ""
    assert timing_warning(noisy(0.25)).text
    assert timing_warning(noisy(0.35)).quality == "imprecise"
    assert facts(noisy(0.35))["quality"] == "imprecise"
    results = {one.metric: one.facts.get("quality") for one in latency_results(noisy(0.35), "a clock")}
    assert results["speedup"] == "imprecise"


def test_two_estimates_far_apart_may_not_decide() -> None:
    """In most pairs compiled is as fast as eager; where a pair is slow on both sides, it is twice as fast."""
    eager = [10.0, 20.0, 10.0, 20.0, 20.0] * 8
    compiled = [10.0, 10.0, 10.0, 10.0, 20.0] * 8
    assert timing_warning(PairedTimes(eager, compiled)).quality == "disagrees"
    assert timing_warning(PairedTimes(eager, [time / 2 for time in eager])).quality == ""


def test_memory_may_decide_on_a_busy_host(tmp_path: Path) -> None:
    spec = TaskSpec("torchbench", "x", "inference", "float32", "inductor", "cpu")
    recorder = Recorder(spec, Report(tmp_path), CPU)
    for name in ("peak_rss_bytes", "compression_ratio", "cold_compile_s"):
        recorder.add(Result(name, [1.0]), knobs={}, warning=BUSY)
    found = [json.loads(line)["metric"] for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [one["extra_info"].get("quality") for one in found] == [None, None, "busy_cpu"]
    assert [one["extra_info"].get("warning") for one in found] == ["busy"] * 3


def test_busy_processors_are_a_warning() -> None:
    before = state(0, 100, 50)
    words = "other processes kept 1.2 of 2 processors busy while 2 threads measured"
    assert warning([None, before, state(10, 119, 57)]) == MeasurementWarning(words, "busy_cpu")
    assert warning([before, state(10, 119, 69)]) == NO_WARNING
    assert warning([before, state(10, 119, 68.5)]) == NO_WARNING  # a service of the system
    assert warning([state(0, 100, 50, 1), state(10, 109, 50, 1)]) == NO_WARNING  # on the other processor
    assert warning([before, state(10, 119, 57), state(20, 129, 67)]) == NO_WARNING  # it is over
    assert warning([before, state(9.9, 118.9, 57), state(10, 119, 57)]) == MeasurementWarning(
        words, "busy_cpu"
    )  # too short by itself
    assert warning([before]) == warning([]) == NO_WARNING
    alone = "other processes kept 1.5 of 2 processors busy while 1 thread measured"
    assert warning([state(0, 100, 50, 1), state(10, 125, 60, 1)]) == MeasurementWarning(alone, "busy_cpu")
    large = state(0, 100, 50, 200, 200)
    assert warning([large, state(10, 119, 50, 200, 200)]) == NO_WARNING  # its own services
    assert warning([large, state(10, 122, 50, 200, 200)]).quality == "busy_cpu"


def test_processor_time_is_counted_as_the_kernel_says_it() -> None:
    lines = ["cpu  1 1 1 1 1 1 1 1 0 0", "cpu0 100 200 300 9000 90 1 2 3 50 0", "cpu1 7 0 0 0 0 0 0 0 0 0"]
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert busy_seconds(lines, {0}) == pytest.approx(606 * tick)
    assert busy_seconds([*lines, "intr 5"], {0, 1}) == pytest.approx(613 * tick)


def spin() -> None:
    until = time.process_time() + 0.15
    while time.process_time() < until:
        pass


def test_time_of_child_processes_is_our_own() -> None:
    before = cpu_state(2)
    child = multiprocessing.get_context("fork").Process(target=spin)
    child.start()
    child.join()
    after = device_state(CPU)
    assert before is not None
    assert isinstance(after, CpuState)
    assert after.own_s - before.own_s >= 0.14
    assert after.busy_s >= before.busy_s
    assert after.threads == 2
