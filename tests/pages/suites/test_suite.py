"""A suite's table: experiments × its main metrics, filters in the URL, the twins."""

from __future__ import annotations

import csv
import html
import io
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.models import VERDICT_CODES, DetailedMeasurement, Experiment, Point, Run, Stream
from hud.pages.data import to_csv
from hud.pages.suite.query import PAGE_ROWS, SuiteFilters, read
from hud.points import write as points
from tests.support.factories import (
    create_accelerator,
    create_ceiling,
    create_experiment,
    create_host,
    create_measurement,
    create_run,
    create_user,
    create_verdict,
)
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db
STATEMENTS = 12
STREAM = "?stream=import"  # of the factories' runs


def titles(client: Client, query: str = "", suite: str = "micro") -> list[str]:
    response = client.get(f"/suites/{suite}/{query}")
    assert response.status_code == 200
    return re.findall(
        r'<th scope="row"><a href="/experiments/\d+/\?stream=import">([^<]+)</a>',
        response.content.decode().replace("<wbr>", ""),
    )


def options(text: str, name: str) -> list[str]:
    """Return what a filter of the page offers."""
    offered = text.partition(f'<select name="{name}">')[2].partition("</select>")[0]
    return re.findall(r"<option[^>]*>([^<]*)</option>", offered)


@pytest.mark.parametrize("experiments", [2, 12])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, django_assert_num_queries: Any, experiments: int
) -> None:
    for number in range(experiments):
        experiment = create_experiment(case=f"case_{number}")
        create_verdict(create_measurement(experiment), "improved", change=0.1)
        create_measurement(experiment, metric="call_bandwidth_gbps")
    client.get(f"/suites/micro/{STREAM}")  # metrics that nobody has read
    with django_assert_num_queries(STATEMENTS):
        client.get(f"/suites/micro/{STREAM}")


def test_it_shows_the_newest_value_of_each_metric(client: Client) -> None:
    now = timezone.now()
    experiment = create_experiment()
    create_measurement(experiment, value=1111.1, at=now - timedelta(days=1))
    create_measurement(experiment, value=2222.2, at=now)
    create_measurement(experiment, metric="call_bandwidth_gbps", value=369.0, at=now)
    text = page_of(client, "/suites/micro/")
    assert "2222.2" in text
    assert "1111.1" not in text
    assert "369.0" in text
    assert "<svg" in text
    assert "2 values, 1111 to 2222, now 2222" in text


def test_a_value_that_came_late_but_is_older_is_not_the_newest(client: Client) -> None:
    now = timezone.now()
    create_measurement(value=2222.2, at=now)
    create_measurement(value=1111.1, at=now - timedelta(days=30))
    assert "1111.1" not in client.get("/suites/micro/").content.decode()


def test_the_newest_point_may_be_of_an_older_run(client: Client) -> None:
    """A file of a history is one run with the time of its earliest point."""
    now = timezone.now()
    newest = create_measurement(value=2222.2, at=now - timedelta(days=2))
    points.unfold([(newest.run_id, newest.series_id)])
    DetailedMeasurement.objects.filter(run=newest.run_id).update(order_time=now)
    points.make([(newest.run_id, newest.series_id)])
    Point.objects.filter(run=newest.run_id).update(verdict_code=VERDICT_CODES["unchanged"])
    create_measurement(newest.series.experiment, value=1111.1, at=now - timedelta(days=1))
    (item,) = client.get("/suites/micro.json").json()["items"]
    assert (item["value"], item["verdict"]) == (2222.2, "unchanged")


def test_verdicts_and_targets_stand_in_their_cells(client: Client) -> None:
    experiment = create_experiment(suite="micro")
    verdict = create_measurement(
        experiment, metric="memory_bandwidth(GB/s)", value=2542.4, target=950, target_arch="a100-40gb"
    )
    create_verdict(verdict, "regressed", change=-0.05)
    text = page_of(client, "/suites/micro/")
    assert "regressed −5.0 %" in text
    assert "above A100-40GB target 950" in text
    assert "#i-check" not in text.split("A100-40GB")[0].rpartition("<td")[2], "nothing is met on an H200"
    assert "2542.40" in text


