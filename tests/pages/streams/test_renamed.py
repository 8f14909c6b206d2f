"""Addresses that were saved before a renaming lead to what they led to."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from hud.accounts.keys import create_key
from hud.corrections.renaming import rename
from hud.models import Experiment, Run, RunRequest
from tests.support.factories import (
    create_accelerator,
    create_experiment,
    create_host,
    create_measurement,
    create_run,
    create_user,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def stream() -> str:
    """Renamed: the arch h2000 to h200, which has the same case; a suite, a case and a host; in one suite
    only, the arch x."""
    run = create_run(host_name="box", commit="abc123")
    for arch, suite in (("h2000", "hf"), ("h200", "hf"), ("x", "hf"), ("x", "timm")):
        one = create_experiment(arch=arch, suite=suite, case="bert", knobs={})
        create_measurement(experiment=one, run=run, metric="speedup", value=2.0)
    rename(kind="arch", old="h2000", new="h200", who="t")
    rename(kind="suite", old="hf", new="huggingface", who="t")
    rename(kind="case", old="bert", new="Bert", who="t")
    rename(kind="host", old="box", new="h200-a", who="t")
    rename(kind="arch", old="x", new="b200", suite="huggingface", who="t")
    return run.stream.name


def parts(address: str) -> tuple[str, dict[str, list[str]]]:
    split = urlsplit(address)
    return split.path, parse_qs(split.query)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/?arch=h2000&mode=inference", "/?arch=h200&mode=inference"),
        ("/compilers/?arch=h2000&trend=hf", "/compilers/?arch=h200&trend=huggingface"),
        ("/compilers/?cell=hf/inductor", "/compilers/?cell=huggingface/inductor"),
        ("/suites/hf/?arch=h2000&sort=-case", "/suites/huggingface/?arch=h200&sort=-case"),
        ("/suites/hf/?arch=x", "/suites/huggingface/?arch=b200"),
        ("/suites/hf/?q=bert", "/suites/huggingface/?q=Bert"),
        ("/models/hf/bert/?metric=speedup", "/models/huggingface/Bert/?metric=speedup"),
        ("/search/?q=h2000", "/search/?q=h200"),
        ("/search/?q=box", "/search/?q=h200-a"),
        ("/search/?q=hf+bert++h2000", "/search/?q=huggingface+Bert++h200"),
        ("/regressions/?arch=h2000&suite=hf", "/regressions/?arch=h200&suite=huggingface"),
        ("/limits/?arch=h2000", "/limits/?arch=h200"),
        ("/runs/?host=box&suite=hf", "/runs/?host=h200-a&suite=huggingface"),
        ("/compare/?base=host:box&head=commit:abc123", "/compare/?base=host:h200-a&head=commit:abc123"),
    ],
)
def test_a_page_redirects_and_its_data_and_the_api_answer_at_once(
    client: Client, stream: str, old: str, new: str
) -> None:
    old, new = (f"{address}&stream={stream}" for address in (old, new))
    answer = client.get(old)
    assert answer.status_code == HTTPStatus.FOUND
    assert parts(answer["Location"]) == parts(new)
    page = client.get(new)
    assert page.status_code == HTTPStatus.OK
    path, _, query = old.partition("?")
    data = f"{path.rstrip('/') or '/overview'}.json?{query}"
    path, _, query = new.partition("?")
    same = f"{path.rstrip('/') or '/overview'}.json?{query}"
    assert client.get(data).status_code == HTTPStatus.OK
    assert client.get(data).content == client.get(same).content


def test_a_name_within_its_new_one_is_searched_as_it_is(client: Client) -> None:
    create_measurement(create_experiment(case="bert"))
    rename(kind="case", old="bert", new="my bert", who="t")
    assert client.get("/search/?q=my+bert").status_code == HTTPStatus.OK


@pytest.mark.parametrize("query", ["suite=hf&case=bert&arch=h2000", "suite=hf&arch=x", "host=box&format=csv"])
def test_the_api_answers_like_the_new_names(client: Client, stream: str, query: str) -> None:
    new = query
    for old, name in (
        ("hf", "huggingface"),
        ("bert", "Bert"),
        ("h2000", "h200"),
        ("=x", "=b200"),
        ("box", "h200-a"),
    ):
        new = new.replace(old, name)
    call = "export" if "format" in query else "experiments"

    def body(query: str) -> bytes:
        answer = client.get(f"/api/v1/{call}?stream={stream}&{query}")
        return answer.getvalue()

    assert body(query) == body(new)
    assert b"bert" in body(new).lower()


def test_a_run_is_requested_under_the_old_names(client: Client) -> None:
    host = create_host("box")
    create_accelerator(host, arch="h200")
    create_experiment(arch="h2000")
    rename(kind="arch", old="h2000", new="h200", who="t")
    rename(kind="host", old="box", new="h200-a", who="t")
    _key, secret = create_key(name="k", scopes=["run"], who="t")
    body = {"suite": "micro", "cases": ["layer_norm"], "arch": "h2000", "host": "box"}
    headers = {"Authorization": f"Bearer {secret}"}
    answer = client.post("/api/v1/runs", body, content_type="application/json", headers=headers)
    assert answer.status_code == HTTPStatus.CREATED
    asked = RunRequest.objects.get(run=answer.json()["id"])
    assert (asked.arch, asked.host) == ("h200", host)


def test_a_name_that_others_still_have_stays(client: Client, stream: str) -> None:
    assert client.get(f"/compilers/?arch=x&stream={stream}").status_code == HTTPStatus.OK
    Experiment.objects.filter(suite="timm").delete()
    answer = client.get(f"/compilers/?arch=x&stream={stream}")
    assert parts(answer["Location"])[1]["arch"] == ["b200"]


def test_the_id_of_a_merged_experiment_leads_to_the_one_that_has_its_results(client: Client) -> None:
    old, new = (create_experiment(arch=arch) for arch in ("h2000", "h200"))
    for one in (old, new):
        create_measurement(experiment=one, run=create_run())
    stream = Run.objects.latest("pk").stream.name
    rename(kind="arch", old="h2000", new="h200", who="t")
    assert not Experiment.objects.filter(pk=old.pk).exists()
    metric = new.series.get().metric.name
    answer = client.get(f"/experiments/{old.pk}/?stream={stream}")
    assert answer["Location"] == f"/experiments/{new.pk}/?stream={stream}"
    for address in (
        "/experiments/{}.json",
        f"/api/v1/series/{{}}/{metric}",
        "/api/v1/annotations?experiment={}",
    ):
        answer = client.get(address.format(old.pk))
        assert answer.status_code == HTTPStatus.OK
        assert answer.content == client.get(address.format(new.pk)).content
    client.force_login(create_user())
    assert str(old.pk) not in [alias.old for alias in client.get("/rename/").context["aliases"]]
