"""F7 and F12: disks that take nothing more, of the hud, its database and a host: said, waited for, nothing
called ok. Hosts with wrong clocks.

A limit on the size of files plays the full disk here, since it needs no rights and can be lifted; where
PostgreSQL is concerned, its own error.
"""

from __future__ import annotations

import contextlib
import re
import resource
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from hud.models import Accelerator, Host, Measurement, State
from tests.faults.installation.site import Site, only_task, tree
from tests.support.hosts import alive

pytestmark = pytest.mark.django_db(transaction=True)

HOUR_S, MONTH_S = 3600, 30 * 24 * 3600
SKEWED = Path(__file__).resolve().parent / "skewed"


@pytest.fixture
def _django_db_helper(django_db_setup: None) -> None:
    """Not pytest-django's own, which empties the database after each test."""


@pytest.fixture
def site(shared_site: Site) -> Site:
    """One for all tests of this file, since each takes seconds to start."""
    return shared_site


@contextlib.contextmanager
def no_room(root: int) -> Iterator[None]:
    """A process and those below it can write no file, nor those that they start meanwhile."""
    limited = tree(root)
    for pid in limited:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, -1))
    try:
        yield
    finally:
        for pid in {*limited, *tree(root)}:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (-1, -1))


@contextlib.contextmanager
def no_room_for_measurements() -> Iterator[None]:
    """The database says that its disk is full, to whoever stores a measurement."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
            CREATE TRIGGER no_room BEFORE INSERT ON hud_point EXECUTE FUNCTION no_room();
            CREATE TRIGGER no_room BEFORE INSERT ON hud_detailedmeasurement EXECUTE FUNCTION no_room()
            """
        )
        try:
            yield
        finally:
            cursor.execute("DROP FUNCTION no_room CASCADE")


def test_the_disks_of_the_hud_are_full(site: Site) -> None:
    """The task is done, but not ok before the hud has all of it; its lease is kept meanwhile."""
    site.control.plan({"*": {"wait_for": "go"}})
    run = site.request()
    benchmark = site.control.wait_for_start()
    with contextlib.ExitStack() as full:
        full.enter_context(no_room(site.hud.pid))
        full.enter_context(no_room_for_measurements())
        site.control.go()
        site.wait(lambda: not alive(benchmark), "the end of the benchmark")
        site.wait(lambda: "waits in the spool: 507" in site.host.log, "the agent's word")
        assert site.ask("/readyz")[0] == 503
        assert site.ask("/overview.json")[0] == 200
        site.wait(lambda: only_task(run).progress.get("phase") == "deliver", "a lease that is kept")
        assert only_task(run).state == "running"
        assert not Measurement.objects.filter(run=run).exists()
    with site.measured("delivered, from when there was room"):
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt, site.control.starts) == (State.SUCCEEDED, 1, 1)
    assert Measurement.objects.filter(run=run).count() == 2
    assert site.ask("/readyz")[1]["components"]["disk"] == "ok"


def test_the_disk_of_a_host_is_full(site: Site) -> None:
    """What could not be kept is no success; afterwards the host works as before."""
    site.control.plan({"1": {"wait_for": "go"}})
    run = site.request()
    benchmark = site.control.wait_for_start()
    with no_room(site.host.pid):
        site.control.go()
        site.wait(lambda: not alive(benchmark), "the end of the benchmark")
        with site.measured("failed"):
            (ended,) = site.wait_for_end(run)
        assert (ended.state, only_task(run).attempt) == (State.FAILED, 1)
        assert ended.reason
        waiting = site.request()
        site.wait_for_changes(2, lambda: Accelerator.objects.get().rung_at, "another ring of the bell")
        waiting.refresh_from_db()
        assert (waiting.state, site.control.starts) == (State.QUEUED, 1), "a host without room claims nothing"
    with site.measured("the next task, from when there was room"):
        (after,) = site.wait_for_end(waiting)
    assert (after.state, only_task(after).attempt) == (State.SUCCEEDED, 1)


def test_hosts_with_wrong_clocks(site: Site) -> None:
    """F12: hours and months off: the hud's clock counts, and the page says so."""
    began = timezone.now()
    skews_s = (HOUR_S, -MONTH_S) if site.times.scaled else (HOUR_S, -HOUR_S, MONTH_S, -MONTH_S)
    for skew_s in skews_s:
        name = f"skewed{skew_s}"
        site.attach(name, environment={"PYTHONPATH": str(SKEWED), "SKEW_S": str(skew_s)})
        run = site.request("layer_norm", labels={"host": name})
        (ended,) = site.wait_for_end(run)
        assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 1)
        assert ended.started
        assert ended.finished
        assert began <= ended.order_time <= ended.started <= ended.finished <= timezone.now()
        host = Host.objects.get(name=name)
        assert host.clock_skew_s == pytest.approx(skew_s, abs=5)
        assert host.last_beat
        assert abs(host.last_beat - timezone.now()) < timedelta(seconds=60), "a beat is noted in our time"
        assert site.host_state(name) == "online"
        with urllib.request.urlopen(f"{site.hud.url}/hosts/", timeout=10) as page:
            said = re.search(rf">{name}<.*?its clock is (-?\d+) s off", page.read().decode(), re.DOTALL)
        assert said
        assert int(said[1]) == pytest.approx(skew_s, abs=5)
        site.hosts[name].stop()
