"""Attack the agent as a benchmark under its own account, where root runs the agent."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.host.client import Lease
from runner.host.spool import Folder, left_over
from runner.launch.jobs import Job, LaunchRequest
from runner.launch.launch import launch
from runner.launch.pairs import run_task
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome
from runner.system import account, machine
from runner.system.interpreters import Interpreter
from runner.system.processes import read_process
from runner.system.task_files import write_json
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
SPEC = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu", timeout_s=60)
OK = 'echo \'{"status": "ok"}\' > outcome.json'
LEASE = Lease(
    task="task", attempt=1, token="t", beat_s=1, lease_s=9, run=1, spec=SPEC.to_json(), process=0
)  # fmt: skip


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent's data folder with a key, that an account of benchmarks may pass through."""
    monkeypatch.setenv(account.UID, "")
    monkeypatch.setenv(account._HOME, "")
    path = Path(tempfile.mkdtemp(prefix="hud-", dir="/tmp"))
    write_json(path / "registration.json", {"key": "secret"})
    assert account.prepare(path, ["/bin/true"], accelerators=2) == ""
    yield path
    subprocess.run(["rm", "-rf", path], check=True)


def run(folder: Path, script: str) -> TaskOutcome:
    return launch(SPEC, folder, command=["/bin/sh", "-c", f"{script}\n{OK}"])


def as_benchmark(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", script], cwd=folder, capture_output=True, text=True, check=False,
        **account.process_options(),
    )  # fmt: skip


@pytest.mark.parametrize(
    "script",
    ["ln -s {0} artifacts/x", "rm -rf artifacts; mkdir a; ln -s a artifacts; ln -s {0} a/x"],
)
def test_a_pair_takes_no_artifact_from_behind_a_link(data: Path, script: str) -> None:
    standin = data / "python"
    standin.write_text(f"#!/bin/sh\n{script.format(data)}\n{OK}\n")
    standin.chmod(0o755)
    request = LaunchRequest(
        Job(SPEC, 0, "new", "base"),
        data / "spool" / "task-1",
        pythons={name: Interpreter(str(standin)) for name in ("base", "new")},
        environment={},
        lock_fd=None,
        on_event=lambda _event: None,
        should_stop=lambda: "",
        run_folder=data / "caches" / "run-1",
    )
    account.let_pass(data / "caches")
    account.share(data / "caches" / "run-1")
    run_task(request)
    assert (data / "registration.json").exists()
    assert not list(request.folder.glob("artifacts/*/*registration.json"))


def test_a_later_benchmark_changes_nothing_in_a_folder_that_waits_for_delivery(data: Path) -> None:
    folder = data / "spool" / "task-1"
    run(folder, "echo mine > results.jsonl; mkdir -m 777 artifacts/notes; echo mine > artifacts/notes/a")
    for path in ("results.jsonl", "artifacts/notes/a"):
        before = (folder / path).read_text()
        as_benchmark(f"echo other > task-1/{path}", folder.parent)
        assert (folder / path).read_text() == before
    assert as_benchmark("ls task-1", folder.parent).stdout == ""
    assert run(folder, "true").status == "ok", "a folder is used again"


def test_a_later_benchmark_changes_nothing_in_the_folder_of_a_killed_worker(data: Path) -> None:
    folder = Folder.create(data, LEASE)
    account.share(folder.path)
    as_benchmark("echo mine > results.jsonl; chmod 666 results.jsonl", folder.path)
    folder.release()
    (found,) = left_over(data)
    as_benchmark(f"echo other > {found.path.name}/results.jsonl", found.path.parent)
    assert (found.path / "results.jsonl").read_text() == "mine\n"
    found.release()


def test_a_folder_of_any_depth_is_removed(data: Path) -> None:
    folder = data / "spool" / "task-1"
    run(folder, "for i in $(seq 1500); do mkdir a; cd a; done; touch end; cd $(dirname $0); chmod 0 ~+/a")
    account.remove(folder)
    assert not folder.exists()


