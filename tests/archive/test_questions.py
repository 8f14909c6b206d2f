"""Compare the answers of the archive with plain Python over the same points."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Browser
from pytest_django import DjangoAssertNumQueries

from hud.archive import answer, ask, write
from hud.archive.ask import COMPARED, FLAGGED, REGRESSED, Question
from hud.corrections.streams import merge
from hud.models import VERDICT_CODES, Point, Run, Series, Stream
from hud.points.kept import Kept
from hud.points.write import note_subjects, touch_runs
from hud.problems import Problem
from tests.pages.test_every_page import World, _walk
from tests.support.contents import ATTACK, LONG
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_metric,
    create_run,
    create_user,
)
from tests.support.servers import Hud
from tests.support.waiting import wait_for

FIRST = datetime(2025, 1, 1, 3, tzinfo=UTC)
DAYS = 150
OLD, NEW = "2.12.0", "2.13.0"
BAD, REGRESSED_CODE = VERDICT_CODES["failed"], VERDICT_CODES["regressed"]


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "_kept", Kept(most=20))


@pytest.fixture
def stream(db: None, settings: Any, tmp_path: Path) -> Stream:
    """Five months of nights of 12 series, archived: noise and some steps; with failures, reruns, points that
    may not decide, a pull request, and another class of environments from the hundredth day on."""
    settings.HUD_DATA = tmp_path
    return grow()


def grow() -> Stream:
    rng = random.Random(1)
    stream = Stream.objects.create(name="story")
    other = Stream.objects.create(name="other")
    facts = [(OLD, "580.1"), (NEW, "580.1"), (NEW, "590.1")]
    environments = [create_environment(torch=torch, driver=driver) for torch, driver in facts]
    series = [
        Series.objects.create(
            experiment=create_experiment(suite=suite, case=case),
            metric=create_metric(metric),
            stream=owner,
        )
        for number, case in enumerate(("gemv", LONG, ATTACK))
        for suite in ("micro", "timm")
        for metric in ("device_bandwidth_gbps", "abs_latency")
        for owner in ([stream, other] if not number else [stream])
    ]
    points = []
    for day in range(DAYS):
        order_time = FIRST + timedelta(days=day)
        owners = {
            owner.pk: create_run(order_time=order_time, stream=owner, branch="main")
            for owner in (stream, other)
        }
        environment = environments[(day >= 60) + (day >= 100)]
        for place, own in enumerate(series):
            value = (
                100.0
                * (1 + 0.01 * rng.gauss(0, 1))
                * (1.25 if day > 30 + 9 * place and place % 3 == 0 else 1)
            )
            about: dict[str, Any] = {"verdict_code": VERDICT_CODES["unchanged"]}
            if (
                place % 3 == 0 and day >= 31 + 9 * place
            ):  # each later one is as far from the level, or further
                about = {"verdict_code": REGRESSED_CODE, "change": 0.25 + day / 1000}
            chance = rng.random()
            if chance < 0.02:
                about |= {"status_code": 1, "code": "x"}
                value = 500.0
            elif chance < 0.04:
                about |= {"quality": "busy"}
                value = 900.0
            run = owners[own.stream.pk]
            points.append(
                Point(series=own, run=run, environment=environment, order_time=order_time, value=value,
                      branch="pr/1" if chance > 0.99 else run.branch, rerun=0.98 < chance <= 0.99, repeat=0,
                      **about)
            )  # fmt: skip
    Point.objects.bulk_create(points)
    list(write.write_due())
    return stream


class Expected:
    """The points that count, by series and class of environments, in order."""

    def __init__(self, stream: Stream) -> None:
        kept = Point.objects.filter(
            series__stream=stream, status_code=0, quality=None, rerun=False, branch__in=["main", ""]
        ).select_related("series__metric", "series__experiment", "environment")
        self.lines: dict[tuple[int, str], list[Any]] = defaultdict(list)
        for point in kept.order_by("order_time", "run"):
            self.lines[point.series_id, point.environment.class_key].append(point)

    @staticmethod
    def worse(point: Any, before: float, after: float) -> float:
        sign = 1 if point.series.metric.direction == "down" else -1
        return sign * (after - before) / abs(before)

    def ends(self) -> dict[tuple[int, str], tuple[float, float, float]]:
        window, compared = timedelta(days=14), {}
        for key, points in self.lines.items():
            first, last = points[0].order_time + window, points[-1].order_time - window
            if last >= first:
                before = statistics.median(p.value for p in points if p.order_time < first)
                after = statistics.median(p.value for p in points if p.order_time > last)
                compared[key] = before, after, self.worse(points[0], before, after)
        return compared

    def sides(self) -> dict[tuple[int, str], tuple[float, float, float]]:
        compared = {}
        for key, points in self.lines.items():
            old, new = (
                [p.value for p in points if p.environment.torch.startswith(torch)] for torch in (OLD, NEW)
            )
            if old and new:
                before, after = statistics.median(old), statistics.median(new)
                compared[key] = before, after, self.worse(points[0], before, after)
        return compared

    def flags(self, least: float) -> dict[tuple[int, int], float]:
        flagged = {}
        for (series, _class), points in self.lines.items():
            for before, point in pairwise(points):
                worse = self.worse(point, before.value, point.value)
                if worse >= least:
                    flagged[series, point.run_id] = worse
        return flagged


def counts(compared: dict[Any, tuple[float, float, float]], least: float) -> dict[str, int]:
    changes = [worse for _before, _after, worse in compared.values()]
    return {
        "series": len(changes),
        "worse": sum(worse >= least for worse in changes),
        "better": sum(worse <= -least for worse in changes),
    }


def test_what_regressed_and_stayed_so(stream: Stream) -> None:
    found = ask.ask(Question(least=0.1), stream)
    expected = Expected(stream)
    ends = expected.ends()
    assert found.totals == [counts(ends, 0.1)]
    assert found.totals[0]["worse"] >= 2
    worst = sorted(
        ((worse, key[0], values) for key, (*values, worse) in ends.items() if worse >= 0.1), reverse=True
    )
    assert [
        (change.worse, change.series.pk, [change.before, change.after]) for change in found.items
    ] == worst
    steps: dict[int, Any] = {}
    for points in expected.lines.values():
        for before, point in pairwise(points):
            if point.verdict_code == REGRESSED_CODE != before.verdict_code:
                steps[point.series_id] = point.run_id, point.order_time
    assert {
        change.series.pk: (change.run, change.time) for change in found.items if change.run
    }.items() <= steps.items()
    assert any(change.run for change in found.items)


def test_a_series_keeps_its_classes_of_environments_apart(stream: Stream) -> None:
    lines = Expected(stream).ends()
    assert len(lines) > len({series for series, _class in lines}), "some series have two"
    assert ask.ask(Question(), stream).totals[0]["series"] == len(lines)


def test_two_versions_of_torch(stream: Stream) -> None:
    found = ask.ask(Question(COMPARED, least=0.1, base=OLD, head=NEW), stream)
    sides = Expected(stream).sides()
    everything, micro, timm = found.totals
    assert {name: everything[name] for name in ("series", "worse", "better")} == counts(sides, 0.1)
    assert (micro["suite"], timm["suite"]) == ("micro", "timm")
    gains = [  # of a latency before over after, of a bandwidth after over before
        before / after if worse * (after - before) > 0 else after / before
        for before, after, worse in sides.values()
    ]
    assert everything["mean_gain"] == pytest.approx(statistics.geometric_mean(gains) - 1)
    assert micro["series"] + timm["series"] == everything["series"] == len(sides)
    assert {change.series.pk: change.worse for change in found.items} == {
        series: worse for (series, _class), (*_, worse) in sides.items() if abs(worse) >= 0.1
    }


def test_what_a_threshold_would_have_flagged(stream: Stream) -> None:
    found = ask.ask(Question(FLAGGED, least=0.03), stream)
    flagged = Expected(stream).flags(0.03)
    everything, *by_month = found.totals
    assert everything["flagged"] == len(flagged) > 10
    assert [row["month"] for row in by_month] == [f"2025-0{month}" for month in range(1, 6)]
    assert sum(row["flagged"] for row in by_month) == everything["flagged"]
    assert 0 < everything["both"] <= everything["regressed"] <= len(Expected(stream).lines)
    assert 0 < everything["returned"] < everything["flagged"]
    assert {(change.series.pk, change.run): change.worse for change in found.items} == flagged
    assert {change.run for change in found.items if change.judged} <= {
        point.run_id for point in Point.objects.filter(verdict_code=REGRESSED_CODE)
    }


def test_a_change_from_nearly_nothing_is_a_number(stream: Stream, client: Client) -> None:
    of_times = Point.objects.filter(series__stream=stream, series__metric__name="abs_latency")
    nearly = of_times.order_by("order_time", "pk").first()
    assert nearly
    Point.objects.filter(series=nearly.series_id).update(value=1e300)
    Point.objects.filter(pk=nearly.pk).update(value=1e-300)
    month = Run.objects.filter(stream=stream, order_time__month=nearly.order_time.month)
    month.order_by("-order_time")[0].delete()  # so that it is written anew
    list(write.write_due())
    found = client.get("/api/v1/history?stream=story&question=flagged")
    assert "Infinity" not in found.content.decode()
    assert found.json()["totals"]


def test_months_suite_and_metric_bound_a_question(stream: Stream) -> None:
    of_two = ask.ask(Question(FLAGGED, months=2, suite="timm", metric="abs_latency", least=0.01), stream)
    assert (of_two.first.month, of_two.last.month) == (4, 5)  # type: ignore[union-attr]
    assert {(change.series.experiment.suite, change.series.metric.name) for change in of_two.items} == {
        ("timm", "abs_latency")
    }
    assert min(change.time.month for change in of_two.items if change.time) == 4
    assert ask.ask(Question(), Stream.objects.create(name="empty")).first is None


def test_an_answer_is_kept_until_a_month_is_written_anew(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask.ask(Question(), stream)
    assert ask.ask(Question(), stream).items is first.items
    Run.objects.filter(stream=stream).order_by("pk").first().delete()  # type: ignore[union-attr]
    list(write.write_due())
    assert ask.ask(Question(), stream).items is not first.items


def changed_and_unwritten(stream: Stream, **question: Any) -> tuple[list[int], list[int]]:
    """Return the months that an answer names, by their numbers."""
    answer = ask.ask(Question(**question), stream)
    return [month.month for month in answer.changed_months], [m.month for m in answer.unwritten_months]


def test_an_answer_names_months_that_changed_or_are_not_written(stream: Stream, client: Client) -> None:
    assert changed_and_unwritten(stream) == ([], [])
    first = ask.ask(Question(), stream)
    Run.objects.filter(stream=stream, order_time__month=2).delete()
    touch_runs([Run.objects.filter(stream=stream, order_time__month=4).latest("pk").pk])
    for order_time in (datetime(2024, 12, 5, tzinfo=UTC), datetime(2025, 6, 5, tzinfo=UTC), timezone.now()):
        create_run(order_time=order_time, stream=stream)
    assert changed_and_unwritten(stream) == ([2, 4], [12, 6])
    assert ask.ask(Question(), stream).items is first.items, "as the archive has it"
    assert changed_and_unwritten(stream, months=2) == ([4], [6])
    assert changed_and_unwritten(Stream.objects.get(name="other")) == ([], [])
    called = client.get("/api/v1/history?stream=story").json()
    assert called["changed_months"] == ["2025-02-01", "2025-04-01"]
    assert called["unwritten_months"] == ["2024-12-01", "2025-06-01"]
    assert client.get("/history.json?stream=story").json()["changed_months"] == called["changed_months"]
    page = client.get("/history/?stream=story").content.decode()
    assert [f"{month} 2025" in page for month in ("February", "April", "June", "May")] == [True] * 3 + [False]
    list(write.write_due())
    assert changed_and_unwritten(stream) == ([], [])


def test_the_months_are_told_by_one_statement(
    stream: Stream, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    ask.ask(Question(), stream)
    with django_assert_num_queries(2):
        ask.ask(Question(), stream)


def test_a_merged_stream_awaits_the_writing_of_its_months(stream: Stream, client: Client) -> None:
    into = Stream.objects.create(name="joint", is_front=True)
    merge(stream, into, who="t")
    called = client.get("/api/v1/history?stream=story").json()
    assert (called["stream"], called["first"], called["totals"]) == ("joint", None, [])
    assert called["unwritten_months"] == [f"2025-0{month}-01" for month in range(1, 6)]
    assert "May 2025" in client.get("/history/?stream=joint").content.decode()
    list(write.write_due())
    assert changed_and_unwritten(into) == ([], [])
    assert ask.ask(Question(), into).totals[0]["series"] > 0


@pytest.mark.parametrize(
    ("query", "places", "named"),
    [
        ("suite=mirco", ["?suite"], "micro"),
        ("suite=timm&metric=abs_latancy", ["?metric"], "abs_latency"),
        ("question=flagged&suite=mirco&metric=abs_latancy", ["?suite", "?metric"], "abs_latency"),
        (f"question=compared&base={OLD}", ["?head"], ""),
        (f"question=compared&head={NEW}", ["?base"], ""),
        ("question=compared", ["?base", "?head"], ""),
        (f"question=compared&base={OLD}&head=2.13.9", ["?head"], NEW),
        (f"question=compared&base=2.12.9&head={NEW}&suite=mirco", ["?base"], OLD),
    ],
)
def test_what_is_unknown_is_named(
    stream: Stream, client: Client, query: str, places: list[str], named: str
) -> None:
    note_subjects(Point.objects.values_list("run", "series"))
    refused = client.get(f"/api/v1/history?stream=story&{query}")
    assert (refused.status_code, [error["pointer"] for error in refused.json()["errors"]]) == (422, places)
    assert named in refused.json()["detail"]
    assert client.get(f"/history.json?stream=story&{query}").status_code == 422
    page = client.get(f"/history/?stream=story&{query}")
    assert (page.status_code, page.context["problem"]) == (200, refused.json()["detail"])


def test_known_names_without_a_series_are_answered(stream: Stream) -> None:
    create_metric("compression_ratio")
    create_environment(torch="3.0")
    note_subjects(Point.objects.values_list("run", "series"))
    assert ask.ask(Question(suite="timm", metric="compression_ratio"), stream).totals[0]["series"] == 0
    assert ask.ask(Question(COMPARED, base=OLD, head="3.0"), stream).totals[0]["series"] == 0


def ask_process(statement: str) -> subprocess.CompletedProcess[bytes]:
    """Ask for what a statement returns."""
    asked = {
        "question": "any",
        "folder": "/tmp/none/",
        "series": {"series": [], "sign": [], "part": []},
        "parameters": {},
    }
    program = f"""
