"""Stages: a forked process that ends with a value or a failure."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runner.launch.failures import TaskFailure
from runner.launch.report import Report
from runner.measure.forked import run_stage
from runner.schema.tasks import Selection, plan
from runner.suites.torchdynamo import run as torchdynamo
from runner.suites.torchdynamo.run import StageRunner
from runner.system.processes import below_me


def fails(folder: Path, work: Any, timeout_s: float = 20.0) -> TaskFailure:
    with pytest.raises(TaskFailure) as raised:
        run_stage("probe", work, folder=folder, timeout_s=timeout_s)
    return raised.value


def test_a_stage_is_a_process_of_its_own_and_returns_what_is_pickled(tmp_path: Path) -> None:
    value = run_stage("probe", lambda: {"pid": os.getpid(), "values": [1.5]}, folder=tmp_path, timeout_s=20)
    assert value["pid"] != os.getpid()
    assert value["values"] == [1.5]


def test_a_stage_has_its_own_environment_variables(tmp_path: Path) -> None:
    fresh = tmp_path / "tmp"
    fresh.mkdir()
    value = run_stage(
        "probe",
        lambda: [os.environ["TRITON_CACHE_DIR"], tempfile.gettempdir(), os.getpgrp()],
        folder=tmp_path,
        variables={"TRITON_CACHE_DIR": "/here", "TMPDIR": str(fresh)},
        timeout_s=20,
    )
    assert value == ["/here", str(fresh), os.getpgrp()]
    assert os.environ.get("TRITON_CACHE_DIR") != "/here"


def test_an_exception_of_a_stage_becomes_a_task_failure(tmp_path: Path) -> None:
    def refuses() -> None:
        raise TaskFailure("unsupported", "no_such_backend", "because")

    failure = fails(tmp_path, refuses)
    assert (failure.status, failure.code, str(failure)) == ("unsupported", "no_such_backend", "because")
    assert fails(tmp_path, lambda: 1 / 0).code == "ZeroDivisionError"
    assert fails(tmp_path, lambda: sys.exit(3)).code == "SystemExit"


def test_an_out_of_memory_error_has_the_status_oom(tmp_path: Path) -> None:
    class OutOfMemoryError(RuntimeError):  # as torch names it
        pass

    def too_much() -> None:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate")

    assert fails(tmp_path, too_much).status == "oom"


def test_a_signal_is_a_crash_with_its_name(tmp_path: Path) -> None:
    def crashes() -> None:
        faulthandler.disable()  # pytest's own, whose words nobody needs here
        os.kill(os.getpid(), signal.SIGSEGV)

    failure = fails(tmp_path, crashes)
    assert (failure.status, failure.code) == ("crashed", "SIGSEGV")
    assert fails(tmp_path, lambda: os._exit(7)).code == "exit_7"


def test_the_answer_of_an_earlier_stage_is_ignored(tmp_path: Path) -> None:
    run_stage("probe", lambda: 1, folder=tmp_path, timeout_s=20)
    assert fails(tmp_path, lambda: os._exit(0)).code == "exit_0"


def test_a_result_that_cannot_be_pickled_is_a_crash(tmp_path: Path) -> None:
    assert fails(tmp_path, threading.Lock).status == "crashed"


def test_a_timeout_ends_a_stage_and_all_its_processes(tmp_path: Path) -> None:
    def starts_another_session_and_hangs() -> None:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        signal.pause()

    started = time.monotonic()
    failure = fails(tmp_path, starts_another_session_and_hangs, timeout_s=0.5)
    assert (failure.status, failure.code) == ("timed_out", "timeout")
    assert time.monotonic() - started < 10
    assert sleepers() == []


def test_processes_that_outlive_a_stage_are_ended(tmp_path: Path) -> None:
    run_stage(
        "probe",
        lambda: subprocess.Popen(["sleep", "1000"], start_new_session=True).pid,
        folder=tmp_path,
        timeout_s=20,
    )
    assert sleepers() == []


def sleepers() -> list[int]:
    found = []
    for process in below_me():
        command = Path(f"/proc/{process.pid}/cmdline")
        if command.exists() and command.read_bytes().startswith(b"sleep\0"):
            found.append(process.pid)
    return found


@pytest.mark.parametrize(
    ("ends", "worst"),
    [
        (("cannot_tell", "failed", "not_run"), "failed"),
        (("wrong", "crashed"), "wrong"),
        (("cannot_tell", "unsupported"), "unsupported"),
        (("timed_out", "oom"), "oom"),
    ],
)
def test_an_experiment_ends_as_its_worst_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: tuple[str, ...], worst: str
) -> None:
    failures = [TaskFailure(status, "x", "why") for status in ends]

    def measured(self: StageRunner, name: str, *_progress: int) -> dict[str, Any]:
        self._failures.extend(failures[1:] if name == "cold" else [])
        return {}

    monkeypatch.setattr(StageRunner, "_check", lambda self, _total: self._failures.append(failures[0]))
    monkeypatch.setattr(StageRunner, "_measure", measured)
    (task,) = plan(Selection("huggingface", cases=["T5Small"], device="cpu", dtypes=["float32"]))
    found = StageRunner(task, Report(tmp_path), None, fresh=True).run()
    assert found is not None
    assert found.status == worst


@pytest.mark.parametrize(("limit_s", "stage_s"), [(5, 4.0), (45, 36.0), (2400, 2380.0)])
def test_a_short_time_limit_measures_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_s: int, stage_s: float
) -> None:
    """Each stage gets what is left but for the rest, and one that gets nothing was out of time."""
    limits: list[float] = []

    def run(_name: str, _work: Any, *, timeout_s: float, **_others: Any) -> None:
        limits.append(timeout_s)

    monkeypatch.setattr(torchdynamo, "run_stage", run)
    (task,) = plan(
        Selection("huggingface", cases=["T5Small"], device="cpu", dtypes=["float32"], timeout_s=limit_s)
    )
    made = StageRunner(task, Report(tmp_path), None, fresh=True)
    made._stage("cold", 1, 4, "t")
    assert limits == [pytest.approx(stage_s, abs=0.5)]
    made._ends -= limit_s
    with pytest.raises(TaskFailure) as raised:
        made._stage("warm", 2, 4, "t")
    assert (raised.value.status, raised.value.code) == ("timed_out", "no_time")
