"""The large tables are partitioned with their rows in place; what reads or writes them stays the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, models
from django.test import Client
from django.utils import timezone

from hud import partitions, retention
from hud.archive import months
from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.models import ArchivedMonth, DetailedMeasurement, Experiment, Measurement, Point, Run
from hud.models.archive import SAMPLES
from hud.points import write
from hud.server import backup, embedded
from hud.sql import execute, fetch_tuples
from runner.formats.parameters import Parameters
from tests.archive import test_months
from tests.points.test_write import deliver
from tests.support.factories import create_measurement, create_run
from tests.support.partitions import make_small, partition_small, rows_by_partition
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db
_NAMES = """
    SELECT indexname FROM pg_indexes WHERE tablename = %s
    UNION SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass ORDER BY 1
"""


def upload(day: int, *samples: float, case: str = "gemv") -> Run:
    record = v3_record(values=samples, case=case, timestamp=1_700_000_000 + day * 86_400)
    ingest(as_list(record), Parameters(driver="580.1", run_id=f"night {day}", stream="nightly"))
    return Run.objects.get(external_id=f"night {day}")


def names_of(table: partitions.LargeTable) -> list[Any]:
    """Return the names of keys, indexes and checks of a table."""
    return fetch_tuples(_NAMES, [table.name] * 2)


def judge() -> None:
    while process_pending():
        pass


def run_command(**options: Any) -> list[str]:
    out = StringIO()
    call_command("partition", stdout=out, **options)
    return out.getvalue().splitlines()


def stored() -> list[Any]:
    kinds: tuple[Any, ...] = (Point, DetailedMeasurement, Measurement)
    return [list(kind.objects.order_by("pk").values()) for kind in kinds]


def shown(client: Client) -> list[list[bytes]]:
    """Return the parts of what pages say, in any order: of equal times it is not defined."""
    names = ["/overview", "/suites/micro", "/compilers"]
    names += [f"/experiments/{pk}" for pk in Experiment.objects.order_by("pk").values_list("pk", flat=True)]
    names += [f"/runs/{pk}" for pk in Run.objects.order_by("pk").values_list("pk", flat=True)]
    answers = [client.get(f"{name}.json", {"stream": "nightly"}) for name in names]
    assert {answer.status_code for answer in answers} == {200}
    return [sorted(part.rstrip(b",]}") for part in answer.content.split(b"{")) for answer in answers]


def test_tables_with_rows_are_partitioned_in_place(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    for _ in range(30):
        deliver(chance)
    for day in (0, 1, 2, 40, 80):
        upload(day, 1.0 + day, 2.0, 3.0)
        newest = upload(day, 5.0 + day, case="softmax")
    judge()
    before, pages = stored(), shown(client)
    names = {table: names_of(table) for table in partitions.TABLES}
    places = fetch_tuples("SELECT ctid, xmin FROM hud_point WHERE order_time < '2023-11-30' ORDER BY 1")
    execute("ALTER TABLE hud_point SET (autovacuum_vacuum_scale_factor = 0.05)")
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    points, measurements = make_small(monkeypatch, run=f"{newest.pk - 5}", time="timestamptz '2023-11-01'")
    dry = run_command(dry_run=True)
    assert points.bound() is measurements.bound() is None
    assert [line.partition(":")[0] for line in dry[:2]] == [table.name for table in partitions.TABLES]
    run_command()
    assert (stored(), shown(client)) == (before, pages)
    assert fetch_tuples("SELECT ctid, xmin FROM hud_point_first ORDER BY 1")[: len(places)] == places
    assert {table: names_of(table) for table in names} == names
    assert set(rows_by_partition(points)) == {"first", "later"} == set(rows_by_partition(measurements))
    options = fetch_tuples("SELECT reloptions FROM pg_class WHERE relname = 'hud_point_first'")
    assert options == [(["autovacuum_vacuum_scale_factor=0.05"],)]

    make_small(monkeypatch, run=f"{newest.pk}", time="timestamptz '2024-01-10'")
    run_command()
    assert set(rows_by_partition(points)) == {"first", "2023_12_01", "later"}
    assert points.bound() == "2024-02-01 00:00:00+00"
    assert len(rows_by_partition(measurements)) > 2
    assert (stored(), shown(client)) == (before, pages)
    assert write.rebuild(dry_run=True)[1:] == (0, 0)


def test_rows_lie_in_the_partition_of_their_month_or_run(monkeypatch: pytest.MonkeyPatch) -> None:
    partition_small(monkeypatch)
    points, measurements = partitions.TABLES
    old, november, december, far = (
        create_run(order_time=datetime(year, month, 30, tzinfo=UTC))
        for year, month in ((2011, 1), (2023, 11), (2023, 12), (2999, 1))
    )
    for run in (old, november, december, far):
        create_measurement(run=run, samples=[1.0, 2.0])
    assert rows_by_partition(points) == {"first": 1, "2023_11_01": 1, "2023_12_01": 1, "later": 1}
    assert sum(rows_by_partition(measurements).values()) == 4
    assert len(rows_by_partition(measurements)) > 1


def test_a_partition_is_made_ahead_and_takes_what_came_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    points, measurements = partitions.TABLES
    for table in partitions.TABLES:
        partitions.partition(table)
    soon = timezone.now() + timedelta(days=31)
    bound = datetime.fromisoformat(str(points.bound()))
    assert (bound.day, soon < bound) == (1, True)
    first_bound = int(str(measurements.bound()))
    create_measurement(run=create_run(order_time=bound), samples=[1.0, 2.0])
    create_measurement(run=create_run(pk=first_bound + 5, order_time=bound), samples=[1.0, 2.0])
    assert rows_by_partition(points) == {"later": 2}
    later = replace(points, newest=f"timestamptz '{bound}'")
    monkeypatch.setattr(partitions, "TABLES", (later, measurements))
    dict(retention.batches())
    assert rows_by_partition(points) == {f"{bound:%Y_%m_%d}": 2}
    assert rows_by_partition(measurements) == {"first": 1, str(first_bound): 1}
    assert [table.next_bound(table.bound()) for table in partitions.TABLES] == [None, None]


def oids() -> dict[str, int]:
    """Return of each partition of measurements which table it is."""
    return dict(
        fetch_tuples(
            "SELECT relid::regclass::text, relid::int FROM pg_partition_tree('hud_detailedmeasurement')"
        )
    )


@pytest.fixture
def archived_runs(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Runs with samples in several partitions, of which those of March 2025 are old and archived."""
    settings.HUD_DATA = tmp_path
    partition_small(monkeypatch)
    for day in (0, 1, 2, 3, 4, 40):
        test_months.upload(1.0 + day, 2.0, 4.0, day=day)
    test_months.archive()
    ArchivedMonth.objects.filter(month__month=4).update(versions="of before a change")
    settings.HUD_KEEP_SAMPLES_DAYS = 30
    return list(Run.objects.order_by("pk"))


