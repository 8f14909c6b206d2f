"""A finished task and its records, for tests of what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.launch.jobs import LaunchRequest
from runner.schema.metrics import GPT_FAST_SIZES, mean_over
from runner.schema.suite import Expected, TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult
from runner.suites import suite_of

TASK = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cpu", knobs={"D": [256, 512]})


def expected(task: TaskSpec) -> list[Expected]:
    """The experiments of a task on a host without variables."""
    return suite_of(task.suite).expected(task, {})


def record(size: int | None, metric: str, values: list[float] | None, **over: Any) -> dict[str, Any]:
    """A record of one size, or of the mean over gpt-fast's."""
    knobs = {"D": size} if size else mean_over(GPT_FAST_SIZES)
    said = {"status": "ok" if values else "oom", **({} if values else {"code": "out_of_memory"})}
    return {
        "benchmark": {
            "name": "Compiler HUD micro",
            "mode": "inference",
            "dtype": "int8",
            "extra_info": {"device": "cuda", "arch": "NVIDIA H200", "knobs": knobs},
        },
        "model": {"name": "gemv", "backend": "inductor", "origins": ["micro"]},
        "metric": {
            "name": metric,
            **({"benchmark_values": values} if values else {}),
            "extra_info": said,
            **over,
        },
    }


def finished(status: str = "ok", code: str = "", task: TaskSpec = TASK) -> TaskResult:
    records = [
        record(256, "call_bandwidth_gbps", [10.0, 12.0, 11.0]),
        record(512, "call_bandwidth_gbps", None),
        record(None, "memory_bandwidth(GB/s)", [1954.1, 1954.391, 1954.9], target_value="870"),
    ]
    return TaskResult(task, TaskOutcome(status, code, "why"), Path("folder"), records)


def launched(status: str, kind: str = "") -> Callable[..., TaskOutcome]:
    """A launch that leaves a log, and an artifact of that kind."""

    def launched(request: LaunchRequest) -> TaskOutcome:
        place = request.folder
        (place / "artifacts" / kind).mkdir(parents=True)
        (place / "log").write_text("last words")
        if kind:
            (place / "artifacts" / kind / "a.txt").write_text("kept")
        return TaskOutcome(status, "", "why")

    return launched
