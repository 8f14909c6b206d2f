"""Guessing keys and passwords: some attempts, then 429; whoever is right is not in the way of it."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from django.db import connection
from django.http import HttpRequest
from django.test import Client

from hud.accounts import access
from hud.accounts.keys import create_key
from hud.accounts.limits import RateLimit
from tests.support.factories import create_user
from tests.support.servers import RedisServer

pytestmark = pytest.mark.django_db
_hosts = itertools.count(1)


@pytest.fixture
def stranger(settings: Any) -> Client:
    """From an address of its own, with four attempts."""
    settings.HUD_WRONG_KEYS = settings.HUD_WRONG_PASSWORDS = 4
    return Client(REMOTE_ADDR=f"192.0.2.{next(_hosts)}")


@pytest.fixture(params=["with Redis", "without Redis"])
def redis(request: pytest.FixtureRequest, redis_server: RedisServer) -> None:
    if request.param == "without Redis":
        redis_server.kill()


def ask(client: Client, secret: str) -> Any:
    return client.get("/api/v1/experiments", headers={"authorization": f"Bearer {secret}"})


def log_in(client: Client, password: str, path: str = "/login/") -> Any:
    return client.post(path, {"username": "olga", "password": password})


def test_wrong_keys(stranger: Client, redis: None) -> None:
    secret = create_key(name="k", scopes=["read"], who="t")[1]
    assert [ask(stranger, f"hud_{guess}").status_code for guess in range(6)] == [401] * 4 + [429] * 2
    answer = ask(stranger, "hud_")
    assert answer["Content-Type"] == "application/problem+json"
    assert 1 <= int(answer["Retry-After"]) <= 60
    assert ask(stranger, secret).status_code == 200  # a colleague behind the same address
    assert ask(Client(REMOTE_ADDR="192.0.2.250"), "hud_").status_code == 401
    token = {"token": "guess", "name": "mine"}
    register = stranger.post("/api/v1/hosts/register", token, content_type="application/json")
    assert register.status_code == 429


@pytest.mark.parametrize("path", ["/login/", "/admin/login/"])
def test_wrong_passwords(stranger: Client, redis: None, path: str) -> None:
    create_user()
    for _ in range(6):  # a right one counts for nothing
        assert log_in(stranger, "open sesame").status_code == 302
        stranger.logout()
    guesses = [log_in(stranger, str(guess), path).status_code for guess in range(6)]
    assert guesses == [200] * 4 + [429] * 2
    right = log_in(stranger, "open sesame", path)
    assert right.status_code == 429  # else it would tell which guess is right
    assert 1 <= int(right["Retry-After"]) <= 300
    assert "Too many attempts" in right.content.decode()
    assert log_in(Client(REMOTE_ADDR="192.0.2.251"), "open sesame").status_code == 302


def test_only_wrong_passwords_of_the_account_count(stranger: Client, redis: None) -> None:
    """Others behind the same address, such as that of a proxy, are not held up."""
    create_user()
    create_user("paul")
    elsewhere = Client(enforce_csrf_checks=True, REMOTE_ADDR=stranger.defaults["REMOTE_ADDR"])
    assert [log_in(elsewhere, "guess").status_code for _ in range(6)] == [403] * 6
    assert log_in(stranger, "open sesame").status_code == 302
    stranger.logout()
    assert [log_in(stranger, "guess").status_code for _ in range(6)] == [200] * 4 + [429] * 2
    other = stranger.post("/login/", {"username": "paul", "password": "open sesame"})
    assert other.status_code == 302


@pytest.mark.parametrize("written", ["olga ", "\u3000olga", "Olga", "\uff4f\uff4c\uff47\uff41"])
def test_an_account_is_one_however_its_name_is_written(stranger: Client, redis: None, written: str) -> None:
    create_user()
    guesses = [
        stranger.post("/login/", {"username": name, "password": "guess"}).status_code
        for name in ("olga", written) * 3
    ]
    assert guesses == [200] * 4 + [429] * 2


def test_an_address_and_all_of_them_have_a_limit(
    stranger: Client, settings: Any, monkeypatch: pytest.MonkeyPatch, redis: None
) -> None:
    settings.HUD_WRONG_PASSWORDS = 1
    mine = RateLimit(f"all-{next(_hosts)}", lambda: 100, 10**6)
    monkeypatch.setattr(access, "ALL_PASSWORDS", mine)

    def guess(number: int, client: Client) -> int:
        return int(client.post("/login/", {"username": f"n{number}", "password": "x"}).status_code)

    assert [guess(number, stranger) for number in range(12)] == [200] * 10 + [429] * 2
    others = [Client(REMOTE_ADDR=f"198.51.100.{number}") for number in range(92)]
    assert [guess(number, client) for number, client in enumerate(others)] == [200] * 90 + [429] * 2


def test_parallel_guesses_are_counted_before_they_are_checked(
    stranger: Client, monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer
) -> None:
    """And no more than two passwords are hashed at once."""
    inside, most, lock, both = 0, 0, threading.Lock(), threading.Event()

    def slow(*_arguments: Any, **_named: Any) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            if inside == 2:
                both.set()
        both.wait(30)
        refused.wait(30)
        with lock:
            inside -= 1

    refused = threading.Event()
    monkeypatch.setattr("django.contrib.auth.forms.authenticate", slow)
    answers: list[int] = []

    def guess() -> None:
        client = Client(REMOTE_ADDR=stranger.defaults["REMOTE_ADDR"])
        answers.append(log_in(client, "guess").status_code)
        connection.close()
        if len(answers) >= 18:
            refused.set()

    threads = [threading.Thread(target=guess) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 2
    assert sorted(answers) == [200] * 2 + [429] * 18


def test_addresses(settings: Any) -> None:
    request = HttpRequest()
    request.META = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": "192.0.2.9, 198.51.100.7"}
    assert access.address_of(request) == "10.0.0.1"
    settings.HUD_PROXIES = ["10.0.0.1"]
    request = HttpRequest()
    request.META = {"REMOTE_ADDR": "10.0.0.1", "HTTP_X_FORWARDED_FOR": "192.0.2.9, 198.51.100.7"}
    assert access.address_of(request) == "198.51.100.7"
    request.META = {"REMOTE_ADDR": "2001:db8::1"}
    assert access.address_of(request) == "2001:db8::/64"
