"""The page of a model: all its experiments in a stream, what moved, the trend, and where it is worst."""

from __future__ import annotations

import re
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import expect

from hud.corrections.renaming import rename
from hud.models import KnownFailure, Stream
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_verdict,
)
from tests.support.pages import html_of, page_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.servers import Hud

STATEMENTS = 9
ADDRESS = "/models/huggingface/T5Small/"
NIGHTS = 6


def measure(stream: str = "nightly", **over: Any) -> Any:
    """Store six nights of a speedup, or another metric, of which the newest is `moved`; return that."""
    value, metric = over.pop("value", 2.4), over.pop("metric", "device_speedup")
    moved = over.pop("moved", value)
    fields = {name: over.pop(name) for name in ("status", "quality") if name in over}
    one = create_experiment(**{"suite": "huggingface", "case": "T5Small", "knobs": {}, **over})
    to = Stream.objects.get_or_create(name=stream)[0]
    newest = None
    for night in range(NIGHTS):
        at = timezone.now().replace(hour=2) - timedelta(days=NIGHTS - night)
        run = create_run(order_time=at, stream=to, commit=f"{night:040x}")
        shown = moved if night == NIGHTS - 1 else value
        newest = create_measurement(one, metric=metric, run=run, value=shown, **fields)
    return newest


pytestmark = pytest.mark.django_db


@pytest.fixture
def model(db: None) -> None:
    """Two arches, modes and types with three backends, of which one is worse and one better."""
    for arch in ("h200", "b200"):
        for backend in ("inductor_cudagraphs", "max_autotune", "eager"):
            measure(arch=arch, backend=backend)
        measure(arch=arch, backend="max_autotune", mode="training", dtype="amp", value=1.7)
    worse = measure(arch="a100", backend="max_autotune", value=2.459, moved=2.164)
    create_verdict(worse, "regressed", change=-0.12, noise=0.004, factor=-30, level=2.459)
    create_regression(worse, before=2.459, change=-0.12)
    better = measure(arch="a100", backend="eager", value=1.0, moved=1.2)
    create_verdict(better, "improved", change=0.2, noise=0.004, factor=50, level=1.0)
    measure(arch="h200", backend="max_autotune", metric="cold_compile_s", value=71.4)
    measure(arch="h200", backend="eager", metric="cold_compile_s", value=2.1)


def items(client: Client, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"{ADDRESS[:-1]}.json{query}").json()["items"]
    return found


def test_it_shows_every_combination_and_what_moved(client: Client, model: None) -> None:
    text = page_of(client, ADDRESS)
    assert len(re.findall(r"<th scope=.col. class=.num.>", text)) == 5
    for arch in ("a100", "b200", "h200"):
        assert f"<b>{arch}</b>" in text
    assert "Worse in 1 of 10 combinations" in text
    assert "Better in 1 of 10 combinations" in text
    assert text.count("regressed −12.0 %") == 2, "in the sentence and in its cell"
    assert re.search(r"open=\d+.>since ", text)
    assert "level 2.459 ×" in text
    assert text.count("not measured") == 5
    assert text.count('<svg class="spark"') == 10
    assert '#i-worse"/></svg> 1</span></a>' in text


def test_what_another_column_shows_stands_beside_nothing_worse(client: Client) -> None:
    measure()
    create_verdict(measure(metric="cold_compile_s"), "regressed", change=0.2)
    lead = page_of(client, ADDRESS).partition("lead-line")[2].partition("</p>")[0]
    assert "metric=compile" in lead


