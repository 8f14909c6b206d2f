"""Points always are what their measurements make, whatever happened to those."""

from __future__ import annotations

import random
from typing import Any

import pytest
from django.db import connection

from hud.corrections import deletion
from hud.ingest import BadUpload, ingest
from hud.judging.judge import process_pending
from hud.models import DetailedMeasurement, Measurement, Point, Run, SidePoint, Upload
from hud.points import write
from runner.formats.parameters import Parameters
from tests.bench.records import body
from tests.support.records import as_lines, v3_record

pytestmark = pytest.mark.django_db


def record(chance: random.Random, case: str, repeat: int, pair: tuple[str, str] | None) -> dict[str, Any]:
    """One process of a run, which may have failed; in an A/B run one side of a pair."""
    fails = chance.random() < 0.2
    made = v3_record(values=[] if fails else [chance.uniform(1, 100)], case=case)
    facts: dict[str, Any] = {"process": repeat}
    if pair:
        side = chance.choice(("base", "new"))
        facts = {"pair": {"number": repeat, "side": side, "base": pair[0], "new": pair[1]}}
    made["runners"] = [{"name": "h1", "type": "NVIDIA H200", "extra_info": facts}]
    said: dict[str, Any] = {"status": "crashed"} if fails else {}
    if chance.random() < 0.5:
        said["compilation"] = chance.randrange(3)
    made["metric"]["extra_info"] = said
    return made


def deliver(chance: random.Random) -> None:
    """A piece of one of a few runs, which adds to it, repeats it or corrects it."""
    run = chance.randrange(6)
    pair = ("old", "new") if run == 5 else None
    count = chance.randrange(1, 8)
    records = [record(chance, f"case {chance.randrange(3)}", chance.randrange(5), pair) for _ in range(count)]
    parameters = Parameters(
        run_id=f"run {run}",
        stream=chance.choice(("", "nightly", "laptop")),
        replace=chance.choice(("", "1")),
        driver=chance.choice(("580.1", "581.1")),
        partial="1",
    )
    ingest(as_lines(*records), parameters)


def delete(chance: random.Random) -> None:
    if chance.random() < 0.5 and Run.objects.exists():
        deletion.delete(chance.choice(list(Run.objects.all())), who="test")
    elif Upload.objects.exists():
        deletion.delete(chance.choice(list(Upload.objects.all())), who="test")


@pytest.mark.parametrize("seed", range(4))
def test_random_deliveries_deletions_and_corrections_leave_no_other_point(seed: int) -> None:
    chance = random.Random(seed)
    for number in range(125):
        delete(chance) if chance.random() < 0.15 else deliver(chance)
        if number % 20 == 0:
            while process_pending():
                pass
    made = write.rebuild(dry_run=True)
    assert made[1:] == (0, 0)
    assert made[0] == Point.objects.count() + SidePoint.objects.count() > 0
    assert not Point.objects.exclude(run__base_interpreter="").exists()
    assert not SidePoint.objects.filter(run__base_interpreter="").exists()


def test_a_rebuild_makes_what_is_missing_and_says_what_differed() -> None:
    for night in range(3):
        ingest(as_lines(v3_record(values=[1.0 + night] * 2)), Parameters(run_id=f"night {night}"))
    while process_pending():
        pass
    Point.objects.filter(value=1.0).delete()
    Point.objects.filter(value=2.0).update(value=7.0)
    assert write.rebuild(dry_run=True) == (2, 2, 0)
    assert sorted(filter(None, Point.objects.values_list("value", flat=True))) == [3.0, 7.0], (
        "a dry run changes nothing"
    )
    assert write.rebuild() == (3, 2, 0)
    assert sorted(filter(None, Point.objects.values_list("value", flat=True))) == [1.0, 2.0, 3.0]
    assert Point.objects.get(value=3.0).verdict, "one that did not differ keeps its verdict"
    assert write.rebuild() == (3, 0, 0)


