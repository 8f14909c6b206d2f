"""Two or more runs side by side: verdicts, other causes, aggregates, and the forms of a side."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.models import Experiment, KnownFailure, Point, Run, SeriesState, Stream, Threshold
from hud.pages.compare.view import offered as offered_sides
from tests.support import points
from tests.support.compilations import compiled, kernel, store
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_upload,
)

pytestmark = pytest.mark.django_db
SPEEDUP = "device_speedup"
NOW = timezone.now() - timedelta(days=10)  # so that what comes later has been, too


def model(case: str, **about: Any) -> Experiment:
    return create_experiment(suite="timm", case=case, knobs={}, **about)


def measured(run: Run, experiment: Experiment, value: float | None, **about: Any) -> None:
    """Store a point of three compilations that differ by 0.1 %, judged as one of twenty."""
    about.setdefault("environment", create_environment(gpu_uuid="GPU-1"))
    about.setdefault("metric", SPEEDUP)
    for number, part in enumerate((1.0, 0.999, 1.001) if value else (1.0,)):
        about |= {"repeat": number, "compilation": number}
        create_measurement(experiment, value=value and value * part, run=run, **about)
    Point.objects.filter(run=run, series__experiment=experiment).update(noise=0.005, level_points=20)


def known(experiment: Experiment, *, cards: Any = ("GPU-1",)) -> None:
    """Give the series of an experiment a state, as the judge leaves it."""
    for series in experiment.series.all():
        newest = series.measurement_set.latest("order_time")
        SeriesState.objects.create(
            series=series,
            class_key=newest.environment.class_key,
            level={"cards": list(cards)},
            run_id=newest.run_id,
            environment_id=newest.environment_id,
            order_time=newest.order_time,
            points=20,
            recent=[],
        )


@pytest.fixture
def nights() -> tuple[Run, Run]:
    """Two nights of six models: slower, faster, quiet, failed, only before, only after."""
    base = create_run(order_time=NOW - timedelta(days=1), commit="cb4e520aa", branch="main", host_name="h1")
    head = create_run(order_time=NOW, commit="ca3512f00", branch="main", host_name="h1")
    for case, before, after in (
        ("slower", 2.5, 2.2),
        ("faster", 1.0, 1.1),
        ("quiet", 1.5, 1.503),
        ("failed", 1.3, None),
        ("gone", 1.2, 0.0),
        ("new", 0.0, 1.2),
    ):
        experiment = model(case)
        if before:
            measured(base, experiment, before)
        if after:
            measured(head, experiment, after)
        elif after is None:
            measured(head, experiment, None, status="crashed", code="SIGSEGV", note="it crashed")
        known(experiment)
    return base, head


def sides(base: Run, head: Run) -> dict[str, str]:
    return {"base": f"run:{base.pk}", "head": f"run:{head.pk}"}


def test_a_failed_side_has_no_graph_breaks_to_compare(client: Client, nights: tuple[Run, Run]) -> None:
    failed = Experiment.objects.get(case="failed")
    measured(nights[0], failed, 1.0, metric="graph_breaks")
    measured(nights[1], failed, None, metric="graph_breaks", status="crashed")
    assert client.get("/compare/", sides(*nights)).status_code == 200


def verdicts(client: Client, **query: Any) -> dict[str, tuple[str, str]]:
    items = client.get("/compare.json", query).json()["items"]
    return {row["case"]: (row["verdict"], row.get("reason") or "") for row in items}


def test_each_experiment_has_its_verdict_movers_first(client: Client, nights: tuple[Run, Run]) -> None:
    found = client.get("/compare.json", sides(*nights)).json()
    assert [(row["case"], row["verdict"]) for row in found["items"]] == [
        ("failed", "failed"),
        ("slower", "regressed"),
        ("faster", "improved"),
        ("quiet", "unchanged"),
        ("gone", "not_run"),
        ("new", "new"),
    ]
    slower = found["items"][1]
    assert slower["change"] == pytest.approx(-0.12)
    assert slower["factor"] > 4.2
    assert (slower["base_n"], slower["head_n"]) == (3, 3)
    (head,) = found["heads"]
    assert (head["matched"], head["only_base"], head["only_head"]) == (4, 1, 1)
    assert (head["regressed"], head["improved"], head["failed"], head["unchanged"]) == (1, 1, 1, 1)


def test_an_operator_s_threshold_holds_here_too(client: Client, nights: tuple[Run, Run]) -> None:
    Threshold.objects.create(case="slower", relative=0.5)
    found = verdicts(client, **sides(*nights))
    assert (found["slower"][0], found["faster"][0]) == ("unchanged", "improved")


def test_means_are_of_the_matched_cases_with_an_interval(client: Client, nights: tuple[Run, Run]) -> None:
    for run in nights:
        for metric in ("speedup", "compiled_latency_ms", "cold_compile_s"):
            measured(run, model("quiet"), 3.0, metric=metric)
    (group,) = client.get("/compare.json", sides(*nights)).json()["heads"][0]["aggregates"]
    assert group["means"]["compile time"]["metric"] == "cold_compile_s"
    assert (group["suite"], group["backend"]) == ("timm", "inductor")
    assert (group["base_passed"], group["head_passed"], group["expected"]) == (5, 4, 6)
    mean = group["means"]["speed"]
    assert mean["metric"] == SPEEDUP
    assert mean["matched"] == 3
    assert mean["change"] == pytest.approx((2.2 / 2.5 * 1.1 * 1.503 / 1.5) ** (1 / 3) - 1, rel=1e-3)
    assert mean["low"] < mean["change"] < mean["high"]
    assert group["base_pass_rate"] == pytest.approx(5 / 6)


def test_suites_and_backends_that_moved_come_first(client: Client, nights: tuple[Run, Run]) -> None:
    for case in ("a", "b", "c", "d"):
        for run, value in zip(nights, (2.0, 1.0), strict=True):
            measured(run, create_experiment(suite="torchbench", case=case, knobs={}, backend="z"), value)
    page = client.get("/compare/", sides(*nights))
    (candidate,) = page.context["page"].candidates
    assert [group.is_telling for group in candidate.groups] == [False, True]
    table = page.content.decode().partition('class="means blocks"')[2].partition("</table>")[0]
    assert 0 < table.index("torchbench") < table.index("timm")


def test_totals_are_over_all_suites_and_backends(client: Client, nights: tuple[Run, Run]) -> None:
    other = create_experiment(suite="huggingface", case="other", knobs={}, backend="aot_eager")
    for run, times in zip(nights, (1.0, 1.5), strict=True):
        measured(run, other, 2.0)
        for number, experiment in enumerate((other, model("quiet")), 1):
            measured(run, experiment, times * number, metric="gpu_busy_ms")
    recovered = model("recovered")
    measured(nights[0], recovered, None, status="crashed")
    measured(nights[1], recovered, 1.0)
    found = client.get("/compare.json", sides(*nights)).json()
    totals = found["totals"]
    assert totals == found["heads"][0]["totals"]
    counts = {name: totals[name] for name in ("matched", "base_passed", "head_passed", "expected")}
    assert counts == {"matched": 6, "base_passed": 6, "head_passed": 6, "expected": 8}
    assert (totals["new_failures"], totals["new_passes"]) == (1, 1)
    speed, time = totals["means"]["speed"], totals["means"]["time"]
    assert (speed["metric"], speed["matched"], speed["statistic"]) == (SPEEDUP, 4, "geometric mean")
    assert speed["change"] == pytest.approx((2.2 / 2.5 * 1.1 * 1.503 / 1.5) ** (1 / 4) - 1, rel=1e-3)
    assert (time["metric"], time["statistic"], time["base"]) == ("gpu_busy_ms", "sum", pytest.approx(3.0))
    assert time["change"] == pytest.approx(0.5, abs=0.01)
    assert set(totals["means"]) == {"speed", "time"}
    text = client.get("/compare/", sides(*nights)).content.decode()
    (tiles,) = re.findall(r'<ul class="totals">.*?</ul>', text, re.DOTALL)
    assert tiles.count("<li") == 5  # also where nothing has that kind on both sides
    assert "1 new failure, 1 new pass" in tiles
    assert "4 of 6 matched" in tiles


def test_what_is_within_the_noise_shows_numbers(client: Client, nights: tuple[Run, Run]) -> None:
    for run in nights:
        measured(run, model("quiet"), 1.0, metric="accuracy")
    (quiet,) = (
        row for row in client.get("/compare.json", sides(*nights)).json()["items"] if row["case"] == "quiet"
    )
    assert (quiet["metric"], quiet["verdict"]) == (SPEEDUP, "unchanged")
    assert quiet["change"] == pytest.approx(0.002)
    assert 0 < quiet["factor"] < 4
    Point.objects.filter(series__metric__name="accuracy").update(status_code=1, value=None)
    assert verdicts(client, **sides(*nights))["quiet"] == ("unchanged", "both_fail")


def test_a_move_that_may_have_another_cause_is_no_regression(client: Client, nights: tuple[Run, Run]) -> None:
    base, _head = nights
    places = {
        "other_card": ("h1", create_environment(gpu_uuid="GPU-2")),
        "other_class": ("h1", create_environment(gpu_uuid="GPU-1", driver="590.1")),
        "other_host": ("h2", create_environment()),
    }
    for reason, (host, environment) in places.items():
        run = create_run(order_time=NOW, host_name=host)
        measured(run, model("slower"), 2.2, environment=environment)
        measured(run, model("quiet"), 1.502, environment=environment)
        found = verdicts(client, **sides(base, run))
        assert (found["slower"], found["quiet"]) == (("inconclusive", reason), ("unchanged", "")), reason
    SeriesState.objects.update(level={"cards": ["GPU-1", "GPU-2"]})  # both belong to the level
    run = create_run(order_time=NOW, host_name="h1")
    measured(run, model("slower"), 2.2, environment=places["other_card"][1])
    assert verdicts(client, **sides(base, run))["slower"] == ("regressed", "")


def test_other_choices_of_the_autotuner_are_named(client: Client, nights: tuple[Run, Run]) -> None:
    base, head = nights
    environment = create_environment(gpu_uuid="GPU-1")
    slower = model("slower")
    for run, config in ((base, "XBLOCK=1024"), (head, "XBLOCK=64")):
        found = compiled(kernel("mm", 10.0, config=config))
        store(found, experiment=slower, run=run, environment=environment)
        points.make_of_runs([run.pk])
    Point.objects.update(noise=0.005, level_points=20)
    assert verdicts(client, **sides(base, head))["slower"] == ("inconclusive", "other_draw")
    text = client.get("/compare/", sides(base, head)).content.decode()
    assert f"/code/?stream={nights[0].stream}&amp;base=run%3A{base.pk}%2Fexperiment%3A{slower.pk}" in text


def test_what_an_operator_says_of_a_change_counts(client: Client, nights: tuple[Run, Run]) -> None:
    Threshold.objects.create(metric=SPEEDUP, case="slower", relative=0.2)
    found = verdicts(client, **sides(*nights))
    assert (found["slower"], found["faster"]) == (("unchanged", ""), ("improved", ""))
    Threshold.objects.update(relative=0.05, case="", suite="timm")
    assert verdicts(client, **sides(*nights))["slower"] == ("regressed", "")


def test_a_side_can_be_added(client: Client, nights: tuple[Run, Run]) -> None:
    base, head = nights
    query = f"?base=run:{base.pk}&head=run:{head.pk}&metric={SPEEDUP}"
    text = client.get(f"/compare/{query}").content.decode()
    assert text.count(f'type="hidden" name="head" value="run:{head.pk}"') == 2  # also of the filters
    link = f"/api/v1/compare?stream={base.stream}&amp;base=run%3A{base.pk}&amp;head=run%3A{head.pk}"
    link += f"&amp;metric={SPEEDUP}&amp;format=md"
    assert link in text
    assert client.get(html.unescape(link)).status_code == 200
    text = client.get(f"/compare/{query}&head=latest:main&head=latest:main").content.decode()
    assert 'name="head" maxlength' not in text


def test_runs_without_results_are_compared_too(client: Client) -> None:
    empty = create_run(), create_run()
    assert client.get("/compare.json", sides(*empty)).json()["items"] == []
    run = create_run()
    measured(run, model("slower"), 2.0)
    assert verdicts(client, **sides(empty[0], run)) == {"slower": ("new", "")}
    assert client.get("/compare/", {"base": f"run:{run.pk}", "head": f"run:{empty[0].pk}"}).status_code == 200


def test_few_results_leave_a_move_undecided(client: Client, nights: tuple[Run, Run]) -> None:
    Point.objects.update(noise=None, level_points=None)
    assert verdicts(client, **sides(*nights))["faster"][0] in {"inconclusive", "improved"}
    base, head = (create_run(order_time=NOW - timedelta(days=day)) for day in (1, 0))
    for run, value in ((base, 1.0), (head, 1.1)):
        create_measurement(model("once"), metric=SPEEDUP, value=value, run=run)
    assert verdicts(client, **sides(base, head)) == {"once": ("inconclusive", "few_compilations")}


def test_a_side_is_a_run_a_commit_a_branch_a_host_or_a_day(client: Client, nights: tuple[Run, Run]) -> None:
    base, head = nights
    yesterday = f"{NOW - timedelta(days=1):%Y-%m-%d}"

    def value(text: str) -> Any:
        answer = client.get("/compare.json", {"base": text, "head": f"run:{head.pk}", "metric": SPEEDUP})
        if answer.status_code != 200:
            return answer.status_code
        return next(row["base"] for row in answer.json()["items"] if row["case"] == "slower")

    assert value("commit:cb4e") == value(f"run:{base.pk}") == value(f"date:{yesterday}") == 2.5
    assert value("latest:main") == value("branch:main") == value("host:h1") == 2.2
    create_run(commit="cb4e99", order_time=NOW)
    assert value("commit:cb4e") == 400  # two commits
    for text in ("nonsense", "run:0", "run:x", "date:2026-13-01", "commit:x", "run:1\0"):
        assert value(text) == 400, text
    for text in ("run:999999", f"run:{2**40 % 10**10}", "commit:ffffffff", "latest:gone", "date:2011-01-01"):
        assert value(text) == 404, text
    wrong = {"base": "nonsense", "head": f"run:{head.pk}"}
    assert client.get("/compare/", wrong).status_code == 400
    missing = client.get("/compare/", {**wrong, "base": "run:999999"})
    assert missing.status_code == 404
    assert missing.content.decode().count("999999</p>") == 1
    many = f"/compare/?base=run:{base.pk}" + f"&head=run:{head.pk}" * 4
    assert client.get(many).status_code == 400


def test_without_sides_there_is_a_chooser(client: Client, nights: tuple[Run, Run]) -> None:
    page = client.get("/compare/")
    assert page.status_code == 200
    days = [str((NOW - timedelta(days=back)).date()) for back in (1, 0)]
    assert f"&amp;base={days[0]}&amp;head={days[1]}" in page.content.decode()
    assert [row["side"] for row in client.get("/compare.json").json()["items"]] == [
        f"run:{run.pk}" for run in reversed(nights)
    ]
    assert client.get("/compare/", {"base": "latest:main"}).status_code == 200


def test_a_rerun_and_what_shares_no_case_is_no_night(client: Client, nights: tuple[Run, Run]) -> None:
    base, head = nights
    offered = offered_sides(base.stream)
    experiment = model("slower")
    others: list[dict[str, Any]] = [
        {"experiment": experiment, "commit": "f1"},  # a rerun
        {"interpreter": "nightly", "base_interpreter": "stable", "commit": "f2"},
        {"state": "cancelled", "commit": "f3"},
        {"commit": "f4"},  # of another case, as below
    ]
    for day, about in enumerate(others, start=1):
        run = create_run(**{"order_time": NOW + timedelta(days=day), "branch": "main", **about})
        measured(run, model("alone") if about == {"commit": "f4"} else experiment, 2.0)
    later = offered_sides(base.stream)
    assert (later.nights, later.newest_two) == (offered.nights, offered.newest_two)
    assert later.newest_two == (f"run:{base.pk}", f"run:{head.pk}")
    run = create_run(order_time=NOW + timedelta(days=9), branch="main", commit="f5")
    measured(run, experiment, 2.0)
    later = offered_sides(base.stream)
    assert later.nights == (offered.nights[1] if offered.nights else "", str(run.order_time.date()))
    assert later.newest_two == (f"run:{head.pk}", f"run:{run.pk}")


def test_other_streams_change_nothing(client: Client, nights: tuple[Run, Run]) -> None:
    queries = [{}, {"base": f"run:{nights[0].pk}", "head": "latest:main"}]
    queries += [
        {"base": "commit:cb4e", "head": str(NOW.date())},
        {"base": "host:h1", "head": "night:" + str(NOW.date())},
    ]
    asked = [{**query, "stream": nights[0].stream.name} for query in queries]

    def answers() -> list[bytes]:
        return [client.get("/compare.json", query).content for query in asked]

    before = answers()
    assert all(b'"items":[{' in answer for answer in before)
    laptop = Stream.objects.create(name="laptop")
    about: dict[str, Any] = {"order_time": NOW, "branch": "main", "commit": "cb4e99", "host_name": "h1"}
    run = create_run(stream=laptop, **about)
    measured(run, model("slower"), 9.0)
    assert answers() == before
    listed = client.get("/compare.json", {**asked[0], "rows": "all"}).json()["items"]
    assert [row["stream"] for row in listed] == [nights[0].stream.name] * 2 + ["laptop"]
    found = client.get("/compare.json", {**sides(nights[0], run), "stream": laptop.name}).json()
    assert (found["base"]["stream"], found["head"]["stream"]) == (nights[0].stream.name, "laptop")
    assert {row["case"]: row["head"] for row in found["items"] if "head" in row}["slower"] == pytest.approx(
        9.0
    )


def test_it_compares_one_subject_and_keeps_it(client: Client, nights: tuple[Run, Run]) -> None:
    for run in nights:
        measured(run, model("slower", arch="b200"), 1.0)
    both = client.get("/compare/", sides(*nights)).content.decode()
    assert "timm · inductor · bfloat16 · b200" in both
    asked = {**sides(*nights), "arch": "b200", "mode": "inference", "dtype": "bfloat16"}
    assert [(row["case"], row["arch"]) for row in client.get("/compare.json", asked).json()["items"]] == [
        ("slower", "b200")
    ]
    text = client.get("/compare/", asked).content.decode()
    assert text.count('type="hidden" name="arch" value="b200"') == 2
    assert "timm · inductor · bfloat16 · b200" not in text
    assert client.get("/compare.json", {**asked, "dtype": "int8"}).json()["items"] == []


def test_its_numbers_are_those_of_the_points(client: Client) -> None:
    runs = [create_run(order_time=NOW - timedelta(days=day)) for day in (1, 0)]
    for run, shift in zip(runs, (0.0, 1.0), strict=True):
        for number, value in enumerate((1.0, 1.0, 1.0, 9.0)):
            place: dict[str, Any] = {"repeat": number, "compilation": 0 if number < 3 else number}
            create_measurement(model("m"), metric=SPEEDUP, value=value + shift, run=run, **place)
    (row,) = client.get("/compare.json", sides(*runs)).json()["items"]
    stored = [Point.objects.get(run=run).value for run in runs]
    assert [row["base"], row["head"]] == stored == [5.0, 6.0]
    assert (row["base_n"], row["head_n"]) == (2, 2)


def test_three_candidates_stand_beside_each_other(client: Client, nights: tuple[Run, Run]) -> None:
    base, head = nights
    query = f"?base=run:{base.pk}&head=run:{head.pk}&head=run:{base.pk}&head=latest:main"
    found = client.get(f"/compare.json{query}").json()
    assert [one["regressed"] for one in found["heads"]] == [1, 0, 1]
    assert client.get(f"/compare/{query}").status_code == 200


def test_page_and_markdown_show_the_same_rows(client: Client, nights: tuple[Run, Run]) -> None:
    base, head = nights
    slower = model("slower").series.get().measurement_set.filter(run=head)[0]
    regression = create_regression(slower)
    measured(head, model("<b>|*"), 1.0)
    measured(head, model("@team"), 1.0)
    text = client.get("/compare/", sides(base, head)).content.decode()
    assert f"/regressions/?stream={nights[0].stream}&amp;open={regression.pk}" in text
    assert "<b>|*" not in text
    secret = create_key(name="t", scopes=["read"], who="t")[1]
    api = Client(headers={"authorization": f"Bearer {secret}"})
    answer = api.get("/api/v1/compare", {**sides(base, head), "format": "md"})
    assert answer["Content-Type"].startswith("text/markdown")
    assert "@team" not in answer.content.decode(), "nobody is mentioned where it is pasted"
    lines = [
        line for line in answer.content.decode().splitlines() if line.startswith("| ") and "timm" in line
    ]
    assert len(lines) == 9  # a mean, and eight experiments
    only = client.get("/compare.json", {**sides(base, head), "verdict": "regressed"}).json()["items"]
    assert [row["case"] for row in only] == ["slower"]
    assert client.get("/compare.csv", sides(base, head)).content.decode().count("\n") == 9


def test_the_chooser_tells_uploads_of_one_minute_apart(
    client: Client, django_assert_num_queries: Any
) -> None:
    for name in ("a.json", "b.json"):
        create_run(title="runner: timm", upload=create_upload(name), source="nightly", order_time=NOW)
    stream = Run.objects.all()[0].stream
    items = client.get("/compare.json", {"stream": stream.name}).json()["items"]
    assert [(row["filename"], row["source"]) for row in items] == [
        ("b.json", "nightly"),
        ("a.json", "nightly"),
    ]
    with django_assert_num_queries(4):
        (second, first) = offered_sides(stream).runs
    assert (first.origin, second.origin) == (["nightly", "a.json"], ["nightly", "b.json"])


def test_the_api_answers_as_the_page(client: Client, nights: tuple[Run, Run]) -> None:
    secret = create_key(name="t", scopes=["read"], who="t")[1]
    api = Client(headers={"authorization": f"Bearer {secret}"})
    found = api.get("/api/v1/compare", sides(*nights)).json()
    assert found["items"] == client.get("/compare.json", sides(*nights)).json()["items"]
    assert {fact["name"] for fact in found["environment"]} == {"commit"}
    for query, status in (
        ({"base": "run:1"}, 422),
        ({**sides(*nights), "bse": "x"}, 422),
        ({**sides(*nights), "base": "x:1"}, 400),
        ({**sides(*nights), "base": "run:999999"}, 404),
        ({**sides(*nights), "format": "xml"}, 422),
        ({**sides(*nights), "metric": "nonsense"}, 404),
    ):
        answer = api.get("/api/v1/compare", query)
        assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json"), query


def test_the_sides_of_an_ab_run_are_its_own(client: Client) -> None:
    measured(create_run(), model("both"), 2.0)  # tells the noise
    run = create_run(interpreter="nightly", base_interpreter="stable", host_name="h1")
    for side, value in ((0, 2.0), (1, 1.0)):
        measured(run, model("both"), value, side=side)
    known(model("both"))
    assert verdicts(client, base=f"run:{run.pk}", head=f"run:{run.pk}") == {"both": ("regressed", "")}


@pytest.mark.parametrize("models", [1, 6])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, nights: tuple[Run, Run], django_assert_num_queries: Any, models: int
) -> None:
    for number in range(models):
        for run, value in zip(nights, (1.0, 0.5), strict=True):
            measured(run, model(f"model {number}"), value)
    with django_assert_num_queries(19):  # one asks for known failures, as something newly fails
        client.get("/compare/", {**sides(*nights), "stream": nights[0].stream.name})


def test_a_known_failure_is_counted_apart_and_is_no_news(client: Client, nights: tuple[Run, Run]) -> None:
    stream = nights[1].stream
    before = client.get("/compare.json", sides(*nights)).json()
    assert (before["counts"]["failed"], before["totals"]["new_failures"]) == (1, 1)
    KnownFailure.objects.create(
        stream=stream, experiment=Experiment.objects.get(case="failed"), reason="index out of range"
    )
    found = client.get("/compare.json", sides(*nights)).json()
    totals = found["totals"]
    assert (found["counts"]["failed"], totals["new_failures"], totals["known_failures"]) == (0, 0, 1)
    assert totals["head_passed"] == before["totals"]["head_passed"]
    assert verdicts(client, **sides(*nights))["failed"] == ("failed", "known_failure")
    page = client.get("/compare/", sides(*nights))
    assert "new failure" not in page.content.decode()
    assert "failed" not in {row.experiment.case for row in page.context["rows"].movers}
    _key, secret = create_key(name="reader", scopes=["read"], who="t")
    text = client.get(
        "/api/v1/compare",
        {**sides(*nights), "format": "md"},
        headers={"authorization": f"Bearer {secret}"},
    ).content.decode()
    assert "new failure" not in text
    assert next(line for line in text.splitlines() if line.startswith("| failed")).endswith(
        "| known failure |"
    )


def test_what_moves_beside_a_known_failure_is_news(client: Client, nights: tuple[Run, Run]) -> None:
    slower = Experiment.objects.get(case="slower")
    measured(nights[0], slower, 1.0, metric="accuracy")
    measured(nights[1], slower, None, metric="accuracy", status="wrong")
    KnownFailure.objects.create(stream=nights[1].stream, experiment=slower, reason="index out of range")
    assert verdicts(client, **sides(*nights))["slower"] == ("regressed", "")
