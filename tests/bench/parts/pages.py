"""Pages over a large store; the application's CPU, not the browser's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tests.bench.application import Application
from tests.bench.figures import Figure, median_of
from tests.bench.parts.ingest import SIZES
from tests.bench.records import body

if TYPE_CHECKING:
    from django.test import Client

REPEATS = 5


def pages(application: Application) -> Iterator[Figure]:
    from django.test import Client

    from hud.judging.judge import process_pending
    from hud.models import Experiment, Measurement, Run
    from tests.bench.nights import generate
    from tests.bench.rows import grow

    application.upload(body(-3), "commit=pages&commit_date=2026-03-01")
    grow(SIZES[-1])
    client = Client()
    experiment, run = Experiment.objects.first(), Run.objects.last()
    assert experiment
    assert run
    yield Figure("pages", "measurements in the store", Measurement.objects.count(), "")
    addresses = ["/", "/suites/torchbench/", "/runs/", "/hosts/"]
    addresses += [f"/experiments/{experiment.pk}/", f"/runs/{run.pk}/"]
    yield from _timed(client, addresses)
    generate()
    while process_pending(2000):
        pass
    yield from _timed(client, ["/?arch=b200", "/compilers/?arch=b200", "/compilers.json?arch=b200"])


def _timed(client: Client, addresses: list[str]) -> Iterator[Figure]:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    for address in addresses:
        assert client.get(address).status_code == 200, address
        with CaptureQueriesContext(connection) as statements:
            assert client.get(address).status_code == 200, address
            count = len(statements)
        cpu_ms = [_cpu_ms(lambda: client.get(address)) for _ in range(REPEATS)]  # noqa: B023
        yield median_of("pages", f"{address} ({count} statements), app CPU", cpu_ms, "ms", 25)


def _cpu_ms(work: Callable[[], object]) -> float:
    before_s = time.process_time()
    work()
    return (time.process_time() - before_s) * 1000