def test_old_partitions_are_dropped_for_ones_without_samples(archived_runs: list[Run]) -> None:
    names = dict(
        fetch_tuples("SELECT run_id, tableoid::regclass::text FROM hud_detailedmeasurement GROUP BY 1, 2")
    )
    of_april = {names.pop(archived_runs[-1].pk)}
    before, archived = oids(), test_months.archived(SAMPLES)
    with_samples = list(DetailedMeasurement.objects.order_by("pk").values())
    assert sum(count for name, count in retention.batches() if name == "archived samples") == 10
    after = oids()
    assert (
        {name for name, oid in before.items() if after[name] != oid} == {*names.values()} - of_april != set()
    )
    for row in with_samples:
        if row["run_id"] != archived_runs[-1].pk:
            row["samples"] = None
    assert list(DetailedMeasurement.objects.order_by("pk").values()) == with_samples
    assert test_months.archived(SAMPLES) == archived
    assert len([row for row in archived if row["samples"]]) == 12
    ArchivedMonth.objects.filter(month__month=4).delete()
    assert test_months.archive() == ["nightly 2025-04"]
    test_months.check_equal()
    test_months.upload(9.0, 8.0, 7.0, day=2, replace="1")
    assert test_months.archive() == ["nightly 2025-03"]
    test_months.check_equal()
    dict(retention.batches())
    name = names[archived_runs[2].pk]
    assert oids()[name] != after[name], "what came again has gone again"


