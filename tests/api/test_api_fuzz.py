"""Generated requests against the OpenAPI: no server error, every answer documented, no call without a key."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.result import Ok

from hud.accounts.keys import create_key
from hud.accounts.roles import SCOPES
from hud.api import api, host_api
from hud.ingest import ingest
from hud.models import Correction, Experiment
from runner.formats.parameters import Parameters
from runner.schema.protocol import PROTOCOL
from tests.support.claims import attach, claim, request
from tests.support.records import as_list, v3_record
from tests.support.servers import Hud, RedisServer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
REQUESTS, MANY_REQUESTS = 8, 300  # for each call
NOWHERE = "00000000-0000-0000-0000-000000000000"


@schemathesis.serializer("application/x-ndjson")
def one_line(_context: Any, value: Any) -> bytes:
    return json.dumps(value).encode()


@dataclass(frozen=True)
class World:
    """Something behind every kind of id, and a key that opens all of it."""

    secret: str
    parts: dict[str, Any]  # of a path, by name
    token: str
    accelerator: int

    def put_into(self, case: Case[Any]) -> None:
        """Makes a request speak of what there is."""
        given = case.path_parameters or {}
        case.path_parameters = {name: self.parts.get(name, value) for name, value in given.items()}
        if "uid" in given:
            case.headers["X-Task-Token"] = self.token
        if isinstance(case.body, dict):
            known = {"accelerator": self.accelerator, "protocol": PROTOCOL}
            case.body = {name: known.get(name, value) for name, value in case.body.items()}
        if case.operation.path.endswith("/results"):
            case.query = {}


def make_world() -> World:
    ingest(as_list(v3_record()), Parameters())
    accelerator = attach("h")
    run = request()
    task = claim(accelerator)
    _key, secret = create_key(name="fuzz", scopes=list(SCOPES), who="t", host=accelerator.host)
    parts = {
        "run_id": run.pk,
        "correction_id": Correction.objects.create(
            action="run.delete", subject="gone", arguments={"id": 0}, rows=1, finished=timezone.now()
        ).pk,
        "upload_id": 1_000_000,  # none: deleting the only upload would take the other calls' experiment
        "experiment": Experiment.objects.get().pk,
        "metric": "memory_bandwidth(GB/s)",
        "uid": str(task.uid),
        "kind": "trace",
        "commit": "0" * 40,
    }
    return World(secret, parts, str(task.token), accelerator.pk)


@pytest.mark.parametrize(
    "requests", [pytest.param(REQUESTS), pytest.param(MANY_REQUESTS, marks=pytest.mark.soak)]
)
def test_every_answer_is_documented(
    hud_process: Hud, redis_server: RedisServer, subtests: pytest.Subtests, requests: int
) -> None:
    hud_process.start(HUD_UPLOADS_PER_MINUTE="1e9", HUD_RUNS_PER_MINUTE="1e9")
    documents = [f"{hud_process.url}/api/v1/{name}openapi.json" for name in ("", "hosts/")]
    schemas = [schemathesis.openapi.from_url(document) for document in documents]
    world = make_world()
    made = 0

    def answer(case: Case[Any], meant: bool) -> None:
        nonlocal made
        if meant:
            world.put_into(case)
        if case.operation.path.endswith("/result"):
            case.query.pop("wait", None)  # no answer is waited for a minute here
        response = case.call(headers={"Authorization": f"Bearer {world.secret}"})
        made += 1
        if response.status_code != 431:  # waitress's own word for an address that is too long
            case.validate_response(response, checks=CHECKS)

    for found in (one for schema in schemas for one in schema.get_all_operations()):
        assert isinstance(found, Ok), found
        operation = found.ok()
        takes_something = any(True for _ in operation.iter_parameters()) or bool(operation.body)
        modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE][: 2 if takes_something else 1]
        for mode in modes if requests == MANY_REQUESTS else [random.choice(modes)]:
            with subtests.test(call=operation.label, requests=mode.value):
                _repeatedly(requests // 2)(
                    given(operation.as_strategy(generation_mode=mode), st.booleans())(answer)
                )()
    print(f"{made} requests")


def _repeatedly(times: int) -> settings:
    return settings(
        max_examples=times,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def _calls() -> list[tuple[str, str]]:
    """Method and path of every call, with something in the place of ids."""
    paths = api.get_openapi_schema()["paths"] | host_api.get_openapi_schema()["paths"]
    values = {
        "uid": NOWHERE,
        "commit": "0" * 40,
        "run_id": "1",
        "regression_id": "1",
        "bisect_id": "1",
        "annotation_id": "1",
        "upload_id": "1",
        "correction_id": "1",
        "artifact_id": "1",
        "host_id": "1",
        "schedule_id": "1",
        "failure_id": "1",
        "cause_id": "1",
        "name": "nightly",
        "experiment": "1",
        "metric": "m",
        "variant": "0123456789abcdef",
        "kind": "trace",
    }
    return [(method, path.format(**values)) for path in paths for method in paths[path]]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "path"),
    [call for call in _calls() if call[1] not in {"/api/v1/hosts/register", "/api/v1/keys/github"}],
)
def test_no_call_without_its_key(client: Client, settings: Any, method: str, path: str) -> None:
    settings.HUD_PUBLIC_READ = False
    reading = method == "get"
    hosts_own = path.startswith(("/api/v1/hosts/beat", "/api/v1/tasks"))
    wrong_scope = "upload" if reading else "admin" if hosts_own else "read"
    secret = create_key(name="k", scopes=[wrong_scope], who="t")[1]
    for header, status in (
        ("", 401),
        ("Bearer hud_unknown", 401),
        ("Basic eDp5", 401),
        (f"Bearer {secret}", 403),
    ):
        answer = client.generic(method.upper(), path, b"{}", headers={"authorization": header})
        assert answer.status_code == status, (header[:12], answer.content)
        assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.django_db
@pytest.mark.parametrize("path", sorted({path for _method, path in _calls()}))
def test_another_method_is_a_problem(client: Client, path: str) -> None:
    answer = client.generic("PATCH", path)
    assert (answer.status_code, answer["Content-Type"]) == (405, "application/problem+json")
    assert answer["Allow"]
