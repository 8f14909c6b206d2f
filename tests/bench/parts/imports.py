"""Memory of every process and seconds while 100 MB of JSON lines come in: by the commands as PyTorch's
harness writes them, by import jobs as small records, of which a request may carry more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.bench import processes
from tests.bench.application import Application
from tests.bench.figures import Figure
from tests.bench.records import RECORDS, Shape, body
from tests.support.servers import ROOT, end_process
from tests.support.waiting import wait_for

FILE_BYTES = 100_000_000
REQUEST_BYTES = 30 * 2**20  # becomes an import job, which `manage.py imports` processes
LIMIT_MIB = 300
_LOOK_S = 0.5  # each process keeps its own peak: a look may be late, but not miss its end


class Watch:
    """Looks at the memory of processes and their descendants, by name, until it is stopped."""

    def __init__(self, roots: Mapping[str, int]) -> None:
        self.roots = dict(roots)
        self.peaks_mib = dict.fromkeys(roots, 0.0)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        self._end.set()
        self._thread.join()
        return self.peaks_mib

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_S):
            for name, root in self.roots.items():
                for process in processes.tree(root):
                    with suppress(OSError, ValueError):  # it has ended meanwhile
                        self.peaks_mib[name] = max(self.peaks_mib[name], processes.memory_mib(process))


def imports(application: Application) -> Iterator[Figure]:
    from django.conf import settings

    from hud.models import Import, Measurement

    path = application.data / "large.jsonl"
    records = _write(path, "harness")
    servers = {"PostgreSQL": application.postmaster, "gunicorn": application.hud.pid}
    ways = {
        "manage.py ingest": ["manage.py", "ingest", str(path), "--source=command"],
        "runner upload": [
            "-m",
            "runner",
            "upload",
            str(path),
            f"--hud={application.hud.url}",
            "--source=client",
        ],
    }
    expected = Measurement.objects.count()
    for name, command in ways.items():
        began = time.monotonic()
        with _started(command, application) as process:
            watch = Watch({name: process.pid, **servers})
            status = process.wait()
            peaks_mib = watch.stop()
        took_s = time.monotonic() - began
        assert status == 0, name
        expected += records
        assert Measurement.objects.count() == expected, name
        yield from _figures(name, peaks_mib, took_s)
    _write(path, "small")
    began = time.monotonic()
    with _started(["manage.py", "imports"], application) as process:
        watch = Watch({"manage.py imports": process.pid, **servers})
        sent = _send_large_requests(application, path, settings.HUD_MAX_RECORDS)
        wait_for(
            lambda: not Import.objects.filter(state__in=("queued", "running")), "the import jobs' end", 600
        )
        peaks_mib, took_s = watch.stop(), time.monotonic() - began
        assert Measurement.objects.count() == expected + sent
        end_process(process, signal.SIGTERM)
    yield from _figures("import jobs", peaks_mib, took_s)


def _write(path: Path, shape: Shape) -> int:
    """Lines of 5,000 experiments, again and again with other values and another commit each time."""
    records = 0
    with path.open("wb") as file:
        while file.tell() < FILE_BYTES:
            commit = f'"head_sha": "{records:x}", '.encode()
            for line in body(records, shape=shape, lines=True).splitlines():
                file.write(line[:1] + commit + line[1:] + b"\n")
            records += RECORDS
    return records


@contextmanager
def _started(command: list[str], application: Application) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "HUD_KEY": application.secret}
    with (application.data / "logs" / "bench.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _send_large_requests(application: Application, path: Path, max_records: int) -> int:
    """The file as requests that are too large to be answered at once, but for the last; returns how many
    records they have."""
    records, piece = 0, b""
    with path.open("rb") as file:
        while piece := b"".join(file.readlines(REQUEST_BYTES)):
            answer = application.upload(piece, f"commit_date=2026-04-01&source=jobs&run_id={records}")
            here = piece.count(b"\n")
            assert answer["state"] == "queued" if here > max_records else answer["stored"] == here, answer
            records += here
    return records


def _figures(way: str, peaks_mib: Mapping[str, float], took_s: float) -> Iterator[Figure]:
    yield Figure("import", f"100 MB by {way}", took_s, "s")
    for name, peak_mib in peaks_mib.items():
        yield Figure("import", f"100 MB by {way}: peak memory of {name}", peak_mib, "MiB", LIMIT_MIB)
