"""Runs over the API: their list, repeated requests, plans; keys on data of pages; the OpenAPI documents."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.api import api, host_api
from hud.corrections import deletion
from hud.models import Accelerator, Audit, Experiment, IdempotencyKey, Run, Stream, Task
from tests.api.test_results_api import assert_problem
from tests.support.claims import attach, claim, end
from tests.support.factories import (
    create_accelerator,
    create_experiment,
    create_measurement,
    create_run,
    create_upload,
    create_user,
)

pytestmark = pytest.mark.django_db
OPERATION_IDS = Path(__file__).with_name("operation_ids.txt")


@pytest.fixture
def key() -> str:
    return create_key(name="ci", scopes=["read", "run"], who="t")[1]


@pytest.fixture
def host() -> Accelerator:
    plain = attach("plain")
    catalog = {"suites": ["micro", "huggingface", "cache"], "pythons": ["default"]}
    Accelerator.objects.filter(pk=plain.pk).update(catalog=catalog)
    return plain


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **more}


def start(client: Client, key: str, body: dict[str, Any], query: str = "", **headers: str) -> Any:
    return client.post(
        f"/api/v1/runs{query}",
        json.dumps(body),
        content_type="application/json",
        headers=bearer(key, **headers),
    )


def listed(client: Client, query: str = "") -> list[str]:
    answer = client.get(f"/api/v1/runs{query}")
    assert answer.status_code == 200, answer.content
    return [run["title"] for run in answer.json()["items"]]


# ---- GET runs


@pytest.fixture
def runs() -> None:
    """Four runs, each with something of its own."""
    laptop = Stream.objects.create(name="laptop", aliases=["notebook"])
    old = create_run("failed", title="old", host_name="gpu-7", commit="abc1234", requested_by="olga")
    Run.objects.filter(pk=old.pk).update(created=datetime(2026, 11, 3, 23, 59, tzinfo=timezone.utc))
    create_run("queued", title="asked", run_class="person", arch="h200", selection={"suite": "timm"})
    uploaded = create_run(title="uploaded", upload=create_upload(), stream=laptop, source="github")
    create_measurement(create_experiment(suite="huggingface", arch="mi300x"), run=uploaded)
    create_run(title="patch", branch="pull/7", pull_request=7)


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("", ["patch", "uploaded", "asked", "old"]),
        ("?state=failed", ["old"]),
        ("?stream=laptop", ["uploaded"]),
        ("?stream=notebook", ["uploaded"]),
        ("?suite=huggingface", ["uploaded"]),
        ("?suite=timm", ["asked"]),
        ("?arch=mi300x", ["uploaded"]),
        ("?arch=h200", ["asked"]),
        ("?source=github", ["uploaded"]),
        ("?kind=upload", ["uploaded"]),
        ("?kind=person", ["asked"]),
        ("?kind=pull_request", ["patch"]),
        ("?branch=pull/7", ["patch"]),
        ("?pull_request=7", ["patch"]),
        ("?pull_request=8", []),
        ("?host=gpu", ["old"]),
        ("?commit=abc12", ["old"]),
        ("?since=2026-11-04", ["patch", "uploaded", "asked"]),
        ("?until=2026-11-03", ["old"]),
        ("?since=2026-11-03&until=2026-11-03&state=failed", ["old"]),
        ("?state=failed&suite=timm", []),
    ],
)
def test_runs_are_listed_by_each_filter(client: Client, runs: None, query: str, titles: list[str]) -> None:
    assert listed(client, query) == titles


def test_a_listed_run_says_what_was_requested(client: Client, runs: None) -> None:
    *_, old = client.get("/api/v1/runs").json()["items"]
    assert old["id"] == Run.objects.get(title="old").pk
    assert (old["state"], old["commit"], old["requested_by"]) == ("failed", "abc1234", "olga")
    assert (old["branch"], old["stream"], old["pull_request"]) == ("main", "import", None)
    assert client.get("/api/v1/runs?kind=pull_request").json()["items"][0]["pull_request"] == 7


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("?colour=red", "?colour"),
        ("?state=failed&state=lost", "?state"),
        ("?state=exploded", "/state"),
        ("?kind=odd", "/kind"),
        ("?since=yesterday", "/since"),
        ("?cursor=newest", "/cursor"),
        ("?cursor=0", "/cursor"),
        ("?limit=501", "/limit"),
        ("?pull_request=x", "/pull_request"),
    ],
)
def test_a_filter_that_is_none_is_named(client: Client, query: str, pointer: str) -> None:
    errors = assert_problem(client.get(f"/api/v1/runs{query}"), 422)["errors"]
    assert [error["pointer"] for error in errors] == [pointer]


def test_an_unknown_stream_is_no_empty_list(client: Client) -> None:
    assert_problem(client.get("/api/v1/runs?stream=nobodys"), 404)


def test_pages_of_runs_are_bounded_and_do_not_move_while_runs_are_made(client: Client) -> None:
    made = [create_run(title=str(number)) for number in range(5)]
    first = client.get("/api/v1/runs?limit=2").json()
    assert [run["title"] for run in first["items"]] == ["4", "3"]
    create_run(title="newer")
    Run.objects.filter(pk=made[2].pk).delete()  # what a cursor names may go
    second = client.get(f"/api/v1/runs?limit=2&cursor={first['next']}").json()
    assert [run["title"] for run in second["items"]] == ["1", "0"]
    assert second["next"] is None
    assert "newer" in listed(client)


def test_a_page_of_many_runs_takes_as_many_statements_as_one_of_few(client: Client) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get("/api/v1/runs?limit=500").status_code == 200
        return len(captured)

    create_run(title="first")
    few = statements()
    for number in range(30):
        create_run(upload=create_upload(), external_id=str(number))
        create_run("failed")
    assert statements() == few <= 6


def test_the_list_of_runs_is_for_readers(client: Client, settings: Any, key: str) -> None:
    settings.HUD_PUBLIC_READ = False
    assert_problem(client.get("/api/v1/runs"), 401)
    upload_only = create_key(name="u", scopes=["upload"], who="t")[1]
    assert_problem(client.get("/api/v1/runs", headers=bearer(upload_only)), 403)
    assert client.get("/api/v1/runs", headers=bearer(key)).json() == {"items": [], "next": None}


# ---- POST runs


def test_a_repeated_request_gets_its_run_again(client: Client, key: str, host: Accelerator) -> None:
    body = {"suite": "micro", "cases": ["layer_norm"], "stream": "patches"}
    first = start(client, key, body, idempotency_key="pr-7")
    again = start(client, key, dict(reversed(body.items())), idempotency_key="pr-7")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["id"] == again.json()["id"]
    assert (first["Idempotent-Replayed"], again["Idempotent-Replayed"]) == ("false", "true")
    assert Run.objects.count() == Audit.objects.filter(action="run.request").count() == 1
    Task.objects.update(state="done", finished=datetime.now(timezone.utc))
    Run.objects.update(state="succeeded", finished=datetime.now(timezone.utc))
    assert start(client, key, body, idempotency_key="pr-7").json()["state"] == "succeeded"
    assert start(client, key, body, idempotency_key="pr-8").json()["id"] != first.json()["id"]
    assert start(client, key, body).json()["id"] != first.json()["id"]


def test_an_idempotency_key_stands_for_one_body_of_one_key(
    client: Client, key: str, host: Accelerator
) -> None:
    body = {"suite": "micro", "cases": ["layer_norm"]}
    mine = start(client, key, body, idempotency_key="pr-7").json()["id"]
    assert_problem(start(client, key, {**body, "cases": ["gemv"]}, idempotency_key="pr-7"), 422)
    assert_problem(start(client, key, {**body, "class": "ci"}, idempotency_key="pr-7"), 422)
    assert_problem(start(client, key, body, idempotency_key="x" * 201), 422)
    other = create_key(name="other", scopes=["run", "upload"], who="t")[1]
    theirs = start(client, other, body, idempotency_key="pr-7")
    assert (theirs.status_code, theirs["Idempotent-Replayed"]) == (201, "false")
    assert theirs.json()["id"] != mine, "another key's request is its own"
    results = "/api/v1/results?format=v3"
    upload = client.post(results, b"[]", "application/json", headers=bearer(other, idempotency_key="pr-7"))
    assert_problem(upload, 422)
    assert Run.objects.count() == 2


def test_a_refused_request_and_a_deleted_run_leave_the_idempotency_key_free(
    client: Client, key: str, host: Accelerator
) -> None:
    assert_problem(start(client, key, {"suite": "micro", "host": "none"}, idempotency_key="k"), 422)
    assert_problem(start(client, key, {"suite": "micro", "cases": ["none"]}, idempotency_key="k"), 422)
    assert not IdempotencyKey.objects.exists()
    body = {"suite": "micro", "cases": ["gemv"]}
    run = Run.objects.get(pk=start(client, key, body, idempotency_key="k").json()["id"])
    Task.objects.filter(run=run).delete()
    Run.objects.filter(pk=run.pk).update(state="cancelled", finished=datetime.now(timezone.utc))
    run.refresh_from_db()
    deletion.delete(run, who="t")
    assert start(client, key, body, idempotency_key="k").json()["id"] != run.pk


def test_a_request_says_commit_pull_request_class_and_what_to_select(
    client: Client, key: str, host: Accelerator
) -> None:
    body = {
        "suite": "huggingface",
        "cases": ["BertForMaskedLM"],
        "dtypes": ["float32"],
        "modes": ["training"],
        "backends": ["aot_eager"],
        "commit": "abc1234",
        "pull_request": 7,
        "class": "ci",
        "stream": "patches",
    }
    answer = start(client, key, body)
    assert answer.status_code == 201, answer.content
    run = Run.objects.select_related("request", "stream").get(pk=answer.json()["id"])
    assert (run.commit, run.branch, run.request.pull_request) == ("abc1234", "pull/7", 7)
    assert (run.request.run_class, run.stream.name) == ("ci", "patches")
    shown = client.get(f"/api/v1/runs/{run.pk}", headers=bearer(key)).json()
    assert (shown["commit"], shown["pull_request"]) == ("abc1234", 7)
    specs = Task.objects.filter(run=run).values_list("spec__dtype", "spec__mode", "spec__backend")
    assert {*specs} == {("float32", "training", "aot_eager")}
    named = start(client, key, {**body, "branch": "refs/heads/fast"}).json()["id"]
    assert Run.objects.get(pk=named).branch == "fast"


def test_hosts_serve_persons_then_ci_then_nights(client: Client, key: str, host: Accelerator) -> None:
    for one in ("night", "ci", "person"):
        start(client, key, {"suite": "micro", "cases": ["layer_norm"], "class": one})
    served = []
    for number in range(3):
        task = claim(host, str(number))
        served.append(task.run.request.run_class)
        end(task, host)
    assert served == ["person", "ci", "night"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"class": "boss"}, "/class"),
        ({"pull_request": 0}, "/pull_request"),
        ({"pull_request": "7"}, "/pull_request"),
        ({"commit": "a b"}, "/commit"),
        ({"modes": "inference"}, "/modes"),
        ({"colour": "red"}, "/colour"),
        ({"preset": "gpt_fast", "knobs": {"D": 1024}}, "/knobs"),
    ],
)
def test_what_a_request_cannot_say_is_named(
    client: Client, key: str, host: Accelerator, body: dict[str, Any], pointer: str
) -> None:
    errors = assert_problem(start(client, key, {"suite": "micro", **body}), 422)["errors"]
    assert [error["pointer"] for error in errors] == [pointer]
    assert not Run.objects.exists()


@pytest.mark.parametrize("name", ["modes", "dtypes", "backends"])
def test_nothing_is_selected_of_an_experiment(client: Client, key: str, host: Accelerator, name: str) -> None:
    body = {"experiment": create_experiment().pk, name: ["x"]}
    errors = assert_problem(start(client, key, body), 422)["errors"]
    assert [error["pointer"] for error in errors] == [f"/{name}"]


def test_a_preset_is_what_the_runner_measures_by_it(client: Client, key: str, host: Accelerator) -> None:
    answer = start(client, key, {"preset": "cachebench", "device": "cpu"})
    assert answer.status_code == 201, answer.content
    specs = Task.objects.values_list("spec__suite", "spec__case", "spec__mode", "spec__dtype")
    assert len(specs) == 8
    assert {(suite, mode, dtype) for suite, _case, mode, dtype in specs} == {("cache", "training", "amp")}
    own = start(client, key, {"preset": "cachebench", "device": "cpu", "modes": ["inference"]}, "?dry_run=1")
    assert own.json()["tasks"] == 8
    sizes = {"preset": "gpt_fast", "suite": "micro", "cases": ["gemv[D=1024+4096]"]}
    run = start(client, key, sizes).json()["id"]
    assert {*Task.objects.filter(run=run).values_list("spec__case", flat=True)} == {"gemv"}
    assert Task.objects.filter(run=run)[0].spec["knobs"]["D"] == [1024, 4096]
    assert_problem(start(client, key, {"preset": "nobodys"}), 422)
    assert_problem(start(client, key, {}), 422)


def test_runs_are_requested_by_keys_with_that_scope_alone(client: Client, host: Accelerator) -> None:
    body = {"suite": "micro", "cases": ["gemv"]}
    for scopes in (["read"], ["upload"], ["accept"]):
        secret = create_key(name="k", scopes=scopes, who="t")[1]
        assert_problem(start(client, secret, body), 403)
        assert_problem(start(client, secret, body, "?dry_run=1"), 403)
    nightly = {**body, "stream": "nightly"}
    runs_only = create_key(name="k", scopes=["run"], who="t")[1]
    assert_problem(start(client, runs_only, nightly), 403)
    assert not Run.objects.exists()


# ---- POST runs?dry_run=1


def test_a_plan_stores_nothing(client: Client, key: str, host: Accelerator) -> None:
    body = {"suite": "micro", "cases": ["layer_norm", "gemv"], "dtypes": ["bfloat16"], "stream": "new"}
    answer = start(client, key, body, "?dry_run=1", idempotency_key="k")
    assert answer.status_code == 200, answer.content
    plan = answer.json()
    assert (plan["cases"], plan["tasks"], plan["processes"]) == (["gemv", "layer_norm"], 2, 2)
    assert (plan["stream"], plan["queue_position"], plan["seconds"]) == ("new", 1, None)
    assert [plan[name] for name in ("pairs", "detects_percent", "power", "noise_assumed")] == [None] * 4
    assert not Run.objects.exists()
    assert not IdempotencyKey.objects.exists()
    assert not Stream.objects.filter(name="new").exists()
    assert not Audit.objects.filter(action="run.request").exists()
    assert_problem(start(client, key, {**body, "cases": ["none"]}, "?dry_run=1"), 422)
    assert_problem(start(client, key, body, "?dry_run=perhaps"), 422)


def test_a_plan_estimates_its_time_from_tasks_of_the_same_kind(
    client: Client, key: str, host: Accelerator
) -> None:
    body = {"suite": "micro", "cases": ["layer_norm"], "dtypes": ["bfloat16"]}
    assert start(client, key, body, "?dry_run=1").json()["seconds"] is None
    start(client, key, body)
    end(claim(host), host)
    now = datetime.now(timezone.utc)
    Task.objects.update(started=now - timedelta(seconds=90), finished=now)
    plan = start(client, key, body, "?dry_run=1").json()
    assert plan["seconds"] == pytest.approx(90, abs=1)
    five = start(client, key, {**body, "repeats": 5}, "?dry_run=1").json()
    assert (five["processes"], five["seconds"]) == (5, pytest.approx(450, abs=2))


def test_an_interpreter_says_on_which_device_a_run_is(client: Client, key: str) -> None:
    """One host has a GPU; the interpreter is of another one's CPU."""
    create_accelerator()
    create_accelerator(arch="cpu", pythons=("default", "mine"))
    body = {"suite": "micro", "cases": ["layer_norm"], "environment": "mine", "base_environment": "default"}
    run = start(client, key, body)
    assert run.status_code == 201, run.content
    assert {row["device"] for row in Task.objects.values_list("spec", flat=True)} == {"cpu"}


