"""Known failures on pages and over the API: shown, marked, forgotten, and no news."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.models import Audit, Experiment, KnownFailure, Point, Run, Stream
from tests.support.factories import create_experiment, create_measurement, create_run, create_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def failing() -> Experiment:
    """An experiment of the stream `nightly` whose last two runs failed."""
    dlrm = create_experiment(suite="torchbench", case="dlrm", knobs={})
    nightly = Stream.objects.get(name="nightly")
    create_measurement(dlrm, metric="speedup", run=create_run(stream=nightly))
    for _ in range(2):
        run = create_run("failed", stream=nightly)
        create_measurement(dlrm, metric="speedup", value=None, status="failed", run=run)
    return dlrm


def operator() -> Client:
    client = Client()
    client.force_login(create_user())
    return client


def api(role: Role = Role.OPERATOR) -> dict[str, Any]:
    scopes = ["read", "accept"] if role == Role.OPERATOR else ["read"]
    _key, secret = create_key(name=f"key-{role}", scopes=scopes, who="t")
    return {"headers": {"authorization": f"Bearer {secret}"}, "content_type": "application/json"}


def strip() -> list[str]:
    response = Client().get("/?stream=nightly")
    return [look for _line, look in response.context["page"].strip]


def test_a_run_with_known_failures_alone_is_not_marked_in_the_strip(failing: Experiment) -> None:
    assert strip() == ["ok", "failed", "failed"]
    nightly = Stream.objects.get(name="nightly")
    KnownFailure.objects.create(stream=nightly, experiment=failing, reason="index out of range")
    assert strip() == ["ok", "ok", "ok"]
    run = Run.objects.latest("pk")
    create_measurement(create_experiment(case="new"), metric="speedup", value=None, status="oom", run=run)
    assert strip() == ["ok", "ok", "failed"]


def test_a_run_s_sentence_and_badges_do_not_name_a_known_failure(failing: Experiment) -> None:
    run = Run.objects.latest("pk")
    results = Client().get(f"/runs/{run.pk}/").context["results"]
    assert set(results.counts) == {"failed"}
    KnownFailure.objects.create(stream=run.stream, experiment=failing, reason="index out of range")
    response = Client().get(f"/runs/{run.pk}/")
    assert set(response.context["results"].counts) == {"known"}
    assert "index out of range" in response.content.decode()
    (row,) = Client().get(f"/runs/{run.pk}.json").json()["items"]
    assert (row["status"], row["known_failure"]) == ("failed", "index out of range")


def test_an_operator_marks_and_forgets_on_the_experiment_s_page(failing: Experiment) -> None:
    client, page = operator(), f"/experiments/{failing.pk}"
    assert "Mark as known failure" in client.get(f"{page}/?stream=nightly").content.decode()
    client.post(f"{page}/known?stream=nightly", {"reason": "index out of range"})
    failure = KnownFailure.objects.get()
    assert (failure.stream.name, failure.reason, failure.author) == ("nightly", "index out of range", "olga")
    shown = Client().get(f"{page}/?stream=nightly").content.decode()
    assert "index out of range" in shown
    assert "Forget" not in shown
    client.post(f"{page}/known/forget?stream=nightly")
    assert not KnownFailure.objects.exists()
    assert Audit.objects.filter(action__startswith="known_failure", who="olga").count() == 2


def test_an_empty_reason_marks_nothing(failing: Experiment) -> None:
    response = operator().post(
        f"/experiments/{failing.pk}/known?stream=nightly", {"reason": " "}, follow=True
    )
    assert response.context["messages"]
    assert not KnownFailure.objects.exists()


def test_the_api_lists_marks_and_forgets(failing: Experiment) -> None:
    body = {"stream": "nightly", "experiment": failing.pk, "reason": "index out of range"}
    assert Client().post("/api/v1/known_failures", body, **api(Role.VIEWER)).status_code == 403
    key = api()
    made = Client().post("/api/v1/known_failures", body, **key)
    assert made.status_code == 201
    assert {name: made.json()[name] for name in (*body, "case")} == {**body, "case": "dlrm"}
    again = Client().post("/api/v1/known_failures", {**body, "reason": "fixed upstream"}, **key)
    assert again.json()["id"] == made.json()["id"]
    (listed,) = Client().get("/api/v1/known_failures?stream=nightly", **key).json()["items"]
    assert listed["reason"] == "fixed upstream"
    assert Client().get("/api/v1/known_failures?stream=import", **key).json()["items"] == []
    points = Client().get(f"/api/v1/series/{failing.pk}/speedup?stream=nightly", **key).json()["points"]
    assert [one["known_failure"] for one in points] == [None, "fixed upstream", "fixed upstream"]
    assert Client().delete(f"/api/v1/known_failures/{listed['id']}", **key).status_code == 204
    assert not KnownFailure.objects.exists()
    assert Point.objects.count() == 3


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"stream": "nowhere"}, 404),
        ({"experiment": 10**6}, 404),
        ({"reason": " "}, 422),
        ({"reason": ""}, 422),
        ({"until": "tomorrow"}, 422),
    ],
)
def test_the_api_refuses(failing: Experiment, change: dict[str, Any], status: int) -> None:
    body = {"stream": "nightly", "experiment": failing.pk, "reason": "index out of range", **change}
    assert Client().post("/api/v1/known_failures", body, **api()).status_code == status
