"""Whose caches a process has: empty ones, or those that the first process of its run left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.launch.jobs import Job, LaunchRequest
from runner.launch.pairs import run_task
from runner.schema.suite import TaskSpec
from runner.schema.tasks import Process, Replication
from runner.system.interpreters import Interpreter
from tests.support.hosts import Control

SPEC = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cpu", knobs={"D": [256]})
Fact = tuple[int, str, bool]  # compilation, where its caches are said to be, whether they were empty


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control")


def run(control: Control, folder: Path, process: Process, *, run_folder: str = "run", **more: Any) -> str:
    interpreter = Interpreter(str(control.python), {"STANDIN": str(control.folder)})
    request = LaunchRequest(
        Job(process.task, process.number, caches=process.caches, **more),
        folder,
        pythons={"default": interpreter},
        environment={},
        lock_fd=None,
        on_event=lambda _event: None,
        should_stop=lambda: "",
        run_folder=folder.parent / run_folder,
    )
    return run_task(request).status


def facts(folder: Path) -> list[Fact]:
    infos = [
        json.loads(line)["metric"]["extra_info"]
        for line in (folder / "results.jsonl").read_text().splitlines()
    ]
    return [(info["compilation"], info["caches"], info["is_empty"]) for info in infos]


def test_compilations_are_empty_and_repeats_use_the_first_one(control: Control, tmp_path: Path) -> None:
    processes = Replication(2, 3).processes([SPEC])
    for number, process in enumerate(processes):
        assert run(control, tmp_path / f"{number}", process) == "ok"
    assert [facts(tmp_path / f"{number}") for number in range(4)] == [
        [(0, "RUNNER_NEW_CACHES", True)],
        [(1, "", True)],
        [(0, "RUNNER_CACHES", False)],
        [(0, "RUNNER_CACHES", False)],
    ]


def test_a_repeat_without_the_first_ones_caches_is_a_compilation_of_its_own(
    control: Control, tmp_path: Path
) -> None:
    """As on a second accelerator, or after a first process that failed."""
    first, *repeats = Replication(1, 4).processes([SPEC])
    control.plan({"1": {"status": "oom"}})
    assert run(control, tmp_path / "first", first) == "oom"
    for process in repeats:
        run(control, tmp_path / f"{process.number}", process)
    assert [facts(tmp_path / f"{number}") for number in (1, 2, 3)] == [
        [(1, "RUNNER_NEW_CACHES", True)],
        [(1, "RUNNER_CACHES", False)],
        [(1, "RUNNER_CACHES", False)],
    ]


@pytest.mark.parametrize("caches", ["fresh", "kept"])
def test_a_pair_compiles_both_sides_unless_caches_are_kept(
    control: Control, tmp_path: Path, caches: Any
) -> None:
    for process in Replication(None, 2, caches, is_ab=True).processes([SPEC]):
        run(control, tmp_path / f"{process.number}", process, base_python="default")
    assert control.starts == 6, "one of each side is thrown away"
    found = [facts(tmp_path / f"{number}") for number in (0, 1)]
    if caches == "fresh":
        assert found == [[(number, "", True)] * 2 for number in (0, 1)]
    else:
        assert found == [[(0, "RUNNER_CACHES", False)] * 2] * 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_pinned_processes_on_a_cpu_use_what_their_side_just_compiled(
    control: Control, tmp_path: Path, device: str
) -> None:
    control.plan({"*": {"compiled": True}})
    processes = Replication(None, None, None, is_ab=True).processes([replace(SPEC, device=device)])
    for process in processes[:2]:
        assert run(control, tmp_path / f"{process.number}", process, base_python="default") == "ok"
        by_draw: dict[bool, set[Fact]] = {False: set(), True: set()}
        for line in (tmp_path / f"{process.number}" / "results.jsonl").read_text().splitlines():
            record = json.loads(line)
            info, pair = record["metric"]["extra_info"], record["runners"][0]["extra_info"]["pair"]
            by_draw["draw" in pair].add((info["compilation"], info["caches"], info["is_empty"]))
        number, reuses = process.number, device == "cpu"
        assert by_draw[False] == {(number, "RUNNER_NEW_CACHES" if reuses else "", True)}
        assert by_draw[True] == {(number, "RUNNER_CACHES" if reuses else "", not reuses)}
