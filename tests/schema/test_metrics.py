"""`/metrics`: Prometheus's text, for who may see it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from hud.accounts.keys import create_key
from hud.hosts import heartbeats
from tests.support.factories import create_host, create_run, create_task, create_upload

pytestmark = pytest.mark.django_db
_LINE = re.compile(r'[a-z_]+(\{[a-z]+="[a-z_]+"\})? [0-9.e+-]+')


def test_every_line_is_one_prometheus_can_read(client: Client) -> None:
    create_task(create_run("queued"))
    create_run("failed")
    create_host(age_s=1)
    create_host(age_s=3600)
    create_upload()
    heartbeats.beat("tick")
    answer = client.get("/metrics")
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = answer.content.decode().splitlines()
    assert all(_LINE.fullmatch(line) for line in lines if not line.startswith("# "))
    for line in (
        'hud_runs{state="queued"} 1',
        'hud_runs{state="failed"} 1',
        'hud_runs{state="lost"} 0',
        'hud_tasks{state="queued"} 1',
        "hud_queue_length 1",
        'hud_hosts{state="online"} 1',
        'hud_hosts{state="lost"} 1',
        "hud_uploads 1",
    ):
        assert line in lines
    (age,) = [line for line in lines if line.startswith('hud_beacon_age_seconds{process="tick"}')]
    assert 0 <= float(age.split()[1]) < 60


def test_where_reading_is_not_public_it_needs_a_key_that_reads(client: Client, settings: Any) -> None:
    settings.HUD_PUBLIC_READ = False
    assert client.get("/metrics").status_code == 401
    for scope, status in (("upload", 403), ("read", 200), ("admin", 200)):
        secret = create_key(name=scope, scopes=[scope], who="t")[1]
        assert client.get("/metrics", headers={"authorization": f"Bearer {secret}"}).status_code == status
    assert client.get("/metrics", headers={"authorization": "Bearer nonsense"}).status_code == 401
