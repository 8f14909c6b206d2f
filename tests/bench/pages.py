"""Pages over a large store; the application's CPU, not the browser's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.bench.application import Application
from tests.bench.figures import Figure, median_of
from tests.bench.ingest import SIZES
from tests.bench.records import body

REPEATS = 5


def pages(application: Application) -> Iterator[Figure]:
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from hud.models import Experiment, Measurement, Run
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
    for address in addresses:
        with CaptureQueriesContext(connection) as statements:
            assert client.get(address).status_code == 200, address
            count = len(statements)
        cpu_ms = [_cpu_ms(lambda: client.get(address)) for _ in range(REPEATS)]  # noqa: B023
        yield median_of("pages", f"{address} ({count} statements), app CPU", cpu_ms, "ms", 25)


def _cpu_ms(work: Callable[[], object]) -> float:
    before_s = time.process_time()
    work()
    return (time.process_time() - before_s) * 1000
