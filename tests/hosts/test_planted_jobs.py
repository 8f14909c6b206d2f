"""Nothing that a job in Redis names runs in the web application."""

from __future__ import annotations

import pickle
import sys
import zlib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from redis import Redis

from hud.hosts import queues
from tests.support.factories import create_accelerator

pytestmark = pytest.mark.django_db
MODULE = "planted_by_somebody"


class Pickled:
    """Unpickling it makes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return Path.touch, (self.proof,)


@pytest.fixture
def proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that importing or calling the planted module makes, or loading the pickle."""
    found = tmp_path / "proof"
    code = f"from pathlib import Path\nPath({str(found)!r}).touch()\ndef call(*_arguments): pass\n"
    (tmp_path / f"{MODULE}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield found
    sys.modules.pop(MODULE, None)


def plant(redis: Redis, queue: str, name: str, data: bytes, proof: Path) -> None:
    """A job that is queued, has failed, and was abandoned while a worker had it."""
    planted = pickle.dumps(Pickled(proof))
    callbacks = {f"{end}_callback_name": f"{MODULE}.call" for end in ("success", "failure", "stopped")}
    timeouts = {f"{end}_callback_timeout": 60 for end in ("success", "failure", "stopped")}
    redis.hset(
        f"rq:job:{name}",
        mapping={
            **callbacks,
            **timeouts,
            "data": data,
            "origin": queue,
            "status": "started",
            "created_at": "2026-01-01T00:00:00Z",
            "enqueued_at": "2026-01-01T00:00:00Z",
            "meta": planted,
            "result": planted,
        },
    )
    redis.xadd(f"rq:results:{name}", {"type": 1, "created_at": 1, "return_value": b64encode(planted)})
    redis.sadd("rq:queues", f"rq:queue:{queue}")
    redis.rpush(f"rq:queue:{queue}", name)
    redis.zadd(f"rq:wip:{queue}", {f"{name}:1": 1})
    redis.zadd(f"rq:failed:{queue}", {name: 2**40})
    worker = f"rq:worker:{queue}-{name}"
    redis.hset(
        worker,
        mapping={
            "birth": "2026-01-01T00:00:00Z",
            "last_heartbeat": "2026-01-01T00:00:00Z",
            "queues": queue,
            "state": "busy",
            "current_job": name,
        },
    )
    redis.sadd("rq:workers", worker)
    redis.sadd(f"rq:workers:{queue}", worker)


@pytest.mark.parametrize("form", ["json", "pickle"])
def test_nothing_that_a_job_names_runs_on_the_pages_of_the_queues(
    client: Client, redis_server: object, proof: Path, form: str
) -> None:
    queue = create_accelerator().queue
    client.raise_request_exception = False
    client.force_login(User.objects.create_superuser("ada"))
    text = f'["{MODULE}.call", null, [], {{}}]'.encode()
    body = zlib.compress(text if form == "json" else pickle.dumps(Pickled(proof)))
    pages = ["", "started/", "failed/", "finished/", "scheduled/", "deferred/", "host-1-x/"]
    with queues.connect() as redis:
        redis.flushall()
        plant(redis, queue, "host-1-x", body, proof)
        found = {one["name"]: one for one in client.get("/django-rq/stats.json").json()["queues"]}
        index = found[queue]["index"]
        for page in pages:
            plant(redis, queue, "host-1-x", body, proof)
            client.get(f"/django-rq/queues/{index}/{page}")
        for page in ("", f"{queue}-host-1-x/"):
            plant(redis, queue, "host-1-x", body, proof)
            client.get(f"/django-rq/workers/{index}/{page}")
        for action in ("requeue", "enqueue", "stop", "delete"):
            plant(redis, queue, "host-1-x", body, proof)
            client.post(f"/django-rq/queues/{index}/host-1-x/{action}/")
        redis.flushall()
    assert not proof.exists()
    assert MODULE not in sys.modules
