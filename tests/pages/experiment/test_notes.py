"""Notes beside the charts: who may write and delete them, what is refused, where they stand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.models import Annotation, Audit, Experiment
from hud.pages.charts.lines import place_of
from tests.support.experiment_pages import read_page, text_of
from tests.support.factories import create_experiment, create_measurement, create_run, create_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def experiment() -> Experiment:
    """Three nights of one experiment."""
    found, now = create_experiment(), timezone.now()
    for day in range(3):
        run = create_run(order_time=now - timedelta(days=2 - day), commit=f"{day}abcdef0")
        create_measurement(found, value=2500.0 + day, run=run)
    return found


def post(client: Client, **said: Any) -> tuple[int, dict[str, Any]]:
    secret = create_key(name="k", scopes=["run", "read"], who="t")[1]
    answer = client.post(
        "/api/v1/annotations",
        said,
        content_type="application/json",
        headers={"authorization": f"Bearer {secret}"},
    )
    return answer.status_code, answer.json()


def test_a_note_is_written_shown_as_text_at_its_commit_and_deleted(
    client: Client, experiment: Experiment
) -> None:
    client.force_login(create_user())
    said = {
        "text": "<b>index</b> & more",
        "link": "https://example.com/1?a=1&b=2",
        "commit": "1abcdef",
        "scope": "suite",
    }
    client.post(f"/experiments/{experiment.pk}/notes", said)
    note = Annotation.objects.get()
    assert (note.scope, note.suite, note.author) == ("suite", "micro", "olga")
    page = read_page(experiment.pk)
    assert place_of(note, page.charts) == 1
    text = text_of(client, experiment)
    assert "&lt;b&gt;index&lt;/b&gt; &amp; more" in text
    assert "<b>index" not in text
    assert 'class="event note"' in text
    other = create_experiment(case="gemv")
    create_measurement(other)
    assert [one.pk for one in read_page(other.pk).notes] == [note.pk]
    assert read_page(create_experiment(suite="timm").pk).notes == []
    client.post(f"/experiments/{experiment.pk}/notes/{note.pk}/delete")
    assert not Annotation.objects.exists()
    assert [row.action for row in Audit.objects.filter(action__startswith="annotation").order_by("pk")] == [
        "annotation.add",
        "annotation.delete",
    ]


def test_a_note_at_a_time_stands_at_the_run_that_follows_or_at_the_last(experiment: Experiment) -> None:
    now = timezone.now()
    charts = read_page(experiment.pk).charts
    places = [place_of(Annotation(at=now - timedelta(days=days)), charts) for days in (5, 1.5, 0.5, -1)]
    assert places == [None, 1, 2, 2]


@pytest.mark.parametrize(
    ("said", "pointer"),
    [
        ({"text": "  "}, "/text"),
        ({"text": "a\u202eb"}, "/text"),
        ({"text": "a\u200bb"}, "/text"),
        ({"text": "a\x07b"}, "/text"),
        ({"text": "x", "link": "javascript:alert(1)"}, "/link"),
        ({"text": "x", "link": "ftp://example.com"}, "/link"),
        ({"text": "x", "commit": "../../x"}, "/commit"),
        ({"text": "x", "commit": ""}, "/date"),
        ({"text": "x", "date": "1999-01-01T00:00:00Z"}, "/date"),
        ({"text": "x", "suite": "micro", "experiment": 1}, "/suite"),
    ],
)
def test_what_is_no_note_is_refused_with_its_place(
    client: Client, said: dict[str, Any], pointer: str
) -> None:
    status, answer = post(client, **{"commit": "abcdef0", **said})
    assert (status, answer["errors"][0]["pointer"]) == (422, pointer)
    assert not Annotation.objects.exists()


def test_the_api_lists_what_it_was_given(client: Client, experiment: Experiment) -> None:
    date = "2026-11-01T00:00:00Z"
    status, note = post(client, text="driver 580", date=date, link="http://example.com/")
    assert (status, note["scope"], note["author"][:4]) == (201, "all", "key ")
    post(client, text="here", commit="1abcdef", experiment=experiment.pk)
    found = client.get(f"/api/v1/annotations?experiment={experiment.pk}").json()["items"]
    assert [(one["text"], one["scope"]) for one in found] == [("here", "experiment"), ("driver 580", "all")]
    assert client.get("/api/v1/annotations?commit=1abcdef").json()["items"][0]["text"] == "here"
    assert client.get(f"/experiments/{experiment.pk}.json").json()["annotations"][1]["text"] == "driver 580"


def test_a_viewer_writes_and_deletes_none(client: Client, experiment: Experiment) -> None:
    note = Annotation.objects.create(text="x", commit="abcd", author="olga")
    client.force_login(create_user("vera", Role.VIEWER))
    assert client.post(f"/experiments/{experiment.pk}/notes", {"text": "y"}).status_code == 403
    assert client.post(f"/experiments/{experiment.pk}/notes/{note.pk}/delete").status_code == 403
    assert "Add a note" not in text_of(client, experiment)
    assert Annotation.objects.get() == note
