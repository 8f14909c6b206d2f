"""The hosts: their states, what they do, and telling them to pause, drain and go on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.models import ApiKey, Audit, Host
from tests.factories import create_accelerator, create_host, create_run, create_task, create_user

pytestmark = pytest.mark.django_db
STATEMENTS = 4


def text_of(client: Client, address: str = "/hosts/") -> str:
    response = client.get(address)
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def test_without_hosts_it_says_how_to_attach_one(client: Client) -> None:
    text = text_of(client)
    assert "No host is attached" in text
    assert "python -m runner attach" in text


@pytest.mark.parametrize("hosts", [1, 5])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, django_assert_num_queries: Any, hosts: int
) -> None:
    for _ in range(hosts):
        accelerator = create_accelerator()
        create_task(create_run("running", device="cuda"), state="running", accelerator=accelerator)
        create_task(create_run("queued", device="cuda"))
    with django_assert_num_queries(STATEMENTS):
        client.get("/hosts/")


def test_each_state_is_said(client: Client) -> None:
    create_host("a", age_s=1)
    create_host("b", age_s=40)
    create_host("c", age_s=4000)
    create_host("d", paused_until=timezone.now() + timedelta(minutes=5), note="new driver")
    create_host("e", drained=True)
    create_host("f", detached_at=timezone.now())
    text = text_of(client)
    for name, state in zip(
        "abcdef", ("online", "late", "lost", "paused", "drained", "detached"), strict=True
    ):
        head = text[text.index(f">{name} <span") :][:200]
        assert f"</span> {state}</span>" in head
    assert "new driver" in text


def test_accelerators_say_what_they_do(client: Client) -> None:
    host = create_host()
    busy = create_accelerator(host, name="cuda:0")
    create_accelerator(host, name="cuda:1", dirty="another process holds 3.2 GB")
    create_accelerator(host, name="cuda:2", present=False)
    run = create_run("running", device="cuda", host=host)
    create_task(run, state="running", accelerator=busy)
    create_task(run)
    text = text_of(client)
    assert f'<a href="/runs/{run.pk}/">run {run.pk}</a> layer_norm' in text
    for state in ("busy", "dirty", "gone"):
        assert f"</span> {state}</span>" in text
    assert "another process holds 3.2 GB" in text
    rows = {row["accelerator"]: row for row in client.get("/hosts.json").json()["items"]}
    assert (rows["cuda:0"]["waiting"], rows["cuda:0"]["running"]) == (1, run.pk)
    assert rows["cuda:2"]["waiting"] == 0


def test_a_lost_hosts_accelerators_are_not_called_idle(client: Client) -> None:
    create_accelerator(create_host(age_s=4000))
    assert client.get("/hosts.json").json()["items"][0]["accelerator_state"] == "unknown"


@pytest.mark.parametrize("action", ["drain", "pause", "resume"])
def test_telling_a_host_needs_a_login_and_a_post(client: Client, action: str) -> None:
    host = create_host(drained=action == "resume")
    address = f"/hosts/{host.pk}/{action}"
    assert client.post(address, {"minutes": "5"})["Location"] == "/login/?next=/hosts/"
    assert Host.objects.get() == host
    assert not Audit.objects.exists()
    client.force_login(create_user())
    assert client.get(address).status_code == 405


def test_drain_pause_and_resume(client: Client) -> None:
    host = create_host("gpu-1")
    client.force_login(create_user())
    text = client.post(f"/hosts/{host.pk}/drain", {"note": "moves"}, follow=True).content.decode()
    assert "takes nothing more" in text
    assert Host.objects.get().drained
    client.post(f"/hosts/{host.pk}/resume")
    assert not Host.objects.get().drained
    client.post(f"/hosts/{host.pk}/pause", {"minutes": "30", "note": "firmware"})
    paused = Host.objects.get()
    assert paused.paused_until
    assert timedelta(minutes=29) < paused.paused_until - timezone.now() <= timedelta(minutes=30)
    assert [one.who for one in Audit.objects.all()] == ["olga"] * 3


@pytest.mark.parametrize("minutes", ["", "0", "-3", "soon", "999999999999999999999"])
def test_a_pause_that_cannot_be_is_refused_with_words(client: Client, minutes: str) -> None:
    host = create_host()
    client.force_login(create_user())
    text = client.post(f"/hosts/{host.pk}/pause", {"minutes": minutes}, follow=True).content.decode()
    assert "minutes:" in text
    assert Host.objects.get().paused_until is None


def test_nothing_else_can_be_told(client: Client) -> None:
    client.force_login(create_user())
    assert client.post(f"/hosts/{create_host().pk}/explode").status_code == 404
    assert client.post("/hosts/999/drain").status_code == 404


def test_an_operator_makes_a_token_that_is_shown_once(client: Client) -> None:
    assert client.post("/hosts/token")["Location"].startswith("/login/")
    client.force_login(create_user())
    text = client.post("/hosts/token").content.decode()
    assert "python -m runner attach --hud http://testserver --token hudt_" in text
    assert ApiKey.objects.get().expires
    assert "hudt_" not in text_of(client)
