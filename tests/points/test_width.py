"""Check that pages of a wide database read by an index what they show, and not every series."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from hud.corrections.deletion import delete
from hud.corrections.renaming import rename
from hud.judging.backlog import GIVEN_UP, LATE, overdue_suites
from hud.judging.compare.points import Points
from hud.judging.compare.sides import resolve
from hud.management.commands.judge import read_ahead
from hud.models import (
    STATUS_CODES,
    DetailedMeasurement,
    Experiment,
    KeptValue,
    KnownFailure,
    Measurement,
    Run,
    RunSubject,
    Target,
)
from hud.pages import backends
from hud.pages.overview import judged
from hud.pages.run import results
from hud.pages.run.results import ResultFilters
from hud.pages.suite import query
from hud.points import kept, nights, streams, summaries, write
from hud.points.nights import Subject
from hud.sql import execute, fetch_tuples
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_metric,
    create_run,
)

WIDE = 4000  # series, each with a point and a state
_LARGE = {"hud_experiment", "hud_point", "hud_series", "hud_seriesstate"}

pytestmark = pytest.mark.django_db


def rows_read(call: Callable[[], object]) -> float:
    """Return how many rows of the large tables the statements of a call read, as their plans say, with little
    memory, as 100 times as many series leave."""
    with connection.cursor() as cursor, CaptureQueriesContext(connection) as captured:
        cursor.execute("SET LOCAL work_mem = '64kB'; SET LOCAL hash_mem_multiplier = 1")
        call()
        plans = []
        for query in captured.captured_queries:
            if query["sql"].lstrip().upper().startswith(("SELECT", "WITH")):
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query['sql']}")
                plans.append(cursor.fetchone()[0][0]["Plan"])
    return sum(map(_rows_of, plans))


def _rows_of(plan: dict[str, Any]) -> float:
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    is_scan = plan["Node Type"] in {"Materialize", "CTE Scan"} or plan.get("Relation Name") in _LARGE
    own = float(rows * plan["Actual Loops"]) if is_scan else 0.0
    return own + sum(map(_rows_of, plan.get("Plans", [])))


@pytest.fixture
def wide() -> Run:
    """Return the newest of two runs, of which each has measured as many series."""
    now = timezone.now()
    older, newest = (create_run(order_time=now - timedelta(days=days), finished=now) for days in (3, 2))
    Run.objects.update(finished=F("order_time"))
    environment, metric = create_environment(), create_metric("speedup")
    execute(
        """
        INSERT INTO hud_experiment (suite, "case", knobs, mode, dtype, backend, device, arch, dynamic)
        SELECT 'wide', n, '{}', 'inference', 'float16', 'inductor', 'cuda', 'h200', false
        FROM generate_series(1, %s) n
        """,
        [WIDE],
    )
    execute(
        """
        INSERT INTO hud_series (experiment_id, metric_id, stream_id)
        SELECT id, %s, %s FROM hud_experiment WHERE suite = 'wide'
        """,
        [metric.pk, newest.stream_id],
    )
    for run in (older, newest):
        execute(
            """
            INSERT INTO hud_point (series_id, order_time, run_id, environment_id, value, samples, processes,
                compilations, status, branch, rerun, verdict, repeat)
            SELECT id, %s, %s, %s, 1, 1, 1, 1, 0, %s, false, 1, 0 FROM hud_series WHERE stream_id = %s
            """,
            [run.order_time, run.pk, environment.pk, run.branch, run.stream_id],
        )
    execute(
        """
        INSERT INTO hud_seriesstate (series_id, class_key, headline, level, run_id, environment_id,
            order_time, points, recent)
        SELECT id, 'gpu', true, '{}', %s, %s, %s, 2, '{1,1}' FROM hud_series WHERE stream_id = %s
        """,
        [newest.pk, environment.pk, newest.order_time, newest.stream_id],
    )
    rows = fetch_tuples("SELECT run_id, series_id FROM hud_point")
    write.note_subjects(rows)
    execute("ANALYZE hud_experiment, hud_series, hud_point, hud_seriesstate")
    return newest


def test_head_of_a_page(wide: Run) -> None:
    assert rows_read(streams.listed) < 100


def test_list_of_streams(wide: Run) -> None:
    assert rows_read(streams.read) < 3 * WIDE  # it counts the series


def test_subjects_of_a_stream(wide: Run) -> None:
    subject = Subject("h200", "inference", "float16")
    assert streams.measured_by(wide.stream) == [(subject, "wide")]
    assert rows_read(lambda: streams.measured_by(wide.stream)) == 0
    assert nights._with_points([wide.pk, 0], subject, wide.stream) == {wide.pk}
    assert rows_read(lambda: nights._with_points([wide.pk], subject, wide.stream)) == 0


def test_overdue_suites(wide: Run) -> None:
    late = wide.order_time + LATE
    assert [suite.suite for suite in overdue_suites(late + timedelta(minutes=1))] == ["wide"]
    assert rows_read(lambda: overdue_suites(late + timedelta(minutes=1))) < 10
    assert overdue_suites(late - timedelta(minutes=1)) == []
    assert overdue_suites(wide.order_time + GIVEN_UP) == []


def test_a_suite_that_came_once_is_never_overdue(wide: Run) -> None:
    RunSubject.objects.exclude(run=wide).delete()
    assert overdue_suites(wide.order_time + 2 * LATE) == []


def test_points_of_a_few_experiments(wide: Run) -> None:
    side = resolve(f"run:{wide.pk}", wide.stream, {}, is_base=False)
    metric, few = create_metric("speedup").pk, Experiment.objects.filter(suite="wide")[:3]
    ids = [experiment.pk for experiment in few]
    assert sorted(Points.read(side, [metric], ids).table.experiment) == sorted(ids)
    assert rows_read(lambda: Points.read(side, [metric], ids)) < 20


def test_subjects_follow_deletions_and_names() -> None:
    stays, gone = (create_measurement(experiment=create_experiment(suite=name)) for name in ("one", "two"))
    Run.objects.filter(pk=stays.run_id).update(commit="a" * 40)
    assert set(RunSubject.objects.values_list("suite", flat=True)) == {"one", "two"}
    delete(gone.run, who="olga")
    rename(kind="suite", old="one", new="three", who="olga")
    assert list(RunSubject.objects.values_list("run", "suite")) == [(stays.run_id, "three")]
    write.unfold([(stays.run_id, stays.series_id)])
    DetailedMeasurement.objects.all().delete()
    write.make([(stays.run_id, stays.series_id)])
    write.forget_subjects([stays.run_id])
    assert not RunSubject.objects.exists()


def test_a_case_that_never_ran_is_no_subject() -> None:
    create_measurement(value=None, status="not_run")
    assert Measurement.objects.get().status == STATUS_CODES["not_run"]
    assert not RunSubject.objects.exists()


def test_judged_night_reads_each_state_once(wide: Run) -> None:
    comparison = backends.BackendComparison(wide.stream, backends.BackendFilters(), {}, [], only_arch=True)
    assert judged.count(comparison, [wide.pk]).series == WIDE
    assert rows_read(lambda: judged.count(comparison, [wide.pk])) < 5 * WIDE


def test_judged_night_is_kept_until_its_run_changes(wide: Run) -> None:
    def read() -> object:
        comparison = backends.read(backends.BackendFilters(), wide.stream)
        assert comparison.head
        assert wide.pk in comparison.head.runs
        return judged.read(comparison)

    assert rows_read(read) > WIDE
    assert rows_read(read) < 100
    write.touch_runs([wide.pk])
    assert rows_read(read) > WIDE


def begin_anew() -> None:
    """Forget what this process keeps, as another one has nothing."""
    for values in (judged._judged_nights, nights._kept, streams._counts_of_nights):
        values._values.clear()


def test_another_process_reads_what_one_has_computed_of_a_night(wide: Run) -> None:
    def read() -> object:
        return judged.read(backends.read(backends.BackendFilters(), wide.stream))

    begin_anew()
    assert rows_read(read) > WIDE
    first = read()
    begin_anew()
    assert rows_read(read) < 100
    assert read() == first
    begin_anew()
    rename(kind="suite", old="wide", new="wider", who="olga")
    assert rows_read(read) > WIDE
    begin_anew()
    KeptValue.objects.update(value=msgspec.msgpack.encode({"of": "other code"}))
    assert rows_read(read) > WIDE
    assert read() == first
    begin_anew()
    KeptValue.objects.update(at=timezone.now() - 2 * kept.STORED)
    assert rows_read(read) > WIDE, "nothing is stored for ever"


def test_the_judge_reads_ahead_for_the_first_visitor(wide: Run, client: Client) -> None:
    assert not KeptValue.objects.exists()
    read_ahead()
    stored = set(KeptValue.objects.values_list("digest", flat=True))
    assert stored
    begin_anew()
    assert rows_read(lambda: judged.read(backends.read(backends.BackendFilters(), wide.stream))) < WIDE / 10
    assert client.get("/").status_code == 200
    assert set(KeptValue.objects.values_list("digest", flat=True)) == stored


def test_suites_are_counted_when_results_come_or_go(wide: Run) -> None:
    def counted() -> dict[str, int]:
        return {row["name"]: row["experiments"] for row in query.read_all(wide.stream) if row["experiments"]}

    assert counted() == {"wide": WIDE}
    assert rows_read(counted) < 10
    more = create_measurement(experiment=create_experiment(suite="more"), run=create_run(stream=wide.stream))
    assert counted() == {"wide": WIDE, "more": 1}
    delete(more.run, who="olga")
    assert counted() == {"wide": WIDE}


@pytest.fixture
def large(wide: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a run of two suites that counts as large, in which some points regressed, some failed, some
    improved, one has no verdict and one misses its target."""
    monkeypatch.setattr(summaries, "LARGE", WIDE // 2)
    execute("UPDATE hud_experiment SET suite = 'other' WHERE suite = 'wide' AND \"case\"::int > 3000")
    execute(
        """
        UPDATE hud_point SET verdict = CASE n %% 500 WHEN 1 THEN 3 WHEN 2 THEN 5 WHEN 3 THEN 2 WHEN 4 THEN 4
                ELSE 1 END, change = 0.1, factor = n %% 7 - 3,
            status = CASE n %% 500 WHEN 2 THEN %s ELSE 0 END,
            target = CASE n WHEN 9 THEN 70 END, value = CASE n %% 500 WHEN 2 THEN NULL ELSE n END
        FROM (SELECT s.id, e."case"::int n FROM hud_series s JOIN hud_experiment e ON e.id = s.experiment_id
            WHERE e.suite IN ('wide', 'other')) own WHERE own.id = series_id
        """,
        [STATUS_CODES["failed"]],
    )
    execute("UPDATE hud_point SET verdict = NULL WHERE value = 17")
    write.count_points([wide.pk])
    wide.refresh_from_db()
    return wide


def test_a_large_run_reads_what_its_page_shows(large: Run, client: Client) -> None:
    addresses = [
        f"/runs/{large.pk}.json?{query}" for query in ("", "page=3", "show=failed", "show=rest&page=2")
    ]
    before = [client.get(address).json() for address in addresses]
    assert [len(answer["items"]) for answer in before] == [200, 200, 8, 200]
    assert before[0]["counts"]["regressed"] == 8
    assert before[0]["counts"]["missed"] == 1
    assert rows_read(lambda: results.read(large, ResultFilters(), 50, grouped=True)) > WIDE
    assert [summaries.keep_missing() for _round in range(2)] == [1, 0]
    assert [client.get(address).json() for address in addresses] == before
    assert rows_read(lambda: results.read(large, ResultFilters(), 50, grouped=True)) < 500
    text = client.get(f"/runs/{large.pk}/").content.decode()
    assert "1 to 50 of 4000" in text
    assert text.index(">other</a>") < text.index(">wide</a>")


def test_a_summary_holds_until_what_it_says_changes(large: Run) -> None:
    def is_made_anew() -> bool:
        was_outdated = summaries.kept(large) is None
        while summaries.keep_missing():
            pass
        assert summaries.kept(large)
        return was_outdated

    assert is_made_anew()
    assert not is_made_anew()
    write.touch_runs([large.pk])
    assert is_made_anew()
    experiment = Experiment.objects.get(suite="wide", case="2")
    KnownFailure.objects.create(stream=large.stream, experiment=experiment, reason="known", author="olga")
    assert is_made_anew()
    rename(kind="suite", old="other", new="another", who="olga")
    assert is_made_anew()
    summary = summaries.kept(large)
    assert summary
    assert set(summary.suites) == {"wide", "another"}
    assert summary.counts["known"].points == 1
    Target.objects.create(metric=create_metric("speedup"), value=3.0)
    assert is_made_anew()


def test_the_judge_keeps_summaries_of_large_runs(large: Run) -> None:
    call_command("judge", "--once")
    assert summaries.kept(Run.objects.get(pk=large.pk))
