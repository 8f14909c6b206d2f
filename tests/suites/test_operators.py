"""The suite `operators`: recorded calls, the tensors made of them, stages that survive a crash, its files."""

from __future__ import annotations

import copy
import csv
import dataclasses
import gzip
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._inductor import config

from runner.formats.readers.operators import OperatorbenchFiles
from runner.launch.failures import TaskFailure
from runner.launch.launch import launch
from runner.launch.report import Report
from runner.measure.compiler import bisection
from runner.measure.timing import graph_replay
from runner.schema.compilations import Explanation
from runner.schema.options import Option, OptionValue
from runner.schema.statistics import quantiles
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult
from runner.suites import SUITES
from runner.suites.operators import call_metrics, inputs, one, tensors
from runner.suites.operators import run as operators
from runner.suites.operators.inputs import OWN_INPUTS, BadInputs, Call, TensorForm, Word
from runner.suites.operators.record import Recording
from tests.suites.test_micro import needs_compiler
from tests.support.observed import observe
from tests.support.operator_shapes import shape_file, trace_model

Measured = tuple[TaskOutcome, list[dict[str, Any]], Path]  # how it ended, its records, folders of the tasks
ADD = "((T([8, 16], f16), T([8, 1], f16)), {})"
LOG = f"""Operator: aten.add.Tensor
cnt: 3, {ADD}
Operator: aten.mm.default
cnt: 1, ((T([16, 9], f16), T([8, 12], f16)), {{}})
"""


def call(operator: str, text: str) -> Call:
    return Call(operator, text, 1)


def spec(case: str, **knobs: OptionValue) -> TaskSpec:
    return TaskSpec("operators", case, "inference", "float32", "inductor", "cpu", knobs=knobs)


def test_a_recorded_call_is_read_as_syntax() -> None:
    text = (
        "((T([2, 3], f16, stride=(1, 2)), [T([], i64), None], -1.5, inf, f32, 'no'), {'dim': -1, 'on': True})"
    )
    args, kwargs = inputs.parse(text)
    assert args[0] == TensorForm((2, 3), "float16", (1, 2))
    assert args[1] == [TensorForm((), "int64"), None]
    assert args[2:] == (-1.5, float("inf"), Word("float32"), "no")
    assert kwargs == {"dim": -1, "on": True}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "((open('x'),), {})",
        "((T([2], f16).__class__,), {})",
        "((T([10**9], f16),), {})",
        "((T([2], f16, out=1),), {})",
        "((T([-1], f16),), {})",
        "((T([2], int),), {})",
        "((ST([2], f16),), {})",
        "(([x for x in ()],), {})",
        "((1,), {1: 2})",
        "((torch.ops,), {})",
        "((b'x',), {})",
        "((1,))",
        "((" + "(" * 5000 + ")" * 5000 + ",), {})",
        "",
    ],
)
def test_nothing_else_is_a_call(text: str) -> None:
    with pytest.raises(BadInputs):
        inputs.parse(text)
    assert call("aten.add.Tensor", text).label.startswith("unreadable#")  # a row it is all the same


def test_operatorbenchs_log_is_read() -> None:
    further = "Operator: aten.add.Tensor\ncnt: 5, ((T([64], f16), 1), {})\n"
    counts = inputs.read_log(LOG + further + "Operator: aten.sum.SymInt\ncnt: 1, ((T([2], f16), [0]), {})\n")
    assert counts["aten.add.Tensor"][ADD] == 3
    assert "aten.sum.dim_IntList" in counts
    first, _second = inputs.calls_of(counts, "aten.add.Tensor")
    assert first.count == 5
    with pytest.raises(BadInputs, match="line 1"):
        inputs.read_log("cnt: 3, ((), {})")
    for count in ("9" * 5000, "9" * 30, "-1", "1.5", "²"):
        with pytest.raises(BadInputs, match="line 2: 'cnt: "):
            inputs.read_log(f"Operator: aten.add.Tensor\ncnt: {count}, {ADD}")


