"""The account of benchmarks where root runs the agent, and the files that they leave."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.launch.launch import launch
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome
from runner.system import account
from runner.system.task_files import write_json

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
SPEC = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu", timeout_s=60)
OK = 'echo \'{"status": "ok"}\' > outcome.json'


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent's data folder that others may reach, as pytest's own are not; it has a key."""
    monkeypatch.setenv(account.UID, "")
    monkeypatch.setenv(account._HOME, "")
    path = Path(tempfile.mkdtemp(prefix="hud-", dir="/tmp"))
    write_json(path / "registration.json", {"key": "secret"})
    yield path
    shutil.rmtree(path)


def run(data: Path, script: str, *, name: str = "task-1") -> TaskOutcome:
    folder = data / "spool" / name
    return launch(SPEC, folder, command=["/bin/sh", "-c", f"{script}\n{OK}"])


def test_a_benchmark_reads_no_key_and_its_results_are_read_and_removed(data: Path) -> None:
    assert account.prepare(data, ["/bin/true"]) == ""
    script = """
        id -u > ~/uid; cat ../../registration.json > ~/key; ls ../.. > ~/names; echo said
        grep -c 0000000000000000 /proc/self/status > ~/rights
        mkdir -p artifacts/notes hidden/deep; echo found > artifacts/notes/a; touch hidden/deep/file
        chmod 0 artifacts/notes/a hidden/deep hidden
    """
    outcome = run(data, script)
    assert outcome.status == "ok"
    folder, home = data / "spool" / "task-1", data / "benchmarks"
    assert int((home / "uid").read_text()) == int(os.environ[account.UID]) != 0
    assert (home / "key").read_text() == (home / "names").read_text() == ""
    assert "said" in (folder / "log").read_text()
    path = folder / "artifacts" / "notes" / "a"
    assert (path.read_text(), path.stat().st_gid) == ("found\n", int(os.environ[account.UID]))
    assert path.stat().st_mode & 0o060 == 0o060, "an agent that is not root reads it by its group"
    assert (folder / "hidden" / "deep").stat().st_mode & 0o070 == 0o070, "and removes it"


def test_links_that_a_benchmark_left_are_not_followed(data: Path) -> None:
    assert account.prepare(data, ["/bin/true"]) == ""
    victim, elsewhere = data / "victim", data / "elsewhere"
    victim.write_text("mine")
    elsewhere.mkdir(mode=0o700)
    links = "".join(
        f"rm -rf {name}; ln -s ../../victim {name}; " for name in ("spec.json", "log", "results.jsonl")
    )
    links += "".join(f"rm -rf {name}; ln -s ../../elsewhere {name}; " for name in ("artifacts", "scratch"))
    run(data, f"{links} ln -s ../../victim outcome.json.{os.getpid()}.new")
    write_json(data / "spool" / "task-1" / "outcome.json", {})
    again = run(data, "echo again")
    assert again.status == "ok", again
    assert victim.read_text() == "mine"
    assert elsewhere.stat().st_mode & 0o777 == 0o700
    assert list(elsewhere.iterdir()) == []
    assert json.loads((data / "spool" / "task-1" / "spec.json").read_text())["case"] == SPEC.case


@pytest.mark.parametrize(("chosen", "used"), [("1234", "1234"), ("0", "0")])
def test_an_operator_chooses_the_user_id(
    data: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, used: str
) -> None:
    monkeypatch.setenv(account.UID, chosen)
    assert bool(account.prepare(data, ["/bin/true"])) is (chosen == "0")
    run(data, "id -u > uid")
    assert (data / "spool" / "task-1" / "uid").read_text() == f"{used}\n"


@pytest.mark.parametrize("python", ["/bin/false", "/nowhere/python"])
def test_an_interpreter_that_does_not_start_leaves_benchmarks_with_the_agent(data: Path, python: str) -> None:
    assert python in account.prepare(data, ["/bin/true", python])
    run(data, "id -u > uid")
    assert (data / "spool" / "task-1" / "uid").read_text() == "0\n"


def test_a_closed_folder_leaves_benchmarks_with_the_agent(data: Path) -> None:
    (data / "closed").mkdir(mode=0o700)
    (data / "closed" / "data").mkdir()
    data.chmod(0o700)
    assert account.prepare(data / "closed" / "data", ["/bin/true"])
    assert account.process_options().keys() == {"preexec_fn"}
