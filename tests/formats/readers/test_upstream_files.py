"""What `--format upstream` writes, for every outside system: told before it is measured, and never over what
is there or over itself."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.__main__ import main
from runner.cli import terminal
from runner.cli.output import Output
from runner.formats import WRITERS
from runner.formats.readers.operators import OperatorbenchFiles
from runner.formats.readers.xla import XlaFiles
from runner.launch.jobs import LaunchRequest
from runner.schema.metrics import GPT_FAST_SIZES, mean_over
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult
from runner.suites import SUITES
from tests.support.observed import observe

pytestmark = pytest.mark.usefixtures("own_folders")

MM = "aten.mm.default"


def a_task(suite: str, case: str, dtype: str, backend: str = "inductor", **knobs: Any) -> TaskSpec:
    return TaskSpec(suite, case, "inference", dtype, backend, "cpu", knobs=knobs)


def record(task: TaskSpec, metric: str, *values: float, **over: Any) -> dict[str, Any]:
    about = {"device": "cpu", "arch": "x86_64", "dynamic": False, "knobs": over.pop("knobs", {})}
    backend = over.pop("backend", task.backend)
    return {
        "benchmark": {"name": "x", "mode": task.mode, "dtype": task.dtype, "extra_info": about},
        "model": {"name": over.pop("case", task.case), "backend": backend, "origins": [task.suite]},
        "metric": {
            "name": metric,
            **({"benchmark_values": list(values)} if values else {}),
            "extra_info": {"status": "ok", **over},
        },
        "timestamp": 1.7e9,
    }


def of_gpt_fast(task: TaskSpec) -> list[dict[str, Any]]:
    if task.suite == "micro":
        return [record(task, "memory_bandwidth(GB/s)", 1.0, knobs=mean_over(GPT_FAST_SIZES))]
    return [record(task, "token_per_sec", 1.0)]


def of_cachebench(task: TaskSpec) -> list[dict[str, Any]]:
    return [record(task, "Cold compile time (s)", 1.0, knobs={"origin": "huggingface"})]


def of_the_harness(task: TaskSpec) -> list[dict[str, Any]]:
    compiled = record(task, "cold_compile_s", 2.0, phases_s={"inductor_compile": 1.5})
    found = [record(task, "compiled_latency_ms", 1.0), compiled, record(task, "accuracy", code="pass")]
    for one in found:
        one["benchmark"]["extra_info"]["batch_size"] = 4
    return found


def of_operatorbench(task: TaskSpec, eager: float = 3.0) -> list[dict[str, Any]]:
    knobs = {"inputs": "timm"}
    said = [record(task, name, 1.0, knobs=knobs) for name in ("20th", "50th", "80th", "abs", "elapsed")]
    return [*said, record(task, "abs", eager, knobs=knobs, backend="eager")]


def of_xla(task: TaskSpec) -> list[dict[str, Any]]:
    knobs = {"origin": "dummy", "batch_size": 16, **task.identity()}
    code = record(task, "verification_code", knobs=knobs, code="VERIFIER_SKIPPED")
    return [code, record(task, "total_time", 1.0, knobs=knobs)]


DUMPS = {"dump_hlo": True, "dump_dynamo_counters": True}
EXAMPLES: dict[str, tuple[str, list[TaskSpec], Any]] = {
    "gpt-fast": (
        "g.v1",
        [a_task("micro", "gemv", "int8"), a_task("gpt_fast", "toy-llama", "int8")],
        of_gpt_fast,
    ),
    "cachebench": ("c.json", [a_task("cache", "BertForMaskedLM", "bfloat16")], of_cachebench),
    "the torchdynamo harness": (
        "d.csv",
        [
            a_task("huggingface", "BertForMaskedLM", "bfloat16"),
            a_task("timm", "mobilenetv2_100", "float32", "aot_eager", test="performance"),
            a_task("timm", "mobilenetv2_100", "amp", test="accuracy"),
        ],
        of_the_harness,
    ),
    "operatorbench": (
        "o.csv",
        [a_task("operators", MM, dtype, inputs="timm") for dtype in ("float16", "float32")],
        of_operatorbench,
    ),
    "PyTorch/XLA": (
        "x.jsonl",
        [
            a_task("xla", "dummy", "float32", "openxla", **DUMPS, save_output=True),
            a_task("xla", "resnet18", "float32", "eager"),
        ],
        of_xla,
    ),
}


def finished(task: TaskSpec, records: list[dict[str, Any]], folder: Path) -> TaskResult:
    """With the artifacts that it asks for."""
    asked = {"dump_hlo": "hlo/module_1.txt", "dump_dynamo_counters": "dynamo_counters/0.json"}
    for knob, name in asked.items():
        if task.knobs.get(knob):
            path = folder / "artifacts" / name
            path.parent.mkdir(parents=True)
            path.write_text(task.fingerprint())
    return TaskResult(task, TaskOutcome("ok"), folder, records)


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_every_system_has_an_example() -> None:
    assert {system.name for system in WRITERS.values()} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_written_was_told_and_is_never_written_over(name: str, tmp_path: Path) -> None:
    filename, tasks, records_of = EXAMPLES[name]
    path, suites = tmp_path / "out" / filename, [task.suite for task in tasks]
    system = WRITERS[suites[0]](path)
    told = set(system.files(tasks))
    output = Output(path, "upstream", suites=suites, resume=False)
    assert output.check(tasks) == ""
    assert not path.parent.exists()
    path.parent.mkdir()  # as Output does
    named: set[Path] = set()
    for number, task in enumerate(tasks):
        named |= set(system.add(finished(task, records_of(task), tmp_path / str(number))))
    assert files_in(path.parent) == named
    for one in named:
        assert {one, *one.parents} & told, one
    for one in told:
        assert any({one} & {file, *file.parents} for file in named), one  # and nothing was told in vain

    before = {one: one.read_text() for one in named}
    for one in sorted(told):
        alone = tmp_path / "again" / one.relative_to(path.parent)
        alone.parent.mkdir(parents=True)
        one.rename(alone)
        again = tmp_path / "again" / filename
        with pytest.raises(BadRequest) as refused:
            Output(again, "upstream", suites=suites, resume=False).check(tasks)
        assert str(alone) in str(refused.value)
        alone.rename(one)
        (tmp_path / "again").rename(tmp_path / f"was-{one.name}")
    assert {one: one.read_text() for one in named} == before


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_written_is_read_again(name: str, tmp_path: Path) -> None:
    filename, tasks, records_of = EXAMPLES[name]
    writer = WRITERS[tasks[0].suite](tmp_path / filename)
    written: set[Path] = set()
    for number, task in enumerate(tasks):
        written |= set(writer.add(finished(task, records_of(task), tmp_path / str(number))))
    results = [path for path in sorted(written) if not {task.case for task in tasks} & {*path.parts}]
    parsers = [observe(path.read_bytes(), path.name) for path in results]
    assert not any(parser.faults for parser in parsers)
    found = {(item.suite, item.case) for parser in parsers for item in parser.measurements}
    assert found == {(task.suite, task.case) for task in tasks}
    assert any(item.samples for parser in parsers for item in parser.measurements)


def never(*_args: Any, **_options: Any) -> TaskOutcome:
    raise AssertionError("nothing is to be measured")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("micro --case gemv --dtype int8", "writes it; give another folder or name for --output"),
        ("micro --case gemv --dtype int8 --dry-run", ""),
        ("micro --case gemv --dtype int8 --repeats 3 --dry-run", "one place for gemv in int8"),
        ("micro --case gemv --dtype int8 --opt repeat=20+40 --dry-run", "one place for gemv in int8"),
        ("cache --case DistillGPT2 --dtype bfloat16 --mode inference --repeats 2", "measured 2 times"),
        ("operators --case aten.mm.default --repeats 2 --dtype float16", f"one place for {MM} with"),
        (
            "huggingface --case DistillGPT2 --dtype amp --opt nopython=true+false",
            "DistillGPT2 in induct",
        ),
        ("xla --case dummy --backend eager --opt repeat=3+4", "-eval-None-None-None-dummy, which"),
        ("xla --case dummy --opt batch_size=3+4 --dry-run", ""),
    ],
)
def test_a_request_is_refused_before_it_is_measured(
    options: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(terminal, "run_task", never)
    (tmp_path / "g.csv").write_text("mine")
    words = f"run {options} --device cpu --format upstream --output {tmp_path / 'g.v1'}"
    assert main(words.split()) == (2 if said else 0)
    assert said in capsys.readouterr().err
    assert (tmp_path / "g.csv").read_text() == "mine"


def test_what_it_cannot_tell_apart_comes_through_the_door_from_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(1.0)

    def measured(request: LaunchRequest) -> TaskOutcome:
        request.folder.mkdir(parents=True)
        found = {**record(request.job.task, "token_per_sec", next(numbers)), "runners": [{"name": "box"}]}
        return TaskOutcome("ok", records=[found])

    monkeypatch.setattr(terminal, "run_task", measured)
    words = "run gpt_fast --case toy-llama --dtype int8 --device cpu --repeats 3 --output"
    assert main([*words.split(), str(tmp_path / "r.json")]) == 0
    found = observe((tmp_path / "r.json").read_bytes()).measurements
    assert [(one.repeat, one.samples) for one in found] == [(0, [1.0]), (1, [2.0]), (2, [3.0])]
    assert len({(one.identity, one.run) for one in found}) == 1


def test_a_side_file_that_cannot_be_written_is_found_before(tmp_path: Path) -> None:
    (tmp_path / "d").touch()  # where the folder of the harness's files would be
    _filename, tasks, _records = EXAMPLES["the torchdynamo harness"]
    with pytest.raises(BadRequest, match=r"d\.csv cannot be written: .*Not a directory"):
        Output(tmp_path / "d.csv", "upstream", suites=["timm"], resume=False).check(tasks)


def test_dumps_of_two_cells_have_two_names(tmp_path: Path) -> None:
    dummy = a_task("xla", "dummy", "float32", "openxla", **DUMPS)
    others: Sequence[dict[str, Any]] = [
        {"batch_size": 4},
        {"batch_size": 4, "iterations_per_run": 2},
        {"iterations_per_run": 2},
        {"collect_full_output": True},
        {"enable_functionalization": True},
    ]
    cells = [
        dummy,
        dataclasses.replace(dummy, dtype="bfloat16"),
        *(dataclasses.replace(dummy, knobs={**DUMPS, **other}) for other in others),
    ]
    assert Output(tmp_path / "x", "upstream", suites=["xla"], resume=False).check(cells) == ""
    files = XlaFiles(tmp_path / "x")
    for number, task in enumerate(cells):
        files.add(finished(task, of_xla(task), tmp_path / str(number)))
    kept = [path.read_text() for path in files_in(tmp_path / "x" / "dummy")]
    assert sorted(kept) == sorted(2 * [task.fingerprint() for task in cells])
    name = "cpu-openxla-False-eval-None-PJRT-None-dummy"  # PyTorch/XLA's own
    counters = {path.name for path in (tmp_path / "x" / "dummy" / "0").iterdir()}
    assert counters >= {f"dynamo-counters-{name}.json", f"dynamo-counters-{name}-bfloat16.json"}
    assert f"dynamo-counters-{name}-batch_size=4-iterations_per_run=2.json" in counters


def test_the_longest_name_of_a_dump_is_one_that_a_disk_takes(tmp_path: Path) -> None:
    widest: dict[str, Any] = {
        option.name: True if option.kind == "bool" else option.high for option in SUITES["xla"].options
    }
    widest |= {
        option.name: max(option.choices, key=len) for option in SUITES["xla"].options if option.choices
    }
    widest["origin"] = "dummy"  # the model's own
    widest["xla_flags"] = " ".join([f"--xla_{'a' * 70}={'9' * 70}"] * 10)
    task = TaskSpec("xla", "dummy_attention", "training", "bfloat16", "openxla", "cpu", knobs=widest)
    XlaFiles(tmp_path / "x").add(finished(TaskSpec.from_json(task.to_json()), of_xla(task), tmp_path / "0"))
    assert len(files_in(tmp_path / "x")) == 3


@pytest.mark.parametrize("order", [*itertools.permutations(["inductor", "autotune"]), ["autotune"]])
def test_eagers_mean_is_that_of_the_first_backend(order: Sequence[str], tmp_path: Path) -> None:
    files = OperatorbenchFiles(tmp_path)
    means_ms = {"inductor": 3000.0, "autotune": 5000.0}  # of a CPU, where the file has seconds
    for backend in order:
        task = a_task("operators", MM, "float32", backend, inputs="timm")
        files.add(finished(task, of_operatorbench(task, means_ms[backend]), tmp_path))
    (row,) = csv.DictReader((tmp_path / "operatorbench_timm_float32.csv").read_text().splitlines())
    assert float(row["eager abs"]) == means_ms["inductor" if "inductor" in order else "autotune"] / 1000
    assert float(row["elapsed"]) == len(order)
    assert json.loads(row[f"{order[0]} abs"]) == 0.001
