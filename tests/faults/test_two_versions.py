"""An upgrade under load: the release of before and this one serve one database behind nginx, and an agent of
before keeps its task until only this one is left. No answer is an error, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from django.conf import settings
from prometheus_client.parser import text_string_to_metric_families

from hud.accounts.keys import create_key
from hud.models import Measurement, Run, State, Task
from hud.server.backup import MIGRATIONS
from tests.faults.installation.invariants import violations
from tests.faults.installation.site import Site, Times
from tests.faults.test_load import RECORDS, Load
from tests.soak import Figures
from tests.support.hosts import alive
from tests.support.nginx import nginx
from tests.support.servers import ROOT, Hud, RedisServer, end_process, start_process

pytestmark = [
    pytest.mark.soak,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not shutil.which("nginx"), reason="no nginx"),
]
SECONDS = 60  # with both releases; a task lives over this, and its lease lasts 45
READERS, UPLOADERS = 6, 2
PAGES = (
    "/",
    "/compilers/",
    "/suites/",
    "/runs/",
    "/hosts/",
    "/regressions/",
    "/streams/",
    "/explore/",
    "/api/v1/hosts",
)
BACKGROUND = ("judge", "imports")


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of the last commit that lacked the newest migration, or of `UPGRADE_FROM`."""
    newest = f"hud/migrations/{MIGRATIONS[-1]}.py"
    added = git("log", "-1", "--first-parent", "-m", "--diff-filter=A", "--format=%h", "--", newest)
    if not added:
        pytest.skip("the checkout has no history")
    commit = os.environ.get("UPGRADE_FROM") or f"{added}^"
    folder = tmp_path_factory.mktemp("before") / "checkout"
    git("worktree", "add", "--detach", str(folder), commit)
    print(f"\nthe release of before is {git('log', '-1', '--format=%h %s', commit)}")
    yield folder
    git("worktree", "remove", "--force", str(folder))


def start_background(site: Site, stack: ExitStack) -> Callable[[], None]:
    """Start tick and the others of the site's checkout. Return what ends them."""
    site.start_tick()
    processes = []
    for command in BACKGROUND:
        log = site.folder / f"{command}.log"
        arguments = [sys.executable, "manage.py", command, "--skip-checks"]
        processes.append(start_process(arguments, log, site.environment, site.checkout))
        stack.callback(processes[-1].kill)

    def end() -> None:
        site.stop_tick()
        for process in processes:
            end_process(process, signal.SIGTERM)

    return end


def statuses(web: Hud) -> Counter[str]:
    """Return how many requests a node has answered, by status."""
    with urllib.request.urlopen(f"{web.url}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        counts: Counter[str] = Counter()
        for sample in (sample for family in families for sample in family.samples):
            if sample.name == "hud_http_requests_total":
                counts[sample.labels["status"]] += int(sample.value)
    return counts


@dataclass
class Upgrade:
    """The site under load, and what its nodes answered."""

    site: Site
    load: Load
    log: Path  # of nginx
    of_before: Counter[str] = field(default_factory=Counter)
    of_this: Counter[str] = field(default_factory=Counter)

    def start_load(self, host: str) -> None:
        pages = [page for page in PAGES if self.load._call("GET", page)[0] == 200]
        assert len(pages) > len(PAGES) / 2
        self.load.every(10, lambda: self.load.request(host))
        for number in range(READERS):
            self.load.every(1, lambda: self.load.read(pages), first_s=number / READERS)
        for number in range(UPLOADERS):
            self.load.every(2, self.load.upload, first_s=number)

    def assert_no_error(self, figures: Figures) -> None:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        errors = [line for line in lines if line["status"] >= 500]
        figures.note(f"5xx of {len(lines)} answers of nginx", len(errors), most=0)
        for name, node in (("before", self.of_before), ("this release", self.of_this)):
            errors = [status for status in node.elements() if status >= "500"]
            figures.note(f"5xx of {node.total()} answers of {name}", len(errors), most=0)
            assert min(node["200"], node["201"]) > 10
        assert self.load.errors == []
        assert set(self.load.answered) == {RECORDS}


def test_two_releases_serve_one_database_and_a_running_night_goes_on(
    before: Path, hud_process: Hud, redis_server: RedisServer, tmp_path: Path, figures: Figures
) -> None:
    old = Hud(tmp_path, hud_process.database_url, before)
    site = Site(old, redis_server, Times(), tmp_path, lambda _what, _s: None, checkout=before)
    variables = {"HUD_UPLOADS_PER_MINUTE": "1e9", "HUD_RUNS_PER_MINUTE": "1e9"}
    with ExitStack() as stack:
        stack.callback(site.close)
        stack.callback(hud_process.stop)
        site.start_web(**variables)
        end_background = start_background(site, stack)
        url = stack.enter_context(nginx(tmp_path, [old, hud_process]))
        site.attach("here", through=url)
        site.control.plan({"1": {"wait_for": "go"}})
        night = site.request()
        site.control.wait_for_start()

        key = create_key(name="load", scopes=["upload", "run", "read"], who="t")[1]
        load = Load(site, key, port=int(url.rpartition(":")[2]))
        upgrade = Upgrade(site, load, tmp_path / "compiler-hud.json")
        stack.callback(load.join)
        load.upload()
        hud_process.start(**site.times.environment, **variables)
        site.checkout = ROOT
        site.attach("new", through=url)
        upgrade.start_load("new")
        load.stop.wait(SECONDS)
        upgrade.of_before = statuses(old)
        end_background()
        old.stop()
        site.hud = hud_process
        start_background(site, stack)
        load.stop.wait(SECONDS / 3)
        load.join()
        assert alive(site.control.pids[0]), "the upgrade is nothing to a benchmark"
        site.control.go()
        ended = site.wait_for_end(*Run.objects.filter(request__isnull=False))
        upgrade.of_this = statuses(hud_process)
        waiting = Run.objects.filter(unjudgedrun__isnull=False)
        site.wait(lambda: not waiting.exists(), "verdicts")
        found = violations(
            controls=site.controls.values(), keys=site.keys.values(), folders=[tmp_path, settings.HUD_DATA]
        )
    upgrade.assert_no_error(figures)
    assert found == []
    assert {run.state for run in ended} == {State.SUCCEEDED}
    uploaded, of_night = Measurement.objects.filter(run__request=None), Measurement.objects.filter(run=night)
    figures.note("measurements lost", sum(load.answered) - uploaded.count(), most=0)
    assert uploaded.count() == sum(load.answered)
    task = Task.objects.get(run=night)
    assert (task.state, task.attempt, site.control.starts) == (Task.State.DONE, 1, 1)
    figures.note("records of the night that went on", of_night.count(), least=1)