def test_a_plan_of_pairs_says_what_they_find(client: Client, key: str, host: Accelerator) -> None:
    body = {"suite": "micro", "cases": ["layer_norm"], "dtypes": ["bfloat16"], "base_environment": "default"}

    def plan(**more: Any) -> Any:
        answer = start(client, key, {**body, **more}, "?dry_run=1")
        assert answer.status_code == 200, answer.content
        return answer.json()

    few, many = plan(), plan(draws=20)
    assert (few["pairs"], few["processes"], few["noise_assumed"]) == (3, 3 * 6, True)
    assert (many["pairs"], many["processes"]) == (20, 20 * 6)
    assert many["detects_percent"] < few["detects_percent"]
    assert many["power"] > 0.95 >= few["power"] > 0
    free = plan(caches="fresh", repeats=7)
    assert (free["pairs"], free["processes"], free["detects_percent"]) == (7, 14, None)


# ---- keys on the data of pages

PAGES = """overview compilers suites code compare search limits runs regressions rules funnel hosts
    streams""".split()  # noqa: SIM905


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_key_reads_the_data_of_pages_where_reading_needs_a_login(
    client: Client, settings: Any, key: str, kind: str
) -> None:
    settings.HUD_PUBLIC_READ = False
    run = create_run()
    create_measurement(run=run)
    experiment = Experiment.objects.get()
    pages = [*PAGES, "", f"runs/{run.pk}", f"experiments/{experiment.pk}", f"suites/{experiment.suite}"]
    for page in pages:
        answer = client.get(f"/{page}.{kind}", headers=bearer(key))
        assert answer.status_code == 200, (page, answer.content)
        assert client.get(f"/{page}.{kind}").status_code == 302, "a person goes to the login"
        assert_problem(client.get(f"/{page}.{kind}", headers=bearer("hud_wrong")), 401)
    assert client.get("/runs/", headers=bearer(key)).status_code == 302, "pages are for people"


