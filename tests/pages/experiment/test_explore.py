"""Explore: which series are drawn, how their values relate, and that all of it is in the address."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

from hud import sql
from hud.corrections.renaming import rename
from hud.models import Run, Stream
from hud.pages.explore import query as explore
from hud.pages.explore.filters import ExploreFilters
from tests.support.factories import (
    create_environment,
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_verdict,
)
from tests.support.pages import page_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.servers import Hud

pytestmark = pytest.mark.django_db
START = datetime(2026, 11, 1, 2, tzinfo=UTC)
NIGHTS = 6
STATEMENTS = 11


def nightly(stream: str = "nightly", *, nights: int = NIGHTS) -> list[Run]:
    to = Stream.objects.get_or_create(name=stream)[0]
    return [
        create_run(stream=to, order_time=START + timedelta(days=night), commit=f"{night:07d}abc" * 4)
        for night in range(nights)
    ]


def measure(runs: list[Run], values: list[float | None], **about: Any) -> Any:
    """Store a value for each night, None where it failed; return the newest measurement."""
    metric = about.pop("metric", "device_speedup")
    experiment = create_experiment(**{"suite": "huggingface", "case": "T5Small", "knobs": {}, **about})
    newest = None
    for run, value in zip(runs, values, strict=True):
        status = "ok" if value is not None else "crashed"
        newest = create_measurement(experiment, metric=metric, run=run, value=value, status=status)
    return newest


@pytest.fixture
def runs(db: None) -> list[Run]:
    """Two backends on two archs, of which one fails in a night and one regressed."""
    found = nightly()
    measure(found, [2.0, 2.0, None, 2.2, 2.2, 2.2], backend="inductor_cudagraphs", arch="h200")
    measure(found, [1.0, 1.0, 1.0, 1.0, 1.0, 1.1], backend="eager", arch="h200")
    measure(found, [3.0, 3.0, 3.0, 3.0, 3.3, 3.3], backend="inductor_cudagraphs", arch="b200")
    worse = measure(found, [4.0, 4.0, 4.0, 4.0, 3.0, 3.0], backend="max_autotune", arch="h200")
    create_verdict(worse, "regressed", change=-0.25, noise=0.005, factor=-50, level=4.0)
    create_regression(worse, before=4.0, change=-0.25)
    return found


def data_of(client: Client, query: str = "backend=inductor_cudagraphs&backend=eager") -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/explore.json?stream=nightly&{query}").json()
    return found


def lines_of(client: Client, query: str, key: str = "shown") -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for row in data_of(client, query)["items"]:
        found.setdefault((row["backend"], row["arch"]), []).append(row[key] and round(row[key], 6))
    return found


def figure_of(client: Client, query: str) -> dict[str, Any]:
    text = client.get(f"/explore/?stream=nightly&{query}").content.decode()
    block = re.search(r'<script type="application/json" id="explore-figure">(.*?)</script>', text, re.DOTALL)
    assert block
    found: dict[str, Any] = json.loads(block[1])
    return found


def test_filters_choose_series_and_a_failed_night_is_a_gap(client: Client, runs: list[Run]) -> None:
    shown = lines_of(client, "arch=h200&backend=inductor_cudagraphs&backend=eager")
    assert shown == {
        ("inductor_cudagraphs", "h200"): [2.0, 2.0, None, 2.2, 2.2, 2.2],
        ("eager", "h200"): [1.0, 1.0, 1.0, 1.0, 1.0, 1.1],
    }
    answer = data_of(client, "arch=h200&q=t5 -bert")
    assert len(answer["series"]) == 3
    moved = next(one for one in answer["series"] if one["verdict"] == "regressed")
    assert (moved["first"], moved["newest"], round(moved["change"], 4)) == (4.0, 3.0, -0.25)
    assert moved["since"]
    failed = next(one for one in answer["series"] if one["failed"])
    assert failed["failed"] == 1
    assert data_of(client, "q=-t5&arch=h200")["series"] == []


def test_values_are_relative_to_a_night_the_first_one_or_a_backend(client: Client, runs: list[Run]) -> None:
    chosen = "backend=inductor_cudagraphs&relative="
    first = lines_of(client, f"{chosen}first")
    assert first["inductor_cudagraphs", "b200"] == [1.0, 1.0, 1.0, 1.0, 1.1, 1.1]
    assert lines_of(client, f"{chosen}night:2026-11-01") == first
    answer = data_of(client, f"{chosen}night:2026-11-03")
    assert {one["arch"] for one in answer["items"]} == {"b200"}, "the other has failed in that night"
    assert answer["without_base"] == 1
    to_eager = lines_of(client, f"{chosen}backend:eager")
    assert to_eager == {("inductor_cudagraphs", "h200"): [2.0, 2.0, None, 2.2, 2.2, 2.0]}
    assert (
        client.get("/explore.json?backend=eager&relative=night:2020-01-01").status_code
        == HTTPStatus.BAD_REQUEST
    )


def test_a_mean_of_a_group_stays_where_a_case_is_missing(client: Client) -> None:
    found = nightly()
    measure(found, [2.0] * 6, case="a", backend="eager")
    measure(found[:5], [8.0] * 5, case="b", backend="eager")
    (line,) = data_of(client, "backend=eager&line=mean")["series"]
    assert (line["series"], round(line["newest"], 6)) == (2, 4.0)
    assert lines_of(client, "backend=eager&line=mean", "value")["eager", None] == [4.0] * 6  # type: ignore[index]


def test_it_is_by_date_commit_or_version_of_torch(client: Client) -> None:
    found = nightly()
    experiment = create_experiment(suite="huggingface", case="T5Small", knobs={}, backend="eager")
    for night, run in enumerate(found):
        torch = create_environment(torch=f"2.{13 + night // 3}.0")
        create_measurement(experiment, metric="speedup", run=run, value=1.0 + night, environment=torch)
    by = {
        x: [one["x"] for one in data_of(client, f"case=T5Small&x={x}")["items"]]
        for x in ("date", "commit", "torch")
    }
    assert by["date"][0] == "2026-11-01 02:00"
    assert by["commit"] == [run.commit[:7] for run in found]
    assert by["torch"] == ["2.13.0", "2.14.0"]
    newest = data_of(client, "case=T5Small&x=torch")["items"]
    assert [one["value"] for one in newest] == [3.0, 6.0], "the newest night of each"


def test_of_several_points_in_a_night_the_newest_counts(client: Client, runs: list[Run]) -> None:
    again = create_run(stream=runs[0].stream, order_time=runs[0].order_time, commit=runs[0].commit)
    experiment = create_experiment(
        suite="huggingface", case="T5Small", knobs={}, backend="eager", arch="h200"
    )
    create_measurement(experiment, metric="device_speedup", run=again, value=1.5)
    assert lines_of(client, "backend=eager")["eager", "h200"] == [1.5, 1.0, 1.0, 1.0, 1.0, 1.1]


def test_each_metric_has_an_axis_with_its_unit(client: Client, runs: list[Run]) -> None:
    measure(runs, [0.5] * 6, metric="compression_ratio", backend="eager", arch="h200")
    measure(runs, [10.0] * 6, metric="a foreign <b>metric</b>", backend="eager", arch="h200")
    names = "&".join(f"metric={name}" for name in ("device_speedup", "a foreign <b>metric</b>"))
    figure = figure_of(client, f"{names}&backend=eager")
    titles = [figure["layout"][axis]["title"]["text"] for axis in ("yaxis", "yaxis2")]
    assert any(title.endswith(", ×") for title in titles)
    assert any("&lt;b&gt;" in title for title in titles), "plotly reads some HTML"
    assert {trace["yaxis"] for trace in figure["data"]} == {"y", "y2"}


def test_plotly_takes_the_figure_and_no_two_lines_are_alike(client: Client, runs: list[Run]) -> None:
    import plotly.graph_objects as go

    for backend in ("inductor_no_cudagraphs", "inductor", "a", "b", "c"):
        measure(runs, [1.0] * 6, backend=backend, arch="h200")
    for query in ("arch=h200", "arch=h200&relative=first&x=commit&from=2026-11-02&scale=log"):
        figure = figure_of(client, query)
        go.Figure(figure)
        styles = [(trace["meta"], trace["line"]["dash"]) for trace in figure["data"]]
        assert len(set(styles)) == len(styles) == 8
    by_name = {trace["name"]: trace["meta"] for trace in figure["data"]}
    assert (by_name["inductor_cudagraphs"], by_name["max_autotune"]) == (1, 3), "as everywhere"
    assert by_name["a"] > 5, "a colour that no named backend has"
    assert figure["layout"]["xaxis"]["range"] == [0.5, 5.5]


def test_without_filters_it_shows_means_of_the_default_subject(client: Client, runs: list[Run]) -> None:
    text = page_of(client, "/explore/?stream=nightly")
    assert "mean of" in text
    assert "suite=huggingface" in text, "links say what was chosen"


def test_unknown_names_are_said_and_refused_in_data(client: Client, runs: list[Run]) -> None:
    for name, value in {
        "backend": "nonsense",
        "metric": "nonsense",
        "relative": "x",
        "x": "y",
        "nights": "3",
    }.items():
        query = f"stream=nightly&arch=h200&{name}={value}"
        assert "Ignored" in page_of(client, f"/explore/?{query}"), name
        assert client.get(f"/explore.json?{query}").status_code == HTTPStatus.BAD_REQUEST, name
    assert "matches these filters" in page_of(client, "/explore/?stream=nightly&arch=b200&backend=eager")
    assert page_of(client, "/explore/?stream=nightly&to=9999-12-31")
    assert client.get("/explore.csv?stream=nightly&q=none").content.startswith(b"suite,case,")


def test_too_many_series_say_how_many_and_how_to_narrow(
    client: Client, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "MOST_LINES", 2)
    assert data_of(client, "suite=huggingface")["left_out"] == 2
    text = page_of(client, "/explore/?stream=nightly&suite=huggingface")
    assert "2 more series are left out" in text


def test_a_wide_suite_is_read_as_far_as_it_is_shown(
    client: Client, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    for case in "abcdef":
        for backend in ("eager", "aot_eager"):
            measure(runs, [1.0] * 6, case=case, backend=backend, arch="h200")
    read: list[int] = []

    def fetch_tuples(*given: Any) -> list[tuple[Any, ...]]:
        rows = sql.fetch_tuples(*given)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(explore, "fetch_tuples", fetch_tuples)
    monkeypatch.setattr(explore, "MOST_LINES", 3)
    monkeypatch.setattr(explore, "MOST_OFFERED", 3)
    page = explore.read(ExploreFilters(arch=("h200",), suite=("huggingface",), case=("e",)), runs[0].stream)
    assert [row.names[1:4] for row in page.chosen] == [("e", "none", "aot_eager"), ("e", "none", "eager")]
    assert [*page.offered["case"]] == ["e", "T5Small", "a", "b"], "what is chosen, and the first ones"
    assert page.has_more_cases
    assert max(read) <= 7, "7 groups of equal names, and no more series and cases than are shown"
    assert "over 3" in page_of(client, "/explore/?stream=nightly&arch=h200")
    whole = data_of(client, "arch=h200")
    assert (len(whole["series"]), whole["left_out"]) == (3, 12)


def test_names_are_offered_with_their_series_beside_the_other_choices(runs: list[Run]) -> None:
    measure(runs, [1.0] * 6, case="BERT", backend="eager", arch="h200", knobs={"D": 8}, suite="timm")
    stream = runs[0].stream

    def offered(**chosen: Any) -> dict[str, dict[str, int]]:
        return {
            name: dict(names)
            for name, names in explore.read(ExploreFilters(**chosen), stream).offered.items()
        }

    of_eager = offered(backend=("eager",))
    assert of_eager["backend"] == {"eager": 2, "inductor_cudagraphs": 2, "max_autotune": 1}
    assert of_eager["case"] == {"T5Small": 1, "BERT": 1}
    assert of_eager["options"] == {"none": 1, "D=8": 1}
    of_case = offered(case=("BERT",), arch=("h200",))
    assert of_case["case"] == {"BERT": 1, "T5Small": 3}
    assert of_case["backend"] == {"eager": 1}
    assert offered(q="t5 -x", options=("none",))["suite"] == {"huggingface": 4}


def test_what_comes_in_or_is_renamed_is_offered_at_once(client: Client, runs: list[Run]) -> None:
    assert len(data_of(client, "suite=huggingface")["series"]) == 4
    measure(runs, [1.0] * 6, backend="new", arch="h200")
    assert len(data_of(client, "suite=huggingface")["series"]) == 5
    rename(kind="suite", old="huggingface", new="hf", who="ada")
    assert len(data_of(client, "suite=hf&backend=new")["series"]) == 1


def test_streams_stand_beside_each_other(client: Client, runs: list[Run]) -> None:
    measure(nightly("laptop"), [9.0] * 6, backend="eager", arch="m4")
    both = client.get("/explore.json?stream=laptop&stream=nightly&backend=eager").json()
    assert {one["stream"] for one in both["items"]} == {"laptop", "nightly"}
    assert {one["stream"] for one in data_of(client, "backend=eager")["items"]} == {"nightly"}


@pytest.mark.parametrize("more", ["", "&x=torch&relative=first"])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, runs: list[Run], django_assert_num_queries: Any, more: str
) -> None:
    for arch in ("a", "b", "c"):
        measure(runs, [1.0] * 6, backend="eager", arch=arch)
    client.get("/explore/?stream=nightly&suite=huggingface")  # counts what is there
    with django_assert_num_queries(STATEMENTS + bool(more)):
        client.get(f"/explore/?stream=nightly&suite=huggingface{more}")


@pytest.mark.browser
def test_the_chart_zooms_and_its_address_has_all(live_hud: Hud, page: Page, runs: list[Run]) -> None:
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.goto(f"{live_hud.url}/explore/?stream=nightly&arch=h200&from=2026-11-04&to=2026-11-06")
    page.wait_for_selector("#explore-chart .legendtext")
    low, _high = page.evaluate("document.getElementById('explore-chart')._fullLayout.yaxis.range")
    assert low > 0.8, "y fits what is shown"
    page.locator("#explore-chart .legendtoggle").first.click()
    page.wait_for_url("**hidden=*")
    page.reload()
    page.wait_for_selector("#explore-chart .legendtext")
    hidden = (
        "document.getElementById('explore-chart').data.filter(one => one.visible === 'legendonly').length"
    )
    assert page.evaluate(hidden) == 1
    with page.expect_download() as download:
        page.locator("#explore-chart .modebar-btn").first.click()
    assert download.value.suggested_filename.endswith(".png")
    page.get_by_text("backend", exact=True).first.click()
    page.get_by_role("checkbox", name="eager").check()
    page.get_by_role("button", name="Show").nth(0).click()
    page.wait_for_url("**backend=eager*")
    assert not complaints