def test_a_file_of_inputs_is_ours_or_a_log(tmp_path: Path) -> None:
    path = tmp_path / "inputs"
    path.write_text(LOG)
    counts = inputs.read_shapes(path)
    path.write_text(shape_file(counts, {"torch": "2"}))
    assert inputs.read_shapes(path) == counts
    uncounted = '{"operators": {"aten.add.Tensor": {"": "many"}}}'
    for wrong in ('{"operators": 3}', '{"operators": ' + "[" * 100_000, uncounted):
        path.write_text(wrong)
        with pytest.raises(BadInputs, match="no shape file"):
            inputs.read_shapes(path)
    path.write_bytes(b"\x93NUMPY\x00")
    with pytest.raises(BadInputs, match="is no text: byte 0"):
        inputs.read_shapes(path)


def test_the_cases_are_the_operators_of_our_shape_files() -> None:
    counts = {name: inputs.read_shapes(inputs.SHAPES / f"{name}.json") for name in inputs.INPUTS[:-1]}
    recorded = {operator for part in counts.values() for operator in part}
    assert {case.name for case in SUITES["operators"].cases} == recorded
    (option,) = (option for option in SUITES["operators"].options if option.name == "shape")
    for part in counts.values():
        for operator in part:
            tensors.operator_of(operator)
            calls = inputs.calls_of(part, operator)
            assert len({one.label for one in calls}) == len(calls)
            assert not any(option.problem(one.label) for one in calls)


def test_a_name_is_a_knob_and_a_path_is_none() -> None:
    option = Option("shape", "word", "")
    assert not option.problem("f16(64x768)*f16(768x3072)#1a2b3c4d")
    assert option.problem("../../etc/passwd")
    assert option.problem("a b")
    assert option.problem(3)


@pytest.mark.parametrize(
    ("operator", "text", "place", "below"),
    [
        ("embedding.default", "((T([10, 4], f16), T([64], i64)), {})", 1, 10),
        ("embedding_dense_backward.default", "((T([64, 4], f16), T([64], i64), 7, -1, False), {})", 1, 7),
        ("gather.default", "((T([4, 3], f16), 1, T([4, 90], i64)), {})", 2, 3),
        ("scatter_.value", "((T([4, 3], f16), 1, T([4, 3], i64), 1), {})", 2, 3),
        ("nll_loss_forward.default", "((T([64, 5], f16), T([64], i64), None, 1, -100), {})", 1, 5),
        (
            "nll_loss_backward.default",
            "((T([], f16), T([64, 5], f16), T([64], i64), None, 1, -100, T([], f16)), {})",
            2,
            5,
        ),
    ],
)
def test_indices_are_valid(operator: str, text: str, place: int, below: int) -> None:
    args, kwargs = tensors.make(call(f"aten.{operator}", text), torch.float32, "cpu")
    assert int(args[place].min()) >= 0
    assert int(args[place].max()) < below
    tensors.operator_of(f"aten.{operator}")(*args, **kwargs)


def test_each_index_of_a_list_has_its_own_dimension() -> None:
    text = "((T([50, 2, 3], f16), [T([9], i64), None, T([9], i64)]), {})"
    (_source, (first, none, third)), _kwargs = tensors.make(
        call("aten.index.Tensor", text), torch.float32, "cpu"
    )
    assert none is None
    assert int(first.max()) < 50
    assert int(third.max()) < 3
    masked = "((T([4, 5], f16), [T([4, 5], b8)]), {})"
    (_source, (mask,)), _kwargs = tensors.make(call("aten.index.Tensor", masked), torch.float32, "cpu")
    assert mask.dtype == torch.bool


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (torch.float16, ("float16", "float32")),
        (torch.bfloat16, ("bfloat16", "float32")),
        (torch.float32, ("float32",) * 2),
    ],
)
def test_recorded_in_half_and_asked_in_another_type(asked: torch.dtype, found: tuple[str, str]) -> None:
    text = "((T([2], f16), T([2], f32), f16), {})"
    (half, whole, said), _kwargs = tensors.make(call("aten.add.Tensor", text), asked, "cpu")
    assert (half.dtype, whole.dtype) == tuple(getattr(torch, name) for name in found)
    assert said == half.dtype


def test_strides_are_as_recorded() -> None:
    text = "((T([3, 4], f16, stride=(1, 3)), T([5, 2], f16, stride=(0, 1)), T([2, 3, 4, 4], f16)), {})"
    args, _kwargs = tensors.make(call("aten.add.Tensor", text), torch.float32, "cpu", channels_last=True)
    assert args[0].stride() == (1, 3)
    assert args[1].stride() == (0, 1)
    assert torch.equal(args[1][0], args[1][4])
    assert args[2].is_contiguous(memory_format=torch.channels_last)
    assert tensors.bytes_of([args[1]]) == 8