@pytest.mark.parametrize("script", ["mkfifo ceilings.json", "ln -s /dev/zero ceilings.json"])
def test_what_is_no_file_of_readings_holds_up_no_heartbeat(data: Path, script: str) -> None:
    path = account.ceilings(data, 0)
    as_benchmark(script, path.parent)
    code = "import pathlib, sys, runner.system.machine as machine\n"
    code += "sys.exit(machine.ceilings(pathlib.Path(sys.argv[1])) != {})"
    limits = ["prlimit", "--as=2000000000", "--cpu=20"]
    subprocess.run([*limits, sys.executable, "-c", code, path], check=True, timeout=30)


_DAY = {"day": "2026-01-01", "value": 1.0}


@pytest.mark.parametrize(
    "accelerators",
    [
        None,
        [1],
        {"x": []},
        {"x": {"c": []}},
        {"x": {"c": [{}]}},
        {"x": {"c": [_DAY | {"value": math.inf}]}},
        {"x": {"c": [_DAY | {"value": 10**400}]}},
        {"x": {"c": [_DAY | {"day": 1}]}},
        {"x": {"c": [_DAY | {"day": "\0"}]}},
        {"x\0": {"c": [_DAY]}},
        {f"{number}": {"c": [_DAY]} for number in range(5000)},
    ],
)
def test_readings_of_another_shape_are_none(data: Path, accelerators: object) -> None:
    path = account.ceilings(data, 0)
    path.write_text(json.dumps({"version": 1, "accelerators": accelerators}))
    assert machine.ceilings(path) == {}


def processes_of(uid: int) -> list[int]:
    owned = (path for path in Path("/proc").glob("[0-9]*") if path.exists() and path.stat().st_uid == uid)
    found = [read_process(int(path.name)) for path in owned]
    return [process.pid for process in found if process and not process.dead]


def test_what_outlived_its_agent_is_ended_and_its_files_go(data: Path) -> None:
    uid, left = uids()[0], Path(f"/dev/shm/left by {data.name}")
    script = f"""
        setsid sleep 60 > /dev/null 2>&1 &
        mkdir -p '{left}/deep'; touch '{left}/deep/file'; chmod 0 '{left}'
        setsid python3 -c 'import os
while True:
    if os.fork(): os._exit(0)
    os.setsid()' > /dev/null 2>&1 &
    """
    as_benchmark(script, data / "benchmarks")
    scratch = Path(tempfile.mkdtemp(dir="/var/tmp"))
    account.share(scratch)
    assert processes_of(uid)
    account.end_leftovers()
    assert [left.exists(), scratch.exists()] == [False, False]
    wait_for(lambda: processes_of(uid) == [], "the killed processes to end")


def test_an_account_that_an_operator_chose_is_left_alone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(account.UID, "1234")
    as_benchmark("sleep 60 > /dev/null 2>&1 &", Path("/"))
    account.end_leftovers()
    (process,) = processes_of(1234)
    os.kill(process, signal.SIGKILL)


def test_code_that_a_benchmark_left_at_home_runs_in_no_other(data: Path) -> None:
    home = data / "benchmarks"
    code = 'd=$(python3 -m site --user-site); mkdir -p $d; echo "print(666)" > $d/usercustomize.py; '
    environment = account.environment({"PATH": os.environ["PATH"]})
    command = ["/bin/sh", "-c", f"{code} python3 -c 'print(1)'"]
    done = subprocess.run(
        command, cwd=home, env=environment, capture_output=True, text=True, check=True,
        **account.process_options(),
    )  # fmt: skip
    assert done.stdout == "1\n"


