"""The hosts: their states, what they do, and telling them to pause, drain and go on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from hud.models import ApiKey, Audit, Host, Run, Schedule, Stream
from hud.runs import queue, schedules
from runner.schema.tasks import Selection, plan
from tests.support.claims import request
from tests.support.factories import create_accelerator, create_host, create_run, create_task, create_user
from tests.support.pages import page_of

pytestmark = pytest.mark.django_db
STATEMENTS = 13  # hosts 5, queue 3, schedules 3, front stream 1, its open regressions 1


def create_schedule(name: str = "nightly", **over: Any) -> Schedule:
    """One whose time came a day ago, and every day."""
    given = {"cron": "10 4 * * *", "suite": "micro", "device": "cuda", **over}
    schedule = schedules.save(Schedule(name=name, **given), who="olga")
    Schedule.objects.filter(pk=schedule.pk).update(active_from=timezone.now() - timedelta(days=2))
    return schedule


def test_without_hosts_it_says_how_to_attach_one(client: Client) -> None:
    text = page_of(client, "/hosts/")
    assert "No host is attached" in text
    assert "python -m runner attach" in text


@pytest.mark.parametrize("hosts", [1, 5])
def test_it_takes_a_fixed_number_of_statements(
    client: Client, django_assert_num_queries: Any, hosts: int
) -> None:
    for number in range(hosts):
        accelerator = create_accelerator()
        create_task(create_run("running", device="cuda"), state="running", accelerator=accelerator)
        create_task(create_run("queued", device="cuda"))
        create_schedule(f"nightly {number}")
    schedules.fire_due(timezone.now())
    Stream.objects.filter(name="nightly").update(is_front=True)
    with django_assert_num_queries(STATEMENTS):
        client.get("/hosts/")


def test_a_fleet_has_pages_and_a_search(client: Client) -> None:
    for number in range(120):
        create_accelerator(create_host(f"node-{number:03}", age_s=1 if number else 4000))
    run = create_run("queued", device="cuda")
    create_task(run)
    create_task(run)
    first, last = (client.get("/hosts/", {"page": page}) for page in ("1", "3"))
    names = [[line.host.name for line in answer.context["page"].lines] for answer in (first, last)]
    assert names == [[f"node-{n:03}" for n in place] for place in (range(50), range(100, 120))]
    assert first.context["page"].activities == [("idle", 119), ("offline", 1)]
    assert last.context["page"].lines[0].accelerators[0].waiting == 2
    text = first.content.decode()
    assert 'href="/hosts/?page=2"' in text
    assert 'data-poll="/hosts/live?' in text
    found = client.get("/hosts/live", {"q": "NODE-11"}).context["page"]
    assert [line.host.name for line in found.lines] == [f"node-11{n}" for n in range(10)]
    assert "“nobody”" in page_of(client, "/hosts/?q=nobody")
    assert len(client.get("/hosts.json").json()["items"]) == 120


def test_each_state_is_said(client: Client) -> None:
    create_host("a", age_s=1)
    create_host("b", age_s=40)
    create_host("c", age_s=4000)
    create_host("d", paused_until=timezone.now() + timedelta(minutes=5), note="new driver")
    create_host("e", drained=True)
    create_host("f", detached_at=timezone.now())
    text = page_of(client, "/hosts/")
    for name, state in zip(
        "abcdef", ("online", "late", "lost", "paused", "drained", "detached"), strict=True
    ):
        head = text[text.index(f">{name}</a> <span") :][:200]
        assert f"</svg> {state}</span>" in head
    assert "new driver" in text
    assert text.count("to attach it again") == 1
    assert "2 hosts idle, 1 host paused, 1 host drained, 1 host offline" in text


def test_accelerators_say_what_they_do(client: Client) -> None:
    host = create_host()
    busy = create_accelerator(host, name="cuda:0")
    create_accelerator(host, name="cuda:1", unavailable_reason="another process holds 3.2 GB")
    create_accelerator(host, name="cuda:2", present=False)
    run = create_run("running", device="cuda", host=host)
    create_task(run, state="running", accelerator=busy)
    create_task(run)
    create_task(create_run("queued", device="cuda", labels={"gpu": "another"}))
    text = page_of(client, "/hosts/")
    assert f'<a href="/runs/{run.pk}/">run {run.pk}</a> layer_norm' in text
    for state in ("busy", "unavailable", "gone"):
        assert f"</svg> {state}</span>" in text
    assert "another process holds 3.2 GB" in text
    rows = {row["accelerator"]: row for row in client.get("/hosts.json").json()["items"]}
    assert (rows["cuda:0"]["waiting"], rows["cuda:0"]["running"]) == (1, run.pk)
    assert rows["cuda:2"]["waiting"] == 0


def test_a_host_without_a_free_accelerator_is_not_idle(client: Client) -> None:
    create_accelerator(create_host("a"), unavailable_reason="in use by process 7")
    create_host("b")
    assert client.get("/hosts/").context["page"].activities == [("idle", 1), ("unavailable", 1)]


def test_a_lost_hosts_accelerators_are_not_called_idle(client: Client) -> None:
    create_accelerator(create_host(age_s=4000))
    assert client.get("/hosts.json").json()["items"][0]["accelerator_state"] == "unknown"


@pytest.mark.parametrize("action", ["drain", "pause", "resume"])
def test_telling_a_host_needs_a_login_and_a_post(client: Client, action: str) -> None:
    host = create_host(drained=action == "resume")
    address = f"/hosts/{host.pk}/{action}"
    for before, after in (("/hosts/?a=1", "/hosts/%3Fa%3D1"), ("/hosts/token", "/"), ("", "/")):
        answer = client.post(address, {"minutes": "5"}, headers={"referer": f"http://testserver{before}"})
        assert answer["Location"] == f"/login/?next={after}"
    answer = client.post(address, {"minutes": "5"}, headers={"referer": "http://elsewhere.org/hosts/"})
    assert answer["Location"] == "/login/?next=/"
    assert Host.objects.get() == host
    assert not Audit.objects.exists()
    client.force_login(create_user())
    assert client.get(address).status_code == 405


def tell(client: Client, action: str, **said: str) -> str:
    """What the page says after olga has told the only host something."""
    host = Host.objects.get()
    client.force_login(User.objects.filter(username="olga").first() or create_user())
    return str(client.post(f"/hosts/{host.pk}/{action}", said, follow=True).content.decode())


def test_drain_pause_and_resume(client: Client) -> None:
    create_host("gpu-1")
    assert 'class="notice success"' in tell(client, "drain", note="moves")
    assert Host.objects.get().drained
    tell(client, "resume")
    assert not Host.objects.get().drained
    tell(client, "pause", minutes="30", note="firmware")
    paused = Host.objects.get()
    assert paused.paused_until
    assert timedelta(minutes=29) < paused.paused_until - timezone.now() <= timedelta(minutes=30)
    assert [one.who for one in Audit.objects.filter(action__startswith="host.")] == ["olga"] * 3


@pytest.mark.parametrize("minutes", ["", "0", "-3", "soon", "999999999999999999999"])
def test_a_pause_that_cannot_be_is_refused_with_words(client: Client, minutes: str) -> None:
    create_host()
    assert "minutes:" in tell(client, "pause", minutes=minutes)
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
    assert "hudt_" not in page_of(client, "/hosts/")


FACTS = {
    "cpu": "Xeon", "cpu_count": 96, "memory_bytes": 2_164_000_000_000, "os": "Debian", "python": "3.12.1",
    "gpus": [{"name": "NVIDIA H200", "uuid": "GPU-1", "memory_bytes": 150_754_820_096, "driver": "570.1"}],
    "gpu_limits": [{"uuid": "GPU-1", "max_sm_mhz": "1980", "max_memory_mhz": "3201", "power_limit_w": "700"}],
    "pythons": {
        "default": {"torch": "2.11.0", "cuda": "13.0", "notes": {"blind": {"choices": "AttributeError: x"}}},
        "old": {"error": "no torch here"},
        "bare": {"torch": "2.9.0", "notes": {"error": "no_cpp_compiler: none"}},
    },
    "ceilings": {"GPU-1": {"copy_gbps": {"value": 4012.3, "day": "2026-11-20"}}},
    "lacking": {"timm": "no interpreter has timm"},
}  # fmt: skip


def test_facts_and_labels_are_rows_for_a_person(client: Client) -> None:
    create_accelerator(create_host("gpu-1", facts=FACTS, labels={"gpu": "h200", "<b>": "&"}))
    text = page_of(client, "/hosts/")
    for words in ("gpu=h200", "&lt;b&gt;=&amp;", "2164.00 GB", "1980 MHz, memory 3201 MHz, 700 W", "2.11.0"):
        assert words in text
    assert "copy 4012 GB/s" in text
    assert "no torch here" in text
    assert "blind: choices — AttributeError: x" in text
    assert "cannot compile: no_cpp_compiler: none" in text
    assert "<strong>timm</strong>: no interpreter has timm" in text
    assert "{&#x27;" not in text, "no dict as Python writes it"


def test_boxes_that_a_poll_replaces_can_be_scrolled_by_key(client: Client) -> None:
    create_accelerator(create_host("gpu-1", facts=FACTS))
    text = page_of(client, "/hosts/live")
    for caption in ("GPUs", "Python environments"):
        assert f'<div class="scroll" tabindex="0" role="group" aria-label="{caption}"><table>' in text


@pytest.mark.parametrize("reported", [None, 1, "x", [1, None], {"a": 1}, [{"uuid": {}}], True])
@pytest.mark.parametrize(
    "name", ["cpu", "memory_bytes", "gpus", "gpu_limits", "pythons", "ceilings", "lacking"]
)
def test_facts_of_another_form_do_not_break_the_page(client: Client, name: str, reported: Any) -> None:
    create_accelerator(create_host("gpu-1", facts={name: reported}))
    assert "gpu-1" in page_of(client, "/hosts/")


def test_the_queue_says_who_is_next_and_what_hinders(client: Client) -> None:
    accelerator = create_accelerator(arch="cpu-x86_64", labels={"gpu": "none"})
    now, (spec,) = timezone.now(), plan(Selection("micro", "cpu", cases=["layer_norm"]))
    create_task(
        create_run("succeeded", device="cpu"),
        spec=spec,
        state="done",
        started=now - timedelta(seconds=90),
        finished=now,
    )
    nightly = request(run_class="night")
    second = request(run_class="night")
    rerun = request(run_class="person")
    lines = {line.run: line for line in queue.read().lines}
    assert list(lines) == [rerun.pk, nightly.pk, second.pk]
    assert [line.position for line in lines.values()] == [1, 2, 3]
    assert [line.starts_in_s for line in lines.values()] == [0.0, 90.0, 180.0]
    text = page_of(client, "/hosts/")
    assert "in about 3 min 0 s" in text
    assert "any host, cpu" in text
    Host.objects.filter(pk=accelerator.host_id).update(drained=True)
    assert queue.read().lines[0].hindrance in page_of(client, "/hosts/")
    Run.objects.filter(pk=second.pk).update(state="running")
    found = queue.read(limit=1)
    assert (found.running, found.waiting, found.more) == (1, 2, 2)


def test_schedules_are_listed_and_switched(client: Client) -> None:
    create_accelerator()
    create_schedule(labels={"gpu": "h200"}, environment="default", modes=["inference"])
    schedules.fire_due(timezone.now())
    text = page_of(client, "/hosts/")
    for words in ("10 4 * * *", "micro; inference", "any accelerator, cuda, gpu=h200, Python default"):
        assert words in text
    assert "no attached host with device cuda has the label gpu=h200" in text
    address = f"/schedules/{Schedule.objects.get().pk}"
    assert client.post(address, {"enabled": "0"})["Location"].startswith("/login/")
    client.force_login(create_user())
    client.post(address, {"enabled": "0"})
    assert not Schedule.objects.get().enabled
    client.post(address, {"enabled": "1"})
    assert Schedule.objects.get().enabled
    actions = Audit.objects.filter(who="olga").order_by("pk").values_list("action", flat=True)
    assert list(actions)[-2:] == ["schedule.disable", "schedule.enable"]


def test_a_schedule_is_deleted_by_who_is_sure(client: Client) -> None:
    schedules.create_default()
    create_schedule()
    address = f"/schedules/{Schedule.objects.get(name='nightly').pk}/delete"
    assert client.post(address, {"sure": "on"})["Location"].startswith("/login/")
    assert "/delete" not in page_of(client, "/hosts/")
    client.force_login(create_user())
    assert page_of(client, "/hosts/").count("/delete") == 1, "the one that every installation has comes back"
    assert client.get(address).status_code == 405
    client.post(address)
    assert Schedule.objects.count() == 2
    assert 'class="notice success"' in client.post(address, {"sure": "on"}, follow=True).content.decode()
    assert [one.name for one in Schedule.objects.all()] == [schedules.CEILINGS]
    assert Audit.objects.get(action="schedule.delete", who="olga").subject == "schedule nightly"
    assert client.post(address, {"sure": "on"}).status_code == 404


def test_detach_ends_the_hosts_key(client: Client) -> None:
    create_host("gpu-1")
    assert 'class="notice success"' in tell(client, "detach", sure="on")
    assert Host.objects.get().detached_at
