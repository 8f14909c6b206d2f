"""kill -9 of the process that deletes a large run, between its parts: another one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection
from django.db.models import Count, Subquery
from django.db.models.functions import Coalesce

from hud.corrections import background
from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.models import Correction, Measurement, Point, Run, Series
from runner.formats.parameters import Parameters
from tests.support.records import as_list, v3_record
from tests.support.servers import Hud, end_process, start_process
from tests.support.waiting import wait_for

CASES, KILLS = 9000, 3


def upload(name: str, cases: int) -> Run:
    records = (v3_record(case=f"case_{number}", values=[1.0 + number]) for number in range(cases))
    ingest(as_list(*records), Parameters(filename=name, commit=name))
    return Run.objects.latest("pk")


@contextmanager
def imports(hud: Hud, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    names = {"DATABASE_URL": hud.database_url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    process = start_process(
        [sys.executable, "manage.py", "imports", "--skip-checks"],
        folder / "imports.log",
        {**os.environ, **names},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def rows_done(correction: int) -> int:
    return Correction.objects.get(pk=correction).done_rows


def left_and_done(run: Run, correction: Correction) -> tuple[int, int]:
    """Return the points of the run and what the correction has done, as one statement sees them: the server
    may still commit what a killed process has sent."""
    points = Point.objects.filter(run=run).values("run").annotate(count=Count("*")).values("count")
    corrections = Correction.objects.annotate(left=Coalesce(Subquery(points), 0))
    left, done = corrections.values_list("left", "done_rows").get(pk=correction.pk)
    return left, done


def test_another_process_goes_on(hud_process: Hud, tmp_path: Path) -> None:
    stays, gone = upload("aaaa0000", 100), upload("bbbb0000", CASES)
    process_pending(10**6)
    asked = background.delete(gone, who="olga")
    assert isinstance(asked, Correction)
    connection.close()
    kills = 0
    while kills < KILLS and (before := rows_done(asked.pk)) < CASES:
        with imports(hud_process, tmp_path) as process:
            wait_for(lambda before=before: rows_done(asked.pk) > before, "a part")  # type: ignore[misc]
            end_process(process, signal.SIGKILL)
        kills += 1
        left, done = left_and_done(gone, asked)
        assert left == CASES - done
    with imports(hud_process, tmp_path):
        wait_for(lambda: Correction.objects.filter(pk=asked.pk, finished__isnull=False).exists(), "the end")
    asked.refresh_from_db()
    assert (asked.problem, asked.done_rows) == ("", CASES)
    assert list(Run.objects.all()) == [stays]
    assert Point.objects.count() == Measurement.objects.count() == 100
    process_pending(10**6)
    assert not Series.objects.exclude(touched_at=None).exists()
