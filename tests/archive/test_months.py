"""Closed months are archived, and whatever changes their points or samples reaches the archive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import timezone
from pyarrow import parquet

from hud import retention
from hud.archive import months, write
from hud.corrections.deletion import delete
from hud.corrections.renaming import rename
from hud.corrections.streams import merge
from hud.files import files, names_in
from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.management.commands import tick
from hud.models import ArchivedMonth, DetailedMeasurement, Point, Run, Stream, Upload
from hud.models.archive import POINTS, SAMPLES
from hud.sql import execute, fetch_tuples
from runner.formats.parameters import Parameters
from tests.files.test_bucket import FILES, bucket, server, use_bucket
from tests.support.factories import create_measurement, create_run
from tests.support.records import as_list, v3_record
from tests.support.servers import ROOT, Hud
from tests.support.waiting import wait_for

__all__ = ["bucket", "server"]
pytestmark = pytest.mark.django_db
MARCH = datetime(2025, 3, 1, 3, tzinfo=UTC)


@pytest.fixture(autouse=True)
def own_data(settings: Any, tmp_path: Path) -> Path:
    settings.HUD_DATA = tmp_path
    return tmp_path


def upload(*samples: float, day: int = 0, case: str = "softmax", **given: Any) -> Upload:
    """Two experiments' results of a night."""
    at = (MARCH + timedelta(days=day)).timestamp()
    records = [v3_record(values=samples, case=name, timestamp=at) for name in (case, "gemv")]
    parameters = {"driver": "580.1", "stream": "nightly", "run_id": f"night {day}", **given}
    receipt = ingest(as_list(*records), Parameters(**parameters))
    return Upload.objects.get(pk=receipt.id or 0)


def archive() -> list[str]:
    """Write what is due; return the months."""
    return [f"{row.stream} {row.month:%Y-%m}" for row in write.write_due()]


def differences() -> set[str]:
    return {difference for _month, difference in write.verify()}


def archived(kind: str) -> list[dict[str, Any]]:
    names = [row.file(kind) for row in ArchivedMonth.objects.order_by("stream", "month")]
    return [row for name in names for row in parquet.read_table(months.local_path(name)).to_pylist()]


def check_equal() -> None:
    """Compare the archive with the tables value by value, and by digest."""
    stored = Point.objects.filter(order_time__year=2025).order_by("run__stream", "order_time__month", "pk")
    columns = ("series_id", "run_id", "environment_id", "order_time", "value", "branch", "rerun", "quality")
    wanted = list(stored.values_list(*columns, "samples", "verdict_code"))
    read = [tuple(row[name] for name in (*columns, "n", "verdict")) for row in archived(POINTS)]
    assert read == wanted
    sampled = DetailedMeasurement.objects.filter(n__gt=1).exclude(samples=None)
    of_samples = {
        tuple(row[name] for name in ("series_id", "run_id", "repeat")): row for row in archived(SAMPLES)
    }
    for measurement in sampled:
        row = of_samples[measurement.series_id, measurement.run_id, measurement.repeat]
        assert row["samples"] == measurement.samples
    assert len(of_samples) == DetailedMeasurement.objects.filter(n__gt=1).count()
    assert differences() == {""}


def test_only_months_that_are_over_are_written_and_once() -> None:
    upload(1.0, 2.0, 4.0)
    upload(1.5, day=40)
    create_measurement(run=create_run(order_time=timezone.now()))
    Point.objects.filter(run__order_time__month=4).update(branch='of\n"two, lines"', quality="")
    assert differences() == {"not archived yet"}
    assert archive() == ["nightly 2025-03", "nightly 2025-04"]
    check_equal()
    assert len(archived(POINTS)) == 4
    assert [row["samples"] for row in archived(SAMPLES)] == [[1.0, 2.0, 4.0]] * 2
    assert archive() == []


def _delete_a_run() -> None:
    delete(Run.objects.get(external_id="night 1"), who="t")


def _replace_values() -> None:
    upload(7.0, 8.0, 9.0, day=1, replace="1")


def _replace_samples_alone() -> None:
    upload(11.0, 13.0, 12.0, day=1, replace="1")  # the same median and spread in another order


def _merge_experiments() -> None:
    upload(3.0, 3.5, 3.7, day=4, case="sotfmax")
    archive()
    rename(kind="case", old="sotfmax", new="softmax", who="t")


def _merge_streams() -> None:
    upload(5.0, 6.0, 8.0, day=3, stream="laptop")
    archive()
    merge(Stream.objects.get(name="laptop"), Stream.objects.get(name="nightly"), who="t")


def _judge() -> None:
    assert process_pending()


def _upload_late() -> None:
    upload(5.0, 6.0, 7.0, day=5)


@pytest.mark.parametrize(
    "change",
    [
        _delete_a_run,
        _replace_values,
        _replace_samples_alone,
        _merge_experiments,
        _merge_streams,
        _judge,
        _upload_late,
    ],
)
def test_what_changes_in_a_closed_month_reaches_the_archive(change: Callable[[], None]) -> None:
    for day in range(3):
        upload(10.0 + day, 11.0 + day, 12.0 + day, day=day)
    archive()
    before = archived(POINTS), archived(SAMPLES)
    change()
    assert differences() == {"changed since it was archived"}
    assert archive() == ["nightly 2025-03"]
    check_equal()
    assert (archived(POINTS), archived(SAMPLES)) != before


def test_a_month_without_runs_leaves_the_archive_and_its_files_a_day_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upload(1.0)
    archive()
    (folder,) = names_in("archive", folders=True)
    assert len(names_in(folder)) == 2
    delete(Run.objects.get(), who="t")
    assert (archive(), ArchivedMonth.objects.count(), differences()) == ([], 0, set())
    dict(retention.batches())
    assert len(names_in(folder)) == 2
    monkeypatch.setattr(retention, "_ORPHAN_AGE", timedelta(0))
    dict(retention.batches())
    assert names_in(folder) == []


