"""The minifier: of a graph that fails, the operators at fault, as a file that torch alone runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runner.measure.compiler.bisection import minify
from runner.measure.forked import run_stage


def _model(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(torch.relu(torch.cos(x) - 1) * 2)


@pytest.mark.parametrize(("kind", "wrong"), [("accuracy", True), ("compile", False)])
def test_what_is_left_fails_alone(tmp_path: Path, kind: str, wrong: bool) -> None:
    def again() -> None:
        torch.compile(_model, backend=f"relu_{kind}_error_TESTING_ONLY")(torch.randn(4, 8))

    left = tmp_path / "left"
    run_stage(
        "minify",
        lambda: minify(again, left, wrong=wrong, after="dynamo", limit_s=300),
        folder=tmp_path,
        timeout_s=400,
    )
    repro = left / "repro.py"
    assert "torch.relu(" in repro.read_text()
    assert "sigmoid" not in repro.read_text()
    assert str(tmp_path) not in repro.read_text()
    alone = subprocess.run([sys.executable, repro], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert alone.returncode != 0
    assert "Error" in alone.stderr


def test_nothing_is_left_of_what_does_not_fail(tmp_path: Path) -> None:
    def work() -> None:
        minify(
            lambda: torch.compile(_model, backend="eager")(torch.ones(2)),
            tmp_path / "left",
            wrong=True,
            after="dynamo",
            limit_s=60,
        )

    run_stage("minify", work, folder=tmp_path, timeout_s=120)
    assert not (tmp_path / "left").exists()