def test_data_have_all_columns_the_trend_and_where_each_is_worst(client: Client, model: None) -> None:
    answer = client.get(f"{ADDRESS[:-1]}.json").json()
    assert (answer["suite"], answer["case"], answer["stream"]) == ("huggingface", "T5Small", "nightly")
    assert len(answer["items"]) == 12
    speedup, compiled = answer["worst"]
    assert (speedup["metric"], speedup["value"]) == ("device_speedup", 1.2)
    assert (compiled["metric"], compiled["value"]) == ("cold_compile_s", 71.4)
    moved = next(one for one in answer["items"] if one["verdict"] == "regressed")
    assert moved["trend"] == [2.459] * (NIGHTS - 1) + [2.164]
    assert (moved["arch"], moved["level"], moved["value"]) == ("a100", 2.459, 2.164)
    assert client.get(f"{ADDRESS[:-1]}.csv").content.count(b"\n") == 13


def test_another_column_is_chosen_by_its_key_or_a_metric(client: Client, model: None) -> None:
    for metric in ("compile", "cold_compile_s"):
        assert {one["metric"] for one in items(client, f"?metric={metric}") if one["trend"]} == {
            "cold_compile_s"
        }
    text = page_of(client, f"{ADDRESS}?metric=compile")
    assert "Nothing worse in 2 combinations" in text
    assert "Ignored" in page_of(client, f"{ADDRESS}?metric=nonsense")
    answer = client.get(f"{ADDRESS[:-1]}.json?metric=nonsense")
    assert answer.status_code == HTTPStatus.BAD_REQUEST


def test_options_that_differ_are_rows(client: Client) -> None:
    for size in (1024, 4096):
        create_measurement(create_experiment(case="gemv", knobs={"D": size, "size": "tiny"}))
    create_measurement(create_experiment(case="gemv", knobs={"D": 1024, "size": "tiny"}, dynamic=True))
    text = page_of(client, "/models/micro/gemv/")
    rows = re.findall(r'inductor <span class="dim">([^<]*)</span></th>', text)
    assert rows == ["D=1024", "D=4096", "D=1024, dynamic shapes"]


def test_a_known_failure_is_no_news(client: Client, model: None) -> None:
    for backend in ("aot_eager", "aot_inductor"):
        failed = measure(arch="h200", backend=backend, value=None, status="crashed")
        create_verdict(failed, "failed")
    assert "2 failed." in page_of(client, ADDRESS)
    KnownFailure.objects.create(
        stream=failed.series.stream, experiment=failed.series.experiment, reason="unsupported", author="olga"
    )
    text = page_of(client, ADDRESS)
    assert "1 failed." in text
    assert "1 known failure is no news" in text


def test_what_may_not_decide_and_reruns_are_not_the_worst(client: Client, model: None) -> None:
    measure(arch="h200", backend="aot_eager", value=0.1, quality="busy_cpu")
    again = create_run(stream=Stream.objects.get(name="nightly"), experiment=create_experiment())
    slow = create_experiment(suite="huggingface", case="T5Small", knobs={}, arch="l4")
    create_measurement(slow, metric="device_speedup", run=again, value=0.2)
    values = {one["value"] for one in items(client)}
    assert {0.1, 0.2} <= values
    assert client.get(f"{ADDRESS[:-1]}.json").json()["worst"][0]["value"] == 1.2


def test_a_foreign_stream_never_mixes_in(client: Client, model: None) -> None:
    addresses = [
        f"{ADDRESS}?stream=nightly",
        f"{ADDRESS[:-1]}.json?stream=nightly",
        f"{ADDRESS}?stream=nightly&metric=compile",
    ]

    def answers() -> list[str]:
        texts = [client.get(address).content.decode() for address in addresses]
        return [re.sub(r'<nav class="streams".*?</nav>', "", text, flags=re.DOTALL) for text in texts]

    before = answers()
    for arch in ("h200", "m4"):
        measure("laptop", arch=arch, backend="max_autotune", value=99.0)
        measure("laptop", arch=arch, backend="a new one", value=0.01)
    assert answers() == before
    assert {one["value"] for one in items(client, "?stream=laptop")} == {99.0, 0.01}


def test_what_is_missing_is_said_beside_a_name_that_no_address_has(client: Client, db: None) -> None:
    create_experiment(suite="timm", case="resnet\n50")
    answer = client.get("/models/timm/resnet50/")
    assert answer.status_code == 404
    assert "resnet\n50" in answer.text