def test_an_experiment_counts_under_one_verdict(client: Client) -> None:
    for case, *verdicts in (
        ("a", "improved", "unchanged"),
        ("b", "unchanged", "regressed"),
        ("c", "unchanged"),
    ):
        for metric, verdict in zip(("speedup", "cold_compile_s"), verdicts, strict=False):
            point = create_measurement(create_experiment(suite="timm", case=case), metric=metric)
            create_verdict(point, verdict, change=0.1)
    shown = {
        word: titles(client, f"?verdict={word}", "timm") for word in ("improved", "regressed", "unchanged")
    }
    assert {word: len(rows) for word, rows in shown.items()} == dict.fromkeys(shown, 1)


def test_cells_of_a_matrix_differ_in_sight_and_what_was_measured_stands_first(client: Client) -> None:
    for device in ("tpu", "cuda"):
        cell = create_experiment(suite="xla", case="a", device=device, arch="")
        create_measurement(cell, metric="per_iter_time", value=None, status="unsupported", code="no_xrt")
    measured = create_experiment(suite="xla", case="b", device="cpu", arch="cpu-x86_64")
    create_measurement(measured, metric="per_iter_time", value=0.5)
    assert titles(client, suite="xla") == ["b[D=mean]", "a[D=mean]", "a[D=mean]"]
    text = page_of(client, "/suites/xla/")
    assert re.findall(r'<td class="when">([^<]*arch unknown)</td>', text) == [
        "cuda, arch unknown",
        "tpu, arch unknown",
    ]
    assert options(text, "arch")[-2:] == ["cuda, arch unknown (1)", "tpu, arch unknown (1)"]
    (found,) = client.get("/suites/xla.json?arch=tpu, arch unknown").json()["items"]
    assert (found["device"], found["arch"]) == ("tpu", "")
    assert titles(client, "?arch=cpu-x86_64", suite="xla") == ["b[D=mean]"]
    assert titles(client, "?arch=tpu", suite="xla") == []


def test_a_missing_value_shows_its_code_and_no_number(client: Client) -> None:
    create_measurement(metric="accuracy", value=None, code="pass")
    create_measurement(metric="device_bandwidth_gbps", value=None, status="oom", code="OOM")
    text = page_of(client, "/suites/micro/")
    assert "</svg> pass</span>" in text
    assert "</svg> OOM</span>" in text


def test_filters_stand_in_the_url(client: Client) -> None:
    create_measurement(create_experiment(case="gemv", dtype="int8"))
    create_measurement(create_experiment(case="gather_gemv", dtype="int8"))
    create_measurement(create_experiment(case="gemv", dtype="bfloat16", arch="cpu-x86_64", device="cpu"))
    assert len(titles(client)) == 3
    assert titles(client, "?dtype=int8") == ["gather_gemv[D=mean]", "gemv[D=mean]"]
    assert titles(client, "?dtype=int8&q=gemv+-gather") == ["gemv[D=mean]"]
    assert titles(client, "?arch=cpu-x86_64") == ["gemv[D=mean]"]
    assert titles(client, "?backend=nothing_like_it") == []
    text = page_of(client, "/suites/micro/?dtype=int8")
    assert options(text, "dtype") == ["any", "bfloat16 (1)", "int8 (2)"]
    assert '<option value="int8" selected>' in text
    assert options(text, "arch") == ["any", "cpu-x86_64 (0)", "h200 (2)"]
    words = page_of(client, "/suites/micro/?q=gather")
    assert options(words, "dtype") == ["any", "bfloat16", "int8"], "not counted with words"
    assert options(words, "status")[1] == "ok (1)"


def test_a_column_is_shown_where_values_differ_and_an_unknown_one_says_so(client: Client) -> None:
    create_measurement(create_experiment(suite="odd", case="a", backend=""))
    text = page_of(client, "/suites/odd/")
    assert "all inference, bfloat16, h200." in text
    assert '<th scope="col">Backend</th>' not in text, "of no experiment it is known"
    create_measurement(create_experiment(suite="odd", case="b", backend="inductor", arch=""))
    text = page_of(client, "/suites/odd/")
    assert "all inference, bfloat16." in text
    for name in ("Backend", "Arch"):
        assert f'<th scope="col">{name}</th>' in text
    assert text.count('<td class="when"><span class="dim">unknown</span></td>') == 1
    assert '<td class="when">cuda, arch unknown</td>' in text
    assert options(text, "arch") == ["any", "h200 (1)", "cuda, arch unknown (1)"]


