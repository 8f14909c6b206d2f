"""Search finds everything that has a page, by words, ids and commits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.models import Stream
from tests.support.factories import (
    create_accelerator,
    create_experiment,
    create_host,
    create_measurement,
    create_regression,
    create_run,
)
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db


def found(client: Client, text: str) -> list[tuple[str, str]]:
    items = client.get("/search.json", {"q": text}).json()["items"]
    return [(one["kind"], one["title"]) for one in items]


def test_words_find_cases_runs_hosts_and_regressions(client: Client) -> None:
    for backend in ("inductor", "eager"):
        create_experiment(suite="huggingface", case="DistillGPT2", knobs={}, backend=backend)
    gemv = create_experiment(case="gemv", knobs={"D": 4096})
    run = create_run(title="nightly", commit="ca3512f4455", host_name="h200-a")
    regression = create_regression(create_measurement(gemv, run=run))
    create_accelerator(create_host("h200-a"))
    assert found(client, "distill") == [("case", "DistillGPT2")]
    assert found(client, "distillgpt2 eager") == [("case", "DistillGPT2")]
    assert ("regression", f"{regression.pk} gemv[D=4096]") in found(client, "gemv D=4096")
    assert found(client, "gemv D=1024") == []
    assert ("run", f"Run {run.pk}") in found(client, "ca3512f")
    assert found(client, f"run {run.pk}")[0] == ("run", f"Run {run.pk}")
    assert {"run", "host"} <= {kind for kind, _title in found(client, "h200-a")}
    assert ("suite", "huggingface") in found(client, "huggingf")


def test_words_find_options_in_any_order(client: Client) -> None:
    tiny = create_experiment(suite="huggingface", case="DistillGPT2", knobs={"size": "tiny", "fuse": False})
    create_regression(create_measurement(tiny))
    create_experiment(suite="huggingface", case="DistillGPT2", knobs={})
    create_experiment(case="layer_norm", knobs={"D": 4096})
    title = "DistillGPT2[fuse=False,size=tiny]"
    for text in ("DistillGPT2 tiny", "tiny distill", "size=tiny fuse=False", title):
        kinds = dict(found(client, text))
        assert kinds["case"] == "DistillGPT2", text
        assert kinds["regression"].endswith(title), text
    assert ("case", "layer_norm") in found(client, "4096 layer_norm h200")


def test_words_with_a_backslash_find_options(client: Client) -> None:
    odd = create_experiment(case="layer_norm", knobs={"path": "C:\\new"})
    run = create_measurement(odd).run
    for text in ("C:\\new", "path=C:\\new", "\\"):
        assert ("case", odd.case) in found(client, text), text
        assert client.get("/suites/micro.json", {"q": text}).json()["total"] == 1, text
    assert client.get(f"/runs/{run.pk}.json", {"q": "C:\\new"}).json()["total"] == 1


def test_each_result_leads_to_a_page(client: Client) -> None:
    odd = create_experiment(suite="a b", case="100% <b>&?", knobs={})
    create_regression(create_measurement(odd))
    items = client.get("/search.json", {"q": "100%"}).json()["items"]
    assert {one["kind"] for one in items} == {"case", "regression"}
    for one in items:
        assert client.get(one["url"]).status_code == 200, one
    page = client.get("/search/", {"q": "100% <b>"}).content.decode()
    assert "<b>&" not in page
    assert client.get("/search/").status_code == 200


def test_results_of_the_page_s_stream_stand_first_then_the_newest_and_the_unmeasured_last(
    client: Client,
) -> None:
    now = timezone.now()
    nightly = Stream.objects.get_or_create(name="nightly")[0]
    for name, days, stream in (("a", 5, None), ("b", 1, None), ("c", 9, nightly), ("d", 0, nightly)):
        measured = create_experiment(case=f"distill_{name}", knobs={}, arch=name)
        fields: dict[str, Any] = {"stream": stream} if stream else {}
        run = create_run(title="distill", order_time=now - timedelta(days=days), **fields)
        create_regression(create_measurement(measured, run=run))
    create_experiment(case="distil", knobs={}, arch="never")

    def items_of(kind: str, front: str = "import", **query: str) -> list[dict[str, str]]:
        Stream.objects.update(is_front=False)
        Stream.objects.filter(name=front).update(is_front=True)
        items = client.get("/search.json", {"q": "distil", **query}).json()["items"]
        return [one for one in items if one["kind"] == kind]

    def arches_in(front: str, **query: str) -> list[str]:
        return [one["about"].split(" on ")[-1] for one in items_of("case", front, **query)]

    assert arches_in("import") == ["b", "a", "d", "c", "never"]
    assert arches_in("nightly") == ["d", "c", "b", "a", "never"]
    for one, arch in zip(items_of("case"), "badc", strict=False):
        text = page_of(client, one["url"])
        assert f"<b>{arch}</b>" in text
        assert ("stream=import" if arch in "ab" else "stream=nightly") in text
    links = [one["url"] for one in items_of("regression")]
    assert ["stream=import" in url for url in links] == [True, True, False, False]
    dates = [f"{now - timedelta(days=ago):%-d %b %Y}" for ago in (1, 5, 0, 9)]
    assert [one["about"].split(", ")[-1] for one in items_of("run")] == dates
    assert arches_in("import", stream="nightly") == ["d", "c"], "a stream that is named has no others"
    assert [len(items_of(kind, stream="nightly")) for kind in ("case", "regression", "run")] == [2, 2, 2]


def test_a_stream_that_is_named_lists_the_same_whatever_comes_into_others(client: Client) -> None:
    own = create_experiment(suite="vits", case="vit_base", knobs={})
    create_regression(create_measurement(own, run=create_run(title="vit", commit="abcdef123456")))
    laptop = Stream.objects.get_or_create(name="laptop")[0]

    def listed() -> list[dict[str, Any]]:
        queries = ({"q": text, "stream": "import"} for text in ("vit", "abcdef", "run 1", "regression 1"))
        return [client.get("/search.json", query).json() for query in queries]

    before = listed()
    assert {one["kind"] for one in before[0]["items"]} == {"case", "suite", "regression", "run"}
    for suite, case in (("vits", "vit_base"), ("vits-of-laptop", "vit_new")):
        foreign = create_experiment(suite=suite, case=case, knobs={}, arch="m4")
        run = create_run(title="vit", commit="abcdef123456", stream=laptop)
        create_regression(create_measurement(foreign, run=run))
    assert listed() == before
    page = page_of(client, "/search/?q=vit_new&stream=import")
    assert "/search.json?q=vit_new&amp;stream=import" in page
    assert 'href="?q=vit_new"' in page, "leads to all streams"


def test_results_of_another_stream_lead_to_it(client: Client) -> None:
    create_measurement(create_experiment(suite="renm", case="old", knobs={}))
    laptop = create_run(stream=Stream.objects.get_or_create(name="laptop")[0])
    create_measurement(create_experiment(suite="renm", case="newcase", knobs={}), run=laptop)
    create_measurement(create_experiment(suite="of_laptop", case="other", knobs={}), run=laptop)
    for text in ("newcase", "of_laptop"):
        for one in client.get("/search.json", {"q": text}).json()["items"]:
            assert "stream=laptop" in one["url"], one
    assert "newcase" in page_of(client, "/suites/renm/?stream=laptop&q=newcase")
    assert found(client, "newcase")[0] == ("case", "newcase")


@pytest.mark.parametrize("text", ["\0", "%", "'; --", "x" * 200, "9" * 30, "=", "D=", "²", "run", "a " * 100])
def test_any_text_is_answered(client: Client, text: str) -> None:
    assert client.get("/search/", {"q": text}).status_code == 200
    assert client.get("/search.json", {"q": text}).status_code in {200, 400}


def test_it_says_what_it_leaves_out_and_takes_a_fixed_number_of_statements(
    client: Client, django_assert_num_queries: Any
) -> None:
    for number in range(15):
        create_experiment(case=f"layer {number}", knobs={})
    with django_assert_num_queries(6):
        answer = client.get("/search.json", {"q": "layer"}).json()
    assert answer["totals"] == {"case": 15}
    assert len(answer["items"]) == 12