def test_a_key_reads_no_data_that_its_scopes_do_not_permit(client: Client, settings: Any, key: str) -> None:
    settings.HUD_PUBLIC_READ = False
    upload_only = create_key(name="u", scopes=["upload"], who="t")[1]
    assert_problem(client.get("/runs.json", headers=bearer(upload_only)), 403)
    for page in ("audit", "follow", "keys"):
        assert_problem(client.get(f"/{page}.json", headers=bearer(key)), 403)
    admin = create_key(name="a", scopes=["admin"], who="t")[1]
    assert client.get("/audit.json", headers=bearer(admin)).status_code == 200
    assert_problem(client.get("/keys.json", headers=bearer(admin)), 403)
    viewer = create_user("vera", Role.VIEWER)
    client.force_login(viewer)
    assert_problem(client.get("/audit.json", headers=bearer(key)), 403)
    assert client.get("/runs.json", headers={"authorization": "Basic eDp5"}).status_code == 200


# ---- the OpenAPI documents


def test_operation_ids_are_those_that_programs_were_made_from() -> None:
    """Programs are made from the document: an id changes with the name of its function or module."""
    found = {
        f"{method.upper()} {path.removeprefix('/api/v1/')} {operation['operationId']}"
        for document in (api.get_openapi_schema(), host_api.get_openapi_schema())
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    pinned = set(OPERATION_IDS.read_text().splitlines())
    assert pinned <= found
    assert not found - pinned, "add the new ids"


def test_the_protocol_of_hosts_has_a_document_of_its_own(client: Client) -> None:
    public, own = (client.get(f"/api/v1/{name}openapi.json").json() for name in ("", "hosts/"))
    calls = {"hosts/register", "hosts/beat", "tasks/claim"}
    calls |= {
        f"tasks/{{uid}}/{name}"
        for name in ("progress", "results", "log", "artifacts/{kind}", "finish", "overlay/{commit}")
    }
    assert {path.removeprefix("/api/v1/") for path in own["paths"]} == calls
    assert own["paths"].keys().isdisjoint(public["paths"])
    assert "ClaimIn" not in public["components"]["schemas"]
    assert "/api/v1/hosts" in public["paths"], "attached hosts are for everybody"
    for address in ("docs", "hosts/docs"):
        assert client.get(f"/api/v1/{address}").status_code == 200