import runpy
module = runpy.run_path({answer.__file__!r})
module["QUESTIONS"]["any"] = {{"items": {statement!r}}}
module["main"]()
"""
    return subprocess.run(
        [sys.executable, "-I", "-c", program],
        input=json.dumps({**asked, "limit_s": 20, "memory_mib": 256}).encode(),
        capture_output=True,
        check=False,
        env={},
    )


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled by configuration"),
        ("COPY (SELECT 1) TO '/tmp/written.csv'", "disabled by configuration"),
        ("SELECT * FROM read_parquet('https://example.org/x.parquet')", "disabled by configuration"),
        ("INSTALL httpfs", "disabled"),
        ("SET memory_limit = '90GB'", "locked"),
        ("SELECT list(i) FROM range(1000000000) t(i)", "Memory"),
    ],
)
def test_the_process_reads_the_archive_alone_and_takes_little(statement: str, words: str) -> None:
    process = ask_process(statement)
    assert process.returncode
    assert words in process.stderr.decode()
    assert not Path("/tmp/written.csv").exists()


def test_a_slow_statement_writes_no_progress_into_the_answer() -> None:
    process = ask_process("SELECT current_setting('enable_progress_bar') AS shown")
    assert json.loads(process.stdout) == {"items": [{"shown": False}]}


def test_a_question_that_takes_too_long_is_a_problem(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "_LIMIT_S", 0.01)
    with pytest.raises(Problem, match="too large") as raised:
        ask.ask(Question(), stream)
    assert raised.value.status == 503
    monkeypatch.setattr(ask, "_LIMIT_S", 20)
    monkeypatch.setattr(ask, "_MEMORY_MIB", 1)
    with pytest.raises(Problem, match="memory"):
        ask.ask(Question(), stream)


def test_a_question_waits_for_another_and_shares_its_answer(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask.ask(Question(), stream)
    answered, same = ask._kept, Kept(most=20)
    monkeypatch.setattr(ask, "_kept", same)

    def answer_another() -> None:
        with ask._ASKING:
            begun.set()
            wait_for(lambda: ask._COMING._value < 3, "the question waits")
            same.keep({key: value for key, (_at, value) in answered._values.items()})

    begun, another = Event(), Thread(target=answer_another)
    another.start()
    assert begun.wait(60)
    assert ask.ask(Question(), stream).items is first.items
    another.join()


def test_a_question_waits_no_longer_and_beside_no_more_than_a_process_bears(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    with ask._COMING, ask._COMING, ask._COMING:
        refused = client.get("/api/v1/history?stream=story")
        assert (refused.status_code, refused["Retry-After"]) == (503, "2")
    monkeypatch.setattr(ask, "_WAIT_S", 0)
    with ask._ASKING:
        assert client.get("/api/v1/history?stream=story").status_code == 503
    assert client.get("/api/v1/history?stream=story").status_code == 200


def test_page_and_api_have_the_same_rows_and_take_bounded_parameters(stream: Stream, client: Client) -> None:
    query = "stream=story&question=flagged"
    page = client.get(f"/history.json?{query}&percent=10").json()
    called = client.get(f"/api/v1/history?{query}&least=0.1").json()
    assert page["items"] == [{**row, "time": row["time"].replace("Z", "+00:00")} for row in called["items"]]
    assert page["totals"] == called["totals"]
    assert called["items"]
    for wrong in ("months=0", "months=99", "least=0", "question=sql", "kind=flagged"):
        assert client.get(f"/api/v1/history?stream=story&{wrong}").status_code == 422
    assert client.get("/history.json?stream=story&months=99").status_code == 400
    assert "Ignored: months" in client.get("/history/?stream=story&months=99").content.decode()


def test_the_page_without_an_archive_says_how_it_is_made(db: None, client: Client) -> None:
    Stream.objects.create(name="empty")
    assert "manage.py archive" in client.get("/history/?stream=empty").content.decode()


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
def test_the_page_of_each_question_fits_a_desk_and_a_phone(
    browser: Browser, live_hud: Hud, data: Path, settings: Any, client: Client
) -> None:
    settings.HUD_DATA = data
    create_run(order_time=FIRST - timedelta(days=9), stream=grow())
    client.force_login(create_user())
    context, walk = _walk(browser, World(live_hud, client, {}))
    for kind, heads in ((REGRESSED, 1), (COMPARED, 2), (FLAGGED, 2)):
        walk.open(f"/history/?stream=story&question={kind}&percent=1&base={OLD}&head={NEW}")
        assert walk.page.locator("main table thead").count() == heads
        walk.run_axe()
        walk.look_at_widths()
    context.close()
    assert not walk.faults
