"""The suite `xla`: the whole matrix, why cells cannot run, verification, resume, PyTorch/XLA's own file."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from django.core.management import call_command
from django.test import Client

from hud.models import Measurement, Stream
from hud.pages.suite.view import matrix_of
from runner.__main__ import _parser, main
from runner.cli import tables
from runner.cli.output import Output
from runner.formats.metric_values import VERIFIER_CODES
from runner.formats.readers.xla import ON_XLA, XlaFiles
from runner.launch.launch import launch
from runner.launch.report import Report
from runner.launch.results import complete
from runner.schema.records import MeasurementWarning
from runner.schema.statistics import median
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult
from runner.suites import request
from runner.suites.xla import SUITE, models
from runner.suites.xla import run as xla
from runner.suites.xla.run import NOT_ASKED, Verification
from runner.system import interpreters, machine
from tests.support.observed import SHIPPED, observe

SAMPLE = SHIPPED / "xla-cpu" / "matrix.json"


def matrix(case: str = "dummy") -> list[TaskSpec]:
    return tasks_of(f"--case {case}")


def tasks_of(words: str, device: str = "cpu") -> list[TaskSpec]:
    return request.tasks(_parser().parse_args(["run", "xla", *words.split()]), device)


def page_part(stream: str = "import") -> dict[str, Any]:
    part = matrix_of(Stream.objects.get(name=stream), "xla")
    assert part
    return part


def records_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_the_matrix_is_what_can_run_on_the_device() -> None:
    assert [(task.mode, task.backend) for task in matrix()] == [
        (mode, backend)
        for mode in ("inference", "training")
        for backend in ("eager", "inductor", "openxla", "xla")
    ]
    on_cuda = tasks_of("--case dummy", "cuda")
    assert {task.backend for task in on_cuda} == {"eager", "inductor"}
    (task,) = tasks_of("--case dummy --mode training --backend openxla")
    assert (task.mode, task.backend) == ("training", "openxla")


@pytest.mark.parametrize(
    ("device", "asked"),
    [
        ("cuda", "--backend openxla"),
        ("cpu", "--opt xla=XRT"),
        ("cpu", "--opt accelerator=tpu"),
        ("cpu", "--opt pure_wall_time=true"),
    ],
)
def test_what_runs_nowhere_is_refused(device: str, asked: str) -> None:
    with pytest.raises(BadRequest):
        tasks_of(f"--case dummy {asked}", device)


def test_flags_of_xla_are_an_axis_of_its_own_cells_with_dumps_apart() -> None:
    planned = tasks_of(
        "--case dummy --mode inference --opt xla_flags=--xla_a=true+--xla_b=1 dump_dynamo_counters=true"
    )
    assert [(task.backend, task.knobs.get("xla_flags")) for task in planned] == [
        *(("eager", None), ("inductor", None), ("openxla", "--xla_a=true"), ("xla", "--xla_a=true")),
        *(("openxla", "--xla_b=1"), ("xla", "--xla_b=1")),
    ]
    long = " ".join(f"--xla_flag_{number}={'x' * 80}" for number in range(10))
    flags = replace(planned[2], knobs={"xla_flags": long})
    SUITE.check(flags)
    places = {place for task in (*planned, flags) for place in XlaFiles(Path("x")).places(task)}
    assert len(places) == 7
    assert max(map(len, places)) < 100
    for unsafe in ("--xla_dump_to=/etc", "--xla_gpu_dump_autotune_results_to=x", "--xla_a=/x", "--a=1", ""):
        with pytest.raises(BadRequest):
            SUITE.check(replace(flags, knobs={"xla_flags": unsafe}))


def test_a_cells_flags_reach_xla_and_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_asked: True)
    monkeypatch.setenv("XLA_FLAGS", "--xla_host=1")
    cell = replace(spec(), backend="openxla", knobs={"xla_flags": "--xla_a=true", "dump_hlo": True})
    given = xla._variables(cell, tmp_path, dumps=True)["XLA_FLAGS"].split()
    assert given == ["--xla_host=1", "--xla_a=true", f"--xla_dump_to={tmp_path / 'hlo'}"]
    sample = next(line for line in shipped() if line["task"]["backend"] == "openxla")
    for part in (sample["task"], *(record["benchmark"]["extra_info"] for record in sample["records"])):
        part["knobs"] = {**part["knobs"], "xla_flags": "--xla_a=true"}
    files = XlaFiles(tmp_path)
    files.add(finished(sample))
    line = json.loads((tmp_path / "results.jsonl").read_text())
    assert line["experiment"]["xla_flags"] == "--xla_a=true"


def test_a_stored_cell_is_asked_for_by_its_backend() -> None:
    stored = {"xla": "PJRT", "batch_size": 16, "origin": "dummy"}
    task = TaskSpec("xla", "dummy", "inference", "float32", "xla", "cpu", knobs=SUITE.asked_knobs(stored))
    SUITE.check(task)
    (experiment,) = SUITE.expected(task, {})
    assert experiment.knobs == stored
    with pytest.raises(BadRequest):
        SUITE.check(replace(task, knobs=SUITE.asked_knobs({**stored, "xla": "XRT"})))


def test_a_cell_without_torch_xla_is_a_row_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch_xla" else found(name, *rest)
    )
    (tmp_path / "artifacts").mkdir()
    task = TaskSpec("xla", "dummy", "inference", "float32", "openxla", "cpu")
    failure = xla.run(task, Report(tmp_path))
    assert failure is not None
    assert (failure.status, failure.code) == ("unsupported", "no_torch_xla")
    rows = {record["metric"]["name"]: record for record in records_in(tmp_path)}
    assert set(rows) == {"verification_code", "total_time", "per_iter_time"}
    assert rows["total_time"]["metric"]["extra_info"]["reason"] == str(failure)
    verified = replace(task, knobs={"verify": True})
    xla.run(verified, Report(tmp_path))
    assert records_in(tmp_path)[3]["metric"]["extra_info"]["code"] == "VERIFIER_SKIPPED"


@pytest.mark.parametrize(
    ("status", "verify", "code"),
    [
        ("crashed", True, "VERIFIER_DIDNT_RUN"),
        ("timed_out", True, "VERIFIER_DIDNT_RUN"),
        ("timed_out", False, "VERIFIER_SKIPPED"),
        ("unsupported", True, "VERIFIER_SKIPPED"),
    ],
)
def test_a_line_has_one_of_upstreams_codes_however_its_cell_ended(
    tmp_path: Path, status: str, verify: bool, code: str
) -> None:
    """And its record keeps its own word."""
    task = replace(spec(), knobs={"verify": verify})
    (tmp_path / "results.jsonl").touch()
    outcome, found = complete(tmp_path, task, TaskOutcome(status, "its_word", "why"), sys.executable, {})
    XlaFiles(tmp_path / "out").add(TaskResult(task, outcome, tmp_path, found.records))
    body = (tmp_path / "out" / "results.jsonl").read_bytes()
    assert json.loads(body)["verification_code"] == code
    codes = [item.code for item in observe(body).measurements if item.metric == "verification_code"]
    assert codes == ["its_word"] if verify else codes


def test_a_cell_is_verified_measured_and_dumped(tmp_path: Path) -> None:
    knobs = {"verify": True, "repeat": 3, "iterations_per_run": 2, "dump_pytorch_profiles": True}
    task = TaskSpec("xla", "dummy", "inference", "float32", "eager", "cpu", knobs={**knobs, "batch_size": 4})
    outcome = launch(task, tmp_path / "task")
    assert outcome.status == "ok", outcome.reason
    rows = {record["metric"]["name"]: record for record in records_in(tmp_path / "task")}
    assert rows["verification_code"]["metric"]["extra_info"] == {
        "unit": "",
        "direction": "none",
        "status": "ok",
        "code": "PASS",
        "check_requested": True,
        "check_status": "passed",
    }
    total = rows["total_time"]["metric"]["benchmark_values"]
    each = rows["per_iter_time"]["metric"]["benchmark_values"]
    assert each == pytest.approx([time_s / 2 for time_s in total], rel=1e-5)
    assert len(total) == 3
    assert rows["total_time"]["benchmark"]["extra_info"]["knobs"] == {
        "iterations_per_run": 2,
        "batch_size": 4,
        "origin": "dummy",
    }
    output = Output(tmp_path / "output", "upstream", suites=["xla"], resume=False)
    output.add(TaskResult(task, outcome, tmp_path / "task", records_in(tmp_path / "task")))
    assert output.artifacts == {tmp_path / "output"}
    assert not (tmp_path / "task" / "artifacts").exists()
    names = {str(path.relative_to(tmp_path / "output")) for path in (tmp_path / "output").rglob("*.*")}
    cell = "cpu-None-False-eval-None-None-None-dummy-batch_size=4-iterations_per_run=2"
    dumps = {f"dummy/{n}/{kind}-{cell}" for n in range(3) for kind in ("pytorch-profile", "trace")}
    assert {name.rsplit(".", 1)[0] for name in names} == {"results", *dumps}


def spec(mode: str = "inference") -> TaskSpec:
    return TaskSpec("xla", "dummy", mode, "float32", "eager", "cpu", knobs={"verify": True})


SEEDS = iter(range(100))


@pytest.mark.parametrize(
    ("step", "code", "status"),
    [
        (lambda model, inputs, **_: model.module(*inputs), "PASS", "passed"),
        (lambda model, inputs, **_: torch.rand(16, 32), "PASS", "passed"),  # seeded: twice the same
        (lambda model, inputs, **_: 1 / 0, "EAGER_FAILED", "not_run"),
        (
            lambda model, inputs, **_: torch.empty(3).random_(
                generator=torch.Generator().manual_seed(next(SEEDS))
            ),
            "NONDETERMINISTIC_EAGER_RUN",
            "cannot_tell",
        ),
    ],
)
def test_the_verifiers_codes(monkeypatch: pytest.MonkeyPatch, step: Any, code: str, status: str) -> None:
    monkeypatch.setattr(models.Model, "step", step)
    found = xla.verify(spec())
    assert (found.code, found.facts()["check_requested"], found.facts()["check_status"]) == (
        code,
        True,
        status,
    )


def test_a_cell_that_differs_or_raises_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = replace(spec(), backend="inductor")
    monkeypatch.setattr(
        xla, "compiled", lambda step, task: lambda *a, **k: step(*a, **k) + (task.backend != "eager")
    )
    found = xla.verify(cell)
    assert (found.code, found.facts()["check_status"]) == ("FAIL", "failed")
    monkeypatch.setattr(xla, "compiled", lambda step, task: step if task.backend == "eager" else None)
    found = xla.verify(cell)
    assert (found.code, found.facts()["check_status"]) == ("EXCEPTION_RAISED", "not_run")
    assert found.reason


def test_a_wrong_result_withholds_times_and_keeps_counts(tmp_path: Path) -> None:
    samples = {"total_time": [1.0], "xla_CompileTime_number": [2.0]}
    wrong = Verification("FAIL", "off")
    failure = xla.record(spec(), Report(tmp_path), wrong, samples)
    assert failure is not None
    assert (failure.status, failure.code) == ("wrong", "FAIL")
    found = {record["metric"]["name"]: record["metric"] for record in records_in(tmp_path)}
    assert "benchmark_values" not in found["total_time"]
    assert found["xla_CompileTime_number"]["benchmark_values"] == [2.0]
    busy = MeasurementWarning("busy", "busy_cpu")
    assert xla.record(spec(), Report(tmp_path), NOT_ASKED, samples, warning=busy) is None
    found = {record["metric"]["name"]: record["metric"]["extra_info"] for record in records_in(tmp_path)}
    assert found["total_time"]["quality"] == "busy_cpu"
    assert "quality" not in found["xla_CompileTime_number"]
    assert not NOT_ASKED.facts()["check_requested"]


def shipped() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SAMPLE.read_text().splitlines()]


def finished(line: dict[str, Any]) -> TaskResult:
    return TaskResult(
        TaskSpec.from_json(line["task"]), TaskOutcome(**line["outcome"]), Path(), line["records"]
    )


def test_a_failed_cell_is_tried_again_and_a_successful_one_is_not(tmp_path: Path) -> None:
    cells = matrix()
    output = Output(tmp_path / "r.json", "ours", suites=["xla"], resume=False)
    for number, task in enumerate(cells):
        status = ("ok", "failed", "unsupported")[number % 3]
        output.add(TaskResult(task, TaskOutcome(status), tmp_path, []))
    done = Output(tmp_path / "r.json", "ours", suites=["xla"], resume=True).earlier()
    assert {one.name for one in done} == {task.fingerprint() for task in cells[::3]}


def test_the_table_shows_a_cells_own_status_beside_the_verifiers_code() -> None:
    def cell(status: str, code: str, **said: Any) -> TaskResult:
        metrics: list[dict[str, Any]] = [
            {
                "name": "verification_code",
                "extra_info": {"status": said.get("check", "not_run"), "code": code},
            },
            {"name": "per_iter_time", "extra_info": {"status": status, "code": said.get("why", "")}},
        ]
        if status == "ok":
            metrics[1]["benchmark_values"] = [0.5]
        info, model = {"device": said.get("device", "cpu"), "knobs": {}}, {"name": "dummy"}
        records = [
            {"benchmark": {"extra_info": info}, "model": model, "metric": metric} for metric in metrics
        ]
        return TaskResult(spec(), TaskOutcome(status), Path(), records)

    lines = tables.results(
        [
            cell("ok", "VERIFIER_SKIPPED"),
            cell("ok", "NONDETERMINISTIC_EAGER_RUN", check="cannot_tell"),
            cell("unsupported", "VERIFIER_DIDNT_RUN", why="no_torch_xla", device="cuda"),
            cell("ok", "EXCEPTION_RAISED", check="failed"),
        ]
    ).splitlines()
    assert [line.split() for line in lines] == [
        ["case", "dtype", "device", "verification", "per_iter_time", "s", "status"],
        ["dummy", "float32", "cpu", "VERIFIER_SKIPPED", "0.50000", "ok"],
        ["dummy", "float32", "cpu", "NONDETERMINISTIC_EAGER_RUN", "0.50000", "ok"],
        ["dummy", "float32", "cuda", "VERIFIER_DIDNT_RUN", "unsupported", "no_torch_xla"],
        ["dummy", "float32", "cpu", "EXCEPTION_RAISED", "0.50000", "failed", "EXCEPTION_RAISED"],
    ]


def test_a_command_names_its_cell() -> None:
    commands = {task.command() for task in matrix()}
    assert len(commands) == len(matrix())
    assert any("--case dummy --mode training" in command for command in commands)


def test_results_jsonl_loses_nothing(tmp_path: Path) -> None:
    """Cells measured with a real torch_xla, written as PyTorch/XLA's runner does and read by our own door."""
    files = XlaFiles(tmp_path)
    for line in shipped():
        files.add(finished(line))
    body = (tmp_path / "results.jsonl").read_bytes()
    first = json.loads(body.splitlines()[0])
    assert list(first)[:7] == [
        *("model", "experiment", "repeat", "iterations_per_run", "metrics", "timestamp", "verification_code")
    ]
    there, ours = observe(body), observe(SAMPLE.read_bytes())
    assert not there.faults
    assert not there.receipt.skipped

    def told(observer: Any) -> set[Any]:
        return {
            (item.identity, item.metric, tuple(item.samples), item.status, item.code)
            for item in observer.measurements
        }

    assert len(ours.measurements) > 120
    assert told(there) == told(ours)