def test_a_column_without_a_value_is_not_drawn() -> None:
    create_measurement(create_experiment(case="gemv"))
    mlp = create_experiment(case="mlp")
    create_measurement(mlp, metric="flops_utilization_of_peak", value=0.4)
    create_measurement(mlp, metric="device_speedup", value=None, status="crashed")
    rare = {"flops_utilization_of_peak", "speedup"}
    for words, columns in (("", rare | {"bandwidth"}), ("gemv", {"bandwidth"}), ("mlp", rare)):
        page = read(Stream.objects.get(name="import"), "micro", SuiteFilters(q=words))
        assert {column.key for column in page.columns} == columns, words


def test_words_match_options_too(client: Client) -> None:
    create_measurement(create_experiment(suite="timm", case="m", knobs={"size": "tiny", "batch_size": 8}))
    create_measurement(create_experiment(suite="timm", case="m", knobs={}, backend="aot_eager"))
    assert titles(client, "?q=tiny", "timm") == titles(client, "?q=size=tiny+batch_size=8", "timm")
    assert titles(client, "?q=tiny", "timm") == ["m[batch_size=8,size=tiny]"]
    assert titles(client, "?q=-tiny+aot", "timm") == ["m"]


@pytest.fixture
def three(client: Client) -> dict[str, Experiment]:
    """Three models: one by the harness, one by the runner, and one that is slower than eager and fails."""
    found = {case: create_experiment(suite="timm", case=case, knobs={}) for case in ("a", "b", "c")}
    create_measurement(found["a"], metric="compilation_latency", value=30.0)
    create_measurement(found["b"], metric="cold_compile_s", value=10.0)
    create_measurement(found["a"], metric="speedup", value=2.0, target=1.5, target_arch="h200")
    regressed = create_measurement(found["b"], metric="device_speedup", value=0.5)
    create_measurement(found["b"], metric="speedup", value=1.9, target=2.5, target_arch="h200")
    create_measurement(found["c"], metric="device_speedup", value=8.0)
    create_measurement(found["c"], metric="accuracy", value=None, status="wrong", code="fail_accuracy")
    create_verdict(regressed, "regressed")
    return found


def test_metrics_of_one_meaning_share_a_column_with_a_mark(
    client: Client, three: dict[str, Experiment]
) -> None:
    text = page_of(client, "/suites/timm/")
    assert text.count(">Cold compile<") == 1
    assert 'title="compilation_latency">by the harness</span>' in text
    assert 'title="speedup">call time</span>' in text
    assert text.count("below eager") == 1, "of b, whose call time says otherwise"


def test_rows_are_sorted_and_filtered_by_their_results(client: Client, three: dict[str, Experiment]) -> None:
    assert titles(client, "?sort=compile", "timm") == ["b", "a", "c"]
    assert titles(client, "?sort=-speedup", "timm") == ["c", "a", "b"]
    assert titles(client, "?verdict=regressed", "timm") == ["b"]
    assert titles(client, "?status=failed", "timm") == ["c"]
    assert titles(client, "?status=ok&sort=speedup", "timm") == ["b", "a"]
    assert titles(client, "?target=met", "timm") == ["a"]
    assert titles(client, "?target=missed", "timm") == ["b"]
    text = page_of(client, "/suites/timm/?status=ok")
    assert options(text, "status") == ["any", "ok (2)", "failed (1)", "not run (0)"]
    assert options(text, "verdict")[1:3] == ["regressed (1)", "improved (0)"]
    assert options(text, "target") == ["any", "met", "missed"]
    answer = client.get("/suites/timm.json?sort=speedup").json()
    assert [item["case"] for item in answer["items"] if "speedup" in item["metric"]] == ["b", "a", "c"]
    assert answer["totals"]["means"]["speedup"] == [pytest.approx(2.0), 3]
    assert (answer["totals"]["passed"]["passed"], answer["totals"]["passed"]["expected"]) == (2, 3)
    assert client.get("/suites/timm.json?status=ok").json()["totals"]["passed"]["expected"] == 2