def test_points_without_raw_values_stay_and_are_counted_apart() -> None:
    ingest(as_lines(v3_record(values=[1.0, 2.0])), Parameters())
    DetailedMeasurement.objects.all().delete()
    assert write.rebuild() == (1, 0, 1)


def test_what_is_unknown_stays_unknown() -> None:
    ingest(as_lines(v3_record()), Parameters())
    while process_pending():
        pass
    point = Point.objects.get()
    assert (point.verdict, point.samples) == ("new", 1)
    assert (point.spread, point.change, point.noise, point.factor) == (None,) * 4


def test_a_refused_upload_leaves_no_point() -> None:
    with pytest.raises(BadUpload):
        ingest(as_lines(v3_record(), v3_record(values=["nonsense"])), Parameters())
    assert not Point.objects.exists()


def test_a_number_of_any_size_is_stored_and_judged() -> None:
    for night, value in enumerate((1e-200, 1e299, 1e-200, 1e299)):
        samples = [value, value / 1e90]
        ingest(as_lines(v3_record(values=samples)), Parameters(run_id=f"night {night}"))
    assert write.rebuild() == (4, 0, 0)
    while process_pending():
        pass
    assert Point.objects.exclude(verdict_code=None).count() == 4


@pytest.mark.parametrize("samples", [[1.0, 2.0, 4.0], [1.0, 1.0 + 1e-15, 1.0], [-3.0, 1e-40, 3.0]])
def test_a_measurement_that_comes_alone_makes_the_point_of_a_rebuild(samples: list[float]) -> None:
    metric = "fitted_slope"  # of either sign
    ingest(as_lines(v3_record(metric=metric, values=samples), v3_record(values=[5.0])), Parameters())
    assert _places() == {(0, False), (0, True)}
    assert set(Point.objects.values_list("processes", "samples")) == {(1, len(samples)), (1, 1)}
    assert write.rebuild() == (2, 0, 0)
    assert Measurement.objects.exclude(samples=None).get().samples == samples


def _places() -> set[tuple[int, bool]]:
    return set(Measurement.objects.values_list("repeat", "in_point"))


def test_a_single_measurement_is_held_by_its_point_until_another_process_comes() -> None:
    def deliver(repeat: int, value: float, **given: str) -> None:
        made = v3_record(values=[value])
        made["runners"] = [{"name": "h1", "type": "NVIDIA H200", "extra_info": {"process": repeat}}]
        ingest(as_lines(made), Parameters(run_id="night", filename=f"{value}.json", **given))

    deliver(3, 5.0)
    assert _places() == {(3, True)}
    while process_pending():
        pass
    verdict = Point.objects.get().verdict
    deliver(3, 5.0, stream="", source="", repo="")
    assert Point.objects.get().verdict == verdict != ""
    deliver(4, 7.0)
    assert _places() == {(3, False), (4, False)}
    point = Point.objects.get()
    assert (point.value, point.processes, point.repeat, point.verdict) == (6.0, 2, None, "")
    second = Upload.objects.latest("pk")
    deletion.delete(second, who="test")
    assert _places() == {(3, True)}
    assert Measurement.objects.get().value == Point.objects.get().value == 5.0
    deletion.delete(Upload.objects.get(), who="test")
    assert not Point.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_result_with_one_sample_takes_at_most_300_bytes() -> None:
    nights, results = 10, 500
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE hud_point, hud_detailedmeasurement")  # tests that rolled back left pages
        for night in range(nights):
            content = body(night, records=results, shape="harness")
            ingest(content, Parameters(commit=f"{night:x}", commit_date=f"2026-01-{night + 1:02}"))
            while process_pending():
                pass
            cursor.execute("VACUUM ANALYZE")
        cursor.execute(
            "SELECT sum(pg_total_relation_size(name)) FROM unnest(%s::regclass[]) AS name",
            [["hud_point", "hud_detailedmeasurement"]],
        )
        size_bytes = cursor.fetchone()[0]
    assert Point.objects.exclude(verdict_code=None).count() == nights * results
    assert size_bytes / nights / results <= 300
