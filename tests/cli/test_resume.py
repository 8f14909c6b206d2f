"""What `runner run … --resume` takes from an earlier sitting, and what it measures anew."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.cli import terminal
from runner.cli.resume import versions_of
from runner.launch.jobs import LaunchRequest
from runner.schema.tasks import TaskOutcome
from runner.system import machine
from tests.support.records import task_record

pytestmark = pytest.mark.usefixtures("own_folders")
OTHER = "1 of 1 tasks are measured anew, the file has them with another interpreter, variable or file (1)"


class Sittings:
    """Sittings of one command and one file; what is measured leaves a record of that torch."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys
        self._measured: list[str] = []
        self.torch = ""
        self.device = ""
        self.said = ""

    def run_task(self, request: LaunchRequest) -> TaskOutcome:
        self._measured.append(request.job.task.case)
        version, _, commit = self.torch.partition(" ")
        versions = {"torch": {"version": version, "sha": commit}} if version else {}
        request.folder.mkdir(parents=True)
        said = task_record(request.job.task, "call_bandwidth_gbps")
        said |= {"dependencies": versions, "runners": [{"type": self.device or machine.cpu_name()}]}
        return TaskOutcome("ok", records=[said])

    def sit(self, words: str) -> list[str]:
        """Cases that one of them measured."""
        self._measured.clear()
        assert main(["run", *words.split(), "--device", "cpu", "--output", str(self.path), "--resume"]) == 0
        self.said = self._capsys.readouterr().err
        return list(self._measured)

    @property
    def names(self) -> list[str]:
        return [json.loads(line)["name"] for line in self.path.read_text().splitlines()]


@pytest.fixture
def sittings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sittings:
    for name in [name for name in os.environ if name.startswith(("TORCH", "PYTORCH", "OMP_"))]:
        monkeypatch.delenv(name)
    sittings = Sittings(tmp_path / "r.json", capsys)
    monkeypatch.setattr(terminal, "run_task", sittings.run_task)
    return sittings


MICRO = "micro --case gemv --dtype int8"
OPERATORS = "operators --case aten.add.Tensor --opt inputs=own"


def test_another_file_of_recorded_inputs_is_measured(
    sittings: Sittings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [tmp_path / name for name in ("a.txt", "b.txt", "copy of a.txt")]
    for path, text in zip(logs, "aba", strict=True):
        path.write_text(text)
    measured = []
    for path in logs:
        monkeypatch.setenv("RUNNER_OPERATOR_INPUTS", str(path))
        measured.append(sittings.sit(OPERATORS))
        assert (OTHER in sittings.said) == (path == logs[1])
    assert measured == [["aten.add.Tensor"], ["aten.add.Tensor"], []]
    logs[2].write_text("c")
    assert sittings.sit(OPERATORS)
    assert len(set(sittings.names)) == 3
    assert sittings.sit("operators --case aten.add.Tensor")
    monkeypatch.delenv("RUNNER_OPERATOR_INPUTS")
    assert not sittings.sit("operators --case aten.add.Tensor"), "nothing of its own"


def test_another_interpreter_or_variable_of_the_same_name_is_measured(
    sittings: Sittings, tmp_path: Path
) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "here").symlink_to(tmp_path / "venv")
    venv = tmp_path / "venv" / "bin" / "python"
    venv.symlink_to(sys.executable)  # as a venv has it: another environment behind the same program
    given = [f"a={sys.executable}", f"a={venv}", f"a={venv},A=1", f"a={venv},A=2", f"a={venv},B=1,A=2"]
    for text in given:
        assert sittings.sit(f"{MICRO} --python {text}") == ["gemv"]
        assert (OTHER in sittings.said) == (text != given[0])
    for text in (*given, f"a={venv},A=2,B=1", f"a={tmp_path}/here/bin/python"):
        assert not sittings.sit(f"{MICRO} --python {text}"), text
        assert OTHER not in sittings.said


def test_each_side_of_a_pair_is_looked_at(sittings: Sittings) -> None:
    pair = MICRO + " --repeats 1 --base-python b={0},A={1} --python n={0},A={2}"
    for sides, measured in (("11", True), ("11", False), ("12", True), ("22", True), ("12", False)):
        assert bool(sittings.sit(pair.format(sys.executable, *sides))) == measured, sides


def test_a_variable_of_the_shell_that_changes_results_is_looked_at(
    sittings: Sittings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sittings.sit(MICRO)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")  # changes no result
    assert not sittings.sit(MICRO)
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert sittings.sit(MICRO)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert sittings.sit(MICRO)
    monkeypatch.delenv("TORCHINDUCTOR_MAX_AUTOTUNE")
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert not sittings.sit(MICRO)


def test_another_device_of_the_same_kind_is_looked_at(sittings: Sittings) -> None:
    sittings.device = "another CPU"
    assert sittings.sit(MICRO)
    sittings.device = ""
    assert sittings.sit(MICRO)
    assert f"the file has them with another CPU, which is {machine.cpu_name()} now (1)" in sittings.said
    assert not sittings.sit(MICRO)


def test_another_torch_behind_the_same_interpreter_is_looked_at(sittings: Sittings) -> None:
    assert sittings.sit(MICRO)
    assert not sittings.sit(MICRO), "records that say nothing of their torch"
    sittings.path.unlink()
    sittings.torch = "2.0.1"
    assert sittings.sit(MICRO)
    sittings.torch = versions_of(machine.environment("cpu").to_record_fields(""))["torch"]
    assert sittings.sit(MICRO)
    assert f"the file has them with torch 2.0.1, which is {sittings.torch} now (1)" in sittings.said
    assert not sittings.sit(MICRO)
    (first, again) = sittings.names
    assert first == again
