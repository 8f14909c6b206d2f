"""A database of an earlier version is migrated, and all its results stay."""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.conf import settings

from tests.support.servers import ROOT, EmbeddedServer, Hud

OLD = Path(__file__).resolve().parent.parent / "samples" / "hud-ce40439"
NAME = "hud_ce40439"


@pytest.fixture
def migrated(data: Path, postgres_server: EmbeddedServer) -> Iterator[Hud]:
    """The web application over the old database, brought up to date."""
    server = settings.DATABASES["default"]["HOST"]
    url = f"postgresql://hud@/{NAME}?host={server}"
    with psycopg.connect(host=server, user="hud", dbname="hud", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {NAME}")
    with psycopg.connect(url) as connection:
        connection.execute(OLD.with_suffix(".sql").read_bytes())
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True)
    hud = Hud(data, url)
    hud.start()
    yield hud
    hud.stop()
    with psycopg.connect(host=server, user="hud", dbname="hud", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


def test_the_export_is_that_of_the_old_version(migrated: Hud) -> None:
    recorded = lzma.decompress(OLD.with_suffix(".v3.xz").read_bytes()).splitlines()
    exported = _get(migrated, "/api/v1/export").splitlines()
    assert sorted(map(_normal, exported)) == sorted(map(_normal, recorded))
    runs = json.loads(_get(migrated, "/runs.json"))["items"]
    assert {run["state"] for run in runs} == {"queued", "succeeded", "cancelled"}
    for page in ("/", "/hosts/", *(f"/runs/{run['run']}/" for run in runs)):
        assert _get(migrated, page)


def _normal(line: bytes) -> str:
    return json.dumps(json.loads(line), sort_keys=True)


def _get(hud: Hud, path: str) -> bytes:
    """Raises HTTPError where the answer is none."""
    with urllib.request.urlopen(hud.url + path, timeout=60) as response:
        content: bytes = response.read()
    return content
