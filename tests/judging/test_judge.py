"""The judge works off touched series: rows only where there is something to say, late points judged anew."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from hud.ingest import ingest
from hud.judging import judge, levels
from hud.judging.judge import process_pending
from hud.models import Environment, Experiment, Measurement, Point, Run, Series, SeriesState, State, Stream
from runner.formats.parameters import Parameters
from tests.support.factories import create_environment, create_measurement, create_metric, create_run
from tests.support.judgements import telling_points, verdicts
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db


def upload(value: float, day: int, **over: Any) -> None:
    body = as_list(v3_record(values=[value], timestamp=1_700_000_000 + day * 86_400, **over))
    ingest(body, Parameters(driver="580.1"))


def test_a_stable_series_has_no_rows_and_a_step_has_one() -> None:
    for day in range(20):
        upload(2500 + day % 3, day)
    call_command("judge", "--once")
    assert verdicts() == []
    upload(2000, 20)
    assert process_pending() == 1
    row = telling_points().get()
    assert (row.verdict, row.level_points) == ("regressed", 20)
    assert row.change == pytest.approx(-0.2, abs=0.01)
    assert not Series.objects.filter(touched_at__isnull=False).exists()


def test_a_late_point_judges_its_series_from_there_on() -> None:
    for day in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11):
        upload(2500 if day < 11 else 2000, day)
    process_pending()
    assert verdicts() == ["regressed"]
    upload(2000, 10)
    process_pending()
    assert verdicts()[0] == "regressed"
    assert telling_points().count() == 2


def test_another_environment_class_is_no_baseline() -> None:
    for day in range(10):
        upload(2500, day)
    ingest(as_list(v3_record(values=[1000], timestamp=1_750_000_000)), Parameters(driver="999.1"))
    process_pending()
    assert verdicts() == ["new"]


def test_a_package_that_the_suite_does_not_use_changes_no_class() -> None:
    for name in ("transformers", "numpy"):
        Environment.objects.all().delete()
        for version in ("4.1", "4.2"):
            record = v3_record(dependencies={name: {"version": version}})
            ingest(as_list(record), Parameters())
        classes = Environment.objects.values("class_key").distinct().count()
        assert classes == (1 if name == "transformers" else 2)
        Run.objects.all().delete()


def test_another_branch_is_judged_against_the_default_one_and_is_no_baseline() -> None:
    for day in range(0, 20, 2):
        upload(2500, day)
        upload(2000, day + 1, head_branch="refs/heads/slow")
    upload(2500, 20, head_branch="refs/heads/main")
    process_pending()
    judged = [(point.branch, point.verdict, point.level_points) for point in telling_points()]
    assert {branch for branch, _verdict, _n in judged} == {"slow"}
    assert judged[-1] == ("slow", "regressed", 10)


def test_a_run_that_is_not_complete_waits() -> None:
    upload(2500, 0)
    Run.objects.update(state=State.RUNNING, finished=None)
    assert process_pending() == 0
    Run.objects.update(state=State.SUCCEEDED, finished=timezone.now())
    assert process_pending() == 1


def test_a_comparison_that_runs_hides_no_night() -> None:
    for day in range(20):
        upload(2500 + day % 3, day)
    process_pending()
    pairs = create_run(base_interpreter="old", state=State.RUNNING)
    environment = Measurement.objects.latest("order_time").environment
    series = Series.objects.get()
    create_measurement(
        series.experiment, metric=series.metric.name, value=2400, run=pairs, environment=environment
    )
    upload(2000, 20)
    assert process_pending() == 1
    assert verdicts() == ["regressed"]


def test_accuracy_that_no_longer_passes_is_a_regression() -> None:
    for day, word in enumerate(("pass", "pass", "fail_accuracy")):
        record = v3_record("accuracy", [], timestamp=1_700_000_000 + day * 86_400)
        record["metric"] = {"name": "accuracy", "extra_info": {"benchmark_values": [word]}}
        ingest(as_list(record), Parameters())
    process_pending()
    assert verdicts() == ["regressed"]


def test_a_case_that_cannot_run_is_neither_failure_nor_baseline() -> None:
    """A number and a word: measured, then unsupported, then measured again, then failed."""
    for day, status in enumerate(("ok", "unsupported", "not_run", "ok", "failed")):
        for name, word in (("speedup", None), ("accuracy", "pass")):
            record = v3_record(
                name, [1.5] if status == "ok" and not word else [], timestamp=1.7e9 + day * 86_400
            )
            said = {"status": status, "code": "no_xrt" if status != "ok" else word or ""}
            record["metric"]["extra_info"] = said
            ingest(as_list(record), Parameters())
    process_pending()
    assert sorted(verdicts()) == ["failed", "regressed"]
    points = Point.objects.filter(series__metric__name="speedup").order_by("order_time")
    words = [point.verdict for point in points]
    assert words == ["new", "not_run", "not_run", "unchanged", "failed"]


def test_a_process_that_failed_beside_others_is_no_second_verdict() -> None:
    """Five processes of one run: four are 20 % slower, one crashed in their midst."""
    for day in range(12):
        upload(2500, day)
    process_pending()
    run = create_run()
    series = Series.objects.get()
    environment = Measurement.objects.latest("order_time").environment
    for process, value in enumerate((2000, 2000, None, 2000, 2010)):
        status = "crashed" if value is None else "ok"
        create_measurement(
            series.experiment,
            metric=series.metric.name,
            value=value,
            run=run,
            environment=environment,
            status=status,
            repeat=process,
        )
    Series.objects.update(touched_at=run.order_time)
    process_pending()
    assert verdicts() == ["regressed"]


def test_a_backfill_does_not_delay_the_verdicts_of_today() -> None:
    """100 series of old data wait when today's run arrives: the next round has it, and the oldest."""
    for day in range(20):
        upload(2500, day)
    while process_pending():
        pass
    old = (v3_record(case=f"old {n}", values=[1], timestamp=1_600_000_000 + n) for n in range(100))
    ingest(as_list(*old), Parameters(driver="580.1"))
    upload(2000, 20)
    assert process_pending(limit=4) == 4
    assert verdicts() == ["regressed"]
    first = Series.objects.get(experiment__case="old 0")
    assert first.measurement_set.exists()
    assert first.touched_at is None
    rounds = 1
    while process_pending(limit=4):
        rounds += 1
    assert rounds < 40
    assert not Series.objects.filter(touched_at__isnull=False).exists()


