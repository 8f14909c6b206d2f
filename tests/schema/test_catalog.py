"""What can be asked for, and that nothing else can."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from runner.__main__ import _parser
from runner.schema.compilations import INDUCTOR_OPTIONS
from runner.schema.devices import ARCHES, arch_key, is_named, peaks
from runner.schema.metrics import METRICS, Direction, Kind, Role, gpt_fast_target, metric_info, role_of
from runner.schema.options import Option, OptionValue
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import Selection, plan
from runner.suites import SUITES
from runner.suites.micro import SIZES as MICRO_SIZES
from runner.suites.operators.inputs import SHAPES, read_shapes
from runner.suites.request import tasks

GOOD = {
    "suite": "micro",
    "case": "gemv",
    "mode": "inference",
    "dtype": "int8",
    "backend": "inductor",
    "device": "cpu",
}


def test_a_plan_of_a_suite_takes_every_case_and_dtype() -> None:
    found = [(task.case, task.dtype) for task in plan(Selection("micro", device="cuda"))]
    assert found == [(case.name, dtype) for case in SUITES["micro"].cases for dtype in case.dtypes]
    assert len(found) == 7


def operators_of(cases: Sequence[str] = (), **knobs: OptionValue) -> list[str]:
    selection = Selection("operators", device="cpu", cases=cases, dtypes=["float16"], knobs=knobs)
    return [task.case for task in plan(selection)]


@pytest.mark.parametrize("name", ["huggingface", "timm", "torchbench"])
def test_an_operator_is_planned_once_and_where_the_inputs_have_a_call_of_it(name: str) -> None:
    counts = read_shapes(SHAPES / f"{name}.json")
    assert operators_of(inputs=name) == list(counts)
    calls = [
        sum(counts[case].values()) for case in operators_of(["frequent", "aten.mm.default"], inputs=name)
    ]
    assert len(calls) == 20
    assert min(calls) >= max(
        sum(counts[case].values()) for case in counts if case not in operators_of(["frequent"], inputs=name)
    )
    with pytest.raises(BadRequest):
        operators_of(["aten.abs.default"], inputs="timm")


def test_a_log_of_ones_own_may_hold_any_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.txt"
    path.write_text("Operator: aten.erf.default\ncnt: 3, ((T([2], f16),), {})\nOperator: os.system\n")
    monkeypatch.setenv("RUNNER_OPERATOR_INPUTS", str(path))
    assert operators_of(inputs="own") == ["aten.erf.default"]
    monkeypatch.delenv("RUNNER_OPERATOR_INPUTS")  # on another machine, which cannot know
    assert operators_of(["aten.erf.default"], inputs="own") == ["aten.erf.default"]
    with pytest.raises(BadRequest):
        operators_of(["os.system"], inputs="own")


def test_a_dtype_narrows_a_suite_but_must_fit_a_named_case() -> None:
    assert [task.case for task in plan(Selection("micro", device="cpu", dtypes=["int8"]))] == [
        "gemv",
        "gather_gemv",
    ]
    with pytest.raises(BadRequest, match=r"layer_norm has no dtype 'int8'; it has: bfloat16"):
        plan(Selection("micro", cases=["layer_norm"], device="cpu", dtypes=["int8"]))
    with pytest.raises(BadRequest, match="nothing of suite micro"):
        plan(Selection("micro", device="cpu", dtypes=["float64"]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"suite": "os"}, "no suite is called 'os'"),
        ({"case": "; rm -rf /"}, "no case '; rm -rf /'"),
        ({"dtype": "float8"}, "no dtype"),
        ({"mode": "training"}, "no mode"),
        ({"backend": "eager"}, "no backend"),
        ({"device": "tpu"}, "no device"),
        ({"dynamic": True}, "no dynamic shapes"),
        ({"dynamic": 0}, "no dynamic shapes"),
        ({"timeout_s": 10**6}, "the time limit is 1 to 600 s"),
        ({"timeout_s": 0}, "the time limit"),
        ({"knobs": {"x": 1}}, "no option 'x'"),
        ({"knobs": {"D": [32]}}, "32 is not within 64 to 16384"),
        ({"knobs": {"D": []}}, "not a list of 1 to 16"),
        ({"knobs": {"D": [64, 64]}}, "distinct"),
        ({"knobs": {"D": 64}}, "not a list"),
        ({"knobs": {"D": [True]}}, "True is not an integer"),
        ({"knobs": {"repeat": 1}}, "1 is not within 20 to 1000"),
        ({"command": "true"}, "argument 'command'"),
    ],
)
def test_a_task_from_outside_is_checked(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        TaskSpec.from_json({**GOOD, **change})
    assert said in str(refusal.value)


def test_a_task_that_says_too_little_is_refused() -> None:
    with pytest.raises(BadRequest, match="this is no task"):
        TaskSpec.from_json({"suite": "micro"})


def test_a_task_survives_json() -> None:
    task = TaskSpec.from_json({**GOOD, "knobs": {"D": [256, 512]}, "timeout_s": 30})
    assert TaskSpec.from_json(json.loads(json.dumps(task.to_json()))) == task


def test_the_command_that_reproduces_a_task_asks_for_that_task() -> None:
    for suite in (name for name, suite in SUITES.items() if suite.cases):
        for task in plan(
            Selection(suite, device="cpu", knobs={"D": [256, 512], "repeat": 50} if suite == "micro" else {})
        ):
            words = shlex.split(task.command())
            assert words[:4] == ["python", "-m", "runner", "run"]
            options = _parser().parse_args(words[3:])
            found = tasks(options, options.device)
            assert [one.fingerprint() for one in found] == [task.fingerprint()]


def test_the_fingerprint_is_of_what_is_measured() -> None:
    task = TaskSpec.from_json(GOOD)
    assert TaskSpec.from_json({**GOOD, "timeout_s": 5}).fingerprint() == task.fingerprint()
    assert TaskSpec.from_json({**GOOD, "knobs": {"D": [256]}}).fingerprint() != task.fingerprint()


@pytest.mark.parametrize("suite", SUITES)
def test_every_option_of_a_suite_is_complete(suite: str) -> None:
    options = [option for option in SUITES[suite].options if option.name not in INDUCTOR_OPTIONS]
    assert len(SUITES[suite].offered) == len(SUITES[suite].options), "a name stands twice"
    for option in options:
        assert option.help, option
        assert option.kind in {"bool", "int", "ints", "choice", "word", "flags"}, option
        assert option.default is None or not option.problem(option.default), option
        assert bool(option.choices) == (option.kind == "choice"), option
        assert (option.low < option.high) == (option.kind in {"int", "ints"}), option


def test_a_choice_and_a_switch_take_nothing_else() -> None:
    assert Option("k", "bool", "").problem(True) == ""
    assert "neither true nor false" in Option("k", "bool", "").problem("true")
    assert Option("k", "choice", "", choices=("a", "b")).problem("b") == ""
    assert "not one of a, b" in Option("k", "choice", "", choices=("a", "b")).problem("c")


def test_every_row_of_the_registry_is_complete() -> None:
    for metric in METRICS.values():
        assert metric.title, metric
        assert 0 <= metric.floor < 1, metric
        assert metric.direction in get_args(Direction), metric
        assert metric.kind in get_args(Kind), metric
        assert metric.role in get_args(Role), metric


def test_the_sizes_of_micro_are_within_its_knob() -> None:
    option = next(option for option in SUITES["micro"].options if option.name == "D")
    for sizes in MICRO_SIZES.values():
        assert option.problem(list(sizes)) == ""


def test_every_target_fraction_speaks_of_something_that_is_measured() -> None:
    cases = {case.name: case for case in SUITES["micro"].cases}
    sizes = {*map(str, MICRO_SIZES["cuda"]), "mean"}
    fractions = SUITES["micro"].target_fractions
    for row in fractions:
        assert row.metric in METRICS
        assert row.dtype in cases[row.case].dtypes
        assert row.size in sizes
        assert 0 < row.fraction < 1.1
    assert len({(row.metric, row.case, row.dtype, row.size) for row in fractions}) == len(fractions)


def test_gpt_fasts_targets_are_those_of_its_script() -> None:
    assert gpt_fast_target("layer_norm", "bfloat16", "memory_bandwidth(GB/s)") == "950"
    assert gpt_fast_target("layer_norm", "float32", "memory_bandwidth(GB/s)") is None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA PG509-210", "a100-80gb"),
        ("One of NVIDIA GeForce RTX 2060, NVIDIA GeForce RTX 2060", "nvidia-geforce-rtx-2060"),
        ("One of Tesla V100-SXM2-16GB, ", "v100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("x86_64", "cpu-x86_64"),
        ("arm64", "cpu-aarch64"),
        ("h200", "h200"),
        ("Some New Chip 3000", "some-new-chip-3000"),
        ("", ""),
    ],
)
def test_a_device_name_has_a_short_key(name: str, key: str) -> None:
    assert arch_key(name) == key
    assert arch_key(key) == key


@pytest.mark.parametrize(
    "name",
    [
        "One of Quadro P1000, NVIDIA RTX A6000,",
        "One of NVIDIA A100-SXM4-40GB, NVIDIA H100",
        "AMD Radeon Graphics gfx942:sramecc+:xnack-",
        "AMD Radeon Graphics gfx942:sramecc+:xnack+",
        "linux.rocm.gpu.gfx942.1",
        "gfx950",
        "gfx90a",
        "AMD Radeon Graphics",
        "NVIDIA PG199-PROD",
        "NVIDIA Graphics Device",
    ],
)
def test_a_text_that_names_no_device_stays_as_it_is_and_is_to_be_named(name: str) -> None:
    assert arch_key(name) == name
    assert not is_named(name)


@pytest.mark.parametrize(
    "old", ["one-of-quadro-p1000-nvidia-rtx-a6000", "nvidia-pg509-210", "amd-radeon-graphics"]
)
def test_keys_of_earlier_versions_that_name_no_device_are_to_be_named(old: str) -> None:
    assert not is_named(old)


def test_devices_outside_the_table_are_named() -> None:
    names = (
        "NVIDIA GeForce RTX 2060",
        "AMD Radeon RX 7900 XTX",
        "AMD Instinct MI300X gfx942",
        "m7i",
        "x86_64",
    )
    assert all(is_named(arch_key(name)) for name in names)
    assert not is_named("")


def test_arch_keys_are_distinct_and_have_peaks() -> None:
    assert len({arch.key for arch in ARCHES}) == len(ARCHES)
    known = peaks("h200")
    assert known is not None
    assert known.bandwidth_gbps == 4800
    assert peaks("cpu-x86_64") is None


def test_call_time_is_headline_only_without_device_time() -> None:
    assert role_of("speedup", ["speedup", "eager_latency_ms"]) == "headline"
    assert role_of("speedup", ["speedup", "device_speedup"]) == "detail"
    assert role_of("device_speedup", []) == "headline"
    assert role_of("elapsed", []) == "diagnostic"
    assert role_of("odd", []) == "headline"
    assert metric_info("same_choice_ratio").role == "headline"


def test_a_metric_nobody_knows_has_no_direction() -> None:
    assert (metric_info("speedup").unit, metric_info("speedup").direction) == ("x", "up")
    assert (metric_info("odd").unit, metric_info("odd").direction) == ("", "none")
    # gpt-fast's script multiplies time by FLOPs: it has PyTorch HUD's direction, and opens nothing
    assert role_of("flops_utilization", []) == "diagnostic"
