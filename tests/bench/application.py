"""The application that is measured: gunicorn over an embedded PostgreSQL as durable as a site's own, both
over a new data folder that is gone afterwards."""

from __future__ import annotations

import http.client
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django

from tests.bench import processes
from tests.support.servers import Hud

_PATIENCE_S = 600


@dataclass(frozen=True)
class Application:
    data: Path
    hud: Hud
    secret: str  # of a key with the scope upload

    @property
    def postmaster(self) -> int:
        return int((self.data / "pg" / "postmaster.pid").read_text().split()[0])

    def web_cpu_ms(self) -> float:
        """CPU time so far of gunicorn's master and all its workers."""
        return processes.cpu_ms(self.hud.pid)

    def database_cpu_ms(self) -> float:
        """CPU time so far of every process of the server, those that ended included."""
        return processes.cpu_ms(self.postmaster)

    def upload(self, body: bytes, query: str) -> dict[str, Any]:
        """The receipt. Over a connection of its own, as a client has it that sends one file a night."""
        connection = http.client.HTTPConnection("127.0.0.1", self.hud.port, timeout=_PATIENCE_S)
        try:
            headers = {"Authorization": f"Bearer {self.secret}", "Content-Type": "application/json"}
            connection.request("POST", f"/api/v1/results?{query}", body, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        assert answer.status in {200, 201, 202}, (answer.status, content[:500])
        receipt: dict[str, Any] = json.loads(content)
        return receipt


@contextmanager
def running() -> Iterator[Application]:
    """Starts all of it, and sets Django up in this process over the same data folder."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    from hud.accounts.keys import create_key
    from hud.server import embedded

    settings.ALLOWED_HOSTS = ["*"]  # of the test client that the pages are drawn for
    data: Path = settings.HUD_DATA
    try:
        with embedded.running(embedded.servers(data), data / "logs"):
            call_command("migrate", verbosity=0)
            call_command("bootstrap", verbosity=0, stdout=io.StringIO())
            secret = create_key(name="bench", scopes=["upload"], who="bench")[1]
            hud = Hud(data, "")
            hud.start(WEB_CONCURRENCY="2", HUD_UPLOADS_PER_MINUTE="1000000")
            try:
                yield Application(data, hud, secret)
            finally:
                hud.stop()
    finally:
        shutil.rmtree(data)
