"""A task in a sandbox: what it cannot reach, and that all else is as without one."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.launch.launch import launch
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome
from runner.system import account, locks, sandbox

SPEC = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu", timeout_s=60)
TRIAL = ["bwrap", "--ro-bind", "/", "/", "--unshare-net", "--die-with-parent", "true"]
TRY = """
import json, os, socket, sys
def fails(do):
    try:
        do()
    except OSError as error:
        return type(error).__name__
    return ""
data, port, outside = sys.argv[1], int(sys.argv[2]), sys.argv[3]
answers = {
    "key": fails(lambda: open(f"{data}/registration.json").read()),
    "outside": fails(lambda: open(f"{outside}/x", "w")),
    "network": fails(lambda: socket.create_connection(("127.0.0.1", port), 2)),
    "tmp": os.listdir("/tmp") == [] or not os.path.exists(f"/tmp/{sys.argv[4]}"),
    "scratch": fails(lambda: open(os.environ["TMPDIR"] + "/x", "w")),
    "home": fails(lambda: open(f"{data}/benchmarks/x", "w")),
    "lock": fails(lambda: os.fstat(int(sys.argv[5]))),
    "here": os.getcwd(),
}
open("outcome.json", "w").write(json.dumps({"status": "ok", "reason": json.dumps(answers)}))
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if not shutil.which("bwrap") or subprocess.run(TRIAL, check=False).returncode:
        pytest.skip("bubblewrap is not installed, or this kernel lets nobody use it")
    for name in (sandbox.DATA, account._HOME):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    data = tmp_path / "data"
    data.mkdir()
    (data / "registration.json").write_text("secret")
    assert not sandbox.prepare(data, [sys.executable])
    return data


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def run(data: Path, code: str, *arguments: str, lock_fd: int | None = None) -> TaskOutcome:
    command = [sys.executable, "-c", code, *arguments]
    return launch(SPEC, data / "spool" / "task", command=command, lock_fd=lock_fd)


def test_it_reaches_neither_key_nor_network_nor_what_others_own(
    data: Path, listener: int, tmp_path: Path
) -> None:
    (data / "spool").mkdir()
    lock = locks.acquire(tmp_path / "locks", "cpu", what="a test")
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="others-") as file:
        name = Path(file.name).name
        arguments = [str(data), str(listener), str(Path.home()), name, str(lock)]
        outcome = run(data, TRY, *arguments, lock_fd=lock)
    os.close(lock)
    answers = json.loads(outcome.reason)
    assert answers.pop("here") == str(data / "spool" / "task")
    assert {name: answers[name] for name in ("key", "outside")} == {
        "key": "FileNotFoundError",
        "outside": "OSError",
    }
    assert answers["network"]
    assert (answers["tmp"], answers["scratch"], answers["home"], answers["lock"]) == (True, "", "", "")
    assert (data / "benchmarks" / "x").exists()
    assert not (Path.home() / "x").exists()


def test_a_crash_is_told_as_without_one(data: Path) -> None:
    outcome = run(data, "import os; os.kill(os.getpid(), 11)")
    assert (outcome.status, outcome.code) == ("crashed", "SIGSEGV")
    assert run(data, "raise SystemExit(3)").code == "exit_3"


def test_nothing_of_it_is_left(data: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    outcome = run(data, code)
    assert not outcome.leftover


def test_a_trial_changes_nothing(tmp_path: Path) -> None:
    sandbox.problem_of(tmp_path, [sys.executable])
    assert sandbox.DATA not in os.environ


def test_without_bubblewrap_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(sandbox.DATA, raising=False)
    assert "bubblewrap" in sandbox.prepare(tmp_path, [sys.executable])
    assert sandbox.command(["true"], tmp_path) == ["true"], "off by default"