def test_the_shipped_cells_ran_and_were_right() -> None:
    ran = shipped()
    assert {line["outcome"]["status"] for line in ran} == {"ok"}
    codes = {
        record["metric"]["extra_info"]["code"]
        for line in ran
        for record in line["records"]
        if record["metric"]["name"] == "verification_code"
    }
    assert codes == {"PASS"}
    on_xla = [line for line in ran if line["task"]["backend"] in ON_XLA]
    assert len(on_xla) >= 4
    assert {line["records"][0]["dependencies"]["torch_xla"]["version"] for line in ran} == {"2.9.0"}


@pytest.mark.django_db
def test_the_sample_goes_in_whole(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("ingest", str(SAMPLE.parent), "--json")
    (receipt,) = json.loads(capsys.readouterr().out)
    assert receipt["skipped"] == []
    assert receipt["stored"] == Measurement.objects.count() == sum(len(line["records"]) for line in shipped())


@pytest.mark.django_db
def test_its_page_says_what_codes_mean_and_compares_openxla_with_inductor(
    client: Client, django_assert_num_queries: Any
) -> None:
    call_command("ingest", str(SAMPLE.parent), "--json")
    # a suite's page with the former names of its address, one for this part, one as its run is not judged
    with django_assert_num_queries(17):
        text = client.get("/suites/xla/?stream=samples").content.decode()
    found = {(line.case, line.mode): line for line in page_part("samples")["comparisons"]}
    assert set(found) == {
        *(("dummy", mode) for mode in ("inference", "training")),
        *(("dummy_attention", mode) for mode in ("inference", "training")),
        ("resnet18", "inference"),
    }
    line = found["resnet18", "inference"]
    assert (line.batch_size, line.iterations, line.dtype) == (4, 2, "float32")
    steady = {
        record["model"]["backend"]: median(record["metric"]["benchmark_values"][1:])
        for record in (record for line in shipped() for record in line["records"])
        if (record["model"]["name"], record["metric"]["name"]) == ("resnet18", "per_iter_time")
    }
    assert {name: time_s for name, (_experiment, time_s) in line.results.items()} == pytest.approx(steady)
    assert line.ratio == pytest.approx(steady["inductor"] / steady["openxla"])
    for code in VERIFIER_CODES:
        assert f"<code>{code}</code>" in text
    assert 'id="openxla"' in text
    assert 'id="openxla"' not in client.get("/suites/micro/").content.decode()


@pytest.mark.soak
@pytest.mark.skipif(not importlib.util.find_spec("torch_xla"), reason="torch_xla is not installed here")
def test_a_cell_on_torch_xla(tmp_path: Path) -> None:
    task = TaskSpec(
        "xla", "dummy", "training", "float32", "openxla", "cpu", knobs={"verify": True, "repeat": 3}
    )
    outcome = launch(task, tmp_path)
    assert outcome.status == "ok", outcome.reason
    assert "xla_CompileTime_number" in {record["metric"]["name"] for record in records_in(tmp_path)}


def test_a_model_is_that_of_its_own_suite_in_the_same_state_on_every_device() -> None:
    task = TaskSpec("xla", "squeezenet1_1", "training", "float32", "eager", "cpu", knobs={"batch_size": 2})
    (experiment,) = SUITE.expected(task, {})
    assert experiment.knobs == {"origin": "torchbench", "batch_size": 2}
    one, other = (models.build(task, models.Machine(task), torch.float32) for _ in range(2))
    assert [part.shape for part in one.inputs if isinstance(part, torch.Tensor)] == [(2, 3, 224, 224)]
    assert all(map(torch.equal, one.module.parameters(), other.module.parameters()))
    with torch.enable_grad():
        loss, gradients, *_rest = one.step(one.inputs, full_output=True)
    assert loss.ndim == 0
    assert all(gradient is not None for gradient in gradients.values())


def test_cells_that_the_interpreter_cannot_run_are_left_out_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "xla", "--case", "llama", "--device", "cpu", "--dry-run"]
    for packages, cells in (({}, 4), ({"torch_xla": "2.9"}, 8)):
        found = replace(machine.environment("cpu"), packages=packages)
        monkeypatch.setattr(interpreters, "environment_of", lambda *_asked, found=found: found)
        assert main(words) == 0
        out, err = capsys.readouterr()
        assert len(out.splitlines()) == cells
        assert ("4 of 8" in err) == (cells == 4)
    monkeypatch.setattr(interpreters, "environment_of", lambda *_asked: replace(found, packages={}))
    assert main([*words, "--backend", "openxla"]) == 0, "what is named is tried, and its row has the reason"