def test_without_a_stream_it_is_one_with_results_and_a_named_one_may_have_none(client: Client) -> None:
    measure("laptop")
    assert 'aria-current="true">laptop' in page_of(client, ADDRESS)
    create_measurement(run=create_run(stream=Stream.objects.get_or_create(name="nightly")[0]))
    text = page_of(client, f"{ADDRESS}?stream=nightly")
    assert "No results in the stream nightly" in text
    assert f'href="{ADDRESS}"' in text
    answer = client.get(f"{ADDRESS[:-1]}.csv?stream=nightly").content.decode().split(",")
    assert answer[0] == "experiment"


def test_an_unknown_model_says_what_to_do(client: Client) -> None:
    create_experiment(suite="huggingface", case="T5Small", knobs={})
    answer = client.get("/models/huggingface/T5Smal/")
    assert answer.status_code == HTTPStatus.NOT_FOUND
    text = html_of(answer)
    assert f'<a href="{ADDRESS}">T5Small</a>' in text
    assert "/search/?q=T5Smal" in text
    assert "/suites/huggingface/" in text
    answer = client.get("/models/nosuite/x/y/")
    assert answer.status_code == HTTPStatus.NOT_FOUND
    assert "/search/?q=x%2Fy" in html_of(answer)
    assert client.get("/models/nosuite/x.json").json()["status"] == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("case", ["meta-llama/Llama-3", "100% <b>&?", "a.json", "x#y", "ä"])
def test_any_name_has_an_address_that_search_finds(client: Client, case: str) -> None:
    create_measurement(create_experiment(case=case, knobs={}))
    (found,) = [
        one for one in client.get("/search.json", {"q": case}).json()["items"] if one["kind"] == "case"
    ]
    text = page_of(client, found["url"])
    assert "<b>&?" not in text
    data = found["url"].replace("/?", ".json?")
    assert client.get(data).json()["case"] == case


def test_former_names_redirect(client: Client) -> None:
    measure()
    rename(kind="suite", old="huggingface", new="hf", who="t")
    rename(kind="case", old="T5Small", new="T5", suite="hf", who="t")
    answer = client.get(f"{ADDRESS}?metric=speedup")
    assert answer.status_code == HTTPStatus.FOUND
    assert answer["Location"] == "/models/hf/T5/?metric=speedup"
    assert items(client) == client.get("/models/hf/T5.json").json()["items"]
    assert client.get("/models/other/T5Small/").status_code == HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("archs", [1, 7])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, django_assert_num_queries: Any, archs: int
) -> None:
    for number in range(archs):
        for backend in ("inductor", "eager"):
            newest = measure(arch=f"arch{number}", backend=backend)
            create_regression(newest)
            measure(arch=f"arch{number}", backend=backend, metric="cold_compile_s")
    with django_assert_num_queries(STATEMENTS):
        client.get(f"{ADDRESS}?stream=nightly")


@pytest.mark.browser
@pytest.mark.usefixtures("live_hud")
def test_search_opens_it_and_a_cell_leads_to_the_experiment(live_hud: Hud, page: Page, model: None) -> None:
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{live_hud.url}/search/?q=t5")
    page.get_by_role("link", name="T5Small").first.click()
    page.wait_for_url(f"**{ADDRESS}*")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    cells = page.locator("table.model td a")
    expect(cells).to_have_count(10)
    for cell in cells.all():  # numbers are never cut
        box = cell.bounding_box()
        assert box
        assert box["x"] + box["width"] <= 390
    page.get_by_role("link", name="Cold compile").click()
    page.wait_for_url("**metric=compile*")
    expect(page.locator("table.model td a")).to_have_count(2)
    page.locator("table.model td a").first.click()
    page.wait_for_url("**/experiments/**metric=cold_compile_s*")
    assert not complaints
