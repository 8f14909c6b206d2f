"""The agent of a host: a real process tree against a hud in memory and a real Redis."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from django.conf import settings
from redis import Redis

from runner.client.connection import KeyRefused
from runner.host.agent import Agent, Attachment
from runner.host.client import Lease
from runner.host.spool import Folder
from runner.schema.suite import BadRequest
from runner.schema.tasks import TaskOutcome
from runner.suites import SUITES
from runner.system import accelerators, machine
from runner.system.interpreters import Interpreter
from tests.host.fake_hud import KEY, SPEC, TOKEN, FakeHud
from tests.support.hosts import Control, HostProcess, alive, ring
from tests.support.records import task_record
from tests.support.servers import RedisServer
from tests.support.waiting import wait_for

QUEUE = "accelerator-1"
RUN = str(uuid.uuid4())


@pytest.fixture
def fake(redis_server: RedisServer) -> Iterator[FakeHud]:
    with Redis.from_url(settings.REDIS_URL) as connection:
        connection.flushall()
    hud = FakeHud(settings.REDIS_URL)
    yield hud
    hud.stop()


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control")


@pytest.fixture
def make_agent(fake: FakeHud, control: Control, tmp_path: Path) -> Iterator[Callable[..., HostProcess]]:
    made: list[HostProcess] = []

    def make(*arguments: str, **environment: str) -> HostProcess:
        python = f"default={control.python},STANDIN={control.folder}"
        command = ["-m", "runner", "attach", "--hud", fake.url, "--data", str(tmp_path / "data")]
        command += ["--devices", "cpu", "--name", "here", "--python", python, *arguments]
        made.append(HostProcess(tmp_path, command, environment))
        made[-1].start()
        return made[-1]

    yield make
    for process in made:
        process.close()


@pytest.fixture
def agent(make_agent: Callable[..., HostProcess], fake: FakeHud) -> HostProcess:
    process = make_agent("--key", KEY, "--label", "pool=nightly")
    wait_for(lambda: fake.beats and '"notes"' in json.dumps(fake.beats[-1]["facts"]), "a beat that knows all")
    return process


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(number) for number in text.split()]


def worker_of(agent: HostProcess) -> int:
    def found() -> list[int]:
        return [
            pid
            for pid in children_of(agent.pid)
            if b"runner.host.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    wait_for(found, "a worker")
    return found()[0]


def test_it_beats(agent: HostProcess, fake: FakeHud) -> None:
    beat = fake.beats[-1]
    assert beat["labels"] == {"pool": "nightly"}
    assert beat["facts"]["cpu_count"] > 0
    python = beat["facts"]["pythons"]["default"]
    assert (python["torch"], python["fingerprint"]["torch"]) == ("0.0+standin", "0.0+standin")
    assert python["notes"]["blind"] == {"phases": "AttributeError: phases"}
    (device,) = beat["devices"]
    assert (device["name"], device["device"], device["dirty"]) == ("cpu", "cpu", "")
    assert device["arch"].startswith("cpu-")
    assert "micro" in device["suites"]
    assert device["pythons"] == ["default"]


def test_it_works_and_leaves_nothing(agent: HostProcess, fake: FakeHud, control: Control) -> None:
    task = fake.add()
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: task.state == "done", "the end of the task")
    worker = worker_of(agent)
    assert agent.stop(timeout_s=12) == 0
    assert not alive(worker)


def test_a_busy_accelerator_of_its_own_is_not_dirty(
    agent: HostProcess, fake: FakeHud, control: Control
) -> None:
    fake.add()
    control.plan({"*": {"wait_for": "go"}})
    ring(fake.redis_url, QUEUE, RUN)
    control.wait_for_start()
    before = len(fake.beats)
    wait_for(lambda: len(fake.beats) > before + 2, "beats while it works")
    assert {beat["devices"][0]["dirty"] for beat in fake.beats[before:]} == {""}
    control.go()


def test_sigterm_gives_the_task_back_and_ends_everything(
    agent: HostProcess, fake: FakeHud, control: Control
) -> None:
    task = fake.add()
    control.plan({"*": {"spin": True, "deaf": True, "stray": True}})
    ring(fake.redis_url, QUEUE, RUN)
    pid, stray, worker = control.wait_for_start(), control.stray, worker_of(agent)
    assert agent.stop(timeout_s=13) == 0
    assert [alive(number) for number in (pid, stray, worker)] == [False] * 3
    assert (task.state, task.attempt) == ("queued", 0)


def test_a_task_given_back_while_the_hud_was_away_is_given_back_later(
    make_agent: Callable[..., HostProcess], agent: HostProcess, fake: FakeHud, control: Control
) -> None:
    task = fake.add()
    control.plan({"1": {"spin": True}})
    ring(fake.redis_url, QUEUE, RUN)
    control.wait_for_start()
    fake.stop()
    assert agent.stop(timeout_s=13) == 0
    assert task.state == "running"
    fake.start()
    make_agent()
    wait_for(lambda: task.end.get("code") == "handed_back", "the task")
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: task.state == "done", "the end of the task")
    assert (task.attempt, task.end["status"]) == (1, "ok")


def test_a_killed_worker_is_replaced_and_its_strays_are_killed(
    agent: HostProcess, fake: FakeHud, control: Control
) -> None:
    task = fake.add()
    control.plan({"1": {"spin": True, "stray": True}})
    ring(fake.redis_url, QUEUE, RUN)
    pid, stray, worker = control.wait_for_start(), control.stray, worker_of(agent)
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not alive(pid), "the benchmark's end", 2)
    wait_for(lambda: not alive(stray), "the stray's end", 5)
    with fake.lock:
        task.break_lease()  # as tick does when the lease has ended
    worker_of(agent)
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: task.state == "done", "the second attempt")
    assert (task.attempt, task.end["status"], control.shared) == (2, "ok", False)


def test_a_killed_agent_takes_everything_along(
    make_agent: Callable[..., HostProcess], agent: HostProcess, fake: FakeHud, control: Control
) -> None:
    task = fake.add()
    control.plan({"1": {"spin": True, "deaf": True}})
    ring(fake.redis_url, QUEUE, RUN)
    pid, worker = control.wait_for_start(), worker_of(agent)
    agent.kill()
    wait_for(lambda: not alive(pid) and not alive(worker), "the end of worker and benchmark", 2)
    with fake.lock:
        task.break_lease()
    make_agent()  # with the key it kept
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: task.state == "done", "the second attempt")
    assert control.shared is False


def test_a_left_over_is_delivered(
    make_agent: Callable[..., HostProcess], fake: FakeHud, tmp_path: Path
) -> None:
    task = fake.add()
    task.state, task.token, task.attempt = "running", "t", 1
    lease = Lease(task.uid, "t", 1, 1, SPEC.to_json(), 45, 10)
    folder = Folder.create(tmp_path / "data", lease)
    (folder.path / "results.jsonl").write_text('{"a": 1}\n' + json.dumps(task_record(SPEC)) + "\n")
    folder.end(TaskOutcome("timed_out", "timeout", "the time limit of 1 s was reached", 1.0))
    folder.release()
    make_agent("--key", KEY)
    wait_for(lambda: task.state == "done", "the delivery")
    assert (task.end["status"], len(task.records)) == ("timed_out", 1)


@pytest.mark.parametrize("log", ["", "its last words\n"])
def test_what_a_killed_worker_left_goes_once_its_lease_has_ended(
    make_agent: Callable[..., HostProcess], fake: FakeHud, tmp_path: Path, log: str
) -> None:
    task = fake.add()
    task.state, task.token, task.attempt = "running", "of the next attempt", 2
    folder = Folder.create(tmp_path / "data", Lease(task.uid, "t", 1, 1, SPEC.to_json(), 45, 10))
    (folder.path / "log").write_text(log)
    folder.release()
    make_agent("--key", KEY)
    wait_for(lambda: not folder.path.exists(), "an empty spool", 20)
    assert (tmp_path / "data" / "refused" / folder.path.name / "log").read_text() == log


def test_an_orphan_makes_the_accelerator_dirty(agent: HostProcess, fake: FakeHud, tmp_path: Path) -> None:
    """Its launcher is gone, it still holds the lock: the card is not shared."""
    launcher = (
        "import os, subprocess, sys; from pathlib import Path; from runner.system import locks\n"
        "lock_fd = locks.acquire(Path(sys.argv[1]), 'cpu')\n"
        "quiet = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.DEVNULL}\n"
        "print(subprocess.Popen(['sleep', '600'], pass_fds=(lock_fd,), **quiet).pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", launcher, str(tmp_path / "locks")], capture_output=True, check=True, text=True
    )
    orphan = int(done.stdout)
    task = fake.add()
    wait_for(lambda: str(orphan) in fake.beats[-1]["devices"][0]["dirty"], "a dirty accelerator")
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: "is in use by process" in agent.log, "the refusal")
    assert task.state == "queued"
    os.kill(orphan, signal.SIGKILL)
    wait_for(lambda: fake.beats[-1]["devices"][0]["dirty"] == "", "a clean accelerator")


def test_a_person_at_a_terminal_makes_it_dirty_too(agent: HostProcess, fake: FakeHud, tmp_path: Path) -> None:
    hold = (
        "import sys; from pathlib import Path; from runner.system import locks\n"
        "locks.acquire(Path(sys.argv[1]), 'cpu', what='python -m runner run'); input()"
    )
    command = [sys.executable, "-c", hold, str(tmp_path / "locks")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as person:
        text = f"in use by process {person.pid} (python -m runner run)"
        wait_for(lambda: fake.beats[-1]["devices"][0]["dirty"] == text, "a dirty accelerator")
        person.kill()
    wait_for(lambda: fake.beats[-1]["devices"][0]["dirty"] == "", "a clean accelerator")


def test_a_folder_of_locks_of_somebody_else_is_said_once_and_stops_no_heartbeat(
    agent: HostProcess, fake: FakeHud, tmp_path: Path
) -> None:
    folder, kept = tmp_path / "locks", tmp_path / "kept"

    def wait_for_beats(text: str) -> None:
        count = len(fake.beats)
        wait_for(lambda: text in fake.beats[-1]["devices"][0]["dirty"] and len(fake.beats) > count + 3, text)

    for times in (1, 2):
        folder.rename(kept)
        folder.mkdir()
        if os.getuid() == 0:
            os.chown(folder, 65534, -1)
        else:
            folder.chmod(0)
        wait_for_beats(str(folder))
        lines = [line for line in agent.log.splitlines() if str(folder) in line]
        assert len(lines) == times, agent.log
        assert "RUNNER_LOCKS" in lines[-1]
        folder.rmdir()
        kept.rename(folder)
        wait_for(lambda: fake.beats[-1]["devices"][0]["dirty"] == "", "a clean accelerator")
    assert "Traceback" not in agent.log


def test_paused_finishes_what_runs(agent: HostProcess, fake: FakeHud, control: Control) -> None:
    running, waiting = fake.add(), fake.add()
    control.plan({"1": {"wait_for": "go"}})
    ring(fake.redis_url, QUEUE, RUN)
    control.wait_for_start()
    worker = worker_of(agent)
    fake.state = "paused"
    wait_for(lambda: "here is paused" in agent.log, "the news")
    control.go()
    wait_for(lambda: running.state == "done", "the end of the running task")
    assert (waiting.state, worker_of(agent)) == ("queued", worker)
    fake.state = "online"
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: waiting.state == "done", "the end of the waiting task")


def test_another_address_of_redis_waits_for_what_runs(
    agent: HostProcess, fake: FakeHud, control: Control
) -> None:
    task = fake.add()
    control.plan({"1": {"wait_for": "go"}})
    ring(fake.redis_url, QUEUE, RUN)
    control.wait_for_start()
    worker = worker_of(agent)
    redis_url = fake.redis_url
    fake.redis_url = "unix:///nowhere/redis.sock"
    wait_for(lambda: "there REDIS_URL must name a server" in agent.log, "the news")
    assert worker_of(agent) == worker
    control.go()
    wait_for(lambda: task.state == "done", "the end of the task")
    wait_for(lambda: not alive(worker), "the end of the old worker")
    fake.redis_url = redis_url
    after = fake.add()
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: after.state == "done", "the next task")


def test_a_token_is_spent_once(make_agent: Callable[..., HostProcess], fake: FakeHud, tmp_path: Path) -> None:
    first = make_agent("--token", TOKEN)
    wait_for(lambda: fake.beats, "a beat")
    first.stop()
    path = tmp_path / "data" / "registration.json"
    assert path.stat().st_mode & 0o077 == 0
    assert json.loads(path.read_text())["key"] in fake.keys
    before = len(fake.beats)
    second = make_agent("--token", TOKEN)  # the same command line, as a service manager repeats it
    wait_for(lambda: len(fake.beats) > before, "a beat after the restart")
    second.stop()
    fake.tokens.add("another")
    make_agent("--token", "another")
    wait_for(lambda: fake.calls.count("POST hosts/register") == 2, "a new registration")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--token", "wrong"], "the token is refused"),
        ([], "say --token"),
        (["--key", KEY, "--devices", "77"], "no GPU 77"),
        (["--key", KEY, "--python", "x=/nowhere"], "--python x=/nowhere"),
        (["--key", KEY, "--label", "x"], "--label is KEY=VALUE"),
        (["--hud", "hud:8000", "--token", "x"], "no address of a hud"),
    ],
)
def test_a_command_line_that_cannot_be(
    make_agent: Callable[..., HostProcess], arguments: list[str], said: str
) -> None:
    process = make_agent(*arguments)
    assert process.process
    assert process.process.wait(30) == 2
    assert said in process.log
    process.process = None


def test_two_agents_share_no_data_folder(agent: HostProcess, make_agent: Callable[..., HostProcess]) -> None:
    other = make_agent("--key", KEY)
    assert other.process
    assert other.process.wait(30) == 2
    assert "another agent uses" in other.log
    other.process = None


def test_it_waits_for_a_hud_that_is_away(make_agent: Callable[..., HostProcess], fake: FakeHud) -> None:
    fake.stop()
    agent = make_agent("--key", KEY)
    wait_for(lambda: "does not answer" in agent.log, "the notice")
    fake.start()
    wait_for(lambda: fake.beats, "a beat")


@pytest.mark.parametrize("known", [["--key", KEY], ["--token", "hudt_x"]])
def test_it_says_what_it_waits_for(make_agent: Callable[..., HostProcess], known: list[str]) -> None:
    """An address that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        agent = make_agent(*known, "--hud", address)
        wait_for(lambda: f"waiting for {address} to answer" in agent.log, "the word")


