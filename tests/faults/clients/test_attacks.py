"""Attacks over HTTP that once gave way, against a web with the limits of production. `-s` prints figures.

Slow clients are in `test_slow_clients.py`, what a benchmark reaches in `tests/server/test_up.py`.
"""

from __future__ import annotations

import itertools
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import CookieJar

import psutil
import pytest
from redis import Redis

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.hosts import queues
from hud.models import Measurement, Run
from tests.support.factories import create_accelerator, create_user
from tests.support.records import as_list, v3_record
from tests.support.servers import Hud, RedisServer

pytestmark = pytest.mark.django_db(transaction=True)
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.faults.attacked", "HUD_UPLOADS_PER_MINUTE": "1e9"}
TRIES = 14
CONNECTIONS, LOGINS = 16, 175
BOMB_BYTES = 400 * 2**20
MIB = 2**20


class Visitor:
    """A browser without scripts."""

    def __init__(self, hud: Hud) -> None:
        self._url = hud.url
        self._jar = CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._jar), _Stay())

    def get(self, path: str) -> int:
        return self._ask(path, None)

    def log_in(self, name: str, password: str = "guess") -> int:
        if not list(self._jar):
            self.get("/login/")
        token = next((cookie.value or "" for cookie in self._jar if cookie.name == "csrftoken"), "")
        form = {"username": name, "password": password, "csrfmiddlewaretoken": token}
        return self._ask("/login/", urllib.parse.urlencode(form).encode())

    def _ask(self, path: str, body: bytes | None) -> int:
        try:
            with self._opener.open(self._url + path, body, timeout=60) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.read()
            return error.code


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: object) -> None:
        return None


@pytest.fixture
def web(hud_process: Hud, redis_server: RedisServer) -> Hud:
    with queues.connect() as redis:
        redis.flushdb()
    hud_process.start(**SETTINGS)
    return hud_process


def test_a_brake_holds_however_a_name_is_written(web: Hud) -> None:
    create_user("olga")
    visitor = Visitor(web)
    names = itertools.cycle(["olga ", " olga", "olga", "\u3000olga"])
    answers = [visitor.log_in(next(names)) for _ in range(TRIES)]
    assert answers == [200] * 10 + [429] * (TRIES - 10)
    assert visitor.log_in("olga ", "open sesame") == 429


def test_a_flood_of_logins_holds_up_no_page(web: Hud) -> None:
    visitor = Visitor(web)
    names = [f"name-{number}" for number in range(LOGINS)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        flood = [pool.submit(Visitor(web).log_in, name) for name in names]
        seconds = []
        while not all(each.done() for each in flood):
            began = time.monotonic()
            assert visitor.get("/hosts/") == 200
            seconds.append(time.monotonic() - began)
    answers = Counter(each.result() for each in flood)
    print(f"{answers}; /hosts/ {len(seconds)} times, median {sorted(seconds)[len(seconds) // 2]:.2f} s, "
          f"longest {max(seconds):.2f} s")  # fmt: skip
    assert answers.keys() == {200, 429}
    assert answers[200] <= 100


def test_a_planted_job_takes_no_memory_of_the_web(web: Hud) -> None:
    queue = create_accelerator().queue
    create_user("ada", Role.ADMIN)
    visitor = Visitor(web)
    assert visitor.log_in("ada", "open sesame") == 302
    assert visitor.get("/django-rq/") == 200
    with queues.connect() as redis:
        _plant_bomb(redis, queue)
    before_bytes = _memory_bytes(web)
    pages = ["queues/1/", "queues/1/host-1-bomb/", "queues/1/host-1-bomb/"]
    statuses = [visitor.get(f"/django-rq/{page}") for page in pages]
    grown_bytes = _memory_bytes(web) - before_bytes
    print(f"{statuses}: the web grew by {grown_bytes / MIB:.1f} MiB")
    assert statuses == [200] * 3
    assert grown_bytes < BOMB_BYTES / 8


def _plant_bomb(redis: Redis, queue: str) -> None:
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(b" " * MIB) for _ in range(BOMB_BYTES // MIB)) + packer.flush()
    fields = {"data": packed, "origin": queue, "status": "queued", "created_at": "2026-01-01T00:00:00Z"}
    redis.hset("rq:job:host-1-bomb", mapping=fields)
    redis.rpush(f"rq:queue:{queue}", "host-1-bomb")
    redis.sadd("rq:queues", f"rq:queue:{queue}")


def _memory_bytes(web: Hud) -> int:
    assert web._process
    processes = [psutil.Process(web._process.pid), *psutil.Process(web._process.pid).children(recursive=True)]
    return sum(int(process.memory_full_info().uss) for process in processes)


@pytest.mark.parametrize("named_by", ["uid", "workflow"])
def test_a_key_adds_nothing_to_another_key_s_run(web: Hud, named_by: str) -> None:
    mine, other = (create_key(name=name, scopes=["upload"], who="t")[1] for name in ("mine", "other"))
    body = as_list(v3_record(case="layer_norm", workflow_id=7))
    assert _upload(web, mine, body) == 201
    run = Run.objects.get()
    if named_by == "uid":
        with urllib.request.urlopen(f"{web.url}/api/v1/export?format=v3", timeout=60) as answer:
            body = answer.read()
        assert str(run.uid).encode() in body
    added = body.replace(b"layer_norm", b"gemv")
    assert _upload(web, other, added) == 422
    assert Measurement.objects.count() == 1
    assert _upload(web, mine, added) == 201
    assert Measurement.objects.filter(run=run).count() == 2


def _upload(web: Hud, key: str, body: bytes) -> int:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{web.url}/api/v1/results?commit=abc1234", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
