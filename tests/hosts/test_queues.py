"""django-rq's pages list the queue of each attached accelerator, for admins only."""

from __future__ import annotations

import pickle
import tracemalloc
import zlib
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from rq import Queue
from rq.job import JobStatus
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer

from hud.accounts.roles import Role
from hud.hosts import queues
from tests.support.factories import create_accelerator, create_host, create_user
from tests.support.servers import RedisServer

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff(client: Client, redis_server: RedisServer) -> Client:
    with queues.connect() as redis:
        redis.flushall()
    client.force_login(create_user("ada", Role.ADMIN))
    return client


def test_the_queue_of_each_attached_accelerator_is_listed_with_its_jobs(staff: Client) -> None:
    attached = create_accelerator()
    gone = create_accelerator(create_host(detached_at=timezone.now()))
    queue = Queue(attached.queue, connection=queues.connect(), serializer=JSONSerializer)
    job = queue.enqueue("runner.host.jobs.work", "run-1")
    failed = queue.enqueue("runner.host.jobs.work", "run-2")
    queue.remove(failed)
    failed.set_status(JobStatus.FAILED)
    FailedJobRegistry(queue=queue).add(failed, ttl=60)
    found = {one["name"]: one for one in staff.get("/django-rq/stats.json").json()["queues"]}
    assert found.keys() == {"default", attached.queue}
    assert gone.queue not in found
    assert (found[attached.queue]["jobs"], found[attached.queue]["failed_jobs"]) == (1, 1)
    assert attached.queue in staff.get("/django-rq/").content.decode()
    index = found[attached.queue]["index"]
    assert job.id in staff.get(f"/django-rq/queues/{index}/").content.decode()
    assert failed.id in staff.get(f"/django-rq/queues/{index}/failed/").content.decode()
    assert staff.get(f"/django-rq/queues/{index}/{failed.id}/").status_code == 200
    assert staff.post(f"/django-rq/queues/{index}/failed/clear/").status_code == 302
    assert len(FailedJobRegistry(queue=queue)) == 0
    assert queue.count == 1


@pytest.mark.parametrize(
    "page",
    ["queues/0/x/", "queues/0/x/delete/", "queues/0/x/requeue/", "queues/9/", "queues/9/failed/clear/",
     "workers/0/x/", "workers/9/", "schedulers/9/", "1/change/"],
)  # fmt: skip
def test_unknown_ids_are_404(staff: Client, page: str) -> None:
    for folder in ("/django-rq/", "/admin/django_rq/dashboard/"):
        assert staff.get(folder + page).status_code in {302, 404}  # 302: to an address with a slash
        assert staff.post(folder + page).status_code in {302, 404}


@pytest.mark.parametrize("address", ["/django-rq/", "/django-rq/queues/0/", "/django-rq/queues/0/failed/"])
def test_only_an_admin_sees_the_queues(client: Client, address: str) -> None:
    assert client.get(address)["Location"].startswith("/login/")
    client.force_login(create_user())
    assert client.get(address).status_code == 403
    assert client.get("/django-rq/stats.json").status_code == 403


def test_what_a_host_writes_is_neither_inflated_nor_loaded(staff: Client, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    queue = Queue(create_accelerator().queue, connection=queues.connect(), serializer=JSONSerializer)
    shell = pickle.dumps(("os.system", None, (f"touch {proof}",), {}))
    messages = {
        "bomb": zlib.compress(b"[" + b" " * 100 * 2**20),
        "pickle": zlib.compress(shell),
        "raw": shell,
    }
    for name, data in messages.items():
        queue.connection.hset(f"rq:job:{name}", mapping={"data": data, "created_at": "x", "timeout": "x"})
        queue.connection.hset(f"rq:job:{name}", "failure_callback_name", "os.system")
        queue.connection.rpush(queue.key, name)
        queue.connection.zadd(f"rq:wip:{queue.name}", {f"{name}:1": 1})
    stats = {found["name"]: found for found in staff.get("/django-rq/stats.json").json()["queues"]}
    index = stats[queue.name]["index"]
    tracemalloc.start()
    try:
        for page in ("", "started/", "failed/", *(f"{name}/" for name in messages)):
            assert staff.get(f"/django-rq/queues/{index}/{page}").status_code in {200, 404}
        assert tracemalloc.get_traced_memory()[1] < 50 * 2**20
    finally:
        tracemalloc.stop()
    assert not proof.exists()
