"""Anything may be killed, frozen or taken away: every task ends once, in its true state; nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request

import pytest
from django.db import connection, transaction

from hud.models import Heartbeat, Measurement, Run, State, Task
from hud.runs import matching, requests, tasks
from hud.runs.logs import read
from runner.schema.protocol import CHANGED_INTERPRETER
from runner.schema.tasks import Selection
from tests.faults.installation.site import Site, freeze, only_task, thaw, tree, worker_of
from tests.support.claims import options
from tests.support.hosts import alive
from tests.support.servers import ROOT, EmbeddedServer

pytestmark = pytest.mark.django_db(transaction=True)

DEAD_S = 2  # a benchmark whose host's processes are killed
CRASH_S = 5  # from a crash to its run's end


@pytest.fixture
def _django_db_helper(django_db_setup: None) -> None:
    """Not pytest-django's own, which empties the database after each test."""


@pytest.fixture
def site(shared_site: Site) -> Site:
    """One for all tests of this file, since each takes seconds to start."""
    return shared_site


def assert_measured_once(run: Run) -> None:
    """The stand-in has two sizes; both are there, once."""
    measured = Measurement.objects.filter(run=run, value__isnull=False)
    assert measured.count() == 2 * Task.objects.filter(run=run).count()


def test_kill_9_of_the_agent(site: Site) -> None:
    site.control.plan({"1": {"spin": True, "deaf": True}})
    run = site.request()
    benchmark, worker = site.control.wait_for_start(), worker_of(site.host)
    with site.measured("benchmark and worker dead"):
        site.host.kill()
        site.wait(lambda: not alive(benchmark) and not alive(worker), "their end", DEAD_S)
    with site.measured("tried again and succeeded"):
        site.host.start()
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 2)
    assert_measured_once(run)


def test_kill_9_of_the_worker(site: Site) -> None:
    site.control.plan({"1": {"spin": True, "deaf": True, "stray": True}})
    run = site.request()
    benchmark, stray = site.control.wait_for_start(), site.control.stray
    with site.measured("benchmark dead"):
        os.kill(worker_of(site.host), signal.SIGKILL)
        site.wait(lambda: not alive(benchmark), "the benchmark's end", DEAD_S)
    with site.measured("tried again and succeeded"):
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 2)
    assert "lost once" in only_task(run).reason or only_task(run).status == "ok"
    assert not alive(stray)
    assert_measured_once(run)


def test_a_task_that_kills_its_worker_twice_is_lost(site: Site) -> None:
    site.control.plan({"*": {"spin": True}})
    run = site.request()
    for start in (1, 2):
        site.control.wait_for_start(start)
        os.kill(worker_of(site.host), signal.SIGKILL)
        if start == 1:
            site.wait(lambda: site.control.starts == 2, "the second attempt")
    with site.measured("lost for good"):
        (ended,) = site.wait_for_end(run)
    assert ended.state == State.LOST
    assert "attempt 2" in ended.reason
    assert site.control.starts == 2


def test_kill_9_of_the_benchmark_is_a_crash(site: Site) -> None:
    """The same path as the system's out-of-memory killer: failed with the signal's name, not tried again."""
    site.control.plan({"1": {"spin": True, "stray": True}})
    run = site.request()
    benchmark = site.control.wait_for_start()
    with site.measured("failed"):
        os.kill(benchmark, signal.SIGKILL)
        (ended,) = site.wait_for_end(run, timeout_s=CRASH_S)
    assert ended.state == State.FAILED
    task = only_task(run)
    assert (task.status, task.code, task.attempt) == ("crashed", "SIGKILL", 1)
    assert not alive(benchmark)
    assert not alive(site.control.stray)
    assert b"stand-in at work\n" in read(task, 0, 1000)
    (ended,) = site.wait_for_end(site.request())
    assert ended.state == State.SUCCEEDED


def test_sigterm_gives_the_task_back(site: Site) -> None:
    site.control.plan({"1": {"spin": True}})
    run = site.request()
    site.control.wait_for_start()
    pids = tree(site.host.pid)
    with site.measured("everything gone"):
        site.host.stop(timeout_s=13)
    assert not any(alive(pid) for pid in pids)
    assert (only_task(run).state, only_task(run).attempt) == (Task.State.QUEUED, 0)
    with site.measured("run elsewhere or again"):
        site.host.start()
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 1)


