"""The list of runs: its rows, its filters, its pages."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.models import Stream
from hud.pages.runs import view
from hud.pages.runs.view import PAGE_ROWS
from hud.pages.tags import commit_range
from hud.tables.table import Column, DataTable
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_run,
    create_upload,
)
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db


def test_two_uploads_of_one_title_are_told_apart(client: Client) -> None:
    for file, commit in (("first.json", "1234567890abcdef"), ("second.json", "")):
        create_run(upload=create_upload(file), title="ci: micro", commit=commit, external_id=f"7/{file}")
    create_run(upload=create_upload("third.json"), title="")
    text = page_of(client, "/runs/")
    assert 'ci: micro <span class="fact">first.json · id 7/first.json</span>' in text
    assert 'title="1234567890abcdef"><code>1234567</code>' in text
    assert text.count("third.json") == 1
    assert client.get("/runs.json").json()["items"][2]["filename"] == "first.json"


def test_another_branch_than_the_default_one_is_marked(client: Client) -> None:
    for branch in ("", "main", "fast"):
        create_measurement(run=create_run(branch=branch))
    assert [run["branch"] for run in client.get("/runs.json").json()["items"]] == ["fast", "main", "main"]
    tags = re.findall(r'<a [^>]*class="tag" title="branch">(.*?)</a>', page_of(client, "/runs/"))
    assert tags == ["fast"]
    experiment = page_of(client, f"/experiments/{create_experiment().pk}/")
    assert re.findall(r'<span class="tag" title="branch[^"]*">(.*?)</span>', experiment) == ["fast"]


def test_runs_of_a_commit_a_range_a_branch_and_a_suite(client: Client, settings: Any) -> None:
    now = timezone.now()
    commits = ("aaaa1111aaaa", "bbbb2222bbbb", "cccc3333cccc", "dddd4444dddd")
    for day, commit in enumerate(commits):
        run = create_run(
            commit=commit,
            branch="" if day else "pr/7",
            order_time=now - timedelta(days=9 - day),
            upload=create_upload(),
        )
        create_measurement(create_experiment(suite="timm" if day % 2 else "micro"), run=run)
    create_run(title="asked", run_class="person")
    patch = create_run(commit="eeee", branch="topic", pull_request=7)

    def found(query: str) -> list[str]:
        return [one["commit"][:4] for one in client.get(f"/runs.json?{query}").json()["items"]]

    assert found("commit=bbbb2") == ["bbbb"]
    assert found("commit=bbbb2222bbbb..dddd4444dddd") == ["dddd", "cccc", "bbbb"]
    assert found("commit=dddd4444dddd...bbbb2222bbbb") == ["dddd", "cccc", "bbbb"]
    assert found("suite=timm") == ["dddd", "bbbb"]
    assert found("branch=pr/7") == ["aaaa"]
    assert found("kind=pull_request") == ["eeee", "aaaa"]
    assert found("pull_request=7") == ["eeee"]
    assert 'href="/runs/?pull_request=7"' in page_of(client, f"/runs/{patch.pk}/")
    assert found("kind=night") == ["dddd", "cccc", "bbbb"]
    assert found("kind=person") == [""]
    assert "No run has the commit eeee5555" in page_of(client, "/runs/?commit=bbbb2222bbbb..eeee5555")
    text = page_of(client, "/runs/")
    assert '<a href="/runs/?commit=dddd4444dddd" title="dddd4444dddd"><code>dddd444</code></a>' in text
    settings.HUD_REPO_URL = "https://github.com/pytorch/pytorch/commit/{commit}"
    assert 'href="https://github.com/pytorch/pytorch/commit/dddd4444dddd"' in page_of(client, "/runs/")
    assert 'href="https://github.com/pytorch/pytorch/compare/aaaa1111...bbbb2222"' in commit_range(
        "aaaa1111", "bbbb2222"
    )
    assert '?commit=v2.9..v2.10"' in commit_range("v2.9", "v2.10")


def test_a_range_of_commits_is_of_the_streams_that_have_its_ends(client: Client) -> None:
    now, other = timezone.now(), Stream.objects.create(name="foreign")
    for day, commit in enumerate(("aaaa", "bbbb", "cccc")):
        create_run(commit=commit, order_time=now - timedelta(days=9 - day))
    create_run(commit="0000", order_time=now - timedelta(days=8), stream=other)
    for commits in ("aaaa..cccc", "aaaa...cccc"):
        items = client.get(f"/runs.json?commit={commits}").json()["items"]
        assert [item["commit"] for item in items] == ["cccc", "bbbb", "aaaa"]


def test_an_upload_has_the_time_of_its_results(client: Client) -> None:
    measured, known = timezone.now() - timedelta(days=50), "commit"
    create_run(upload=create_upload(), order_time=measured, order_time_source=known)
    create_run(order_time=measured)  # on a host, measured when it was made
    assert page_of(client, "/runs/").count(f'<time datetime="{measured.isoformat()}"') == 1


def test_the_list_is_filtered_by_the_url(client: Client) -> None:
    create_run(title="nightly")
    create_run("failed", title="broken", host_name="far-away")
    create_run(title="", upload=create_upload("from_ci.json"))

    def titles(query: str) -> list[str]:
        return [item["title"] for item in client.get(f"/runs.json{query}").json()["items"]]

    assert titles("") == ["from_ci.json", "broken", "nightly"]
    assert titles("?state=failed") == ["broken"]
    assert titles("?kind=upload") == ["from_ci.json"]
    assert titles("?kind=rerun&q=night") == ["nightly"]
    assert titles("?host=far") == ["broken"]
    create_run(title="mine", stream=Stream.objects.create(name="laptop", aliases=["notebook"]))
    assert titles("?stream=laptop") == titles("?stream=notebook") == ["mine"]
    assert client.get("/runs.json").json()["items"][0]["stream"] == "laptop"
    assert client.get("/runs/?stream=nobody").status_code == 404
    assert '<p class="empty">' in page_of(client, "/runs/?q=nothing")
    assert "Ignored: state" in page_of(client, "/runs/?state=exploded")
    assert client.get("/runs.json?state=exploded").status_code == 400
    assert "Ignored: host:" in page_of(client, "/runs/?host=far&host=near")
    assert client.get("/runs.json?host=far&host=near").status_code == 400


def test_older_runs_stand_on_the_next_page(client: Client) -> None:
    runs = [create_run() for _ in range(PAGE_ROWS + 2)]
    answer = client.get("/runs.json").json()
    assert len(answer["items"]) == PAGE_ROWS
    older = client.get(f"/runs.json?before={answer['next']}").json()
    assert [item["run"] for item in older["items"]] == [runs[1].pk, runs[0].pk]
    assert older["next"] is None


def test_a_new_column_is_one_line_for_page_json_csv_and_an_empty_files_header(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = view._RUNS.columns
    monkeypatch.setattr(view, "_RUNS", DataTable(*columns, Column("told_by", "Told by", "run.provenance")))
    assert client.get("/runs.csv").content.decode().strip().endswith(",told_by")
    create_run(provenance="a person")
    text = page_of(client, "/runs/")
    assert '<th scope="col">Told by</th>' in text
    assert "<td>a person</td>" in text
    assert client.get("/runs.json").json()["items"][0]["told_by"] == "a person"
    assert client.get("/runs.csv").content.decode().strip().endswith(",a person")
