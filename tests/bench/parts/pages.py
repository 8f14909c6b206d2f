"""Every page and its JSON over 1 M measurements in 4,000 generated series, beside the samples: CPU of the
application, with compression, and of its connection to the database. `BENCH_ROWS` names another size."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench import processes
from tests.bench.application import Application
from tests.bench.figures import Figure, median_of
from tests.bench.parts.ingest import SIZES

if TYPE_CHECKING:
    from django.test import Client

REPEATS = 15
LIMIT_MS = 25
COMPILATIONS = 90  # of a model and of a kernel
LARGEST_KB = 150  # of a page, gzip, beside the chart library
_FIFTY = "stream=nightly&suite=timm&metric=device_speedup&nights=200&" + "&".join(
    f"case=model_{number:02}" for number in range(10)
)
_GZIP = {"accept-encoding": "gzip"}


@dataclass(frozen=True)
class Cost:
    """The cost of the answers to one address."""

    address: str
    statements: int
    sent_bytes: int
    first_ms: float  # CPU of the application, for the first answer of a process
    app_ms: list[float]
    database_ms: list[float]

    @property
    def figures(self) -> Iterator[Figure]:
        about = f"{self.address} ({self.statements} statements, {self.sent_bytes / 1000:.0f} kB)"
        yield median_of("pages", f"app CPU, {about}", self.app_ms, "ms", LIMIT_MS)
        yield median_of("pages", f"database CPU, {self.address}", self.database_ms, "ms", LIMIT_MS)


def pages(_application: Application) -> Iterator[Figure]:
    from hud.models import Measurement, Series

    fill(SIZES[-1])
    series = Series.objects.filter(experiment__arch="b200").count()
    yield Figure("pages", f"measurements, most of them in {series} series", Measurement.objects.count(), "")
    heaviest = 0.0, ""
    for cost in measure(addresses()):
        yield from cost.figures
        heaviest = max(heaviest, (cost.sent_bytes / 1000, cost.address))
    yield Figure("pages", f"largest answer, gzip: {heaviest[1]}", heaviest[0], "kB", LARGEST_KB)


def fill(rows: int) -> None:
    """Store the samples and about `rows` generated measurements, and judge them all."""
    from django.core.management import call_command
    from django.db import connection

    from hud.judging.judge import process_pending
    from hud.judging.regressions.groups import make_causes
    from hud.points.streams import note_nights
    from hud.server.up import SAMPLES
    from runner.suites import SUITES
    from tests.bench.nights import SERIES, generate, repeat
    from tests.support.factories import create_accelerator

    call_command("ingest", *map(str, sorted(SAMPLES.iterdir())), verbosity=0)
    for arch in ("h200", "b200"):
        create_accelerator(arch=arch, suites=list(SUITES))
    for experiment in compiled():
        repeat(experiment, COMPILATIONS)
    generate(nights=max(rows // SERIES, 2))
    process_pending(10**6)  # marks the series of all runs
    while process_pending(40):  # as few as have together the points of one round
        pass
    make_causes()
    note_nights()
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")


def compiled() -> list[int]:
    """Return the experiment of a model and that of a kernel that have the most compilations."""
    from django.db.models import Count, Max

    from hud.models import Compilation

    known = Compilation.objects.exclude(kernels=[]).values("experiment")
    counted = known.annotate(compilations=Count("repeat"), most=Max("kernels__len"))
    return [
        counted.filter(most__gt=few, most__lte=many).order_by("-compilations")[0]["experiment"]
        for few, many in ((3, 10_000), (0, 3))
    ]


def addresses() -> list[str]:
    """Return every page with something on it, each followed by its JSON."""
    from hud.models import Compilation, Experiment, Regression, Run

    newest, older = (run.pk for run in Run.objects.filter(source="nightly").order_by("-order_time")[:8:7])
    model, kernel = compiled()
    generated = Experiment.objects.filter(arch="b200", suite="timm", case="model_01")[0].pk
    regression = Regression.objects.filter(state="open").order_by("-since")[0].pk
    runs = Compilation.objects.filter(experiment=model).values_list("run").order_by("-run").distinct()
    (head,), (base,) = runs[:2]
    code = f"base=run:{base}/experiment:{model}&head=run:{head}/experiment:{model}"
    found = {
        "/": "/overview.json",
        "/?arch=b200": "/overview.json?arch=b200",
        "/compilers/?arch=b200": "/compilers.json?arch=b200",
        "/suites/": "/suites.json",
        "/suites/torchbench/?arch=b200": "/suites/torchbench.json?arch=b200",
        "/models/timm/model_01/": "/models/timm/model_01.json",
        **{f"/experiments/{one}/": f"/experiments/{one}.json" for one in (model, kernel, generated)},
        f"/experiments/{generated}/?points=1000&table=all": f"/experiments/{generated}.csv?points=1000",
        "/explore/": "/explore.json",
        f"/explore/?{_FIFTY}": f"/explore/?{_FIFTY}&relative=first",
        "/runs/": "/runs.json",
        f"/runs/{newest}/": f"/runs/{newest}.json",
        f"/runs/{newest}/live": "/hosts/live",
        f"/regressions/?id={regression}": "/regressions.json",
        f"/compare/?base=run:{older}&head=run:{newest}": f"/compare.json?base=run:{older}&head=run:{newest}",
        f"/code/?{code}": f"/code.json?{code}",
        "/search/?q=model_0": "/search.json?q=model_0",
        **{f"/{name}/": f"/{name}.json" for name in ("limits", "funnel", "hosts", "rules", "follow")},
        **{f"/{name}/": f"/{name}.json" for name in ("keys", "audit")},
    }
    return [address for pair in found.items() for address in pair]


def measure(asked: list[str]) -> Iterator[Cost]:
    """Yield what each address takes. A person who is logged in asks for keys and audit, a visitor for the
    rest. The connection has no parallel workers, so that its process has all CPU of the database."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client

    from hud.management.commands.bootstrap import OPERATOR
    from hud.server.gunicorn_conf import OBJECTS_UNTIL_COLLECTION

    visitor, admin = Client(), Client()
    admin.force_login(User.objects.get(username=OPERATOR))
    with connection.cursor() as cursor:
        cursor.execute("SET max_parallel_workers_per_gather = 0")
        cursor.execute("SELECT pg_backend_pid()")
        backend = int(cursor.fetchone()[0])
    gc.collect()
    gc.freeze()  # as the web's workers do, with their threshold
    gc.set_threshold(OBJECTS_UNTIL_COLLECTION)
    for address in asked:
        needs_login = address.startswith(("/keys", "/audit", "/follow"))
        yield _measured(admin if needs_login else visitor, address, backend)


def _measured(client: Client, address: str, backend: int) -> Cost:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    def answer() -> tuple[float, int]:
        before_s = time.process_time()
        found = client.get(address, headers=_GZIP)
        spent_ms = (time.process_time() - before_s) * 1000
        assert found.status_code == 200, (address, found.status_code)
        return spent_ms, len(found.content)

    first_ms, sent_bytes = answer()
    with CaptureQueriesContext(connection) as statements:
        answer()
        count = len(statements)
    app_ms, database_ms = [], []
    for _ in range(REPEATS):
        before_ms = processes.own_ms(backend)
        app_ms.append(answer()[0])
        database_ms.append(processes.own_ms(backend) - before_ms)
    return Cost(address, count, sent_bytes, first_ms, app_ms, database_ms)
