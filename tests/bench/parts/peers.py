"""LNT and codespeed on the rows that we store: `PEERS=lnt=PATH,codespeed=PATH`.

Each path is a checkout with a `.venv` that has the packages of its requirements, gunicorn and psycopg2, and
LNT itself. Both keep their rows in our PostgreSQL, each in a database of its own. LNT looks for changes while
it stores, so our figure is there with the judge's part too. codespeed takes a quarter
of an hour; its Django 2.1 runs on Python 3.7, with a newer matplotlib than it asks for.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings

from tests.bench import processes
from tests.bench.application import Application
from tests.bench.figures import Figure
from tests.bench.records import RECORDS, body, value_of
from tests.support.servers import end_process, free_port, start_process
from tests.support.waiting import wait_for

_NIGHTS, _KNOWN = 5, 2  # uploads, the first of which make their tests and histories
_LOOKS = 5  # at a page, after one that is not counted


@dataclass(frozen=True)
class _Peer:
    name: str
    application: str  # a module for gunicorn, with the address of its database filled in
    path: str  # of uploads
    field: str  # of the form
    night: Callable[[int, list[float]], Any]
    page: str  # of a night, by its number from 1


_LNT = _Peer(
    "LNT",
    """
import os, subprocess, sys
import lnt.server.ui.app
if not os.path.exists("site"):
    main = "from lnt.lnttool import main; main()"
    folder, name = "postgresql://{user}@/", "{name}?host={host}&port={port}"
    subprocess.run(
        [sys.executable, "-c", main, "create", "site", "--db-dir", folder, "--default-db", name], check=True)
application = lnt.server.ui.app.App.create_standalone(os.path.abspath("site/lnt.cfg"))
""",
    "/db_default/v4/nts/submitRun",
    "input_data",
    lambda night, values: {
        "format_version": "2",
        "machine": {"name": "h200-17"},
        "run": {
            "llvm_project_revision": str(night),
            "start_time": _date(night),
            "end_time": _date(night),
        },
        "tests": [{"name": f"model_{case}", "execution_time": value} for case, value in enumerate(values)],
    },
    "/db_default/v4/nts/{}",
)
_CODESPEED = _Peer(
    "codespeed",
    """
import os, sys
from sample_project.settings import *
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", "NAME": "{name}", "USER": "{user}",
    "HOST": "{host}", "PORT": "{port}"}}}}
DEBUG, ALLOWED_HOSTS, ALLOW_ANONYMOUS_POST, ROOT_URLCONF = False, ["*"], True, "sample_project.urls"
DATA_UPLOAD_MAX_MEMORY_SIZE = None
if not os.environ["DJANGO_SETTINGS_MODULE"]:
    os.environ["DJANGO_SETTINGS_MODULE"] = __name__
    from django.core.wsgi import get_wsgi_application
    application = get_wsgi_application()
    from django.core.management import call_command
    from codespeed.models import Environment
    call_command("migrate", verbosity=0)
    Environment.objects.get_or_create(name="h200-17")