def test_a_round_reads_few_long_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an upgrade: the others are judged from their beginning, the new point waits for none."""
    monkeypatch.setattr(judge, "_LONG", 10)
    monkeypatch.setattr(judge, "_POINTS_A_ROUND", 20)
    for day in range(12):
        for case in range(5):
            upload(2500, day, case=f"old {case}")
        upload(2500, day, case="new")
    while process_pending():
        pass
    SeriesState.objects.exclude(series__experiment__case="new").delete()
    Series.objects.exclude(experiment__case="new").update(touched_at=timezone.now(), touched_until=None)
    upload(2000, 12, case="new")
    process_pending()  # marks it
    process_pending()
    assert verdicts() == ["regressed"]
    assert SeriesState.objects.count() < 6
    while process_pending():
        pass
    assert SeriesState.objects.count() == 6


def test_a_series_that_cannot_be_judged_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(20):
        upload(2500 if day < 19 else 2000, day)
        upload(1, day, case="bad")
    advance = levels.advance

    def fail_for_one(level: Any, point: Any, rule: Any) -> Any:
        if point.values[0] == 1:
            raise ZeroDivisionError
        return advance(level, point, rule)

    monkeypatch.setattr(levels, "advance", fail_for_one)
    while process_pending():
        pass
    assert verdicts() == ["regressed"]


def test_levels_of_a_reference_are_one_look_up_for_each_series_of_which_the_planner_knows_nothing() -> None:
    reference = Stream.objects.get_or_create(name="nightly")[0]
    laptop = Stream.objects.create(name="laptop", reference=reference)
    metric, environment, run = create_metric(), create_environment(), create_run()
    experiments = Experiment.objects.bulk_create(
        Experiment(suite="micro", case=f"case_{number}", mode="", dtype="", backend="", device="", arch="")
        for number in range(1000)
    )
    own, others = (
        Series.objects.bulk_create(
            Series(experiment=one, metric=metric, stream=stream) for one in experiments
        )
        for stream in (laptop, reference)
    )
    SeriesState.objects.bulk_create(
        SeriesState(
            series=one,
            class_key="gpu",
            level={"points": one.pk},
            run=run,
            environment=environment,
            order_time=run.order_time,
            recent=[],
        )
        for one in others
    )
    with CaptureQueriesContext(connection) as queries:
        levels_of_reference = judge._references(own[:400])
    assert {pk: level.points for (pk, _class), (_stream, level) in levels_of_reference.items()} == {
        one.pk: other.pk for one, other in zip(own[:400], others, strict=False)
    }
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {queries[0]['sql']}")
        ((((plan,),)),) = cursor.fetchall()
    assert read_rows(plan["Plan"]) < 3 * 400 + 100


def read_rows(plan: dict[str, Any]) -> float:
    """Return how many rows of series and states the parts of a plan have read."""
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    own = rows * plan["Actual Loops"] if "hud_series" in plan.get("Relation Name", "") else 0
    return float(own) + sum(map(read_rows, plan.get("Plans", [])))
