"""`runner reproduce`: one file of a task, which runs where there is torch and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from runner.__main__ import main
from runner.system import locks

_MODEL = ["huggingface", "--case", "DistillGPT2[size=tiny]", "--dtype", "float32", "--backend", "aot_eager"]
_START = "import sys, runpy; sys.path.append(sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"


@pytest.fixture(scope="session")
def torch_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that torch requires, and no others."""
    folder = tmp_path_factory.mktemp("torch_alone")
    needed, waiting = set[str](), ["torch"]
    while waiting:
        name = waiting.pop()
        needed.add(name)
        for text in metadata.requires(name) or []:
            requirement = re.split(r"[^\w.-]", text)[0]
            if ";" not in text and requirement not in needed:
                waiting.append(requirement)
    for name in needed:
        for top in {file.parts[0] for file in metadata.files(name) or [] if file.parts[0] != ".."}:
            (folder / top).symlink_to(str(metadata.distribution(name).locate_file(top)))
    return folder


@pytest.mark.parametrize(
    ("task", "graphs"),
    [
        (["micro", "--case", "layer_norm[D=64]"], 1),
        (["operators", "--case", "aten.gelu.default", "--dtype", "float32", "--opt", "max_samples=1"], 1),
        ([*_MODEL, "--mode", "training"], 3),
        ([*_MODEL, "--opt", "test=accuracy"], 2),
    ],
)
def test_the_file_of_a_task_runs_with_torch_alone(  # noqa: PLR0917 - fixtures
    task: list[str],
    graphs: int,
    torch_alone: Path,
    tmp_path: Path,
    inductor_cache: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in inductor_cache.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "task.py"
    assert main(["reproduce", *task, "--device", "cpu", "--output", str(path)]) == 0
    start = (
        "import sys, runpy; sys.path.append(sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
    )
    python = [sys.executable, "-I", "-S", "-c", start, str(torch_alone), str(path)]
    answer = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = re.findall(r"graph \d+: eager (\S+) ms, compiled (\S+) ms, error (\S+)\n", answer.stdout)
    assert len(lines) == graphs, answer.stderr[-3000:]
    assert all(float(eager) > 0 and float(compiled) > 0 for eager, compiled, _error in lines)
    if "training" not in task:  # which draws its dropout
        assert float(lines[0][2]) < 1e-2


def test_a_file_is_of_one_task_that_is_compiled_and_nothing_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    to_file = ["--device", "cpu", "--output", str(path)]
    assert main(["reproduce", "micro", *to_file]) == 2
    assert (
        main(["reproduce", "xla", "--case", "dummy", "--mode", "inference", "--backend", "eager", *to_file])
        == 2
    )
    assert not path.exists()
    path.write_text("mine")
    assert main(["reproduce", "micro", "--case", "layer_norm[D=64]", *to_file]) == 2
    assert path.read_text() == "mine"


def test_an_accelerator_that_measures_is_left_alone(tmp_path: Path) -> None:
    lock = locks.acquire(locks.default_folder(), "cpu")
    path = tmp_path / "task.py"
    assert (
        main(["reproduce", "micro", "--case", "layer_norm[D=64]", "--device", "cpu", "--output", str(path)])
        == 1
    )
    os.close(lock)
    assert not path.exists()