def test_a_partition_that_is_written_to_meanwhile_stays(
    archived_runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = oids()
    old = list(months.OldSamples(30)._months())
    answers = [old]
    monkeypatch.setattr(months.OldSamples, "_months", lambda _self: iter(answers.pop() if answers else ()))
    left = [pk for pk, samples in DetailedMeasurement.objects.values_list("pk", "samples") if samples]
    assert sum(months.OldSamples(30).prune()) == 10, "they go one by one"
    assert oids() == before
    assert fetch_tuples("SELECT relname FROM pg_class WHERE relname LIKE 'hud%new%'") == []
    assert DetailedMeasurement.objects.count() == len(left) == 12


def test_later_migrations_change_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    upload(0, 1.0, 2.0)
    partition_small(monkeypatch)
    upload(60, 1.0, 2.0)
    added, longer = models.IntegerField(null=True), models.CharField(max_length=80, null=True)
    for name, field in (("added", added), ("verdict_reason", longer)):
        field.set_attributes_from_name(name)
        field.model = Point
    finite, _held = Point._meta.constraints
    small = models.CheckConstraint(condition=models.Q(value__lt=1e9), name="small")
    with connection.schema_editor() as editor:
        editor.add_field(Point, added)
        editor.alter_field(Point, Point._meta.get_field("verdict_reason"), longer)
        editor.remove_index(Point, Point._meta.indexes[0])
        editor.add_index(Point, models.Index(fields=["environment"], name="by_environment"))
        editor.remove_constraint(Point, finite)
        editor.add_constraint(Point, small)
    upload(20, 1.0, 2.0)
    more = replace(partitions.POINTS, newest=f"({partitions.POINTS.newest} + interval '40 days')")
    assert len(partitions.make_ahead(more)) == 1
    changes = fetch_tuples(
        """
        SELECT relid::regclass, ARRAY(SELECT atttypmod FROM pg_attribute
                WHERE attrelid = relid AND attname IN ('added', 'verdict_reason') ORDER BY attname),
            ARRAY(SELECT substring(indexdef FROM '\\(.*') FROM pg_indexes
                WHERE format('%I.%I', schemaname, tablename)::regclass = relid ORDER BY 1),
            ARRAY(SELECT conname::text FROM pg_constraint WHERE conrelid = relid AND contype = 'c' ORDER BY 1)
        FROM pg_partition_tree('hud_point')
        """
    )
    assert len(changes) > 15
    key = "(series_id, order_time, run_id, environment_id)"
    assert {str(change[1:]) for change in changes} == {
        str(([-1, 84], ["(environment_id)", key], ["held_measurement", "small"]))
    }


@pytest.fixture
def own_database(transactional_db: None, settings: Any, tmp_path: Path) -> Iterator[backup.Installation]:
    """A copy of the tests' database, which may keep its partitions, and a data folder."""
    settings.HUD_DATA = embedded.make_folder(tmp_path / "data")
    of_tests = connection.settings_dict["NAME"]
    connection.close()
    with embedded.connect({**connection.settings_dict, "NAME": "hud"}) as server:
        server.autocommit = True
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        server.execute(others, [of_tests])  # of a thread that an earlier test left; a copy needs it alone
        server.execute(f"CREATE DATABASE hud_partitions TEMPLATE {of_tests}")
        server.execute("CREATE DATABASE hud_elsewhere")
        connection.settings_dict["NAME"] = "hud_partitions"
        try:
            yield backup.Installation(settings.HUD_DATA, dict(connection.settings_dict))
        finally:
            connection.close()
            connection.settings_dict["NAME"] = of_tests
            for name in ("hud_partitions", "hud_elsewhere"):
                server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.django_db(transaction=True)
def test_partitions_are_backed_up_and_restored(
    own_database: backup.Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    partition_small(monkeypatch)
    runs = [upload(day, 1.0 + day, 2.0) for day in (0, 20, 40, 60)]
    create_measurement(run=runs[0], samples=[3.0, 4.0])
    rows = {table: rows_by_partition(table) for table in partitions.TABLES}
    assert all(len(of_table) > 1 for of_table in rows.values())
    left = stored()
    manifest = backup.write(tmp_path / "b", own_database)
    connection.close()
    elsewhere = backup.Installation(tmp_path / "other", {**own_database.database, "NAME": "hud_elsewhere"})
    verify = backup._verify

    def disagree(what: str, *sides: Any) -> None:
        verify(what, *sides)
        if "database" in what:
            raise backup.BackupError(what)

    monkeypatch.setattr(backup, "_verify", disagree)
    with pytest.raises(backup.BackupError, match="database"):
        backup.restore(tmp_path / "b", elsewhere)
    monkeypatch.setattr(backup, "_verify", verify)
    assert backup.restore(tmp_path / "b", elsewhere)["tables"] == manifest["tables"]
    connection.settings_dict["NAME"] = "hud_elsewhere"
    assert {table: rows_by_partition(table) for table in partitions.TABLES} == rows
    assert stored() == left
    assert partitions.make_ahead(partitions.MEASUREMENTS)
    upload(80, 1.0, 2.0)


@pytest.mark.django_db(transaction=True)
def test_a_table_in_use_stays_as_it_is(
    own_database: backup.Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_LOCK_MS", 100)
    upload(0, 1.0, 2.0)
    with embedded.connect(own_database.database) as other:
        other.execute("SELECT FROM hud_point")
        with pytest.raises(CommandError, match="hud_point"):
            run_command()
    assert partitions.POINTS.bound() is None
    assert DetailedMeasurement.objects.count() == 1
    call_command("partition", verbosity=0)
    assert rows_by_partition(partitions.POINTS) == {"first": 1}
