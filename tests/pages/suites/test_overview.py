"""The first page: the night in a sentence, what needs a look, what ran last, the hosts in one line."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.judging.regressions.groups import make_causes
from hud.models import Point, SeriesState, Stream, Target
from hud.points.write import touch_runs
from tests.support.factories import (
    create_accelerator,
    create_experiment,
    create_host,
    create_measurement,
    create_metric,
    create_regression,
    create_run,
    create_task,
    create_verdict,
)
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db
STATEMENTS = 30


def test_an_empty_site_says_what_to_do(client: Client) -> None:
    text = page_of(client, "/")
    assert "No host is attached" in text
    assert "No results yet" in text
    assert "No regression is open" in text


def test_it_takes_a_fixed_number_of_statements(client: Client, django_assert_num_queries: Any) -> None:
    for case in ("layer_norm", "gemv", "gather_gemv"):
        create_regression(create_measurement(create_experiment(case=case), value=900), change=-0.1)
    Target.objects.create(metric=create_metric(), value=1000)
    create_accelerator()
    create_task(create_run("running"))
    client.get("/?stream=import")  # nights that nobody has read
    with django_assert_num_queries(STATEMENTS):
        client.get("/?stream=import")


def test_a_regression_stands_there_until_it_is_closed(client: Client) -> None:
    now = timezone.now()
    experiment = create_experiment()
    create_measurement(experiment, value=2400, at=now - timedelta(days=2))
    fallen = create_measurement(experiment, value=2200, at=now - timedelta(days=1))
    regression = create_regression(fallen, change=-0.083, before=2400)
    create_measurement(experiment, value=2200, at=now)
    assert "−8.3 %" in page_of(client, "/")
    regression.muted_until = now + timedelta(days=1)
    regression.save()
    assert "−8.3 %" not in page_of(client, "/")
    regression.muted_until, regression.state = None, "resolved"
    regression.save()
    assert "−8.3 %" not in page_of(client, "/")


def test_a_first_night_says_why_it_has_no_baseline(client: Client) -> None:
    now = timezone.now()
    experiment = create_experiment()
    create_measurement(experiment, value=2400, at=now)
    assert "no earlier night" in page_of(client, "/")
    create_measurement(experiment, value=2400, at=now - timedelta(days=2))
    assert "no earlier night" not in page_of(client, "/")


def test_the_twins_have_the_newest_value_of_what_regressed(client: Client) -> None:
    now = timezone.now()
    experiment = create_experiment()
    fallen = create_measurement(experiment, value=2200, at=now - timedelta(days=1))
    slow = create_measurement(experiment, value=9, run=create_run(branch="slow", order_time=now))
    create_verdict(slow, "regressed", change=-0.99)
    assert client.get("/overview.json").json()["items"] == []
    create_regression(fallen, change=-0.083)
    assert [row["value"] for row in client.get("/overview.json").json()["items"]] == [2200]


def test_the_largest_regression_stands_first(client: Client) -> None:
    for case, change in (("gemv", -0.05), ("layer_norm", -0.2)):
        create_regression(create_measurement(create_experiment(case=case)), change=change)
    text = page_of(client, "/")
    assert text.index("−20.0 %") < text.index("−5.0 %")


def test_it_lists_what_misses_its_own_target_and_counts_what_meets_it(client: Client) -> None:
    Target.objects.create(metric=create_metric(), arch="h200", value=1000)
    create_measurement(create_experiment(case="gemv"), value=900)
    create_measurement(create_experiment(case="layer_norm"), value=1100)
    text = page_of(client, "/")
    assert text.count("H200 target 1000 GB/s: missed") == 1
    assert '<span id="met">1</span>' in text


def test_a_records_target_of_its_own_arch_counts_and_that_of_another_does_not(client: Client) -> None:
    own: dict[str, Any] = {"metric": "memory_bandwidth(GB/s)", "target": 950, "value": 900}
    create_measurement(create_experiment(arch="a100-40gb"), target_arch="a100-40gb", **own)
    create_measurement(create_experiment(arch="h200"), target_arch="a100-40gb", **own)
    text = page_of(client, "/")
    assert text.count("A100-40GB target 950 GB/s: missed") == 1
    assert "A100-40GB target 950: missed" not in text


def test_the_hosts_stand_in_one_line(client: Client) -> None:
    create_host(age_s=1)
    create_host(age_s=40)
    create_host(age_s=4000)
    text = page_of(client, "/")
    for state in ("online", "late", "lost"):
        assert f"</svg> {state}</span>" in text


def test_the_last_runs_stand_there(client: Client) -> None:
    first = create_run(title="nightly of micro")
    last = create_run("failed", title="broken one", reason="out of memory")
    text = page_of(client, "/?stream=import")
    assert text.index(f"run {first.pk}, succeeded") < text.index(f"run {last.pk}, failed")
    assert "out of memory" in text


def test_backends_on_which_a_case_fails_are_one_row_and_counted_each(client: Client) -> None:
    run = create_run(commit="c0ffee")
    for backend in ("inductor_cudagraphs", "aot_eager"):
        experiment = create_experiment(suite="timm", case="moco", knobs={}, backend=backend)
        failed = create_measurement(experiment, value=None, status="oom", metric="device_speedup", run=run)
        create_regression(failed, kind="failure", change=None, before=1.8)
    answer = client.get("/overview.json").json()
    assert answer["counts"] == {"causes": 2, "series": 2}, "until its night is complete and judged"
    make_causes()
    answer = client.get("/overview.json").json()
    assert answer["counts"] == {"causes": 1, "series": 2}
    assert (answer["results"]["all"], answer["results"]["new"]) == (1, 1)


def test_the_sides_and_the_arch_come_from_the_url(client: Client) -> None:
    create_regression(create_measurement(create_experiment(arch="b200"), value=1.0), change=-0.1)
    assert client.get("/overview.json?arch=b200").json()["counts"]["causes"] == 1
    assert client.get("/overview.json?arch=h200").json()["counts"]["causes"] == 0
    assert client.get("/overview.json?window=5").status_code == 400
    assert client.get("/?window=5").status_code == 200


def test_hostile_names_are_text(client: Client) -> None:
    name = "<script>alert(1)</script>"
    night = create_run(branch="main")
    experiment = create_experiment(suite="timm", case=name, backend=name, knobs={}, arch=name)
    found = create_measurement(experiment, metric="device_speedup", value=1.5, run=night)
    create_regression(found, change=-0.1, before=1.7)
    assert name not in client.get("/").content.decode()
    assert name not in client.get("/compilers/").content.decode()


def test_it_says_whether_a_regression_could_be_found(client: Client) -> None:
    now = timezone.now()
    run = create_run(order_time=now, commit="b" * 40)
    points = [
        create_measurement(create_experiment(case=case), run=run)
        for case in ("gemv", "layer_norm", "gather_gemv")
    ]
    for one in points:
        about = {"class_key": one.environment.class_key, "environment": one.environment, "level": {}}
        about |= {"order_time": now, "recent": [one.value], "headline": True}
        SeriesState.objects.create(series=one.series, run=run, **about)

    def said() -> tuple[int, int, bool]:
        answer = client.get("/overview.json").json()
        return answer["results"]["judged"], answer["results"]["undecided"], bool(answer["unjudged"])

    assert said() == (0, 0, True), "the first night"
    create_verdict(points[0], "inconclusive", verdict_reason="few_compilations")
    assert said() == (1, 1, True)
    create_verdict(points[1], "unchanged")
    assert said() == (2, 1, False)
    SeriesState.objects.filter(series=points[0].series).update(headline=False)
    touch_runs([run.pk])  # as the judge does
    assert said() == (1, 0, False), "only what may open a regression"
    assert client.get("/overview.json?branch=x").json()["unjudged"], (
        "main's regressions are not of this branch"
    )


def test_what_improved_in_the_night_stands_there_with_the_numbers_of_its_point(client: Client) -> None:
    earlier = create_measurement(value=1920, at=timezone.now() - timedelta(days=1))
    create_verdict(earlier, "unchanged", level=1920)
    run = create_run(order_time=timezone.now(), commit="b" * 40)
    one = create_measurement(value=2400, run=run)
    create_verdict(one, "improved", change=0.25, factor=12, noise=0.02, level=1920)
    about = {"class_key": "x", "environment": one.environment, "level": {}, "order_time": run.order_time}
    SeriesState.objects.create(series=one.series, run=run, recent=[1920, 2400], headline=True, **about)
    assert client.get("/overview.json").json()["results"]["improved"] == 1
    text = page_of(client, "/")
    for number in ("1920.0 →", "2400.0", "+25.0 %", "12 × noise"):
        assert number in text


def test_the_twins_say_the_same(client: Client) -> None:
    measurement = create_measurement()
    create_verdict(measurement, "regressed", change=-0.1)
    create_regression(measurement, change=-0.1)
    answer = client.get("/overview.json").json()
    assert [item["list"] for item in answer["items"]] == ["regressed"]
    assert answer["items"][0]["change"] == -0.1
    assert len(answer["runs"]) == 1
    lines = client.get("/overview.csv").content.decode().splitlines()
    assert lines[0].startswith("list,experiment,suite,case")
    assert len(lines) == 2


@pytest.mark.parametrize("has_target", [False, True])
def test_suites_beside_the_table_show_what_was_known_in_the_chosen_night(
    client: Client, *, has_target: bool
) -> None:
    now = timezone.now()
    if has_target:
        Target.objects.create(metric=create_metric(), value=5)
    for days_ago, values in ((2, (4.0, 9.0)), (1, (4.0, 16.0)), (0, (25.0,))):
        run = create_run(order_time=now - timedelta(days=days_ago), commit=f"{days_ago:040}")
        for case, value in zip(("gemv", "layer_norm"), values, strict=False):
            one = create_measurement(create_experiment(case=case), value=value, run=run)
            state = {"environment": one.environment, "level": {}, "recent": [], "run": run}
            SeriesState.objects.update_or_create(
                series=one.series, class_key="x", defaults={**state, "order_time": run.order_time}
            )
    expected = {2: ([4.0, 9.0], 6.0, 1), 1: ([4.0, 16.0], 8.0, 1), 0: ([16.0, 25.0], 20.0, 0)}
    for days_ago, (at_targets, mean, missed) in expected.items():
        head = (now - timedelta(days=days_ago)).date()
        (tile,) = client.get(f"/?stream=import&head={head}").context["page"].tiles
        shown = sorted(line[1] for line in tile.lines)
        assert shown == pytest.approx(at_targets if has_target else [mean])
        assert (tile.ran, tile.missed) == (2, missed if has_target else 0)


def test_regressions_from_before_the_baseline_are_counted_apart_and_linked(client: Client) -> None:
    now = timezone.now()
    for days_ago in reversed(range(10)):
        run = create_run(order_time=now - timedelta(days=days_ago), commit=f"{days_ago:040}")
        for case in ("gemv", "layer_norm", "softmax"):
            newest = create_measurement(create_experiment(case=case), value=900, run=run)
            if days_ago == 9 and case != "softmax":
                create_regression(newest, change=-0.1)
    page = client.get("/?stream=import")
    counts = page.context["comparison"].counts
    assert (counts.causes, counts.older) == (0, 2)
    assert "No regression is open" not in page.text
    links = re.findall(r'href="([^"]+)"><span data-count="older">(\d+)<', page.text)
    assert [number for _link, number in links] == ["2", "2"], "in the sentence and in the empty list"
    address = html.unescape(links[0][0]).replace("/regressions/", "/regressions.json")
    assert client.get(address).json()["counts"]["causes"] == 2
    create_regression(newest, change=-0.1)
    counts = client.get("/?stream=import").context["comparison"].counts
    assert (counts.causes, counts.older) == (1, 2)


def test_what_only_a_reference_judged_is_not_said_to_have_not_regressed(client: Client) -> None:
    run = create_run(order_time=timezone.now(), commit="b" * 40)
    points = [create_measurement(create_experiment(case=case), run=run) for case in ("gemv", "layer_norm")]
    for one in points:
        about = {"class_key": one.environment.class_key, "environment": one.environment, "level": {}}
        about |= {"order_time": run.order_time, "recent": [one.value], "headline": True}
        SeriesState.objects.create(series=one.series, run=run, **about)
        create_verdict(one, "regressed", change=-0.3)
    nightly = Stream.objects.get(name="nightly")
    Point.objects.filter(run=run).update(level_stream=nightly)
    page = client.get("/?stream=import")
    assert (page.context["page"].judged.referenced, page.context["page"].judged.reference) == (2, "nightly")
    assert "nothing regressed" not in page.text
    assert "judged against nightly" in page.text
    Point.objects.filter(series=points[0].series).update(level_stream=None, verdict_code=1)
    touch_runs([run.pk])
    page = client.get("/?stream=import")
    assert not page.context["page"].judged.is_by_reference
    assert "judged against nightly" in page.text
