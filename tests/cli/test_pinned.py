"""`--pinned FILE`: each task gets the choices of its own compilation in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.__main__ import main
from runner.cli import terminal
from runner.cli.output import Output
from runner.launch.jobs import Job
from runner.schema.compilations import COMPILATION, COMPILED
from runner.schema.tasks import TaskOutcome, TaskResult
from tests.support.finished import TASK, record

SLOTS = ("0" * 16, "1" * 16)


def compiled(size: int, number: int, config: str) -> dict[str, Any]:
    found = record(size, "kernel_count", [1.0])
    found["benchmark"]["extra_info"] |= {"device": "cpu", "dynamic": False}
    kernels = [{"slot": SLOTS[size == 512], "config": config}, {"slot": "2" * 16, "config": ""}]
    found["metric"]["extra_info"] |= {COMPILATION: number, COMPILED: {"kernels": kernels}}
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two compilations of one task; the other sizes of the task are in no file."""
    path = tmp_path / "earlier.json"
    output = Output(path, "ours", suites=["micro"], resume=False)
    for number, config in ((1, "XBLOCK=8"), (0, "XBLOCK=4 num_warps=8")):
        records = [compiled(size, number, config) for size in (256, 512)]
        output.add(TaskResult(TASK, TaskOutcome("ok"), tmp_path / "none", records, f"{number}"))
    return path


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    found: list[Job] = []

    def run(jobs: list[Job], *_where: Any, **_told: Any) -> list[TaskResult]:
        found.extend(jobs)
        return []

    monkeypatch.setattr(terminal, "run_jobs", run)
    return found


def test_choices_of_the_first_compilation_are_forced_in_each_process(file: Path, jobs: list[Job]) -> None:
    words = f"run micro --case gemv[D=256+512] --dtype int8 --device cpu --pinned {file}"
    main([*words.split(), "--compilations", "2"])
    assert [(job.process, job.caches, job.task.compilation) for job in jobs] == [
        (0, "pinned", 0),
        (1, "pinned", 1),
    ]
    assert {tuple(sorted(job.pinned.items())) for job in jobs} == {
        tuple((slot, "XBLOCK=4 num_warps=8") for slot in SLOTS)
    }
    main(["run", "micro", "--case", "gemv[D=256+512]", "--dtype", "int8", "--device", "cpu"])
    assert jobs[-1].key not in {job.key for job in jobs[:-1]}, "another measurement for --resume"
    main(["run", "micro", "--case", "gemv[D=512]", *words.split()[4:]])
    assert jobs[-1].pinned == {SLOTS[1]: "XBLOCK=4 num_warps=8"}


@pytest.mark.parametrize(
    "words",
    ["--case layer_norm --pinned {}", "--pinned /none", "--caches kept --pinned {}", "--caches pinned"],
)
def test_what_cannot_be_pinned(words: str, file: Path, jobs: list[Job]) -> None:
    assert main(["run", "micro", "--device", "cpu", *words.format(file).split()]) == 2
    assert not jobs