def test_a_lookup_moves_what_it_reads_and_no_whole_table() -> None:
    table, index = torch.zeros(1000, 8, dtype=torch.float16), torch.zeros(5, dtype=torch.int64)
    rows = table[index]
    assert tensors.moved_bytes("aten.embedding.default", [table, index], [rows]) == 2 * 5 * 8 * 2 + 5 * 8
    scores, loss = torch.zeros(4, 1000), torch.zeros(())
    target = torch.zeros(4, dtype=torch.int64)
    assert (
        tensors.moved_bytes("aten.nll_loss_forward.default", [scores, target], [loss, loss]) == 4 * 4 + 32 + 8
    )
    assert tensors.moved_bytes("aten.add.Tensor", [rows, rows], [rows]) == 3 * 5 * 8 * 2


def test_an_operator_that_this_torch_lacks_is_unsupported() -> None:
    for name in ("aten.no_such.default", "os.system.default", "aten.add", "aten.add.__class__"):
        with pytest.raises(TaskFailure) as caught:
            tensors.operator_of(name)
        assert caught.value.code == "no_operator"


def test_a_trace_counts_what_computes() -> None:
    with Recording() as recording:
        x = torch.empty(4, 8, device="meta", dtype=torch.float16)
        for _ in range(2):
            (x @ x.t()).relu_().view(-1)
        x.float()
    counts = {name: sum(calls.values()) for name, calls in recording.counts.items()}
    assert counts == {
        "aten.mm.default": 2,
        "aten.relu_.default": 2,
        "aten._to_copy.default": 1,
        "aten.copy_.default": 1,
    }
    (text,) = recording.counts["aten.mm.default"]
    assert inputs.parse(text)[0][1] == TensorForm((8, 4), "float16", (1, 8))


def test_a_model_that_asks_for_values_is_traced_too() -> None:
    """GPT-2's attention mask depends on whether any sequence is packed."""
    pytest.importorskip("transformers")
    counts = trace_model("huggingface", "DistillGPT2", 2)
    assert any("T([1024, 768], f16)" in text for text in counts["aten.addmm.default"])
    assert "aten._local_scalar_dense.default" not in counts


def test_quantiles_over_shapes_weighted_and_not() -> None:
    values = [3.0, 1.0, 2.0, 10.0]
    assert quantiles(values) == pytest.approx(np.quantile(values, (0.2, 0.5, 0.8)).tolist())
    assert quantiles(values, [1, 97, 1, 1]) == [1.0, 1.0, 1.0]
    assert quantiles([5.0]) == [5.0, 5.0, 5.0]


def test_the_wrong_answer_of_a_compiler_is_wrong() -> None:
    x = torch.arange(-4.0, 4.0)
    made = one._Made(torch.ops.aten.relu_.default, torch.ops.aten.relu_.default, (x,), [0])
    assert "equal" in one._checked(made, lambda given: given.clamp_(min=0), 1e-4)
    with pytest.raises(TaskFailure, match="differs from eager"):
        one._checked(made, lambda given: given.mul_(2), 1e-4)
    assert not torch.equal(x, x.relu())  # both worked on copies
    drawn = dataclasses.replace(made, operator=torch.ops.aten.bernoulli.default)
    assert "random" in one._checked(drawn, lambda given: given.mul_(2), 1e-4)


def test_operators_that_wait_for_the_device_have_no_device_time() -> None:
    mask = torch.ones(3, dtype=torch.bool)
    for operator, operands in (("nonzero.default", (mask,)), ("index.Tensor", (torch.ones(3), mask))):
        name, overload = operator.split(".")
        found = getattr(getattr(torch.ops.aten, name), overload)
        assert one._Made(found, found, operands, []).synchronises
    add = torch.ops.aten.add.Tensor
    assert not one._Made(add, add, (mask, mask), []).synchronises


def test_tiny_operands_have_no_endless_rotation() -> None:
    class Card:
        cache_bytes = 60 * 2**20

        def free_bytes(self) -> int:
            return 2**40

    assert graph_replay._sets((torch.ones(1),), Card(), 8) == (1024, "")  # type: ignore[arg-type]


