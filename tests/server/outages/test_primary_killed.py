"""A primary that is killed again and again under uploads, and an archive of it in a bucket of S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from tests.files.test_bucket import FILES, bucket, server
from tests.server.test_replica import Client, Database, site
from tests.soak import Figures
from tests.support.records import as_list, v3_record
from tests.support.servers import ROOT
from tests.support.waiting import wait_for

__all__ = ["bucket", "server", "site"]
pytestmark = [pytest.mark.soak, pytest.mark.alone]
KILLS = 5
UPLOADS = 20  # stored before each of them
PAGES = ("/", "/runs/", "/suites/", "/regressions/")
MOST_WAIT_S = 0.5  # of an uploader, whatever the answer asks for
LONG_AGO = 1_700_000_000  # in a month that is closed


@dataclass
class Traffic:
    """Uploads and readers, each in threads, until it is `over`."""

    client: Client
    stored: list[str] = field(default_factory=list)  # commits
    answers: Counter[int] = field(default_factory=Counter)
    says_replica: Event = field(default_factory=Event)
    over: Event = field(default_factory=Event)
    _numbers: count[int] = field(default_factory=lambda: count(0x1000000))

    def upload(self) -> None:
        own = copy(self.client)
        while not self.over.is_set():
            number = next(self._numbers)
            body = as_list(v3_record(timestamp=LONG_AGO + number, values=[1.0, 2.0, 4.0]))
            while (
                answer := own.ask(f"/api/v1/results?commit={number:x}", body=body, key=True)
            ).status == 503:
                self.answers[503] += 1
                if self.over.wait(min(MOST_WAIT_S, float(answer.headers["Retry-After"]))):
                    return
            assert answer.status in {200, 201}, own.text  # 200: it was stored before the answer got lost
            self.stored.append(f"{number:x}")

    def read(self) -> None:
        own = copy(self.client)
        while not self.over.is_set():
            for page in PAGES:
                self.answers[own.ask(page).status] += 1
                if "its replica has" in own.text:
                    self.says_replica.set()

    def wait_for_more(self) -> None:
        enough = len(self.stored) + UPLOADS
        wait_for(lambda: len(self.stored) >= enough, "uploads")


@pytest.mark.django_db(transaction=True)
def test_no_upload_is_lost_and_pages_go_on_while_the_primary_is_killed(
    site: tuple[Client, Database, Database], bucket: None, tmp_path: Path, figures: Figures
) -> None:
    client, primary, replica = site
    traffic = Traffic(client)
    with ThreadPoolExecutor() as pool:
        work = [pool.submit(task) for task in (traffic.upload, traffic.upload, traffic.read, traffic.read)]
        try:
            for _kill in range(KILLS):
                traffic.wait_for_more()
                traffic.says_replica.clear()
                primary.kill()
                assert traffic.says_replica.wait(30)
                primary.start()
                wait_for(replica.is_fed, "the replica")
            traffic.wait_for_more()
        finally:
            traffic.over.set()
    for task in work:
        task.result()
    assert traffic.answers.keys() == {200, 503}
    commits = Counter(run["commit"] for run in runs_of(client))
    lost = sum(commits[commit] != 1 for commit in traffic.stored)
    figures.note(f"uploads lost of {len(traffic.stored)} over {KILLS} kills", lost, most=0)
    assert lost == 0
    check_archive(client, primary, tmp_path)


def runs_of(client: Client) -> list[dict[str, object]]:
    items: list[dict[str, object]] = []
    address = "/api/v1/runs?limit=100"
    while address:
        client.ask(address, key=True)
        answer = json.loads(client.text)
        items += answer["items"]
        address = answer["next"] and f"/api/v1/runs?limit=100&cursor={answer['next']}"
    return items


def check_archive(client: Client, primary: Database, folder: Path) -> None:
    """The archive in the bucket equals the primary, also after a run went."""
    variables = {
        "DJANGO_SETTINGS_MODULE": "hud.settings",
        "DATABASE_URL": primary.url,
        "HUD_DATA": str(folder),
        "HUD_FILES": FILES,
        "SECRET_KEY": "of-a-test",
    }

    def archive(*words: str) -> tuple[int, str]:
        command = [sys.executable, "manage.py", "archive", *words]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    month = archive()[1].partition(": ")[0]
    assert archive("--verify") == (0, f"{month}: equal\n")
    run = runs_of(client)[0]["id"]
    assert client.ask(f"/api/v1/runs/{run}", key=True, method="DELETE").status == 200
    assert archive("--verify")[0] == 1
    assert archive()[1].startswith(f"{month}: ")
    assert archive("--verify") == (0, f"{month}: equal\n")
