"""Audit rows of logins, keys, uploads and hosts, and the page that lists them."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.audit import note
from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.models import Audit
from hud.pages.audit import view as query
from tests.support.factories import create_host, create_user
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(create_user("ada", Role.ADMIN))
    Audit.objects.all().delete()
    return client


def test_logins_uploads_and_actions_leave_rows_with_the_clients_address(client: Client) -> None:
    olga = create_user()
    Audit.objects.all().delete()
    for password in ("guess", "open sesame"):
        client.post("/login/", {"username": "olga", "password": password}, REMOTE_ADDR="192.0.2.7")
    host = create_host("gpu-1")
    client.post(f"/hosts/{host.pk}/drain", {"note": "moves"}, REMOTE_ADDR="192.0.2.7")
    key, secret = create_key(name="ci", scopes=["upload"], who="olga", owner=olga)
    for _ in range(2):  # the second is a duplicate
        answer = client.post(
            "/api/v1/results?filename=night.json",
            as_list(v3_record()),
            content_type="application/json",
            headers={"authorization": f"Bearer {secret}"},
            REMOTE_ADDR="192.0.2.8",
        )
    client.post("/logout/", REMOTE_ADDR="192.0.2.7")
    rows = Audit.objects.order_by("pk").values_list("who", "action", "subject", "address")
    assert list(rows) == [
        ("", "login.failed", "olga", "192.0.2.7"),
        ("olga", "login", "olga", "192.0.2.7"),
        ("olga", "host.drain", "gpu-1", "192.0.2.7"),
        ("olga", "key.create", str(key), ""),
        (f"olga, key {key.prefix}", "upload", f"upload {answer.json()['id']}", "192.0.2.8"),
        ("olga", "logout", "olga", "192.0.2.7"),
    ]
    upload = Audit.objects.get(action="upload").detail
    assert (upload["filename"], upload["stored"]) == ("night.json", 1)


def test_the_rows_are_filtered_in_the_url_and_paged(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "PAGE_ROWS", 2)
    for number in range(3):
        note(who="olga", action="run.request", subject=f"run {number}", detail={"suite": "=1+1"})
    note(who="eva, key hud_123", action="key.create", subject="ci")
    today = timezone.now().date().isoformat()
    for asked, expected in (
        ("", ["ci", "run 2"]),
        ("who=olga", ["run 2", "run 1"]),
        ("who=eva&action=key", ["ci"]),
        ("action=key.create", ["ci"]),
        ("action=key.revoke", []),
        ("subject=run%201", ["run 1"]),
        (f"from={today}&to={today}&action=run", ["run 2", "run 1"]),
        ("to=2020-01-01", []),
        ("from=0001-01-01&to=9998-12-31&who=eva", ["ci"]),
    ):
        items = admin.get(f"/audit.json?{asked}").json()["items"]
        assert [item["subject"] for item in items] == expected, asked
        lines = list(csv.DictReader(io.StringIO(admin.get(f"/audit.csv?{asked}").content.decode())))
        assert [line["subject"] for line in lines] == expected
        text = admin.get(f"/audit/?{asked}").content.decode()
        assert all(f">{subject}</a>" in text for subject in expected)
    following = admin.get("/audit.json?who=olga").json()["next"]
    older = admin.get(f"/audit.json?who=olga&before={following}").json()
    assert ([item["subject"] for item in older["items"]], older["next"]) == (["run 0"], None)
    for wrong in ("from=tomorrow", "before=0", "who=a&who=b"):
        assert admin.get(f"/audit.json?{wrong}").status_code == 400
        assert admin.get(f"/audit/?{wrong}").status_code == 200


def test_the_api_has_the_same_rows(admin: Client) -> None:
    for number in range(3):
        note(who="olga", action="run.request", subject=f"run {number}")
    found: list[str] = []
    cursor = ""
    while cursor is not None:
        answer: dict[str, Any] = admin.get(f"/api/v1/audit?action=run&limit=2{cursor}").json()
        found += [item["subject"] for item in answer["items"]]
        cursor = answer["next"] and f"&cursor={answer['next']}"
    assert found == ["run 2", "run 1", "run 0"]
    for wrong in ("form=2026-01-01", "from=x", "who=a&who=b", "limit=0"):
        assert admin.get(f"/api/v1/audit?{wrong}").status_code == 422