def test_what_lies_between_strides_is_memory_too() -> None:
    apart = "((T([2, 2], f16, stride=(549755813888, 1)),), {})"
    assert tensors.memory_needed(call("aten.add.Tensor", apart)) == 2 * (549755813888 + 2)
    assert tensors.memory_needed(call("aten.add.Tensor", ADD)) == 2 * (8 * 16 + 8)


def test_a_crash_and_a_call_that_cannot_be_read_are_rows_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.txt"
    path.write_text(
        "".join(
            [
                "Operator: aten.add.Tensor\n",
                *(f"cnt: {9 - n}, ((T([{n + 1}], f16), 1), {{}})\n" for n in range(5)),
                "cnt: 4, ((T([-1], f16), 1), {})\n",
                "cnt: 3, ((T([2], f16)\n",
            ]
        )
    )
    monkeypatch.setenv(OWN_INPUTS, str(path))

    def measure_all(_spec: Any, _report: Any, _calls: Any, waiting: list[int], marks: Path) -> None:
        for place in waiting:
            operators._mark(marks, {"place": place, "began": True})
            if place == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if place == 3:
                raise TaskFailure("crashed", "device_error", "CUDA error: an illegal memory access")
            numbers = {"upstream": [2.0, 1.0], "call": 2.0, "count": 9 - place, "elapsed_s": 1.0}
            operators._mark(marks, {"place": place, **numbers})

    monkeypatch.setattr(operators, "measure_all", measure_all)
    failure = operators.run(spec("aten.add.Tensor", inputs="own"), Report(tmp_path))
    assert failure is not None
    assert (failure.status, failure.code) == ("failed", "bad_inputs")
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    shapes = [record for record in records if "shape" in record["benchmark"]["extra_info"]["knobs"]]
    lost = {
        (record["benchmark"]["extra_info"]["knobs"]["shape"][:6], record["metric"]["extra_info"]["code"])
        for record in shapes
    }
    assert lost == {("f16(2)", "SIGKILL"), ("f16(4)", "device_error"), ("unread", "bad_inputs")}
    unread = [
        one["metric"]["extra_info"] for one in shapes if one["metric"]["extra_info"]["code"] == "bad_inputs"
    ]
    assert len({one["reason"] for one in unread}) == 2  # each quotes what cannot be read
    (median,) = (record["metric"] for record in records if record["metric"]["name"] == "50th")
    assert median["benchmark_values"] == [2.0]
    assert (median["extra_info"]["shapes"], median["extra_info"]["shapes_tried"]) == (3, 7)


@needs_compiler
def test_a_wrong_result_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inductor_here: None
) -> None:
    path = tmp_path / "own.txt"
    path.write_text("Operator: aten.relu.default\ncnt: 1, ((T([64], f32),), {})\n")
    monkeypatch.setenv(OWN_INPUTS, str(path))
    found = Explanation("inductor", "lowerings", 0, "relu")
    # the bisector itself has its own test: here one of its calls, which fails as the first one did
    monkeypatch.setattr(bisection, "explain", lambda works, limit_s: None if works(limit_s) else found)
    task = spec("aten.relu.default", inputs="own", explain=600)
    with config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        failure = operators.run(task, Report(tmp_path))
    assert failure is not None
    assert failure.status == "wrong"
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    metrics = [record["metric"] for record in records]
    assert sorted(metric["name"] for metric in metrics) == sorted(call_metrics(task))  # each has one row
    for metric in metrics:
        assert metric["extra_info"]["explained"] == found.to_json()
        assert metric["extra_info"]["status"] == "wrong"


# The child, whose stages have as much time as their task: a busy machine compiles slowly, and what the
# limits do is tested elsewhere.
PATIENT = """
import sys
from runner.launch import child
from runner.suites import operators
operators._STAGE_S = operators._CALL_S = 900
sys.exit(child.main())
"""


