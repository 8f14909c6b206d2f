"""A task in a sandbox: what it cannot reach, and that all else is as without one."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from runner.launch.launch import launch
from runner.schema.suite import TaskSpec
from runner.schema.tasks import KEPT_CACHES, TaskOutcome
from runner.system import account, locks, sandbox
from tests.soak import Figures

SPEC = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu", timeout_s=60)
PAIRS = 20
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


def run(data: Path, code: str, *arguments: str, inherited: Sequence[int] = ()) -> TaskOutcome:
    command = [sys.executable, "-c", code, *arguments]
    return launch(SPEC, data / "spool" / "task", command=command, inherited=inherited)


def test_it_reaches_neither_key_nor_network_nor_what_others_own(
    data: Path, listener: int, tmp_path: Path
) -> None:
    (data / "spool").mkdir()
    lock = locks.acquire(tmp_path / "locks", "cpu", what="a test")
    with tempfile.NamedTemporaryFile(dir="/tmp", prefix="others-") as file:
        name = Path(file.name).name
        arguments = [str(data), str(listener), str(Path.home()), name, str(lock)]
        outcome = run(data, TRY, *arguments, inherited=[lock])
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


@pytest.mark.soak
@pytest.mark.alone
def test_a_task_is_as_fast_in_a_sandbox(
    data: Path, tmp_path: Path, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pairs, each in random order, over caches that the first fills: nothing beyond their noise."""
    spec = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu", knobs={"D": [1024]})
    caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", KEPT_CACHES: ""}
    variables = {name: str(tmp_path / "caches" / folder) for name, folder in caches.items()}
    for path in variables.values():
        Path(path).mkdir(parents=True, exist_ok=True)

    def time_ms(*, plain: bool) -> float:
        with monkeypatch.context() as patch:
            if plain:
                patch.delenv(sandbox.DATA)
            outcome = launch(spec, data / "spool" / "task", environment=variables)
        samples = {
            each["metric"]["name"]: each["metric"]["benchmark_values"]
            for each in outcome.records
            if "benchmark_values" in each["metric"]
        }
        return float(statistics.median(samples["compiled_latency_ms"]))

    time_ms(plain=True)
    changes = []
    for _ in range(PAIRS):
        times_ms = {plain: time_ms(plain=plain) for plain in random.sample([True, False], 2)}
        changes.append(math.log(times_ms[False] / times_ms[True]))
    error = statistics.stdev(changes) / math.sqrt(PAIRS)
    figures.note("mean change of a time in the sandbox", 100 * statistics.mean(changes), "%")
    figures.note("its standard error", 100 * error, "%")
    figures.note("the change in standard errors", abs(statistics.mean(changes)) / error, most=3.5)