WORKER = """
import os, sys
from pathlib import Path
from runner.system import account
from tests.host.test_hostile_account import run
os.environ.update(account.of_slot(int(sys.argv[1]), Path(sys.argv[2]), 2))
outcome = run(Path(sys.argv[2], "spool", sys.argv[3]), sys.argv[4])
sys.exit(outcome.status != "ok")
"""
VICTIM = """
umask 0; mkdir -p ~/notes artifacts/a; echo mine | tee ~/notes/a artifacts/a/a > secret
echo $$ > pid; until [ -e end ]; do sleep .1; done
"""
ATTACK = """
cat $DATA/spool/victim/secret $DATA/spool/victim/artifacts/a/a $DATA/benchmarks/notes/a \
    /proc/$PID/environ > ~/read 2> /dev/null
for path in $DATA/spool/victim/secret $DATA/benchmarks/notes/b; do echo other >> $path; done
python3 -c 'import ctypes, os, sys; sys.exit(ctypes.CDLL(None).ptrace(16, int(os.environ["PID"]), 0, 0))' \
    && echo traced >> ~/read
kill -9 $PID && echo killed >> ~/read
true
"""


def test_two_tasks_at_once_reach_nothing_of_each_other(data: Path) -> None:
    """Neither files, whatever modes a task gives them, nor processes; each again after the other."""

    def start(slot: int, name: str, script: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", WORKER, str(slot), str(data), name, script])

    victim = start(0, "victim", VICTIM)
    pid = data / "spool" / "victim" / "pid"
    wait_for(lambda: pid.exists() and pid.read_text(), "the victim")
    attack = f"export DATA={data} PID={pid.read_text().strip()}\n{ATTACK}"
    assert start(1, "attacker", attack).wait() == 0
    assert (data / "benchmarks-1" / "read").read_text() == ""
    assert (data / "spool" / "victim" / "secret").read_text() == "mine\n"
    (pid.parent / "end").touch()
    assert victim.wait() == 0
    assert pid.stat().st_uid == uids()[0]
    account.remove(pid.parent)
    assert not pid.exists(), "an agent that is neither of the two removes it"


def uids() -> list[int]:
    return list(map(int, os.environ[account.UID].split(",")))


def test_a_pair_that_runs_is_closed_to_other_accelerators(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = map(str, uids())
    folder = data / "spool" / "task-1"
    folder.mkdir()
    (folder / "results.jsonl").write_text("mine")
    monkeypatch.setenv(account.UID, one)
    account.pass_alone(folder)
    assert as_benchmark("cat results.jsonl", folder).stdout == "mine"
    monkeypatch.setenv(account.UID, other)
    assert as_benchmark(f"cat {folder}/results.jsonl", Path("/")).stdout == ""


def test_an_account_is_clean_before_its_next_task(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a process that outlived its worker; what another accelerator's task does goes on."""
    one, other = uids()
    for uid in (one, other):
        leave = f"umask 0; echo mine > /dev/shm/{data.name}-{uid}; setsid sleep 60 > /dev/null 2>&1 &"
        subprocess.run(["/bin/sh", "-c", leave], check=True, **account.process_options(uid))
    with monkeypatch.context() as worker:
        for name, value in account.of_slot(0, data, 2).items():
            worker.setenv(name, value)
        account.clean()
    wait_for(lambda: not processes_of(one), "the killed process to end")
    assert [Path(f"/dev/shm/{data.name}-{uid}").exists() for uid in (one, other)] == [False, True]
    assert processes_of(other)
    account.end_leftovers()
    wait_for(lambda: not processes_of(other), "the killed process to end")
    assert not Path(f"/dev/shm/{data.name}-{other}").exists()


def test_caches_of_an_accelerator_that_gets_another_account_begin_anew(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = map(str, uids())
    caches = data / "caches" / "run-1"
    for uid, command in ((one, "mkdir -m 700 deep; touch deep/a; ls"), (other, "ls; touch b")):
        monkeypatch.setenv(account.UID, uid)
        account.share(caches)
        assert as_benchmark(command, caches).stdout == ("deep\n" if uid == one else "")
