"""The talk between a host and the hud, over HTTP, from registration to the end of a task."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.hosts import registration
from hud.models import Artifact, Audit, Host, Measurement, State
from hud.runs import tasks
from runner.schema.protocol import PROTOCOL
from runner.schema.suite import TaskSpec
from tests.support.claims import request
from tests.support.records import as_lines, task_record, v3_record

pytestmark = pytest.mark.django_db


class Agent:
    """What a host says."""

    def __init__(self, client: Client, key: str) -> None:
        self.client = client
        self.headers = {"authorization": f"Bearer {key}"}

    def post(self, path: str, body: Any = None, token: str = "") -> Any:
        headers = {**self.headers, "x-task-token": token} if token else self.headers
        return self.client.post(
            f"/api/v1/{path}", json.dumps(body or {}), content_type="application/json", headers=headers
        )

    def put(self, path: str, body: bytes, token: str) -> Any:
        headers = {**self.headers, "x-task-token": token}
        return self.client.put(
            f"/api/v1/{path}", body, content_type="application/octet-stream", headers=headers
        )

    def beat(self, **over: Any) -> Any:
        device = {
            "name": "cpu",
            "device": "cpu",
            "device_name": "x86_64",
            "arch": "cpu-x86_64",
            "suites": ["micro"],
        }
        return self.post("hosts/beat", {"protocol": PROTOCOL, "sent_at": 1.0, "devices": [device], **over})


@pytest.fixture
def agent(client: Client) -> Agent:
    token = registration.create_token(who="op")
    answer = client.post(
        "/api/v1/hosts/register", {"token": token, "name": "gpu-1"}, content_type="application/json"
    )
    assert answer.status_code == 201
    return Agent(client, answer.json()["key"])


def test_a_registration_token_works_once(client: Client) -> None:
    token = registration.create_token(who="op")
    body = {"token": token, "name": "gpu-1"}
    assert client.post("/api/v1/hosts/register", body, content_type="application/json").status_code == 201
    again = client.post("/api/v1/hosts/register", body, content_type="application/json")
    assert again.status_code == 403
    assert Audit.objects.filter(action="host.register").count() == 1


def test_the_name_of_a_live_host_is_not_taken_over(agent: Agent) -> None:
    agent.beat()
    body = {"token": registration.create_token(who="op"), "name": "gpu-1"}
    answer = agent.client.post("/api/v1/hosts/register", body, content_type="application/json")
    assert answer.status_code == 403
    assert "another --name" in answer.json()["detail"]
    assert agent.beat().status_code == 200


def test_the_name_of_a_silent_host_is_free_once_an_operator_says_so(agent: Agent) -> None:
    agent.beat()
    Host.objects.update(last_beat=timezone.now() - timedelta(days=9))

    def register(**allowed: Any) -> int:
        body = {"token": registration.create_token(who="op", **allowed), "name": "gpu-1"}
        answer = agent.client.post("/api/v1/hosts/register", body, content_type="application/json")
        return int(answer.status_code)

    host = Host.objects.get()
    other = Host.objects.create(name="gpu-2")
    assert [register(), register(replaces=other)] == [403, 403]
    assert agent.beat().status_code == 200
    assert register(replaces=host) == 201
    assert agent.beat().status_code == 401
    tasks.detach_host(host=host, who="op")
    assert register() == 201


def test_a_heartbeat_returns_accelerators_and_their_queues(agent: Agent) -> None:
    answer = agent.beat().json()
    assert answer["state"] == "online"
    assert answer["queues"] == {"cpu": f"host-{answer['host']}-accelerator-{answer['accelerators']['cpu']}"}
    assert agent.beat(protocol=99).status_code == 409
    assert agent.beat(protocol=PROTOCOL - 2).status_code == 409
    assert agent.beat(devices=[{"name": "../../x", "device": "cpu"}]).status_code == 422


@pytest.mark.parametrize(
    ("over", "pointer"),
    [
        ({"facts": {"os": "x" * 2**20}}, "/facts"),
        ({"facts": {"pythons": {"default": None}}}, "/facts/pythons/default"),
        ({"facts": {"lacking": ["timm"]}}, "/facts/lacking"),
        ({"facts": {"gpus": [1]}}, "/facts/gpus/0"),
        ({"devices": [{"name": "cpu", "device": "cpu", "suites": ["x" * 61]}]}, "/devices/0/suites/0"),
        ({"devices": [{"name": "cpu", "device": "cpu", "suites": ["x"] * 51}]}, "/devices/0/suites"),
    ],
)
def test_a_heartbeat_has_a_size_and_a_form(agent: Agent, over: dict[str, Any], pointer: str) -> None:
    answer = agent.beat(**over)
    assert (answer.status_code, answer["Content-Type"]) == (422, "application/problem+json")
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert not Host.objects.get().accelerators.exists()


def test_further_facts_are_stored_as_they_come(agent: Agent) -> None:
    facts = {
        "cpu": "Xeon",
        "memory_bytes": 8,
        "news": [{"a": None}],
        "pythons": {"default": {"torch": "2.15"}},
    }
    assert agent.beat(facts=facts).status_code == 200
    assert Host.objects.get().facts == facts


def test_a_task_from_claim_to_finish(agent: Agent) -> None:
    accelerator = agent.beat().json()["accelerators"]["cpu"]
    claim = {"protocol": PROTOCOL, "accelerator": accelerator, "nonce": "n"}
    assert agent.post("tasks/claim", claim).status_code == 204
    run = request()
    task = agent.post("tasks/claim", claim).json()
    assert (task["run"], task["attempt"], task["spec"]["case"]) == (run.pk, 1, "layer_norm")
    path, token = f"tasks/{task['task']}", task["token"]
    progress = agent.post(f"{path}/progress", {"phase": "compile", "done": 1, "total": 4}, token)
    assert progress.json() == {"cancel": False}
    record = task_record(TaskSpec.from_json(task["spec"]))
    receipt = agent.put(f"{path}/results", as_lines(record), token).json()
    assert (receipt["stored"], receipt["run_ids"]) == (1, [run.pk])
    bad = {**record, "metric": {"name": "speedup", "benchmark_values": ["x"]}}
    receipt = agent.put(f"{path}/results", as_lines(bad, record), token).json()
    assert (receipt["stored"], len(receipt["skipped"])) == (1, 1)
    assert agent.put(f"{path}/log?offset=0", b"hello", token).json() == {"size": 5}
    gap = agent.put(f"{path}/log?offset=9", b"!", token)
    assert (gap.status_code, gap.json()["code"], gap.json()["size"]) == (409, "log_offset", 5)
    assert agent.put(f"{path}/artifacts/trace", b"{}", token).status_code == 201
    assert agent.put(f"{path}/artifacts/..%2Fx", b"{}", token).status_code in {404, 422}
    done = {"status": "ok", "code": "", "reason": "", "seconds": 1.5}
    assert agent.post(f"{path}/finish", done, token).json() == {"state": "done"}
    assert agent.post(f"{path}/finish", done, token).json() == {"state": "done"}
    assert agent.put(f"{path}/results", as_lines(record), token).json()["code"] == "lease_broken"
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED
    assert Measurement.objects.get().run_id == run.pk
    assert Artifact.objects.get().kind == "trace"
    log = agent.client.get(f"/api/v1/runs/{run.pk}/log?start=2")
    assert (log.content, log["X-Next-Offset"], log["X-More"]) == (b"llo", "5", "0")


def test_a_lease_says_how_often_each_draw_is_repeated(agent: Agent) -> None:
    device = {"name": "cpu", "device": "cpu", "arch": "cpu-x86_64", "suites": ["micro"]}
    answer = agent.beat(devices=[{**device, "pythons": ["default"]}])
    accelerator = answer.json()["accelerators"]["cpu"]
    request(candidate_options={"epilogue_fusion": False}, draws=3, repeats=2)
    task = agent.post("tasks/claim", {"protocol": PROTOCOL, "accelerator": accelerator, "nonce": "n"}).json()
    assert (task["caches"], task["rounds"], task["pinned"]) == ("pinned", 2, {})
    assert (task["python"], task["base_python"], task["process"]) == ("default", "default", 0)


def test_an_unknown_status_is_refused(agent: Agent) -> None:
    accelerator = agent.beat().json()["accelerators"]["cpu"]
    request()
    task = agent.post("tasks/claim", {"protocol": PROTOCOL, "accelerator": accelerator, "nonce": "n"}).json()
    answer = agent.post(f"tasks/{task['task']}/finish", {"status": "great"}, task["token"])
    assert answer.status_code == 422


def test_a_drained_host_gets_nothing(agent: Agent) -> None:
    accelerator = agent.beat().json()["accelerators"]["cpu"]
    request()
    host = Host.objects.get()
    registration.control("drain", host=host, note="new driver", who="op")
    answer = agent.beat().json()
    assert (answer["state"], answer["note"]) == ("drained", "new driver")
    claim = {"protocol": PROTOCOL, "accelerator": accelerator, "nonce": "n"}
    assert agent.post("tasks/claim", claim).status_code == 204
    registration.control("resume", host=host, who="op")
    assert agent.post("tasks/claim", claim).status_code == 200


def test_only_host_keys_permit_host_calls_and_no_others(agent: Agent) -> None:
    accelerator = agent.beat().json()["accelerators"]["cpu"]
    request()
    claim = {"protocol": PROTOCOL, "accelerator": accelerator, "nonce": "n"}
    admin = Agent(agent.client, create_key(name="a", scopes=["admin"], who="t")[1])
    assert admin.post("tasks/claim", claim).status_code == 403
    upload = agent.client.post(
        "/api/v1/results", as_lines(v3_record()), content_type="text/plain", headers=agent.headers
    )
    assert upload.status_code == 403
    assert agent.post("runs", {"suite": "micro"}).status_code == 403
    token = registration.create_token(who="op")
    answer = agent.client.post(
        "/api/v1/hosts/register", {"token": token, "name": "gpu-2"}, content_type="application/json"
    )
    other = Agent(agent.client, answer.json()["key"])
    assert other.post("tasks/claim", claim).status_code == 404
    task = agent.post("tasks/claim", claim).json()
    assert other.post(f"tasks/{task['task']}/progress", {}, task["token"]).status_code == 404


def test_a_detached_hosts_key_is_revoked(agent: Agent) -> None:
    agent.beat()
    tasks.detach_host(host=Host.objects.get(), who="op")
    assert agent.beat().status_code == 401


def test_a_host_that_has_sent_its_bytes_of_the_day_delivers_results_but_no_files(
    agent: Agent, settings: Any
) -> None:
    settings.HUD_HOST_BYTES_PER_DAY = 10
    accelerator = agent.beat().json()["accelerators"]["cpu"]
    request()
    task = agent.post("tasks/claim", {"protocol": PROTOCOL, "accelerator": accelerator, "nonce": "n"}).json()
    path, token = f"tasks/{task['task']}", task["token"]
    assert agent.put(f"{path}/log?offset=0", b"x" * 6, token).status_code == 200
    for place in ("log?offset=6", "artifacts/trace"):
        answer = agent.put(f"{path}/{place}", b"x" * 6, token)
        assert (answer.status_code, answer.json()["code"]) == (507, "quota")
        assert int(answer["Retry-After"]) > 0
    record = task_record(TaskSpec.from_json(task["spec"]))
    assert agent.put(f"{path}/results", as_lines(record), token).json()["stored"] == 1
    assert not Artifact.objects.exists()
