"""The page and the API of regressions: what waits, one row for each cause, decisions by role."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from hud.accounts.keys import create_key
from hud.models import Audit, Regression
from tests.judging.test_regressions import nights, quiet

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    """A browser in which an operator is logged in."""
    user = User.objects.create_user("mara")
    user.groups.add(Group.objects.get_or_create(name="operator")[0])
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def regression() -> Regression:
    nights(*quiet(12), 2000, 2000)
    return Regression.objects.get()


def test_the_page_shows_what_waits_and_its_history(client: Client, regression: Regression) -> None:
    page = client.get("/regressions/", {"id": regression.pk})
    assert page.status_code == 200
    assert "layer_norm" in page.text
    rows = client.get("/regressions.json").json()["items"]
    assert [(row["id"], row["state"], row["points"]) for row in rows] == [(regression.pk, "open", 2)]
    assert rows[0]["change"] == pytest.approx(-0.2, abs=0.01)
    assert client.get("/regressions.csv").text.count("layer_norm") == 1
    assert client.get("/regressions/", {"tab": "accepted"}).status_code == 200
    assert client.get("/regressions.json", {"tab": "nonsense"}).status_code == 400


def test_ten_regressions_cost_as_many_statements_as_one(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    for case in "abcd":
        nights(*quiet(6), 1000, case=case)
    with django_assert_max_num_queries(14):
        assert client.get("/regressions/").status_code == 200


def test_a_decision_needs_the_role_and_leaves_a_line(
    regression: Regression, operator: Client, client: Client
) -> None:
    address = f"/regressions/{regression.pk}/act"
    assert client.post(address, {"event": "accept"}).status_code in {302, 403}
    assert Regression.objects.get().state == "open"
    operator.post(address, {"event": "mine"})
    operator.post(address, {"event": "acknowledge", "note": "known"})
    found = Regression.objects.get()
    assert (found.state, found.note) == ("acknowledged", "known")
    assert found.owner
    operator.post(address, {"event": "mute", "days": 3})
    assert operator.get("/regressions.json").json()["items"] == []
    assert Audit.objects.filter(action__startswith="regression.").count() == 3


def test_the_api_lists_and_decides(regression: Regression) -> None:
    _key, secret = create_key(name="t", scopes=["read", "accept"], who="t")
    api = Client(headers={"authorization": f"Bearer {secret}"})
    listed = api.get("/api/v1/regressions", {"state": "open"}).json()["items"]
    assert [row["id"] for row in listed] == [regression.pk]
    assert api.get("/api/v1/regressions", {"branch": "other"}).json()["items"] == []
    path = f"/api/v1/regressions/{regression.pk}"
    done = api.post(path, {"event": "accept", "note": "needed"}, content_type="application/json")
    assert (done.status_code, done.json()["state"]) == (200, "accepted")
    again = api.post(path, {"event": "dismiss"}, content_type="application/json")
    assert again.status_code == 409
    assert api.post(path, {"event": "agreed"}, content_type="application/json").status_code == 422
