"""Each host has a Redis user: enough for its worker, nothing of another host's, gone with its key."""

from __future__ import annotations

import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as NoConnection
from rq import Queue, Worker
from rq.serializers import JSONSerializer

from hud.hosts import redis_users, registration
from hud.models import Accelerator, Host
from hud.runs import matching, tasks
from runner.host.agent import Attachment, WorkerConfig
from runner.host.worker import AcceleratorWorker
from runner.schema.protocol import PROTOCOL
from runner.system.accelerators import Accelerator as Device
from tests.support.claims import cpu, request
from tests.support.servers import RedisServer, free_port, start_process
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db


class OpenRedis:
    """A Redis on TCP behind a password, as an operator would run one."""

    def __init__(self, folder: Path, binary: str) -> None:
        self.port = free_port()
        self.url = f"redis://:boss@127.0.0.1:{self.port}/0"
        self._folder = folder
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [self._binary, "--port", str(self.port), "--requirepass", "boss", "--save", ""]
        command += ["--dir", str(self._folder)]
        self._process = start_process(command, self._folder / "redis.log", os.environ)
        wait_for(self._answers, "Redis")

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            return bool(Redis.from_url(self.url).ping())
        except NoConnection:
            return False


@pytest.fixture
def open_redis(tmp_path: Path, settings: Any) -> Iterator[OpenRedis]:
    server = OpenRedis(tmp_path, _redis_binary(tmp_path))
    server.start()
    settings.REDIS_URL = server.url
    yield server
    server.stop()


def _redis_binary(folder: Path) -> str:
    from hud.server.embedded import redis

    command = redis(folder).command
    return next(part for part in command if part.endswith("redis-server"))


def register(name: str) -> tuple[Host, str]:
    """A new host with an accelerator, and its address of Redis."""
    token = registration.create_token(who="t")
    answer = (
        Client()
        .post("/api/v1/hosts/register", {"token": token, "name": name}, content_type="application/json")
        .json()
    )
    host = Host.objects.get(pk=answer["host"])
    registration.beat(host=host, protocol=PROTOCOL, sent_at=0.0, facts={}, labels={}, devices=[cpu("micro")])
    return host, answer["redis_url"]


def enqueue(url: str, queue: str, job_id: str) -> None:
    with Redis.from_url(url) as redis:
        Queue(queue, connection=redis, serializer=JSONSerializer).enqueue(
            "runner.host.jobs.work", str(uuid.uuid4()), job_id=job_id
        )


def worker_of(host: Host, url: str, folder: Path) -> AcceleratorWorker:
    accelerator, device = host.accelerators.get(), Device("cpu", "cpu", "a CPU", "cpu-x86_64")
    config = WorkerConfig(
        host=Attachment("http://127.0.0.1:9", host.name, "k"), accelerator=device, number=accelerator.pk,
        queue=accelerator.queue, redis_url=url, data=str(folder), pythons={},
    )  # fmt: skip
    return AcceleratorWorker(config, threading.Event())


def test_a_host_s_user_is_enough_for_its_worker(open_redis: OpenRedis, tmp_path: Path) -> None:
    host, url = register("one")
    assert url.startswith(f"redis://host-{host.pk}:")
    assert "boss" not in url
    request()
    assert matching.ring_idle() == 1
    accelerator = Accelerator.objects.get()
    worker = worker_of(host, url, tmp_path)
    worker.register_birth()
    job, queue = worker.dequeue_job_and_maintain_ttl(5)
    assert job.is_signed(redis_users.key_digest_of(host.pk) or "", accelerator.queue)
    assert not job.is_signed(redis_users.key_digest_of(host.pk) or "", f"{accelerator.queue}0")
    assert job.id.startswith(f"host-{host.pk}-")
    worker.execute_job(job, queue)  # with the wrong key: it is thrown away
    worker.set_state("busy")
    worker.register_death()
    with Redis.from_url(open_redis.url) as redis:
        refused = {entry["object"] for entry in redis.acl_log()}
        assert refused <= {"client"}, "redis-py tells its name and version where it may"
        assert not redis.exists(job.key, f"rq:queue:{accelerator.queue}:intermediate")