@pytest.mark.parametrize(("metric", "has_means"), [("speedup", True), ("accuracy", False)])
def test_the_total_speaks_of_means_where_it_has_some(client: Client, metric: str, has_means: bool) -> None:
    create_measurement(create_experiment(suite="timm", knobs={}), metric=metric, value=1.0)
    text = page_of(client, "/suites/timm/")
    assert "1 of 1 without a failure" in text
    assert ("geometric" in text.partition("<tfoot>")[2].partition("</th>")[0]) == has_means


def test_the_ticked_are_run_again_by_one_post(client: Client) -> None:
    cases = [create_experiment(case=case, knobs={"D": 1024}) for case in ("layer_norm", "gemv")]
    for one in cases:
        create_measurement(one)
    assert 'name="experiment"' not in client.get("/suites/micro/").content.decode(), "nothing is attached"
    create_accelerator()
    client.force_login(create_user())
    text = page_of(client, "/suites/micro/")
    assert text.count('name="experiment"') == text.count('name="only"') == 2
    answer = client.post("/suites/micro/rerun?q=D", {"experiment": [one.pk for one in cases], "where": ""})
    asked = Run.objects.filter(request__requested_by="olga")
    run = asked.get()
    assert answer["Location"] == f"/runs/{run.pk}/"
    assert sorted(run.request.selection["cases"]) == ["gemv", "layer_norm"]
    assert run.request.arch == "h200"
    client.post("/suites/micro/rerun", {"only": cases[0].pk})
    assert asked.latest("pk").request.experiment == cases[0]
    nothing = client.post("/suites/micro/rerun?q=D", {"where": "cuda:b200", "experiment": [cases[0].pk]})
    assert nothing["Location"] == "/suites/micro/?q=D"
    client.post("/suites/micro/rerun", {"experiment": ["x", "99999999999"], "where": "../.."})
    assert asked.count() == 2
    create_measurement(create_experiment(arch="b200", case="gemv"))
    assert "No b200 is attached" in client.get("/suites/micro/").content.decode()


def test_small_sizes_stand_before_large_ones(client: Client) -> None:
    for size in (16384, 1024, 4096):
        create_measurement(create_experiment(knobs={"D": size}))
    assert titles(client) == ["layer_norm[D=1024]", "layer_norm[D=4096]", "layer_norm[D=16384]"]


def test_a_long_table_has_pages_and_says_how_long_it_is(client: Client) -> None:
    run = create_run()
    for number in range(PAGE_ROWS + 5):
        create_measurement(create_experiment(case=f"case_{number:03d}"), run=run)
    assert len(titles(client)) == PAGE_ROWS
    assert len(titles(client, "?page=2")) == 5
    text = page_of(client, "/suites/micro/")
    assert f"Showing {PAGE_ROWS} of {PAGE_ROWS + 5} experiments, page 1 of 2" in text
    assert 'href="?stream=import&amp;page=2"' in text


@pytest.mark.parametrize(
    "query",
    [
        "?page=0",
        "?page=abc",
        "?page=99999999999999999999",
        "?q=%00",
        "?arch=%00",
        "?mode=" + "x" * 5000,
        "?page=-1",
    ],
)
def test_nonsense_is_left_out_and_said(client: Client, query: str) -> None:
    create_measurement()
    response = client.get("/suites/micro/" + query)
    assert response.status_code == 200
    assert 'class="notice warning"' in response.content.decode()
    refused = client.get("/suites/micro.json" + query)
    assert refused.status_code == 400
    assert refused["Content-Type"] == "application/problem+json"


def test_a_suite_that_nobody_knows_is_not_there(client: Client) -> None:
    assert client.get("/suites/nothing/").status_code == 404
    assert client.get("/suites/nothing.json")["Content-Type"] == "application/problem+json"
    assert client.get("/suites/%00/").status_code == 404