""",
    "/result/add/json/",
    "json",
    lambda night, values: [
        {
            "commitid": str(night),
            "revision_date": _date(night),
            "branch": "main",
            "project": "torch",
            "executable": "inductor",
            "environment": "h200-17",
            "benchmark": f"model_{case}",
            "result_value": value,
        }
        for case, value in enumerate(values)
    ],
    "/changes/table/?tre=10&rev={}&exe=1&env=1",
)
_PEERS = {peer.name.lower(): peer for peer in (_LNT, _CODESPEED)}


def peers(application: Application) -> Iterator[Figure]:
    named = [each.partition("=") for each in os.environ.get("PEERS", "").split(",") if each]
    if not named:
        return
    stored, judged, page = _ours(application)
    yield Figure("peers", "ours, of the harness's 3.4 kB records: CPU per measurement stored", stored, "ms")
    yield Figure("peers", "ours: the same with the judge's part", judged, "ms")
    yield Figure("peers", f"ours: CPU of the page of a run of {RECORDS:,}", page, "ms")
    for name, _, path in named:
        peer = _PEERS[name]
        with _serving(peer, Path(path), application) as (url, spent_ms):
            their_stored, their_page = _measured(peer, url, spent_ms)
        yield Figure("peers", f"{peer.name}: CPU per measurement stored", their_stored, "ms")
        yield Figure("peers", f"{peer.name}: CPU of the page of a run of {RECORDS:,}", their_page, "ms")
        yield Figure("peers", f"storing, ours over {peer.name}'s", stored / their_stored, "x", 0.05)
        yield Figure("peers", f"storing and judging, ours over {peer.name}'s", judged / their_stored, "x")
        yield Figure("peers", f"page of a run, ours over {peer.name}'s", page / their_page, "x", 0.1)


def _ours(application: Application) -> tuple[float, float, float]:
    """CPU of application and database in ms: per measurement stored, and judged too; of the page of a run."""
    from hud.judging.judge import process_pending

    stored, judged = list[float](), list[float]()
    for night in range(1, _NIGHTS + 1):
        content = body(night, shape="harness")
        before_ms = application.web_cpu_ms() + application.database_cpu_ms()
        receipt = application.upload(content, f"commit={night:x}&commit_date={_date(night)}&branch=peers")
        stored.append(application.web_cpu_ms() + application.database_cpu_ms() - before_ms)
        before_ms = application.database_cpu_ms() + time.process_time() * 1000
        while process_pending():
            pass
        judged.append(application.database_cpu_ms() + time.process_time() * 1000 - before_ms)
    page_ms = _cost_of_page(
        f"{application.hud.url}/runs/{receipt['run_ids'][0]}/",
        lambda: application.web_cpu_ms() + application.database_cpu_ms(),
    )
    stored_ms = statistics.median(stored[_KNOWN:]) / RECORDS
    return stored_ms, stored_ms + statistics.median(judged[_KNOWN:]) / RECORDS, page_ms


def _measured(peer: _Peer, url: str, spent_ms: Callable[[], float]) -> tuple[float, float]:
    stored = []
    for night in range(1, _NIGHTS + 1):
        values = [value_of(number, night) for number in range(RECORDS)]
        form = urllib.parse.urlencode({peer.field: json.dumps(peer.night(night, values))}).encode()
        before_ms = spent_ms()
        _read(f"{url}{peer.path}", form)
        stored.append(spent_ms() - before_ms)
    return (
        statistics.median(stored[_KNOWN:]) / RECORDS,
        _cost_of_page(f"{url}{peer.page.format(_NIGHTS)}", spent_ms),
    )


def _cost_of_page(url: str, spent_ms: Callable[[], float]) -> float:
    costs = []
    for _ in range(1 + _LOOKS):
        before_ms = spent_ms()
        _read(url)
        costs.append(spent_ms() - before_ms)
    return statistics.median(costs[1:])


@contextmanager
def _serving(
    peer: _Peer, checkout: Path, application: Application
) -> Iterator[tuple[str, Callable[[], float]]]:
    """Serve a peer; yield its address and how much CPU it and the database have spent."""
    database = settings.DATABASES["default"]
    about = {name.lower(): database[name] for name in ("HOST", "PORT", "USER")}
    with psycopg.connect(dbname=database["NAME"], autocommit=True, **about) as connection:
        connection.execute(f"CREATE DATABASE {peer.name}")
    folder = application.data / peer.name
    folder.mkdir()
    (folder / "peer.py").write_text(peer.application.format(name=peer.name.lower(), **about))
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [str(checkout.resolve() / ".venv/bin/python"), "-m", "gunicorn", "--timeout", "600"]
    process = start_process(
        [*command, "--bind", f"127.0.0.1:{port}", "peer:application"],
        folder / "log",
        {**os.environ, "PYTHONPATH": str(checkout.resolve()), "DJANGO_SETTINGS_MODULE": ""},
        folder,
    )
    try:
        wait_for(lambda: _answers(url), peer.name)
        yield url, lambda: processes.cpu_ms(process.pid) + application.database_cpu_ms()
    finally:
        end_process(process, signal.SIGTERM)


def _answers(url: str) -> bool:
    with suppress(OSError):
        _read(url)
        return True
    return False


def _read(url: str, form: bytes | None = None) -> bytes:
    with urllib.request.urlopen(url, form, timeout=600) as answer:
        content: bytes = answer.read()
        return content


def _date(night: int) -> str:
    return f"2026-01-{night:02}T00:00:00"
