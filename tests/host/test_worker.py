"""The worker of one accelerator: it answers wake-ups, and nothing in Redis becomes code here."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.conf import settings
from redis import Redis
from rq import Callback, Queue, Retry, Worker
from rq.exceptions import NoSuchJobError
from rq.serializers import JSONSerializer

from hud.hosts import redis_users
from hud.models import Host
from runner.host.agent import Attachment, WorkerConfig
from runner.host.worker import WakeUp, work
from runner.launch.jobs import LaunchRequest
from runner.schema.protocol import FUNCTION, digest_of, sign
from runner.system.accelerators import Accelerator
from runner.system.interpreters import Interpreter
from tests.host.fake_hud import KEY, FakeHud
from tests.support.hosts import Control, HostProcess, alive, ring
from tests.support.servers import RedisServer
from tests.support.waiting import wait_for

QUEUE = "host-7-accelerator-1"
RUN = str(uuid.uuid4())


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    with Redis.from_url(settings.REDIS_URL) as connection:
        connection.flushall()
    return str(settings.REDIS_URL)


@pytest.fixture
def fake(redis_url: str) -> Iterator[FakeHud]:
    hud = FakeHud(redis_url)
    yield hud
    hud.stop()


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control")


@pytest.fixture
def redis_user() -> str:
    """Name and password of a Redis user, where a test has one."""
    return ""


@pytest.fixture
def config(fake: FakeHud, control: Control, redis_user: str, tmp_path: Path) -> WorkerConfig:
    parts = urlsplit(fake.redis_url)
    redis_url = urlunsplit(parts._replace(netloc=f"{redis_user}@")) if redis_user else fake.redis_url
    return WorkerConfig(
        host=Attachment(fake.url, "here", KEY),
        accelerator=Accelerator("cpu", "cpu", "a CPU", "cpu-x86_64"),
        number=1,
        queue=QUEUE,
        redis_url=redis_url,
        data=str(tmp_path / "data"),
        pythons={"default": Interpreter(str(control.python), {"STANDIN": str(control.folder)})},
    )


@pytest.fixture
def worker(config: WorkerConfig, tmp_path: Path) -> Iterator[HostProcess]:
    process = HostProcess(tmp_path, ["-m", "runner.host.worker", str(config.save())], {})
    process.start()
    yield process
    process.close()


def spool(tmp_path: Path) -> list[str]:
    folder = tmp_path / "data" / "spool"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_host_that_allows_no_overlays_takes_none(worker: HostProcess, fake: FakeHud) -> None:
    task = fake.add()
    task.python = f"default@{'ab' * 20}"
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: task.state == "done", "the end of the task")
    assert (task.end["status"], task.end["code"]) == ("failed", "no_overlay")
    assert "--allow-overlays" in task.end["reason"]


def test_one_ring_works_everything_off(
    worker: HostProcess, fake: FakeHud, control: Control, tmp_path: Path
) -> None:
    tasks = [fake.add(), fake.add(case="gemv", dtype="int8"), fake.add()]
    control.plan({"2": {"status": "oom", "code": "out_of_memory", "reason": "too large"}})
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: all(task.state == "done" for task in tasks), "the end of all tasks")
    assert [task.end["status"] for task in tasks] == ["ok", "oom", "ok"]
    assert [len(task.records) for task in tasks] == [2, 2 + 2 * 4, 2]
    lost = [one["metric"] for one in tasks[1].records.values() if "benchmark_values" not in one["metric"]]
    assert {said["name"] for said in lost} >= {"speedup", "eager_latency_ms", "call_bandwidth_gbps"}
    assert {said["extra_info"]["code"] for said in lost} == {"out_of_memory"}
    assert b"stand-in at work\n" in tasks[0].log
    assert tasks[0].artifacts == {"notes": b"made by the stand-in\n"}
    wait_for(lambda: not spool(tmp_path), "an empty spool")
    assert not control.shared


def test_a_model_that_only_a_command_can_name_is_not_started(
    worker: HostProcess, fake: FakeHud, control: Control
) -> None:
    unlisted = fake.add(suite="huggingface", case="acme/bert", dtype="float32", knobs={})
    listed = fake.add(suite="huggingface", case="DistillGPT2", dtype="float32", knobs={})
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: b"DistillGPT2" in listed.log, "the log of the listed one")
    listed.cancel = True
    wait_for(lambda: listed.state == "cancelled", "its end")
    assert unlisted.end["code"] == "unknown_task"


def test_a_pair_is_both_environments_in_turn(
    worker: HostProcess, fake: FakeHud, control: Control, tmp_path: Path
) -> None:
    """Here both are the same one; the first process of each side is thrown away in the first pair only."""
    tasks = [fake.add(), fake.add(), fake.add()]
    for number, task in enumerate(tasks[:2]):
        task.base_python, task.process = "default", number
    tasks[2].base_python = "another"
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: all(task.state == "done" for task in tasks), "the end of all tasks")
    assert [task.end["code"] for task in tasks] == ["", "", "unknown_python"]
    assert control.starts == 4 + 2
    for number, task in enumerate(tasks[:2]):
        pairs = [record["runners"][0]["extra_info"]["pair"] for record in task.records.values()]
        assert sorted((pair["side"], pair["number"]) for pair in pairs) == [
            *[("base", number)] * 2,
            *[("new", number)] * 2,
        ]
        assert task.log.count(b"stand-in at work") == (4, 2)[number]
    assert not control.shared


def test_reports_results_and_log_while_it_runs(worker: HostProcess, fake: FakeHud, control: Control) -> None:
    task = fake.add()
    control.plan({"*": {"wait_for": "go", "print": "so far"}})
    ring(fake.redis_url, QUEUE, RUN)
    last = {"phase": "measure", "done": 1, "total": 2, "label": "D=512"}
    wait_for(lambda: last in task.reports and task.records and task.log, "reports, results and log")
    assert task.state == "running"
    assert task.reports[-1] == last
    assert len(task.records) == 2
    assert b"so far\n" in task.log
    before = task.log
    control.go()
    wait_for(lambda: task.state == "done", "the end")
    assert len(task.records) == 2
    assert task.log.startswith(before)
    assert task.log.count(b"so far\n") == 1


def test_cancel_ends_the_benchmark(worker: HostProcess, fake: FakeHud, control: Control) -> None:
    task, after = fake.add(), fake.add()
    control.plan({"1": {"spin": True, "stray": True}})
    ring(fake.redis_url, QUEUE, RUN)
    pid, stray = control.wait_for_start(), control.stray
    task.cancel = True
    wait_for(lambda: task.state == "cancelled", "the cancelled task")
    assert not alive(pid)
    assert not alive(stray)
    wait_for(lambda: after.state == "done", "the next task")


def test_a_broken_lease_ends_the_benchmark(
    worker: HostProcess, fake: FakeHud, control: Control, tmp_path: Path
) -> None:
    task = fake.add()
    control.plan({"1": {"spin": True}})
    ring(fake.redis_url, QUEUE, RUN)
    pid = control.wait_for_start()
    with fake.lock:
        task.break_lease()
    wait_for(lambda: task.state == "done", "the second attempt")
    assert not alive(pid)
    assert (task.attempt, control.starts, control.shared) == (2, 2, False)
    assert [path.name for path in (tmp_path / "data" / "refused").iterdir()] == [f"{task.uid}-1"]


def test_it_goes_on_without_the_hud(
    worker: HostProcess, fake: FakeHud, control: Control, tmp_path: Path
) -> None:
    """The experiment ends, its results wait on the disk."""
    task = fake.add()
    control.plan({"*": {"wait_for": "go"}})
    ring(fake.redis_url, QUEUE, RUN)
    pid = control.wait_for_start()
    fake.stop()
    control.go()
    wait_for(lambda: not alive(pid), "the end of the benchmark")
    fake.start()
    wait_for(lambda: task.state == "done", "the delivery")
    assert len(task.records) == 2


def test_a_task_nobody_knows_is_unsupported(worker: HostProcess, fake: FakeHud, control: Control) -> None:
    tasks = [fake.add(suite="future"), fake.add(case="rm -rf"), fake.add(knobs={"D": [10**9]})]
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: all(task.state == "done" for task in tasks), "the end of all tasks")
    assert {task.end["status"] for task in tasks} == {"unsupported"}
    assert "future" in tasks[0].end["reason"]
    assert control.starts == 0


def test_a_killed_benchmark_is_a_crash(worker: HostProcess, fake: FakeHud, control: Control) -> None:
    task = fake.add()
    control.plan({"*": {"spin": True}})
    ring(fake.redis_url, QUEUE, RUN)
    os.kill(control.wait_for_start(), signal.SIGKILL)
    wait_for(lambda: task.state == "done", "the end of the task", 5)
    assert (task.end["status"], task.end["code"]) == ("crashed", "SIGKILL")


def test_a_killed_worker_takes_its_benchmark_along(
    worker: HostProcess, fake: FakeHud, control: Control
) -> None:
    fake.add()
    control.plan({"*": {"spin": True, "deaf": True}})
    ring(fake.redis_url, QUEUE, RUN)
    pid = control.wait_for_start()
    worker.kill()
    wait_for(lambda: not alive(pid), "the benchmark's end", 2)


def test_sigterm_gives_the_task_back(
    worker: HostProcess, fake: FakeHud, control: Control, tmp_path: Path
) -> None:
    task = fake.add()
    control.plan({"*": {"spin": True, "stray": True}})
    ring(fake.redis_url, QUEUE, RUN)
    pid, stray = control.wait_for_start(), control.stray
    assert worker.stop(timeout_s=12) == 0
    assert not alive(pid)
    assert not alive(stray)
    assert (task.state, task.attempt, task.end["code"]) == ("queued", 0, "handed_back")
    assert not spool(tmp_path)


def test_sigterm_ends_an_idle_worker(worker: HostProcess, fake: FakeHud) -> None:
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: "POST tasks/claim" in fake.calls, "the first claim")
    assert worker.stop(timeout_s=5) == 0


def test_redis_may_restart_and_lose_everything(
    worker: HostProcess, fake: FakeHud, control: Control, redis_server: RedisServer
) -> None:
    task, after = fake.add(), fake.add()
    control.plan({"1": {"wait_for": "go"}})
    ring(fake.redis_url, QUEUE, RUN)
    control.wait_for_start()
    redis_server.wipe()
    reports = len(task.reports)
    wait_for(lambda: len(task.reports) > reports + 3, "reports without Redis")
    control.go()
    wait_for(lambda: after.state == "done", "both tasks without Redis")
    redis_server.start()
    last = fake.add()
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: last.state == "done", "a ring after the loss")
    assert task.end["status"] == "ok"


def test_redis_may_be_away_while_nothing_runs(
    worker: HostProcess, fake: FakeHud, control: Control, redis_server: RedisServer
) -> None:
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: "POST tasks/claim" in fake.calls, "the first claim")
    redis_server.wipe()
    wait_for(lambda: "retrying" in worker.log or "went away" in worker.log, "the worker's notice")
    redis_server.start()
    task = fake.add()
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: task.state == "done", "a ring after the loss")
    assert worker.stop(timeout_s=5) == 0


def test_a_claim_whose_answer_was_lost_is_not_lost(
    worker: HostProcess, fake: FakeHud, control: Control, tmp_path: Path
) -> None:
    task = fake.add()
    claims = tmp_path / "data" / "claims"
    claims.mkdir(parents=True)
    (claims / "1").write_text("the nonce")
    task.state, task.nonce, task.token, task.attempt = "running", "the nonce", str(uuid.uuid4()), 1
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: task.state == "done", "the end of the task")
    assert task.attempt == 1
    # the worker asks for more work once, and keeps that claim's nonce until it is answered
    wait_for(lambda: not (claims / "1").exists(), "the answer to the last claim")


def test_a_busy_accelerator_claims_nothing(
    worker: HostProcess, fake: FakeHud, control: Control, tmp_path: Path
) -> None:
    task = fake.add()
    hold = (
        "import sys; from pathlib import Path; from runner.system import locks; "
        "locks.acquire(Path(sys.argv[1]), 'cpu'); Path(sys.argv[2]).touch(); input()"
    )
    held = tmp_path / "held"
    command = [sys.executable, "-c", hold, str(tmp_path / "locks"), str(held)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as other:
        wait_for(held.exists, "the lock")
        ring(fake.redis_url, QUEUE, RUN)
        wait_for(lambda: "is in use by process" in worker.log, "the refusal")
        assert (task.state, fake.calls) == ("queued", [])
        other.kill()
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: task.state == "done", "the end of the task")


def test_nothing_in_redis_becomes_code(
    worker: HostProcess, fake: FakeHud, control: Control, tmp_path: Path
) -> None:
    proof = tmp_path / "proof"
    shell = f"touch {proof}"
    callback = Callback("os.system")
    for function in ("subprocess.getoutput", "os.system", "runner.host.worker.main", "builtins.eval"):
        ring(fake.redis_url, QUEUE, shell, function=function)
        ring(fake.redis_url, QUEUE, RUN, shell, function=function)
    for argument in (shell, RUN):
        ring(fake.redis_url, QUEUE, argument, on_success=callback, on_failure=callback, on_stopped=callback)
    ring(fake.redis_url, QUEUE, function="os.system", kwargs={"command": shell})
    ring(fake.redis_url, QUEUE, RUN, function="os.system", retry=Retry(max=2))
    with Redis.from_url(fake.redis_url) as connection:
        queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
        payloads = [
            pickle.dumps(("os.system", None, (shell,), {})),
            zlib.compress(pickle.dumps(("os.system", None, (shell,), {}))),
            zlib.compress(b"[" * 100_000),
            zlib.compress(b'["os.system", null, ["' + b"x" * 10**7 + b'"], {}]'),
            b"",
        ]
        for number, payload in enumerate(payloads):
            connection.hset(
                f"rq:job:evil-{number}", mapping={"data": payload, "timeout": "x", "meta": payload}
            )
            connection.rpush(queue.key, f"evil-{number}")
        connection.rpush(queue.key, "../no job", b"\xff\xfe not text", "missing")
        for name in Worker.all_keys(queue=queue):
            channel = f"rq:pubsub:{name.removeprefix('rq:worker:')}"
            connection.publish(channel, '{"command": "shutdown"}')
        wait_for(lambda: not connection.llen(queue.key), "the end of the queue")
    task = fake.add()
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: task.state == "done", "a true wake-up")
    assert not proof.exists()
    assert worker.process
    assert worker.process.poll() is None


class TestItsOwnRedisUser:
    """The rights that `hud/hosts/redis_users.py` gives a host are enough."""

    @pytest.fixture
    def redis_user(self, redis_url: str) -> Iterator[str]:
        host = Host(pk=7)
        with Redis.from_url(redis_url) as connection:
            connection.execute_command("ACL", "SETUSER", "host-7", *redis_users._rules(host, "secret"))
            yield "host-7:secret"
            connection.execute_command("ACL", "DELUSER", "host-7")

    def test_it_works(self, worker: HostProcess, fake: FakeHud) -> None:
        task = fake.add()
        ring(fake.redis_url, QUEUE, RUN, job_id=f"host-7-{uuid.uuid4()}")
        wait_for(lambda: task.state == "done", "the end of the task")
        assert worker.stop(timeout_s=5) == 0


def test_unsigned_foreign_and_replayed_wake_ups_run_nothing(worker: HostProcess, fake: FakeHud) -> None:
    """The job ids that Redis may see again are those of true wake-ups, whose arguments are public there."""
    task = fake.add()
    ring(fake.redis_url, QUEUE, RUN, job_id="first")
    wait_for(lambda: fake.calls.count("POST tasks/claim") == 2, "a claim after the task")
    known = {"key_digest": digest_of(KEY), "queue": QUEUE}
    first = sign("first", RUN, **known)
    foreign = sign("x", RUN, **{**known, "queue": "host-8-accelerator-1"})
    with Redis.from_url(fake.redis_url) as connection:
        queue = Queue(QUEUE, connection=connection, serializer=JSONSerializer)
        for job_id, argument in (
            (first, RUN), (f"second-{first.rpartition('-')[2]}", RUN), (foreign, RUN), ("bare", RUN),
            (sign("x", "another run", **known), RUN), (f"x-{'0' * 64}", RUN), ("-", ""),
            (sign("y", RUN, **known), [RUN]),
        ):  # fmt: skip
            queue.enqueue(FUNCTION, argument, job_id=job_id, job_timeout=-1)
        for forged in (None, 7, ["x"], {"a": 1}):
            queue.enqueue(FUNCTION, forged, job_timeout=-1)
        ring(fake.redis_url, QUEUE, RUN, key="another host's")
        wait_for(lambda: not connection.llen(queue.key), "the end of the queue")
        wait_for(lambda: not connection.keys("rq:job:*"), "the end of all messages")
    assert fake.calls.count("POST tasks/claim") == 2
    ring(fake.redis_url, QUEUE, RUN)
    wait_for(lambda: fake.calls.count("POST tasks/claim") == 3, "a true wake-up")
    assert task.state == "done"


def test_a_wake_up_is_read_no_further_than_its_call(redis_url: str) -> None:
    true, other = (sign(name, RUN, key_digest=digest_of(KEY), queue="q") for name in ("true", "other"))
    with Redis.from_url(redis_url) as connection:
        ring(redis_url, "q", RUN, job_id="true", on_failure=Callback("os.system"), meta={"a": "b"})
        wake_up = WakeUp.fetch(true, connection, JSONSerializer)
        assert wake_up.is_signed(digest_of(KEY), "q")
        assert not wake_up.is_signed(digest_of(KEY), "p")
        assert (wake_up.failure_callback, wake_up.meta) == (None, {})
        ring(redis_url, "q", RUN, job_id="other", function="os.system")
        assert not WakeUp.fetch(other, connection, JSONSerializer).is_signed(digest_of(KEY), "q")
        connection.hset(f"rq:job:{true}", "data", zlib.compress(b" " * 10**6))
        assert len(WakeUp.fetch(true, connection, JSONSerializer).data) == 10**6
        connection.hset(f"rq:job:{true}", "data", zlib.compress(b" " * 10**7))
        with pytest.raises(NoSuchJobError):
            WakeUp.fetch(true, connection, JSONSerializer)


def test_a_mistake_of_the_runner_ends_the_task(
    fake: FakeHud, config: WorkerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, after = fake.add(), fake.add()

    def fail(_request: LaunchRequest) -> None:
        raise ZeroDivisionError

    config.save()
    monkeypatch.setenv("RUNNER_LOCKS", config.data)
    monkeypatch.setattr("runner.host.worker.run_task", fail)
    work(config, lambda: False)
    assert [one.end["code"] for one in (task, after)] == ["runner_error"] * 2