def test_a_suite_of_the_catalogue_without_results_says_how_to_run_it(client: Client) -> None:
    assert "python -m runner run micro" in client.get("/suites/micro/").content.decode()


def test_a_long_name_is_cut_and_whole_in_its_tooltip(client: Client) -> None:
    name = "a" * 150 + "<"
    create_measurement(create_experiment(case=name, knobs={}))
    create_measurement(create_experiment(case="short", knobs={}))
    text = page_of(client, "/suites/micro/")
    assert re.findall(r'class="long-name" title="([^"]*)"', text) == [html.escape(name)]


def test_an_odd_name_is_only_a_name(client: Client) -> None:
    create_measurement(create_experiment(suite="odd", case="<img src=x onerror=alert(1)>"))
    text = page_of(client, "/suites/odd/")
    assert "<img" not in text
    assert "&lt;img" in text


def test_the_list_names_every_suite(client: Client) -> None:
    create_measurement(create_experiment(suite="huggingface", case="Bert"))
    create_ceiling()
    text = page_of(client, "/suites/")
    for name in ("huggingface", "ceilings", "micro"):
        assert f'<a href="/suites/{name}/{STREAM}">{name}</a>' in text
    assert {item["name"] for item in client.get("/suites.json").json()["items"]} >= {"huggingface", "micro"}
    assert "<td>no:" not in text, "nothing is attached yet"
    host = create_host(facts={"lacking": {"huggingface": "no interpreter has transformers"}})
    create_accelerator(host, suites=("micro",))
    text = page_of(client, "/suites/")
    assert text.count("<td>yes</td>") == 1
    assert text.count("<td>no: no interpreter has transformers</td>") == 1
    assert "<td>no: no attached host offers it</td>" in text


def test_the_twins_hold_the_same_rows_under_the_same_query(client: Client) -> None:
    create_measurement(create_experiment(case="gemv"), value=2000.5)
    create_measurement(create_experiment(case="layer_norm"), value=2542.4)
    (item,) = client.get("/suites/micro.json?q=gemv").json()["items"]
    assert (item["case"], item["value"], item["unit"]) == ("gemv", 2000.5, "GB/s")
    response = client.get("/suites/micro.csv?q=gemv")
    assert response["Content-Disposition"] == 'attachment; filename="suite-micro.csv"'
    (line,) = csv.DictReader(io.StringIO(response.content.decode()))
    assert (line["case"], line["value"], line["knobs"]) == ("gemv", "2000.5", '{"D":"mean"}')


def test_a_csv_cell_is_never_a_formula() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "=cmd|' /C calc'!A0", "value": -1.5},
        {"name": "@SUM(1)", "value": None},
    ]
    lines = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [line["name"] for line in lines] == ["'=cmd|' /C calc'!A0", "'@SUM(1)"]
    assert [line["value"] for line in lines] == ["-1.5", ""]


def test_it_links_the_wide_export(client: Client) -> None:
    create_measurement(create_experiment(suite="a & b"))
    page = page_of(client, "/suites/a & b/")
    (address,) = re.findall(r'href="(/api/v1/export[^"]*)"', page)
    assert client.get(html.unescape(address)).getvalue().startswith(b"suite,case,")
    assert "suite=a%20%26%20b" in address


def test_the_list_says_which_cells_need_what_and_the_command_that_adds_it(client: Client) -> None:
    line = {item["name"]: item for item in client.get("/suites.json").json()["items"]}["xla"]
    parts = {part["package"]: part for part in line["packages"]}
    assert parts["torch_xla"]["cells"] == "openxla, xla"
    assert "runner env xla" in page_of(client, "/suites/")
    pythons = {"own": {"modules": ["numpy", "torch_xla"]}, "broken": {"error": "no torch"}}
    create_accelerator(create_host("h200-a", facts={"pythons": pythons}))
    line = {item["name"]: item for item in client.get("/suites.json").json()["items"]}["xla"]
    parts = {part["package"]: part["interpreters"] for part in line["packages"]}
    assert (parts["torch_xla"], parts["timm"]) == (["h200-a (own)"], [])
    assert "runner env xla" not in page_of(client, "/suites/")
