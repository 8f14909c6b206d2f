"""F8: networks that are slow, that drop, reset or swallow what is sent: nothing hangs, nothing is lost."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from django.conf import settings

from hud.accounts.keys import create_key
from hud.models import Run, State, Task
from tests.faults.installation.proxy import Proxy
from tests.faults.installation.site import Site, only_task
from tests.support.hosts import Control, alive

pytestmark = pytest.mark.django_db(transaction=True)

WEB_S = 10  # no answer of the web takes longer, whatever the network does


@pytest.fixture
def _django_db_helper(django_db_setup: None) -> None:
    """Not pytest-django's own, which empties the database after each test."""


@pytest.fixture
def site(shared_site: Site) -> Site:
    """One for all tests of this file, since each takes seconds to start."""
    return shared_site


@pytest.fixture
def network(site: Site) -> Iterator[Proxy]:
    """Between the web and host "far"."""
    proxy = Proxy(("127.0.0.1", site.hud.port), latency_s=0.1 if site.times.scaled else 0.5)
    site.attach("far", through=f"http://127.0.0.1:{proxy.port}")
    yield proxy
    proxy.close()


def start(site: Site, number: int) -> Run:
    """A run on "far" whose benchmark has begun, and waits for the file go-<number>."""
    far: Control = site.controls["far"]
    far.plan({str(number): {"wait_for": f"go-{number}"}})
    run = site.request(labels={"host": "far"})
    far.wait_for_start(number)
    return run


def test_networks_that_are_slow_drop_reset_and_swallow(site: Site, network: Proxy) -> None:
    """One story, because each host takes seconds to attach."""
    for number, fault in enumerate(("slow", "drip", "reset"), 1):
        run = start(site, number)
        network.fault = fault
        site.controls["far"].go(f"go-{number}")
        with site.measured(f"{fault}: succeeded"):
            if fault == "reset":  # for less than a lease
                site.wait(lambda: not alive(site.controls["far"].pids[-1]), "the end of the benchmark")
                site.let_last(20, scaled_s=1)
                network.fault = ""
            (ended,) = site.wait_for_end(run)
        assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 1), fault
        network.fault = ""
    _swallowed(site, network, 4)


def _swallowed(site: Site, network: Proxy, number: int) -> None:
    """The host is late, then lost; back again, its first attempt is refused and the second counts."""
    run = start(site, number)
    benchmark = site.controls["far"].pids[-1]
    network.fault = "blackhole"
    began = time.monotonic()
    for state in ("late", "lost"):
        site.wait(lambda state=state: site.host_state("far") == state, f"a host that is {state}")  # type: ignore[misc]
        site.figure(f"the host is {state}", time.monotonic() - began)
    site.wait(lambda: only_task(run).state == Task.State.QUEUED, "the broken lease")
    assert site.ask("/overview.json")[0] == 200
    network.fault = ""
    with site.measured("online, from the network's return"):
        site.wait(lambda: site.host_state("far") == "online", "the host")
    with site.measured("old benchmark ended, new attempt succeeded"):
        (ended,) = site.wait_for_end(run)
        site.wait(lambda: not alive(benchmark), "the end of the old benchmark")
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 2)


@pytest.mark.soak
def test_answers_that_never_arrive(site: Site, network: Proxy) -> None:
    """Half-open for half a minute: what the hud took is not done again."""
    if site.times.scaled:
        pytest.skip("the client's patience is not scaled")
    run = start(site, 1)
    network.fault = "half_open"
    site.controls["far"].go("go-1")
    site.let_last(30)
    network.fault = ""
    with site.measured("half open: succeeded, from the network's return"):
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 1)
    assert site.controls["far"].starts == 1


def test_a_redis_that_never_answers(site: Site) -> None:
    """Reading and asking for a run take no notice; tick goes on; the run is rung for afterwards. This is the
    last test of the file: the web goes on through the proxy."""
    own = urlsplit(settings.REDIS_URL)
    proxy = Proxy(own.path)
    url = f"redis://{own.username}:{own.password}@127.0.0.1:{proxy.port}/0"
    site.stop_tick()
    site.hud.stop()
    site.start_web(REDIS_URL=url)
    site.start_tick(REDIS_URL=url)
    site.wait(lambda: site.host.log.count("worker of cpu is process") == 2, "a worker at the new address")
    proxy.fault = "blackhole"
    with site.measured("a rerun is taken by the web"):
        run = request_over_http(site)
        assert site.ask("/overview.json")[0] == 200
    proxy.fault = ""
    with site.measured("run and succeeded, from Redis's return"):
        (ended,) = site.wait_for_end(run)
    assert (ended.state, only_task(run).attempt) == (State.SUCCEEDED, 1)
    if not site.times.scaled:
        proxy.fault = "half_open"
        site.let_last(12)  # over ten seconds: the worker's wait for the bell has lost its answer
        proxy.fault = ""
        with site.measured("run and succeeded, from when the worker's line was cut"):
            (ended,) = site.wait_for_end(request_over_http(site))
        assert ended.state == State.SUCCEEDED
    proxy.close()


def request_over_http(site: Site) -> Run:
    _key, secret = create_key(name="person", scopes=["run"], who="test")
    request = urllib.request.Request(
        f"{site.hud.url}/api/v1/runs",
        data=json.dumps({"suite": "micro", "cases": ["layer_norm"], "device": "cpu"}).encode(),
        headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=WEB_S) as answer:
        return Run.objects.get(pk=json.loads(answer.read())["id"])
