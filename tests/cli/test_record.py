"""`runner record`: the operators that a user's model calls, as inputs of operatorbench and of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.__main__ import main
from runner.suites.operators.inputs import OWN_INPUTS, TensorForm, parse, read_log

MODEL = """
import torch

def build():
    print("building")
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 16), torch.nn.GELU()
    return torch.nn.Sequential(*layers), torch.randn(4, 8)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_models_operators_are_recorded_and_can_be_measured(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = model.parent / "log.txt"
    assert main(["record", "--file", str(model), "--output", str(log)]) == 0
    counts = read_log(log.read_text())
    ((gelu, count),) = counts["aten.gelu.default"].items()
    assert (parse(gelu), count) == (((TensorForm((4, 16), "float32"),), {}), 2)
    assert "aten.mm.default" not in counts, "nothing runs backward"
    capsys.readouterr()
    monkeypatch.setenv(OWN_INPUTS, str(log))
    assert main(["run", "operators", "--opt", "inputs=own", "--device", "cpu", "--dry-run"]) == 0
    assert {line.split("'")[1].partition("[")[0] for line in capsys.readouterr().out.splitlines()} == {
        *counts
    }


def test_a_training_step_has_its_backward(model: Path) -> None:
    log = model.parent / "log.txt"
    assert main(["record", "--file", str(model), "--mode", "training", "--output", str(log)]) == 0
    assert "aten.gelu_backward.default" in read_log(log.read_text())


def test_nothing_is_written_over_and_a_file_that_builds_nothing_is_refused(model: Path) -> None:
    log = model.parent / "log.txt"
    log.write_text("mine")
    assert main(["record", "--file", str(model), "--output", str(log)]) == 2
    assert log.read_text() == "mine"
    model.write_text("x = 1")
    assert main(["record", "--file", str(model), "--output", str(model.parent / "other.txt")]) == 2
    assert not (model.parent / "other.txt").exists()
