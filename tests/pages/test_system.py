"""The page System says what the probes and `/metrics` say, to operators."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.roles import Role
from hud.hosts import heartbeats, queues
from hud.models import Heartbeat, Import
from hud.server import access_log
from tests.support.factories import create_host, create_user
from tests.support.servers import RedisServer

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(create_user("otto", Role.OPERATOR))
    return client


def test_each_part_is_as_the_probes_say(operator: Client, redis_server: RedisServer) -> None:
    for name in ("tick", "judge", "imports"):
        heartbeats.beat(name)
    Heartbeat.objects.filter(name="judge").update(last=timezone.now() - timedelta(minutes=10))
    Import.objects.create(content_key="waits")
    Import.objects.create(content_key="failed", state=Import.State.FAILED, finished=timezone.now())
    host = create_host()
    host.refused_results = 7
    host.save()
    answer: Any = operator.get("/system.json").json()
    parts = {part["name"]: part for part in answer["items"]}
    probed = operator.get("/statusz").json()["parts"]
    assert {name for name, part in parts.items() if part["problem"]} == {"judge"}
    assert {name: parts[name]["waiting"] for name in ("imports", "queue")} == {"imports": 1, "queue": 0}
    problem = probed["judge"]["problem"].rpartition(" for ")[0]  # its seconds go on
    assert problem
    assert parts["judge"]["problem"].startswith(problem)
    assert parts.keys() == probed.keys() | operator.get("/readyz").json()["components"].keys()
    assert len(answer["nodes"]) == 1
    assert all(answer["versions"].values())
    values = {figure["name"]: figure["value"] for figure in answer["figures"]}
    assert (values["hud_imports_failed"], values["hud_results_refused"]) == (1, 7)
    figures = set(re.findall(r"^(hud_\w+)", operator.get("/metrics").content.decode(), re.MULTILINE))
    assert values.keys() <= figures
    content = operator.get("/system/").content.decode()
    assert problem in content
    assert "1 part does not work" in content


def test_a_silent_redis_is_a_part(operator: Client, redis_server: RedisServer) -> None:
    with queues.connect() as redis:
        version = redis.info("server")["redis_version"]
    assert version in operator.get("/system.json").json()["versions"]["Redis"]
    redis_server.kill()
    parts = {part["name"]: part["problem"] for part in operator.get("/system.json").json()["items"]}
    assert parts["redis"]
    redis_server.start()


def test_requests_that_failed_are_counted_by_view(operator: Client, redis_server: RedisServer) -> None:
    for view, status in (("funnel", "503"), ("funnel", "500"), ("funnel", "404"), ("rules", "200")):
        access_log.REQUESTS.labels(view, "GET", status).inc()
    figures = operator.get("/system.json").json()["figures"]
    failed = {
        figure["of"]: figure["value"] for figure in figures if figure["name"] == "hud_http_requests_total"
    }
    assert (failed["funnel"], failed.get("rules")) == (2, None)


@pytest.mark.parametrize(("role", "status"), [(Role.UPLOADER, 403), (Role.OPERATOR, 200), (Role.ADMIN, 200)])
def test_operators_see_it(client: Client, redis_server: RedisServer, role: Role, status: int) -> None:
    client.force_login(create_user("ida", role))
    assert client.get("/system/").status_code == status
    assert ('href="/system/"' in client.get("/glossary/").content.decode()) == (status == 200)