# As results name its inputs: of another file's calls there is another experiment.
OWN = f"own-{hashlib.sha256(LOG.encode()).hexdigest()[:8]}"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, inductor_cache: dict[str, str]) -> Measured:
    folder = tmp_path_factory.mktemp("operators")
    (folder / "own.txt").write_text(LOG)
    environment = {**inductor_cache, OWN_INPUTS: str(folder / "own.txt")}
    command = [sys.executable, "-c", PATIENT]
    records: list[dict[str, Any]] = []
    for operator in ("aten.add.Tensor", "aten.mm.default"):
        task = spec(operator, inputs="own", repeat=5, keep_trace=True)
        outcome = launch(task, folder / operator, environment=environment, command=command)
        results = folder / operator / "results.jsonl"
        assert results.exists(), f"{outcome}\n{(folder / operator / 'log').read_text()}"
        records += map(json.loads, results.read_text().splitlines())
    return outcome, records, folder


@needs_compiler
def test_operators_are_measured_by_shape_and_over_shapes(measured: Measured) -> None:
    outcome, records, folder = measured
    assert outcome.code == "RuntimeError", outcome  # of the matrices that do not fit each other
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for record in records:
        knobs = record["benchmark"]["extra_info"]["knobs"]
        assert knobs["inputs"] == OWN
        place = (record["model"]["name"], str(knobs.get("shape", "")).split("#")[0], record["metric"]["name"])
        found.setdefault(place, record["metric"])
    speedup = found["aten.add.Tensor", "f16(8x16)*f16(8x1)", "speedup"]
    assert speedup["benchmark_values"][0] > 0
    assert speedup["extra_info"]["calls_in_models"] == 3
    assert found["aten.add.Tensor", "f16(8x16)*f16(8x1)", "kernel_count"]["benchmark_values"] == [1.0]
    broken = found["aten.mm.default", "f16(16x9)*f16(8x12)", "speedup"]
    assert "benchmark_values" not in broken
    assert broken["extra_info"]["status"] == "failed"
    assert found["aten.add.Tensor", "", "50th"]["extra_info"]["shapes"] == 1
    assert (
        found["aten.add.Tensor", "", "weighted_call_50th"]["benchmark_values"] == speedup["benchmark_values"]
    )
    over_shapes = found["aten.mm.default", "", "50th"]  # of which none could be measured
    assert "benchmark_values" not in over_shapes
    assert over_shapes["extra_info"]["status"] == "failed"
    assert not any(metric == "device_latency_ms" for _operator, _shape, metric in found)
    (trace,) = folder.glob("*/artifacts/trace/*")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"], "of the only call that runs"


def autotuned(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same as another backend would have it, twice as fast."""
    others = copy.deepcopy([record for record in records if record["model"]["backend"] == "inductor"])
    for record in others:
        record["model"]["backend"] = "autotune"
        times_ms = record["metric"]["extra_info"].get("operatorbench_ms")
        if times_ms:
            times_ms[1] /= 2
    return others


@needs_compiler
def test_operatorbenchs_file_comes_back_equal(measured: Measured, tmp_path: Path) -> None:
    outcome, records, _folder = measured
    files = OperatorbenchFiles(tmp_path / "out")
    both = [*records, *autotuned(records)]
    task = spec("aten.mm.default", inputs="own")
    for backend, part in (("inductor", records), ("autotune", autotuned(records))):
        files.add(TaskResult(dataclasses.replace(task, backend=backend), outcome, tmp_path, part))
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == f"operatorbench_{OWN}_float32.csv"
    rows = list(csv.reader(path.read_text().splitlines()))
    assert {len(row) for row in rows} == {len(rows[0])}  # as many cells as columns
    assert rows[0][:4] == ["operator", "inductor 20th", "inductor 50th", "inductor 80th"]
    assert rows[0][7:] == [
        *(f"inductor/autotune {name}" for name in ("20th", "50th", "80th")),
        *("elapsed", "eager abs", "inductor abs", "autotune abs"),
    ]
    assert rows[1][7:10] == ["2.0", "2.0", "2.0"]
    here = observe(path.read_bytes(), path.name, device="cpu", mode="inference", arch="x86_64")
    ours = observe("\n".join(map(json.dumps, both)))
    wanted = {
        (item.identity, item.metric): item.samples
        for item in ours.measurements
        if item.samples and item.metric in {"20th", "50th", "80th", "abs"}  # a failure has no word there
    }
    read = {(item.identity, item.metric): item.samples for item in here.measurements}
    assert wanted
    for place, samples in wanted.items():
        assert read[place] == pytest.approx(samples, rel=1e-12), place
    assert not here.receipt.skipped
    assert not here.faults
