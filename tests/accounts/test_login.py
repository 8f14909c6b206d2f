"""Logging in and out, who may read, the keys, and the pages of errors."""

from __future__ import annotations

from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client

from tests.support.factories import create_user

pytestmark = pytest.mark.django_db
PAGES = ("/", "/suites/", "/suites/micro/", "/runs/", "/hosts/", "/overview.json", "/runs.csv")


@pytest.mark.parametrize("address", PAGES)
def test_reading_needs_no_login_where_it_is_public(client: Client, address: str) -> None:
    assert client.get(address).status_code == 200


@pytest.mark.parametrize("address", PAGES)
def test_reading_needs_a_login_where_it_is_not(client: Client, settings: Any, address: str) -> None:
    settings.HUD_PUBLIC_READ = False
    answer = client.get(address)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/?next=/")
    client.force_login(create_user())
    assert client.get(address).status_code == 200


def test_login_and_logout(client: Client) -> None:
    create_user()
    wrong = client.post("/login/", {"username": "olga", "password": "guess"})
    assert wrong.status_code == 200
    assert 'role="alert"' in wrong.content.decode()
    answer = client.post("/login/", {"username": "olga", "password": "open sesame", "next": "/hosts/"})
    assert answer["Location"] == "/hosts/"
    assert "Log out olga" in client.get("/").content.decode()
    assert client.post("/logout/").status_code == 302
    assert "Log in" in client.get("/").content.decode()


def test_a_login_never_leads_to_another_site(client: Client) -> None:
    create_user()
    form = {"username": "olga", "password": "open sesame", "next": "https://evil.example/"}
    assert client.post("/login/", form)["Location"] == "/"


@pytest.mark.parametrize(
    "address", ["/login/", "/logout/", "/hosts/1/drain", "/runs/1/cancel", "/experiments/1/rerun"]
)
def test_a_form_without_its_csrf_token_is_refused(address: str) -> None:
    answer = Client(enforce_csrf_checks=True).post(address)
    assert answer.status_code == 403
    assert "403_csrf.html" in [one.name for one in answer.templates]


def test_an_unknown_url_is_404(client: Client) -> None:
    answer = client.get("/no/such/page/")
    assert answer.status_code == 404
    assert "404.html" in [one.name for one in answer.templates]


@pytest.mark.parametrize("name", ["400", "403", "403_csrf", "404", "500", "503"])
def test_error_pages_need_no_database_and_session(name: str, django_assert_num_queries: object) -> None:
    text = render_to_string(f"{name}.html")
    assert "<h1>" in text
    assert "Log in" not in text


def test_the_policy_allows_no_inline_script(client: Client) -> None:
    policy = client.get("/")["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe-eval" not in policy