def test_redis_killed_and_wiped(site: Site) -> None:
    """Twenty runs are queued; Redis loses them all. Pages never need it."""
    site.control.plan({"1": {"wait_for": "go"}})
    first = site.request()
    site.control.wait_for_start()
    queued = [site.request() for _ in range(19)]
    site.redis.wipe()
    with site.measured("a rerun is taken without Redis"):
        late = site.request()
    with urllib.request.urlopen(f"{site.hud.url}/", timeout=10) as page:
        assert page.status == 200
    site.control.go()
    site.wait_for_end(first)
    site.redis.start()
    with site.measured("20 queued runs worked off"):
        ended = site.wait_for_end(*queued, late)
    assert {run.state for run in ended} == {State.SUCCEEDED}
    assert site.control.starts == 21
    assert {task.attempt for task in Task.objects.all()} == {1}


def test_a_crash_between_commit_and_doorbell(site: Site) -> None:
    """The process ends after the commit, before it rings: tick finds the run."""
    code = """
import os, django
django.setup()
from hud.runs import matching, requests as runs
from runner.schema.tasks import Selection
from tests.support.claims import options
matching.ring_idle = lambda **_run: os._exit(9)
runs.request_suite(Selection("micro", "cpu", cases=["layer_norm"]), options(device="cpu"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=site.environment, capture_output=True, check=False
    )
    assert done.returncode == 9, done.stderr.decode()
    with site.measured("found, run and succeeded"):
        (ended,) = site.wait_for_end(Run.objects.get())
    assert ended.state == State.SUCCEEDED


def test_a_frozen_host_wakes_up(site: Site) -> None:
    """Given up while it slept; what it says afterwards is refused, and the second attempt counts."""
    site.control.plan({"1": {"wait_for": "go"}})
    run = site.request()
    benchmark = site.control.wait_for_start()
    site.wait(Measurement.objects.exists, "the first results")
    pids = tree(site.host.pid)
    freeze(pids)
    with site.measured("lease broken"):
        site.wait(lambda: only_task(run).state == Task.State.QUEUED, "the broken lease")
    assert only_task(run).attempt == 1
    site.wait(lambda: site.host_state("here") == "lost", "a lost host")
    site.let_last(60)  # two minutes in all
    site.control.go()  # it would end ok now, were it still its task
    thaw(pids)
    with site.measured("awake, old attempt refused, new one succeeded"):
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 2)
    assert not alive(benchmark)
    refused = site.data / "refused" / f"{only_task(run).uid}-1"
    site.wait(refused.exists, "the refused folder")
    assert (refused / "results.jsonl").exists()
    assert_measured_once(run)


def test_a_frozen_host_and_another_one(site: Site) -> None:
    """The other host takes the task; the sleeper, awake, ends its own benchmark."""
    site.control.plan({"1": {"spin": True}})
    run = site.request()
    benchmark = site.control.wait_for_start()
    pids = tree(site.host.pid)
    freeze(pids)
    site.attach("there")
    with site.measured("succeeded on another host"):
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 2)
    assert alive(benchmark)
    thaw(pids)
    with site.measured("the sleeper's benchmark ended"):
        site.wait(lambda: not alive(benchmark), "the end of the old benchmark")
    assert_measured_once(run)


@pytest.mark.forgiving
def test_the_web_is_down_while_a_result_is_delivered(site: Site) -> None:
    site.control.plan({"1": {"wait_for": "go"}})
    run = site.request()
    benchmark = site.control.wait_for_start()
    site.hud.kill()
    site.control.go()
    site.wait(lambda: not alive(benchmark), "the end of the benchmark")
    (kept,) = (site.data / "spool").iterdir()
    site.wait((kept / "outcome.json").exists, "the outcome on the disk")
    with site.measured("delivered, from when the web was back"):
        site.start_web()
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 1)
    site.wait(lambda: not list((site.data / "spool").iterdir()), "an empty spool")
    assert_measured_once(run)


@pytest.mark.forgiving
def test_the_web_is_down_for_longer_than_a_lease(site: Site) -> None:
    """Silence that was our own breaks no lease: the task is not run twice."""
    site.control.plan({"1": {"wait_for": "go"}})
    run = site.request()
    site.control.wait_for_start()
    site.stop_tick()
    site.hud.kill()
    with connection.cursor() as cursor:  # the lease ends meanwhile
        cursor.execute("UPDATE hud_task SET lease_until = now() - interval '1 s' WHERE state = 'running'")
    site.start_tick(**site.times.forgiving)
    tick = Heartbeat.objects.filter(name="tick").values_list("last")
    site.wait_for_changes(3, tick.first, "another round of tick")  # not one breaks the lease
    site.start_web()
    site.control.go()
    with site.measured("delivered, from when the web was back"):
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 1)


@pytest.mark.forgiving
def test_postgresql_is_killed_while_a_task_runs(site: Site, postgres_server: EmbeddedServer) -> None:
    site.control.plan({"1": {"wait_for": "go"}})
    run = site.request()
    benchmark = site.control.wait_for_start()
    site.wait(Measurement.objects.exists, "the first results")
    with connection.cursor() as cursor:  # the tests' server answers before it has written
        cursor.execute("CHECKPOINT")
    connection.close()
    postgres_server.kill()
    with site.measured("refused while PostgreSQL is away"):
        status, problem = site.ask("/api/v1/hosts")
    assert (status, problem["status"]) == (503, 503)
    assert site.ask("/readyz")[0] == 503
    site.control.go()
    site.wait(lambda: not alive(benchmark), "the end of the benchmark")
    site.let_last(10)
    postgres_server.start()
    with site.measured("delivered, from when PostgreSQL was back"):
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 1)
    assert_measured_once(run)


def test_cancel(site: Site) -> None:
    site.control.plan({"1": {"spin": True, "deaf": not site.times.scaled, "stray": True}})
    run = site.request("layer_norm", "gemv")
    benchmark, stray = site.control.wait_for_start(), site.control.stray
    with site.measured("cancelled, nothing left alive"):
        tasks.cancel(run=run, who="test")
        (ended,) = site.wait_for_end(run)
        site.wait(lambda: not alive(benchmark) and not alive(stray), "their end", 1)
    assert ended.state == State.CANCELLED
    assert site.control.starts == 1


def test_a_doorbell_rung_many_times(site: Site) -> None:
    site.control.plan({"1": {"wait_for": "go"}})
    run = site.request()
    for _ in range(8):
        matching.ring_idle(again_s=0, run_id=run.pk)
    site.control.wait_for_start()
    for _ in range(8):
        matching.ring_idle(again_s=0, run_id=run.pk)
    site.control.go()
    (ended,) = site.wait_for_end(run)
    assert (ended.state, site.control.starts) == (State.SUCCEEDED, 1)


def test_torch_is_replaced_in_the_middle_of_an_ab_run(site: Site) -> None:
    """Pair 0 has ended when torch is replaced while pair 1 measures its second side; 3 pairs are left."""
    site.have_torch("1.0")
    asked = options(
        device="cpu", interpreter="default", base_interpreter="default", repeats=5, caches="fresh"
    )
    site.control.plan({"6": {"wait_for": "go"}})
    with transaction.atomic():
        run = requests.request_suite(Selection("micro", "cpu", cases=["layer_norm"]), asked)
    site.control.wait_for_start(6)
    site.control.install_torch("2.0")
    site.control.go()
    (ended,) = site.wait_for_end(run)
    assert ended.state == State.FAILED
    states = [(task.status, task.code) for task in ended.tasks.order_by("position")]
    assert states == [("ok", ""), *[("failed", CHANGED_INTERPRETER)] * 4]
    assert site.control.starts == 6, "what meets another torch is not started"
    torches = Measurement.objects.filter(run=run).values_list("environment__torch", flat=True)
    assert set(torches) == {"1.0"}
    assert "1.0" in ended.reason
    assert "2.0" in ended.reason
    site.wait_for_torch("2.0")
    (after,) = site.wait_for_end(site.request())
    assert after.state == State.SUCCEEDED, "a new run begins with it"


def test_out_of_memory_is_not_tried_again(site: Site) -> None:
    site.control.plan({"1": {"status": "oom", "code": "out_of_memory", "reason": "tried 200 GiB"}})
    run = site.request()
    (ended,) = site.wait_for_end(run)
    assert (ended.state, ended.reason, site.control.starts) == (State.FAILED, "tried 200 GiB", 1)
    (after,) = site.wait_for_end(site.request())
    assert after.state == State.SUCCEEDED


def test_a_hang_in_c_times_out(site: Site) -> None:
    """In real time also one that ignores SIGTERM, which takes ten seconds more."""
    site.control.plan({"1": {"spin": True, "deaf": not site.times.scaled}})
    with site.measured("timed out, from the request"):
        run = site.request(timeout_s=2)
        (ended,) = site.wait_for_end(run)
    assert not alive(site.control.pids[0])
    assert (ended.state, site.control.starts) == (State.TIMED_OUT, 1)