def test_a_host_s_user_reaches_nothing_else(open_redis: OpenRedis) -> None:
    one, url = register("one")
    other, _url = register("other")
    enqueue(open_redis.url, f"host-{other.pk}-accelerator-9", f"host-{other.pk}-x")
    with Redis.from_url(url) as redis:
        for command in (
            ("LRANGE", f"rq:queue:host-{other.pk}-accelerator-9", 0, -1),
            ("RPUSH", f"rq:queue:host-{other.pk}-accelerator-9", "x"),
            ("HGETALL", f"rq:job:host-{other.pk}-x"),
            ("DEL", f"rq:job:host-{other.pk}-x"),
            ("HSET", "rq:worker:of-another", "state", "dead"),
            ("GET", "secret"),
            ("RPUSH", f"rq:queue:host-{one.pk}1-accelerator-9", "x"),
            ("KEYS", "*"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "requirepass"),
            ("ACL", "LIST"),
            ("EVAL", "return 1", 0),
            ("PUBLISH", "rq:pubsub:x", "stop"),
            ("SHUTDOWN",),
            ("SCAN", 0),
            ("SSCAN", "rq:workers", 0),
            ("HSCAN", f"rq:worker:host-{one.pk}-x", 0),
            ("SMEMBERS", "rq:workers"),
            ("SET", f"rq:job:host-{one.pk}-x", "x"),
            ("SETRANGE", f"rq:job:host-{one.pk}-x", 2**28, "x"),
            ("PFADD", f"rq:job:host-{one.pk}-x", "x"),
            ("PFCOUNT", f"rq:job:host-{one.pk}-x"),
            ("RPUSH", f"rq:queue:host-{one.pk}-accelerator-1", "x"),
            ("SUBSCRIBE", "rq:pubsub:x"),
            ("SADD", "rq:suspended", "x"),
            ("LLEN", f"rq:queue:host-{one.pk}-accelerator-1"),
            ("HGETALL", f"rq:worker:host-{one.pk}-x"),
        ):
            with pytest.raises(NoPermissionError):
                redis.execute_command(*command)


def test_a_host_keeps_no_other_from_being_woken_by_what_it_does_to_its_queue(open_redis: OpenRedis) -> None:
    hosts = [register("one"), register("two"), register("three")]
    for host, url in hosts[:2]:
        with Redis.from_url(url) as redis:
            redis.hset(f"rq:queue:{host.accelerators.get().queue}", "is", "no list")
    request()
    assert matching.ring_idle() == 1
    with Redis.from_url(open_redis.url) as redis:
        assert redis.llen(f"rq:queue:{hosts[2][0].accelerators.get().queue}") == 1


def test_a_host_keeps_no_other_from_listening_by_what_it_does_to_the_list_of_workers(
    open_redis: OpenRedis, tmp_path: Path
) -> None:
    (one, url), (other, other_url) = register("one"), register("other")
    with Redis.from_url(url) as redis:
        redis.hset("rq:workers", "is", "no set")
        redis.hset(f"rq:workers:{one.accelerators.get().queue}", "is", "no set")
    worker = worker_of(other, other_url, tmp_path)
    worker.register_birth()
    redis_users.sync()
    with Redis.from_url(open_redis.url) as redis:
        assert [each.name for each in Worker.all(redis)] == [worker.name]
    worker.register_death()


def fill_up(redis: Redis) -> int:
    """Make the limit of Redis a little less than it holds; return it."""
    most_bytes = int(redis.info("memory")["used_memory"]) - 2 * 2**20
    redis.config_set("maxmemory", most_bytes)
    return most_bytes


def test_a_host_that_fills_redis_loses_its_user_and_stops_no_other(open_redis: OpenRedis) -> None:
    (one, url), (_other, other_url) = register("one"), register("other")
    with Redis.from_url(open_redis.url) as redis, Redis.from_url(url) as hostile:
        for number in range(16):
            hostile.hset(f"rq:job:host-{one.pk}-{number}", "x", "x" * 2**19)
        most_bytes = fill_up(redis)
        request()
        assert matching.ring_idle() == 0, "no write is taken"
        redis_users.sync()
        assert not redis.keys(f"rq:job:host-{one.pk}-*")
        with pytest.raises(RedisError):
            hostile.exists("rq:workers")
        with pytest.raises(AuthenticationError):
            Redis.from_url(url).ping()
        assert Host.objects.get(drained=True).name == "one"
        wait_for(lambda: redis.info("memory")["used_memory"] < most_bytes, "what was removed to be free")
        assert matching.ring_idle() == 1
        assert Redis.from_url(other_url).ping()
        redis_users.sync()
        with pytest.raises(AuthenticationError):
            Redis.from_url(url).ping()
        registration.control("resume", host=one, who="t")
        redis_users.sync()
        assert Redis.from_url(url).ping()