@pytest.mark.parametrize("how", ["its key is revoked", "it is told so"])
def test_a_detached_host_says_so_and_ends(
    how: str, agent: HostProcess, fake: FakeHud, control: Control
) -> None:
    fake.add()
    control.plan({"*": {"spin": True}})
    ring(fake.redis_url, QUEUE, RUN)
    pid, worker = control.wait_for_start(), worker_of(agent)
    if how == "it is told so":
        fake.state = "detached"
    else:
        fake.keys.clear()
    assert agent.process
    assert agent.process.wait(15) == 1
    assert [alive(number) for number in (pid, worker)] == [False, False]
    assert agent.log.count("attach with a new token") == 1


def test_a_proxy_that_refuses_detaches_nobody(
    fake: FakeHud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(Attachment(fake.url, "here", KEY), tmp_path, {}, pythons={}, labels={})
    refusals = [
        KeyRefused(403, "Forbidden", {}),
        KeyRefused(403, "Forbidden", {"message": "Forbidden"}),
        KeyRefused(401, "this key is unknown", {"status": 401}),
    ]
    monkeypatch.setattr(agent._hud, "beat", Mock(side_effect=refusals))
    for _ in range(2):
        assert agent._send_heartbeat() > 0
        assert not agent._stopping
    agent._send_heartbeat()
    assert agent._stopping


def test_a_python_without_torch_offers_no_suite(
    make_agent: Callable[..., HostProcess], fake: FakeHud, tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\necho no module named torch >&2\nexit 1\n")
    bare.chmod(0o755)
    make_agent("--key", KEY, "--python", f"default={bare}")
    wait_for(lambda: "pythons" in (fake.beats or [{"facts": {}}])[-1]["facts"], "a beat that knows all")
    assert "no module named torch" in fake.beats[-1]["facts"]["pythons"]["default"]["error"]
    assert fake.beats[-1]["devices"][0]["suites"] == []


def test_a_suite_whose_packages_no_interpreter_has_is_not_offered(tmp_path: Path) -> None:
    said = {"old": {"torch": "2.6", "modules": ["torchvision"]}, "new": {"torch": "2.9", "modules": ["timm"]}}
    said["none"] = {"torch": "2.9", "modules": []}
    pythons = {"broken": Interpreter("/nonexistent")}
    for name, facts in said.items():
        pythons[name] = Interpreter(str(tmp_path / name))
        Path(pythons[name].path).write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
        Path(pythons[name].path).chmod(0o755)
    (cpu,) = accelerators.accelerators(["cpu"])
    agent = Agent(Attachment("http://h", "here", KEY), tmp_path, {"cpu": cpu}, pythons=pythons, labels={})
    assert "huggingface" in agent._devices()[0]["suites"], "not known yet"
    agent._ask_interpreters()
    (device,) = agent._devices()
    without = {name for name, suite in SUITES.items() if not suite.cases}
    assert set(SUITES) - set(device["suites"]) == {"huggingface", "timm", *without}
    lacking = agent._facts["lacking"]
    assert lacking["huggingface"] == "no interpreter has transformers"
    assert lacking["timm"] == "no interpreter has timm and torchvision"


def test_a_detached_agent_that_is_to_stay_does(fake: FakeHud, control: Control, tmp_path: Path) -> None:
    data = tmp_path / "hud"
    python = f"default={control.python},STANDIN={control.folder}"
    command = ["-m", "runner", "attach", "--stay", "--data", str(data / "agent"), "--name", "embedded"]
    command += ["--devices", "cpu", "--python", python]
    agent = HostProcess(tmp_path, command, {"HUD_URL": fake.url, "HUD_KEY": KEY})
    agent.start()
    wait_for(lambda: fake.beats, f"a beat: {agent.log}")
    assert (data / "agent" / "agent.lock").exists()
    wait_for(lambda: children_of(agent.pid), "a worker")
    fake.keys.clear()
    wait_for(lambda: "attach with a new token" in agent.log, "the notice")
    wait_for(lambda: not children_of(agent.pid), "the end of what it started")
    assert agent.running  # or the supervisor would start it again and again
    assert agent.stop(timeout_s=12) == 0


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [machine.Gpu(index, "NVIDIA H200", f"GPU-{index}", 141 * 2**30, "580") for index in (0, 1)]
    monkeypatch.setattr(machine, "gpus", lambda: gpus)
    assert [item.name for item in accelerators.accelerators([])] == ["cuda:0", "cuda:1"]
    assert [item.name for item in accelerators.accelerators(["1", "cpu", "1"])] == ["cuda:1", "cpu"]
    (second, _cpu) = accelerators.accelerators(["1", "cpu"])
    assert (second.arch, second.lock, second.visible) == ("h200", "GPU-1", "GPU-1")
    with pytest.raises(BadRequest, match="GPU 2; it has: GPU 0, GPU 1, cpu"):
        accelerators.accelerators(["2"])


def test_a_full_disk_takes_no_task(fake: FakeHud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cpu,) = accelerators.accelerators(["cpu"])
    monkeypatch.setenv("RUNNER_LOCKS", str(tmp_path / "locks"))
    agent = Agent(Attachment(fake.url, "here", KEY), tmp_path, {"cpu": cpu}, pythons={}, labels={})
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(2**30, 2**30, 2**20))
        agent._send_heartbeat()
    assert fake.beats[-1]["devices"][0]["dirty"].startswith("only 1 MiB free in")
    agent._send_heartbeat()
    assert fake.beats[-1]["devices"][0]["dirty"] == ""
