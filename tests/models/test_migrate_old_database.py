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
    """The web application over the old database, brought up to date after a dry run."""
    server = settings.DATABASES["default"]["HOST"]
    url = f"postgresql://hud@/{NAME}?host={server}"
    with psycopg.connect(host=server, user="hud", dbname="hud", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {NAME}")
    with psycopg.connect(url) as connection:
        connection.execute(OLD.with_suffix(".sql").read_bytes())
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}

    def upgrade(*words: str) -> list[str]:
        command = [sys.executable, "manage.py", "upgrade", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    before = _tables(url)
    told = upgrade("--dry-run")
    assert _tables(url) == before
    assert upgrade() == told[:-1], "the dry run counted what then came"
    counts = {line[:38].strip(): line[38:].split() for line in told if line[38:].split()[1:]}
    for table in ("hud_run", "hud_measurement"):
        assert counts[table] == [before[table]] * 2
    assert int(counts["hud_point"][1]) + int(counts["hud_sidepoint"][1]) > 0
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


def _tables(url: str) -> dict[str, str]:
    """Return the number of rows of each table."""
    with psycopg.connect(url) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return {
            name: str(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0])  # type: ignore[index]
            for (name,) in names
        }


def _normal(line: bytes) -> str:
    record = json.loads(line)
    info = record["benchmark"]["extra_info"]
    for knobs in (one.get("knobs", {}) for one in (info, info.get("hud", {}))):
        if knobs.get("D") == "mean":  # whose sizes the old version did not say
            knobs.setdefault("sizes", "1024,4096,8192,16384")
    return json.dumps(record, sort_keys=True)


def _get(hud: Hud, path: str) -> bytes:
    """Raises HTTPError where the answer is none."""
    with urllib.request.urlopen(hud.url + path, timeout=60) as response:
        content: bytes = response.read()
    return content