def test_a_digest_tells_what_is_not_what_was_written() -> None:
    upload(1.0, 2.0, 3.0)
    upload(1.0, day=40)
    archive()
    march, april = ArchivedMonth.objects.order_by("month")
    changed = "UPDATE hud_point SET value = value + 1e-15 WHERE run_id = (SELECT min(id) FROM hud_run)"
    execute(changed)  # past everything that would say so
    path = months.local_path(april.file(POINTS))
    path.write_bytes(path.read_bytes()[:-50])
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("archive", "--verify", stdout=out)
    assert [line.partition(": ")[2] for line in out.getvalue().splitlines()] == [
        "PostgreSQL has something else",
        "its files are not what was written",
    ]
    assert march.digest != april.digest


def test_samples_are_dropped_once_archived_and_stay_in_the_archive(settings: Any) -> None:
    for day in (0, 1, 2):
        upload(1.0 + day, 2.0, 4.0, day=day)
    upload(1.0, 2.0, day=40)
    settings.HUD_KEEP_SAMPLES_DAYS = 30
    assert "archived samples" not in dict(retention.batches()), "nothing is archived"
    archive()
    ArchivedMonth.objects.filter(month__month=4).update(versions="of before a change")
    assert sum(count for name, count in retention.batches() if name == "archived samples") == 6
    left = DetailedMeasurement.objects.exclude(samples=None)
    assert {measurement.order_time.month for measurement in left} == {4}
    assert not DetailedMeasurement.objects.filter(spread=None).exists()
    before = archived(SAMPLES)
    _delete_a_run()
    upload(9.0, 8.0, 7.0, day=2, replace="1")
    archive()
    expected = [row for row in before if row["samples"][0] != 2.0]
    for row in expected:
        if row["samples"] == [3.0, 2.0, 4.0]:
            row["samples"] = [9.0, 8.0, 7.0]
    assert archived(SAMPLES) == expected
    check_equal()
    settings.HUD_KEEP_SAMPLES_DAYS = 0
    assert "archived samples" not in dict(retention.batches())


def test_samples_stay_where_their_file_is_lost(settings: Any) -> None:
    upload(1.0, 2.0, 4.0)
    archive()
    files.delete(ArchivedMonth.objects.get().file(SAMPLES))
    settings.HUD_KEEP_SAMPLES_DAYS = 30
    assert "archived samples" not in dict(retention.batches())
    assert differences() == {"its files are not what was written"}
    assert archive() == ["nightly 2025-03"]
    check_equal()


@pytest.mark.django_db(transaction=True)
def test_tick_starts_the_archive(
    monkeypatch: pytest.MonkeyPatch, settings: Any, data: Path, hud_process: Hud
) -> None:
    settings.HUD_DATA = data
    monkeypatch.setenv("DATABASE_URL", hud_process.database_url)
    upload(1.0, 2.0, 4.0)
    monkeypatch.setattr(tick, "_ARCHIVE_AFTER_S", 0)
    command = tick.Command()
    command.once, command.stop = False, Event()
    command.stop.set()
    command.start()
    command.archive()
    assert command.archiving.wait(60) == 0
    check_equal()
    started = command.archiving
    command.archive()
    assert command.archiving is started


def test_a_bucket_has_the_archive_and_each_node_a_copy(bucket: None, settings: Any, tmp_path: Path) -> None:
    upload(1.0, 2.0, 4.0)
    assert archive() == ["nightly 2025-03"]
    check_equal()
    first = ArchivedMonth.objects.get()
    upload(5.0, day=2)
    archive()
    check_equal()
    second = ArchivedMonth.objects.get()
    copies = {path.name for path in tmp_path.rglob("*.parquet")}
    assert copies == {Path(second.file(kind)).name for kind in (POINTS, SAMPLES)}
    assert files.exists(first.file(POINTS)), "a node may still read it"
    settings.HUD_DATA = tmp_path / "another"
    use_bucket(settings, FILES)
    check_equal()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("command", "table"),
    [
        (["archive"], "hud_point"),
        (["prune"], "hud_audit"),
        (["points", "--rebuild"], "hud_point"),
    ],
)
def test_ctrl_c_ends_a_command_in_one_line_and_the_archive_is_as_it_was(
    own_data: Path, command: list[str], table: str
) -> None:
    upload(1.0, 2.0, 3.0)
    assert archive() == ["nightly 2025-03"]
    upload(4.0, day=1)
    upload(5.0, day=40)
    before = {path: path.read_bytes() for path in own_data.rglob("*.parquet")}
    database = connection.settings_dict
    environment = {
        **os.environ,
        "DATABASE_URL": f"postgresql://hud@/{database['NAME']}?host={database['HOST']}",
        "HUD_DATA": str(own_data),
        "DJANGO_SETTINGS_MODULE": "hud.settings",
    }
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    arguments = [sys.executable, "manage.py", *command]
    with psycopg.connect(environment["DATABASE_URL"]) as other:
        other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        with subprocess.Popen(
            arguments, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                wait_for(lambda: fetch_tuples(waits, []) == [(1,)], "the command at the table")
                process.send_signal(signal.SIGINT)
                _out, said = process.communicate(timeout=60)
            finally:
                process.kill()
    assert process.returncode == 130
    assert len(said.splitlines()) == 1, said
    assert {path: path.read_bytes() for path in own_data.rglob("*.parquet")} == before
    assert archive() == ["nightly 2025-03", "nightly 2025-04"]
    check_equal()
