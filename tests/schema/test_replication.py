"""How often a task is measured: compilations, repeats over kept caches, pairs."""

from __future__ import annotations

from typing import Any

import pytest

from runner.schema.suite import BadRequest, TaskSpec, suite_of
from runner.schema.tasks import Replication


def task(suite: str = "micro", case: str = "gemv", device: str = "cuda", **more: Any) -> TaskSpec:
    return TaskSpec(suite, case, "inference", "bfloat16", more.pop("backend", "inductor"), device, **more)


def numbers(replication: Replication, *tasks: TaskSpec) -> list[tuple[int, int, str]]:
    return [(one.number, one.task.compilation, one.caches) for one in replication.processes(tasks)]


FRESH = [(0, 0, "fresh"), (1, 1, "fresh"), (2, 2, "fresh")]


@pytest.mark.parametrize(
    ("replication", "device", "expected"),
    [
        (Replication(), "cuda", FRESH),
        (Replication(), "cpu", FRESH[:1]),
        (Replication(2), "cpu", FRESH[:2]),
        (Replication(2, 3), "cpu", [(0, 0, "kept"), FRESH[1], (2, 0, "kept"), (3, 0, "kept")]),
        (Replication(None, 2, "kept"), "cuda", [(0, 0, "kept"), (1, 0, "kept")]),
        (Replication(None, None, "pinned"), "cuda", [(0, 0, "pinned")]),
        (Replication(2, None, "pinned"), "cuda", [(0, 0, "pinned"), (1, 1, "pinned")]),
        (Replication(is_ab=True), "cuda", [(draw, 0, "pinned") for draw in range(3)]),
        (Replication(None, 2, is_ab=True, draws=4), "cpu", [(draw, 0, "pinned") for draw in range(4)]),
        (Replication(is_ab=True, pairs=5), "cuda", [(draw, 0, "pinned") for draw in range(5)]),
        (Replication(None, None, "fresh", is_ab=True), "cuda", [(pair, 0, "fresh") for pair in range(5)]),
        (Replication(7, None, "fresh", is_ab=True), "cuda", [(pair, 0, "fresh") for pair in range(7)]),
        (Replication(None, 6, "kept", is_ab=True), "cuda", [(pair, 0, "kept") for pair in range(6)]),
    ],
)
def test_processes_of_a_task(
    replication: Replication, device: str, expected: list[tuple[int, int, str]]
) -> None:
    assert numbers(replication, task(device=device)) == expected


@pytest.mark.parametrize(
    "once",
    [
        task("cache", "resnet50"),
        task("ceilings", "copy", backend="eager"),
        task("timm", "resnet18", backend="eager"),
        task("timm", "resnet18", knobs={"test": "accuracy"}),
        task("gpt_fast", "toy-llama", knobs={"caches": "kept"}),
    ],
)
def test_what_is_compiled_once_is_measured_once(once: TaskSpec) -> None:
    assert numbers(Replication(), once) == FRESH[:1]
    with pytest.raises(BadRequest, match="in one compilation"):
        Replication(2).processes([once])
    all_of = Replication(2).processes([once, task()])
    assert [(one.task.suite, one.number) for one in all_of] == [(once.suite, 0), ("micro", 0), ("micro", 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        Replication(0),
        Replication(21),
        Replication(2, is_ab=True),
        Replication(2, 5, "fresh", is_ab=True),
        Replication(is_ab=True, draws=2),
        Replication(is_ab=True, draws=21),
        Replication(is_ab=True, draws=5, pairs=4),
        Replication(is_ab=True, pairs=2),
        Replication(None, 21, is_ab=True),
        Replication(caches="fresh", is_ab=True, draws=3),
        Replication(None, 8, "kept", is_ab=True, pairs=5),
        Replication(draws=3),
        Replication(pairs=5),
        Replication(2, caches="kept"),
        Replication(None, 2, "pinned"),
    ],
)
def test_numbers_that_cannot_be(wrong: Replication) -> None:
    with pytest.raises(BadRequest):
        wrong.processes([task()])


def test_a_compilation_is_part_of_the_task_and_not_of_its_name() -> None:
    first, second = task(), task(compilation=1)
    assert first.fingerprint() == second.fingerprint()
    assert "compilation" not in first.to_json()
    assert TaskSpec.from_json(second.to_json()) == second
    for wrong in (-1, 20, True, "1"):
        with pytest.raises(BadRequest):
            TaskSpec.from_json({**first.to_json(), "compilation": wrong})
    with pytest.raises(BadRequest):
        TaskSpec.from_json(task("cache", "resnet50", compilation=1).to_json())


@pytest.mark.parametrize("suite", ["huggingface", "gpt_fast", "operators"])
def test_a_further_compilation_measures_compile_and_compiled_time_only(suite: str) -> None:
    case = suite_of(suite).cases[0].name
    first, further = (
        {name for one in suite_of(suite).expected(spec, {}) for name in one.metrics}
        for spec in (task(suite, case), task(suite, case, compilation=1))
    )
    assert not {name for name in further if "memory_bytes" in name or "warm" in name or "accuracy" in name}
    assert further - first == ({"call_20th", "call_50th", "call_80th"} if suite == "operators" else set())
    assert suite == "operators" or {"compiled_latency_ms", "gpu_busy_ms", "cold_compile_s"} <= further
