"""A file that holds an experiment and metric at several times without commits: each time is a point."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.test import Client

from hud.corrections.renaming import rename
from hud.ingest import ingest
from hud.ingest.export import export
from hud.judging.judge import process_pending
from hud.models import Experiment, Measurement, Point, Run, Upload
from hud.points import read
from hud.points.write import rebuild
from hud.sql import fetch_tuples
from runner.formats import reasons
from runner.formats.parameters import Parameters
from tests.support.experiment_pages import read_page
from tests.support.records import as_lines, as_list, v3_record

pytestmark = pytest.mark.django_db

METRIC = "memory_bandwidth(GB/s)"
START, DAY = 1_700_000_000, 86_400
VALUES = [2500 + day % 3 for day in range(20)] + [2000, 2000]  # equal ones too, and a step


def record(day: int, value: float, **over: Any) -> dict[str, Any]:
    return v3_record(METRIC, [value], timestamp=START + day * DAY, **over)


def history(days: range = range(len(VALUES)), **over: Any) -> list[dict[str, Any]]:
    return [record(day, VALUES[day], **over) for day in days]


def points(case: str = "layer_norm") -> list[tuple[float, float | None]]:
    rows = Measurement.objects.filter(series__experiment__case=case).order_by("order_time")
    return [((row.order_time.timestamp() - START) / DAY, row.value) for row in rows]


EXPECTED = list(enumerate(VALUES))


def test_each_time_is_a_point_of_the_one_run_judged_and_shown_in_order(client: Client) -> None:
    records = [*history(), *history(range(3, 9), case="gemv")]
    random.Random(1).shuffle(records)
    receipt = ingest(as_list(*records), Parameters())
    assert (receipt.stored, receipt.duplicates, receipt.skipped_total) == (len(records), 0, 0)
    assert (len(receipt.run_ids), points(), points("gemv")) == (1, EXPECTED, EXPECTED[3:9])
    process_pending()
    process_pending()
    judged = [(point.verdict, point.level_points) for point in Point.objects.order_by("order_time")]
    assert judged[-2:] == [("regressed", 20), ("regressed", 20)]
    experiment = Experiment.objects.get(case="layer_norm")
    page = read_page(experiment.pk, table="all")
    shown = page.histories[0]
    assert [(point.value, point.processes) for point in shown] == [(value, 1) for value in VALUES]
    assert [point.verdict for point in shown[-3:]] == ["unchanged", "regressed", "regressed"]
    newest = read.latest([series.pk for series in experiment.series.all()])
    assert [(point.value, point.verdict) for point in newest.values()] == [(2000, "regressed")]
    series = client.get(f"/api/v1/series/{experiment.pk}/{METRIC}").json()["points"]
    assert [point["value"] for point in series] == VALUES
    assert client.get(f"/runs/{receipt.run_ids[0]}/").status_code == 200
    assert len(client.get(f"/runs/{receipt.run_ids[0]}.json").json()["items"]) == len(records)


def test_the_same_history_again_is_a_duplicate_and_a_grown_one_adds_its_new_times() -> None:
    given = Parameters(run_id="nightly")
    for days, stored in ((range(1), 1), (range(10), 9), (range(10), 0), (range(len(VALUES)), 12)):
        receipt = ingest(as_lines(*history(days)), given)
        assert (receipt.stored, receipt.duplicates) == (stored, len(days) - stored)
        assert (receipt.skipped_total, len(receipt.run_ids)) == (0, 1)
    assert points() == EXPECTED
    receipt = ingest(as_lines(record(4, 1.0), *history()[5:]), given)  # a time that has another value
    assert [entry["kind"] for entry in receipt.skipped] == [reasons.CONFLICT]
    assert points() == EXPECTED


def test_a_history_that_is_stored_in_pieces_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hud.ingest.receive._PIECE", 4)
    receipt = ingest(as_list(*history()), Parameters())
    assert (receipt.stored, len(receipt.run_ids), points()) == (len(VALUES), 1, EXPECTED)


@pytest.mark.parametrize("samples", [1, 3])
def test_a_further_piece_of_a_history_leaves_the_stored_points_untouched(samples: int) -> None:
    def rows(table: str) -> set[tuple[Any, ...]]:
        return set(fetch_tuples(f"SELECT order_time, ctid, xmin::text, cmin::text FROM {table}"))

    records = [record(day, 2500.0) for day in range(20)]
    for each in records:
        each["metric"]["benchmark_values"] *= samples
    given = Parameters(run_id="history")
    ingest(as_list(*records[:12]), given)
    tables = ("hud_point", "hud_detailedmeasurement")
    before = [rows(table) for table in tables]
    assert ingest(as_list(*records[12:]), given).stored == 8
    assert Point.objects.count() == 20
    assert all(kept <= rows(table) for kept, table in zip(before, tables, strict=True))
    assert rebuild() == (20, 0, 0)


def test_an_export_of_a_history_comes_back_as_the_same_rows() -> None:
    ingest(as_list(*history(), *history(range(3, 9), case="gemv")), Parameters(branch="side"))
    body = b"".join(export("v3", {}))
    fields = ("run__uid", "run__order_time", "run__order_time_source", "order_time", "repeat", "value")
    before = sorted(Measurement.objects.values_list(*fields), key=str)
    again = ingest(body, Parameters())
    assert (again.stored, again.duplicates, again.skipped_total) == (0, len(before), 0)
    Run.objects.all().delete()
    Upload.objects.all().delete()
    # in any order, as by several files
    lines = body.splitlines()
    random.Random(2).shuffle(lines)
    assert ingest(b"\n".join(lines), Parameters()).stored == len(before)
    assert sorted(Measurement.objects.values_list(*fields), key=str) == before


@pytest.mark.parametrize(
    ("over", "given"),
    [
        ({"workflow_id": 7, "job_id": 8}, Parameters()),  # which has one result of each
        ({}, Parameters(commit_date="2026-01-01")),  # the place that was given
        ({"runners": [{"name": "h", "extra_info": {"process": 0}}]}, Parameters()),
    ],
)
def test_a_result_with_another_identity_has_one_value(over: dict[str, Any], given: Parameters) -> None:
    receipt = ingest(as_list(*history(range(3), **over)), given)
    assert [entry["reason"] for entry in receipt.skipped] == [reasons.OTHER_VALUE] * 2
    assert Measurement.objects.count() == 1


def test_too_many_times_of_a_run_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hud.ingest.store._MAX_REPEAT", 4)
    receipt = ingest(as_list(*history()), Parameters())
    assert (receipt.stored, receipt.skipped_total) == (5, len(VALUES) - 5)
    assert {entry["reason"] for entry in receipt.skipped} == {reasons.TOO_MANY_TIMES}


def test_histories_under_two_names_become_one_by_renaming() -> None:
    both = record(6, 1.0, case="layer_nrom")  # the one with the new name stays
    mixed = [*history(range(5), case="layer_nrom"), both, *history(range(5, len(VALUES)))]
    ingest(as_list(*mixed), Parameters())
    done = rename(kind="case", old="layer_nrom", new="layer_norm", who="t")
    assert (done.moved_measurements, done.dropped_measurements) == (5, 1)
    assert points() == EXPECTED