def test_a_host_that_fills_the_list_of_all_workers_gains_and_stops_nothing(open_redis: OpenRedis) -> None:
    (_one, url), (_other, other_url) = register("one"), register("other")
    with Redis.from_url(open_redis.url) as redis, Redis.from_url(url) as hostile:
        for number in range(16):
            hostile.sadd("rq:workers", f"{number}-" + "x" * 2**19)
        fill_up(redis)
        request()
        assert matching.ring_idle() == 0, "no write is taken"
        redis_users.sync()
        for host in Host.objects.all():
            assert host.redis_user is True
            assert "boss" not in redis_users.url_of(host), "nobody is given the rights of the dashboard"
        assert matching.ring_idle() == 1
        for _ in range(2):
            for address in (url, other_url):
                with pytest.raises(NoPermissionError):
                    Redis.from_url(address).sadd("rq:workers", "x")
            redis_users.sync()
        assert Host.objects.filter(drained=False).count() == 2, "none of them has to be the one"


def test_redis_users_are_restored_and_end_with_their_hosts(open_redis: OpenRedis) -> None:
    host, url = register("one")
    open_redis.stop()
    redis_users.sync()
    open_redis.start()
    with pytest.raises(AuthenticationError):
        Redis.from_url(url).ping()
    redis_users.sync()
    with Redis.from_url(url) as connected:
        assert connected.ping()
        assert redis_users.url_of(host) == url, "the same, as long as its key is the same"
        with Redis.from_url(open_redis.url) as redis:
            redis.execute_command("ACL", "SETUSER", f"host-{host.pk}", "+llen")  # as of an earlier release
        redis_users.sync()
        with pytest.raises(NoPermissionError):
            connected.execute_command("LLEN", f"rq:queue:host-{host.pk}-accelerator-1")
        tasks.detach_host(host=host, who="t")
        redis_users.sync()
        with pytest.raises(RedisError):
            connected.execute_command("EXISTS", f"rq:queue:host-{host.pk}-accelerator-1")
    again, other_url = register("one")
    assert again.pk == host.pk
    assert other_url != url, "a new key, a new password"
    assert Redis.from_url(other_url).ping()


def test_all_hosts_share_one_user_if_the_server_permits_no_more(open_redis: OpenRedis, settings: Any) -> None:
    with Redis.from_url(open_redis.url) as redis:
        redis.execute_command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "+@all", "-@admin")
    settings.REDIS_URL = open_redis.url.replace(":boss@", "plain:pw@")
    host, url = register("one")
    assert url == settings.REDIS_URL
    host.refresh_from_db()
    assert host.redis_user is False
    settings.REDIS_URL = open_redis.url
    redis_users.sync()
    host.refresh_from_db()
    assert host.redis_user is True


def test_the_embedded_redis_lets_nobody_in_without_a_user(redis_server: RedisServer, settings: Any) -> None:
    host, url = register("one")
    assert url.startswith(f"unix://host-{host.pk}:")
    with Redis.from_url(url) as redis:
        assert redis.exists(f"rq:queue:host-{host.pk}-accelerator-1") == 0
        for command in (("GET", "hud:rate_limit:password:x"), ("FLUSHALL",), ("EVAL", "return 1", 0)):
            with pytest.raises(NoPermissionError):
                redis.execute_command(*command)
    path = urlsplit(settings.REDIS_URL).path
    with Redis(unix_socket_path=path) as stranger:
        assert stranger.ping()
        for words in ("GET x", "RPUSH rq:queue:default x", "CONFIG GET *", "ACL LIST"):
            with pytest.raises(NoPermissionError):
                stranger.execute_command(*words.split())
