"""`/metrics`: Prometheus's text, for who may see it."""

from __future__ import annotations

import json
import logging
import urllib.request
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families

from hud.accounts.keys import create_key
from hud.hosts import heartbeats, quarantine
from tests.support.factories import (
    create_accelerator,
    create_host,
    create_run,
    create_task,
    create_upload,
    create_user,
)
from tests.support.servers import Hud

pytestmark = pytest.mark.django_db
NONE = frozenset[tuple[str, str]]()


def figures_of(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the value of each name with its labels."""
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def test_figures_are_read_by_prometheus_own_parser(client: Client) -> None:
    create_task(create_run("queued"))
    create_run("failed")
    card = create_accelerator(create_host(name="new", age_s=1))
    quarantine.quarantine(card, "it drifts", since=timezone.now())
    create_host(name="old", age_s=3600)
    create_upload()
    heartbeats.beat("tick")
    answer = client.get("/metrics")
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    figures = figures_of(answer.content.decode())
    for name, labels, value in (
        ("hud_runs", {"state": "queued"}, 1),
        ("hud_runs", {"state": "failed"}, 1),
        ("hud_runs", {"state": "lost"}, 0),
        ("hud_tasks", {"state": "queued"}, 1),
        ("hud_queue_length", {}, 1),
        ("hud_hosts", {"state": "online"}, 1),
        ("hud_hosts", {"state": "lost"}, 1),
        ("hud_host_up", {"host": "new"}, 1),
        ("hud_host_up", {"host": "old"}, 0),
        ("hud_cards_quarantined", {"host": "new"}, 1),
        ("hud_cards_quarantined", {"host": "old"}, 0),
        ("hud_imports_waiting", {}, 0),
        ("hud_uploads", {}, 1),
    ):
        assert figures[name, frozenset(labels.items())] == value, name
    assert 0 <= figures["hud_beacon_age_seconds", frozenset({("process", "tick")})] < 60
    assert figures["hud_disk_size_bytes", NONE] > figures["hud_disk_free_bytes", NONE] > 2**20


def test_requests_of_all_workers_are_counted(live_hud: Hud) -> None:
    def counts() -> dict[str, float]:
        with urllib.request.urlopen(f"{live_hud.url}/metrics") as answer:
            figures = figures_of(answer.read().decode())
        chosen = {"view": "funnel", "method": "GET", "status": "200"}
        return {
            "requests": figures.get(("hud_http_requests_total", frozenset(chosen.items())), 0),
            "seconds": figures.get(
                ("hud_http_request_duration_seconds_count", frozenset({("view", "funnel")})), 0
            ),
        }

    before = counts()
    for _ in range(3):
        urllib.request.urlopen(f"{live_hud.url}/funnel/").close()
    assert counts() == {name: count + 3 for name, count in before.items()}


def test_the_access_log_says_who_asked_for_what(
    client: Client, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.HUD_ACCESS_LOG, settings.HUD_PUBLIC_READ = True, False
    access = logging.getLogger("hud.access")
    access.addHandler(caplog.handler)
    run = create_run("failed")
    host = create_host(name="h9", age_s=1)
    key, secret = create_key(name="k", scopes=["host"], who="t", host=host)
    with_key = {"authorization": f"Bearer {secret}", "x-request-id": "r1"}
    client.get(f"/runs/{run.pk}/?token=secret")
    client.post("/api/v1/tasks/claim", data="{}", content_type="application/json", headers=with_key)
    client.force_login(create_user("eve"))
    client.get(f"/runs/{run.pk}/")
    access.removeHandler(caplog.handler)
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == access.name]
    visitor, of_host, person = lines
    assert (visitor["run"], visitor["status"], visitor["path"]) == (run.pk, 302, f"/runs/{run.pk}/")
    assert "user" not in visitor
    assert "secret" not in json.dumps(visitor)
    assert (of_host["host"], of_host["key"], of_host["request"]) == ("h9", key.prefix, "r1")
    assert (of_host["view"], of_host["status"]) == ("host_api:claim", 422)
    assert (person["user"], person["run"], person["status"]) == ("eve", run.pk, 200)


def test_where_reading_is_not_public_it_needs_a_key_that_reads(client: Client, settings: Any) -> None:
    settings.HUD_PUBLIC_READ = False
    assert client.get("/metrics").status_code == 401
    for scope, status in (("upload", 403), ("read", 200), ("admin", 200)):
        secret = create_key(name=scope, scopes=[scope], who="t")[1]
        assert client.get("/metrics", headers={"authorization": f"Bearer {secret}"}).status_code == status
    assert client.get("/metrics", headers={"authorization": "Bearer nonsense"}).status_code == 401
