"""Which host names the web accepts, and whom it redirects to HTTPS."""

from __future__ import annotations

import platform

import pytest
from django.test import Client
from pytest_django import Settings

from hud.server.names import allowed_hosts

LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}


@pytest.mark.parametrize(
    ("environment", "production", "accepted"),
    [
        ({}, False, set()),
        ({"BIND": "127.0.0.1"}, False, set()),
        ({"BIND": "10.9.8.7"}, False, {platform.node(), "10.9.8.7"}),
        ({"BIND": "10.9.8.7"}, True, set()),
        ({"BIND": "10.9.8.7", "ALLOWED_HOSTS": "a.example, .b.example"}, False, {"a.example", ".b.example"}),
        ({"ALLOWED_HOSTS": "hud.example"}, True, {"hud.example"}),
    ],
)
def test_accepted_names(environment: dict[str, str], production: bool, accepted: set[str]) -> None:
    assert set(allowed_hosts(environment, production=production)) == LOOPBACK | accepted


def test_every_address_is_accepted_where_all_are_bound() -> None:
    found = set(allowed_hosts({"BIND": "0.0.0.0"}, production=False))
    assert {platform.node(), *LOOPBACK} <= found
    assert "*" not in found


@pytest.fixture
def production(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = allowed_hosts({"ALLOWED_HOSTS": "hud.example"}, production=True)
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")


@pytest.mark.django_db
@pytest.mark.usefixtures("production")
def test_others_are_redirected_to_https_and_this_machine_is_not() -> None:
    visitor = Client(REMOTE_ADDR="192.0.2.7", SERVER_NAME="hud.example")
    assert visitor.get("/suites/")["Location"] == "https://hud.example/suites/"
    behind_proxy = Client(REMOTE_ADDR="127.0.0.1", SERVER_NAME="hud.example")
    assert behind_proxy.get("/suites/", headers={"x-forwarded-proto": "http"}).status_code == 301
    assert behind_proxy.get("/suites/", headers={"x-forwarded-proto": "https"}).status_code == 200
    agent = Client(REMOTE_ADDR="127.0.0.1", SERVER_NAME="127.0.0.1")
    assert agent.get("/suites/").status_code == 200


@pytest.mark.django_db
@pytest.mark.usefixtures("production")
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/statusz"])
def test_probes_need_neither_https_nor_a_known_name(path: str) -> None:
    probe = Client(REMOTE_ADDR="192.0.2.7", SERVER_NAME="10.1.2.3")
    assert probe.get(path).status_code == 200
    assert probe.get("/suites/").status_code == 400
