"""Hosts over the API: seen by readers, told what to do by admins; what a host may and may not say."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.hosts import registration
from hud.models import Accelerator, Audit, Host, Run, RunRequest, Schedule, State, Stream, Task
from hud.runs import tasks
from runner.schema.protocol import PROTOCOL
from tests.api.test_agent_api import Agent, agent
from tests.support.claims import request
from tests.support.factories import create_accelerator, create_host, create_run, create_task

__all__ = ["agent"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(client: Client) -> Agent:
    return Agent(client, create_key(name="ops", scopes=["admin"], who="t")[1])


@pytest.fixture
def host() -> Host:
    return create_host("gpu-0", labels={"gpu": "h200"})


def test_hosts_are_listed_with_what_they_have_and_run(client: Client, host: Host) -> None:
    accelerator = create_accelerator(host, unavailable_reason="in use by somebody")
    run = create_run("running")
    create_task(run, state="running", accelerator=accelerator)
    create_host("gone", detached_at=timezone.now())
    (listed,) = client.get("/api/v1/hosts").json()["items"]
    assert (listed["name"], listed["state"], listed["labels"]) == ("gpu-0", "online", {"gpu": "h200"})
    (device,) = listed["accelerators"]
    assert (device["name"], device["dirty"], device["run"]) == ("cuda:0", "in use by somebody", run.pk)
    assert device["environments"] == ["default"]


def test_a_host_that_was_silent_for_two_weeks_is_hidden_until_it_beats(client: Client, host: Host) -> None:
    Host.objects.update(last_beat=timezone.now() - timedelta(days=15))
    assert client.get("/api/v1/hosts").json() == {"items": []}
    registration.beat(host=host, protocol=PROTOCOL, sent_at=0.0, facts={}, labels={}, devices=[])
    assert len(client.get("/api/v1/hosts").json()["items"]) == 1


def test_an_admin_drains_pauses_resumes_and_detaches(admin: Agent, host: Host) -> None:
    path = f"hosts/{host.pk}"
    drained = admin.post(f"{path}/drain", {"note": "new driver"}).json()
    assert (drained["state"], drained["note"]) == ("drained", "new driver")
    assert admin.post(f"{path}/resume").json()["state"] == "online"
    paused = admin.post(f"{path}/pause", {"minutes": 30, "note": "I measure by hand"}).json()
    assert (paused["state"], paused["note"]) == ("paused", "I measure by hand")
    assert paused["paused_until"]
    Host.objects.update(paused_until=timezone.now() - timedelta(seconds=1))
    assert admin.post(f"{path}/drain", {}).json()["state"] == "drained"
    assert admin.post(f"{path}/detach").json()["state"] == "detached"
    told = Audit.objects.filter(action__startswith="host.").order_by("pk").values_list("action", flat=True)
    assert list(told) == ["host.drain", "host.resume", "host.pause", "host.drain", "host.detach"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("hosts/999/drain", {}, 404),
        ("hosts/99999999999/drain", {}, 404),
        ("hosts/{}/pause", {}, 422),
        ("hosts/{}/pause", {"minutes": 0}, 422),
        ("hosts/{}/pause", {"minutes": 5, "till": "noon"}, 422),
        ("hosts/{}/drain", {"note": "\0"}, 400),
        ("hosts/{}/drain", {"note": "\ud800"}, 400),
    ],
)
def test_impossible_requests_are_problems(
    admin: Agent, host: Host, path: str, body: dict[str, Any], status: int
) -> None:
    answer = admin.post(path.format(host.pk), body)
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")


def test_only_admins_control_hosts(client: Client, host: Host, agent: Agent) -> None:
    reader = Agent(client, create_key(name="r", scopes=["read", "run"], who="t")[1])
    for path in (f"hosts/{host.pk}/drain", f"hosts/{host.pk}/detach", "hosts/tokens"):
        assert reader.post(path, {}).status_code == 403
        assert agent.post(path, {}).status_code == 403
        assert client.post(f"/api/v1/{path}", {}, content_type="application/json").status_code == 401
    assert not Host.objects.filter(drained=True).exists()


def test_a_token_attaches_one_host(admin: Agent) -> None:
    made = admin.post("hosts/tokens")
    assert made.status_code == 201
    said = made.json()
    assert said["command"].endswith(f"--hud http://testserver --token {said['token']}")
    out = StringIO()
    call_command("create_token", stdout=out)
    for name, token in (("one", said["token"]), ("two", out.getvalue().split()[-1])):
        body = {"token": token, "name": name}
        answer = admin.client.post("/api/v1/hosts/register", body, content_type="application/json")
        assert answer.status_code == 201
        again = admin.client.post("/api/v1/hosts/register", body, content_type="application/json")
        assert again.status_code == 403


def test_a_detached_host_leaves_no_run_that_waits_for_it_alone(agent: Agent) -> None:
    agent.beat()
    anywhere, here = request(), request()
    RunRequest.objects.filter(pk=here.pk).update(host=Host.objects.get())
    tasks.detach_host(host=Host.objects.get(), who="olga")
    states = dict(Run.objects.values_list("pk", "state"))
    assert states == {anywhere.pk: State.QUEUED, here.pk: State.CANCELLED}
    assert "who detached gpu-1" in Run.objects.get(pk=here.pk).reason


def test_an_unavailable_accelerator_gets_only_its_repeated_claim(agent: Agent) -> None:
    accelerator = agent.beat().json()["accelerators"]["cpu"]
    request()
    claim = {"protocol": PROTOCOL, "accelerator": accelerator, "nonce": "n"}
    device = {"name": "cpu", "device": "cpu", "arch": "cpu-x86_64", "suites": ["micro"]}
    agent.beat(devices=[{**device, "dirty": "process 7 is still there"}])
    assert agent.post("tasks/claim", claim).status_code == 204
    agent.beat(devices=[device])
    task = agent.post("tasks/claim", claim).json()
    agent.beat(devices=[{**device, "dirty": "process 7 is still there"}])
    registration.control("drain", host=Host.objects.get(), who="op")
    assert agent.post("tasks/claim", claim).json()["token"] == task["token"]


def test_a_heartbeat_sets_labels_and_a_claim_names_the_interpreter(agent: Agent) -> None:
    device = {
        "name": "cpu", "device": "cpu", "arch": "cpu-x86_64", "suites": ["micro"],
        "pythons": ["default", "nightly"],
    }  # fmt: skip
    answer = agent.beat(devices=[device], labels={"gpu": "none", "arch": "made up"})
    runner = Agent(agent.client, create_key(name="r", scopes=["run"], who="t")[1])
    assert Accelerator.objects.get().labels == {
        "gpu": "none", "host": "gpu-1", "accelerator": "cpu", "device": "cpu", "arch": "cpu-x86_64",
    }  # fmt: skip
    asked: dict[str, Any] = {"suite": "micro", "cases": ["gemv"], "device": "cpu", "labels": {"gpu": "none"}}
    asked |= {"compilations": 2, "caches": "fresh"}
    assert runner.post("runs", {**asked, "environment": "nightly"}).status_code == 201
    assert runner.post("runs", asked).status_code == 201
    refused = runner.post("runs", {**asked, "environment": "stable"})
    assert refused.status_code == 422
    assert refused.json()["detail"] == (
        "no attached host with device cpu and the label gpu=none has an interpreter called stable;"
        " there are: default, nightly"
    )
    claim = {"protocol": PROTOCOL, "accelerator": answer.json()["accelerators"]["cpu"], "nonce": "n"}
    task = agent.post("tasks/claim", claim).json()
    assert (task["python"], task["caches"], task["pinned"]) == ("nightly", "fresh", {})
    compiled = Task.objects.filter(spec__compilation=1, spec__case="gemv")
    assert compiled.count() == Task.objects.count() / 2
    for wrong in ({"compilations": 0}, {"caches": "warm"}, {"caches": "kept"}, {"pinned": "run:1"}):
        assert runner.post("runs", {**asked, **wrong}).status_code == 422


@pytest.mark.parametrize("labels", [{"gpu": 7}, {"": "x"}, {"x": "y" * 101}, {"x": None}])
def test_labels_are_short_texts(agent: Agent, labels: dict[str, Any]) -> None:
    assert agent.beat(labels=labels).status_code == 422


def test_the_clock_of_a_host_is_compared_with_ours(agent: Agent) -> None:
    agent.beat(sent_at=timezone.now().timestamp() - 40)
    host = Host.objects.get()
    assert host.clock_skew_s is not None
    assert -60 < host.clock_skew_s < -39


@pytest.mark.parametrize(
    ("age_s", "state"), [(0.0, "online"), (0.29, "online"), (0.31, "late"), (0.59, "late"), (0.61, "lost")]
)
def test_a_hosts_state_follows_from_its_last_heartbeat(settings: Any, age_s: float, state: str) -> None:
    settings.HUD_LATE_S, settings.HUD_LOST_S = 0.3, 0.6
    now = timezone.now()
    host = Host(name="h", last_beat=now - timedelta(seconds=age_s))
    assert registration.state_of(host, now) == state
    host.drained = True
    assert registration.state_of(host, now) == ("lost" if state == "lost" else "drained")
    host.paused_until = now + timedelta(seconds=1)
    assert registration.state_of(host, now) == ("lost" if state == "lost" else "paused")
    host.detached_at = now
    assert registration.state_of(host, now) == "detached"


def test_the_log_of_a_lost_attempt_stays_as_evidence(agent: Agent) -> None:
    accelerator = agent.beat().json()["accelerators"]["cpu"]
    run = request()
    claim = {"protocol": PROTOCOL, "accelerator": accelerator, "nonce": "n"}
    first = agent.post("tasks/claim", claim).json()
    agent.put(f"tasks/{first['task']}/log?offset=0", b"first words", first["token"])
    run.tasks.update(lease_until=timezone.now() - timedelta(seconds=1))
    tasks.break_leases()
    second = agent.post("tasks/claim", claim).json()
    agent.put(f"tasks/{second['task']}/log?offset=0", b"second", second["token"])
    log = f"/api/v1/runs/{run.pk}/log"
    assert agent.client.get(log).content == b"second"
    assert agent.client.get(f"{log}?attempt=1&start=6").content == b"words"
    assert agent.client.get(f"{log}?attempt=7").content == b""
    (lost,) = Audit.objects.filter(action="task.lost")
    assert (lost.subject, lost.detail["attempt"], lost.detail["accelerator"]) == (
        f"run {run.pk}", 1, "gpu-1/cpu",
    )  # fmt: skip


def test_the_queue_over_the_api(client: Client, agent: Agent) -> None:
    agent.beat()
    first, second = request(), request()
    answer = client.get("/api/v1/queue").json()
    assert [(line["run"], line["position"]) for line in answer["items"]] == [(first.pk, 1), (second.pk, 2)]
    assert (answer["items"][0]["wants"], answer["items"][0]["hindrance"]) == ("any host, cpu", "")
    assert answer["more"] == 0


def test_schedules_over_the_api(admin: Agent, client: Client, host: Host) -> None:
    create_accelerator(host, labels={"gpu": "h200"})
    nightly = {
        "name": "nightly", "cron": "10 4 * * *", "time_zone": "Europe/Berlin", "suite": "micro",
        "device": "cuda", "compilations": 2, "modes": ["inference"], "environment": "default",
        "labels": {"gpu": "h200"},
    }  # fmt: skip
    made = admin.post("schedules", nightly).json()
    assert {**made, **nightly} == made
    assert made["next_due"]
    assert client.get("/api/v1/schedules").json()["items"] == [made]
    path = f"/api/v1/schedules/{made['id']}"
    given: dict[str, Any] = {"content_type": "application/json", "headers": admin.headers}
    off = client.put(path, {**nightly, "enabled": False}, **given).json()
    assert (off["enabled"], off["next_due"]) == (False, None)
    refused = admin.post("schedules", {**nightly, "name": "other", "cron": "61 * * * *", "suite": "none"})
    assert refused.status_code == 422
    assert {fault["pointer"] for fault in refused.json()["errors"]} == {"/cron", "/suite"}
    assert admin.post("schedules", nightly).status_code == 422, "the name is taken"
    assert client.delete(path).status_code == 401
    assert client.delete(path, headers=admin.headers).status_code == 204
    assert client.delete(path, headers=admin.headers).status_code == 404


def test_a_schedule_writes_where_its_key_may_write(client: Client, host: Host) -> None:
    Stream.objects.create(name="of-somebody")
    planner = Agent(client, create_key(name="planner", scopes=["hosts", "read"], who="t")[1])
    nightly = {"name": "nightly", "cron": "10 4 * * *", "suite": "micro", "device": "cpu"}
    refused = planner.post("schedules", {**nightly, "stream": "of-somebody"})
    assert refused.status_code == 403
    assert "of-somebody" in refused.json()["detail"]
    assert not Schedule.objects.exists()
    assert planner.post("schedules", nightly).status_code == 201
