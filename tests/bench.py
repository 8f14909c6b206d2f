"""`make bench [PART=start,ingest,judge,pages]`: figures on this machine, a table and `HUD_DATA/bench.json`.

CPU time, not wall time: a busy machine disturbs it little. No test asserts any of it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = Path(os.environ.get("HUD_DATA") or ROOT / "var") / "bench.json"
RECORDS = 5000  # of one upload
UPLOADS = 4
REPEATS = 5
_START = """
import resource, sys, time
import hud.wsgi
import django.urls
django.urls.get_resolver().url_patterns
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, "torch" in sys.modules)
"""


@dataclass(frozen=True)
class Figure:
    part: str
    what: str
    value: float
    unit: str
    limit: float | None = None  # what CONTRIBUTING's figures allow; None: no figure is set


def start() -> Iterator[Figure]:
    """The web process: CPU time and memory until it could answer, and that torch is not in it."""
    done = subprocess.run(
        [sys.executable, "-c", _START], capture_output=True, text=True, cwd=ROOT, env=os.environ, check=True
    )
    cpu_s, memory_mib, torch = done.stdout.split()
    yield Figure("start", "web process, CPU until ready", float(cpu_s), "s", 1.5)
    yield Figure("start", "web process, peak memory", float(memory_mib), "MiB", 150)
    yield Figure("start", "torch in the web process", float(torch == "True"), "", 0)


def ingest() -> Iterator[Figure]:
    """Uploads of 5,000 measurements through the API."""
    from django.test import Client

    from hud.keys import create_key

    _key, secret = create_key(name="bench", scopes=["upload"], who="bench")
    client = Client(headers={"authorization": f"Bearer {secret}"})
    app_ms, database_ms = [], []
    for upload in range(UPLOADS):
        body = _body(upload)
        before_ms, app_before = _postgres_cpu_ms(), time.process_time()
        answer = client.post(
            f"/api/v1/results?commit=c{upload}&commit_date=2026-01-0{upload + 1}",
            body,
            content_type="application/json",
        )
        app_ms.append((time.process_time() - app_before) * 1000 / RECORDS)
        database_ms.append((_postgres_cpu_ms() - before_ms) / RECORDS)
        assert answer.json()["stored"] == RECORDS, answer.content[:500]
    yield Figure("ingest", "first upload, app CPU per measurement", app_ms[0], "ms")
    yield Figure("ingest", "later uploads, app CPU per measurement", min(app_ms[1:]), "ms", 0.05)
    yield Figure("ingest", "later uploads, database CPU per measurement", min(database_ms[1:]), "ms")


def judge() -> Iterator[Figure]:
    """Verdicts of every series that the uploads touched."""
    from hud.judge import work_off

    before_s = time.process_time()
    judged = 0
    while done := work_off():
        judged += done
    cpu_ms = (time.process_time() - before_s) * 1000
    yield Figure("judge", "app CPU per touched series", cpu_ms / max(judged, 1), "ms", 5)


def pages() -> Iterator[Figure]:
    """Pages over what the uploads stored; the machine's CPU, not the browser's."""
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from hud.models import Experiment, Measurement, Run

    client = Client()
    experiment, run = Experiment.objects.first(), Run.objects.first()
    assert experiment
    assert run
    rows = Measurement.objects.count()
    yield Figure("pages", "measurements in the store", rows, "")
    addresses = ["/", "/suites/micro/", "/runs/", "/hosts/"]
    addresses += [f"/experiments/{experiment.pk}/", f"/runs/{run.pk}/"]
    for address in addresses:
        with CaptureQueriesContext(connection) as statements:
            assert client.get(address).status_code == 200, address
            count = len(statements)
        cpu_ms = statistics.median(_cpu_ms(lambda: client.get(address)) for _ in range(REPEATS))  # noqa: B023
        yield Figure("pages", f"{address} ({count} statements), app CPU", cpu_ms, "ms", 25)


PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    "start": start,
    "ingest": ingest,
    "judge": judge,
    "pages": pages,
}


def main(chosen: str) -> int:
    parts = [name for name in chosen.split(",") if name] or list(PARTS)
    unknown = [name for name in parts if name not in PARTS]
    if unknown:
        sys.stderr.write(f"make bench: no part is called {unknown[0]!r}; there are: {', '.join(PARTS)}\n")
        return 2
    if {"judge", "pages"} & set(parts):
        parts = [name for name in PARTS if name in {*parts, "ingest"}]  # they work on what it stores
    figures = []
    with _application():
        for name in parts:
            for figure in PARTS[name]():
                figures.append(figure)
                limit = "" if figure.limit is None else f"  at most {figure.limit:g}"
                print(f"{figure.part:<7} {figure.what:<58} {figure.value:>10.3f} {figure.unit:<4}{limit}")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    print(f"written to {OUTPUT}")
    return 0


@contextmanager
def _application() -> Iterator[None]:
    """The application over servers and a data folder of its own, which are gone afterwards."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    import shutil

    from django.conf import settings
    from django.core.management import call_command

    from hud import embedded

    settings.ALLOWED_HOSTS = ["*"]
    try:
        with embedded.running(embedded.servers(settings.HUD_DATA), settings.HUD_DATA / "logs"):
            call_command("migrate", verbosity=0)
            call_command("bootstrap", verbosity=0, stdout=sys.stderr)
            yield
    finally:
        shutil.rmtree(settings.HUD_DATA)


def _body(upload: int) -> bytes:
    """Records of 5,000 experiments; the same ones in every upload, with other values."""
    return json.dumps(
        [
            {
                "benchmark": {
                    "name": "bench",
                    "mode": "inference",
                    "dtype": "bfloat16",
                    "extra_info": {"device": "cuda", "arch": "NVIDIA H200", "suite": "micro"},
                },
                "model": {"name": f"case_{number}", "type": "micro-benchmark"},
                "metric": {
                    "name": "memory_bandwidth(GB/s)",
                    "benchmark_values": [2000 + number + upload * 0.5 + k for k in range(20)],
                },
            }
            for number in range(RECORDS)
        ]
    ).encode()


def _cpu_ms(work: Callable[[], object]) -> float:
    before_s = time.process_time()
    work()
    return (time.process_time() - before_s) * 1000


def _postgres_cpu_ms() -> float:
    """CPU time of every process of the server, those that ended included."""
    from django.conf import settings

    postmaster = int((settings.HUD_DATA / "pg" / "postmaster.pid").read_text().split()[0])
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == postmaster:
            ticks += int(fields[11]) + int(fields[12])
        elif int(folder.name) == postmaster:
            ticks += sum(map(int, fields[11:15]))
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
