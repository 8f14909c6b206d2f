"""A run of a suite's cases, planned before it starts: the page, its plan, and the same plan by the API."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.models import Accelerator, Audit, Run, Stream, Task
from tests.support.factories import create_accelerator, create_experiment, create_measurement, create_user

pytestmark = pytest.mark.django_db
GEMV = {"suite": "micro", "cases": ["gemv"]}


@pytest.fixture
def card(client: Client) -> Accelerator:
    client.force_login(create_user())
    return create_accelerator()


def page_of(client: Client, chosen: dict[str, Any]) -> Any:
    answer = client.get(f"/runs/new/?{urlencode(chosen, doseq=True)}")
    assert answer.status_code == 200
    return answer


def start(client: Client, chosen: dict[str, Any]) -> Any:
    return client.post(f"/runs/new/?{urlencode(chosen, doseq=True)}")


def test_a_case_that_was_never_run_is_planned_and_started(client: Client, card: Accelerator) -> None:
    measured = create_experiment(case="layer_norm")
    create_measurement(measured)
    page = page_of(client, {**GEMV, "repeats": "2"})
    assert {line.name: line.is_chosen for line in page.context["cases"]}["gemv"]
    plan = page.context["plan"]
    assert (plan["cases"], plan["left_out"]) == (["gemv"], [])
    assert not Run.objects.filter(state="queued").exists()
    assert not Task.objects.exists()
    assert not Audit.objects.filter(action="run.request").exists()
    answer = start(client, {**GEMV, "repeats": "2", "into": "mine"})
    run = Run.objects.get(state="queued")
    assert answer["Location"] == f"/runs/{run.pk}/"
    assert (run.request.selection["cases"], run.stream.name, run.rerun) == (["gemv"], "mine", False)
    assert Task.objects.filter(run=run).count() == plan["tasks"]
    assert run.request.requested_by == "olga"
    assert Audit.objects.filter(action="run.request", who="olga").exists()


def test_a_form_sent_twice_starts_one_run(client: Client, card: Accelerator) -> None:
    address = f"/runs/new/?{urlencode(GEMV, doseq=True)}"
    sent = {"csrfmiddlewaretoken": "of this page"}
    first, again = (client.post(address, sent)["Location"] for _ in range(2))
    assert first == again
    assert client.post(address, {"csrfmiddlewaretoken": "of the page opened anew"})["Location"] != first
    assert client.post(f"{address}&repeats=2", sent)["Location"] != first  # something else is chosen
    Run.objects.update(state="succeeded", finished=timezone.now())
    assert client.post(address, sent)["Location"] != first  # it is over: this is no double click
    assert Run.objects.count() == Audit.objects.filter(action="run.request").count() == 4


def test_the_plan_is_that_of_the_api(client: Client, card: Accelerator) -> None:
    secret = create_key(name="t", scopes=["run"], who="t")[1]
    body = {**GEMV, "arch": "h200", "base_environment": "default", "draws": 4}
    told = client.post(
        "/api/v1/runs?dry_run=1",
        body,
        content_type="application/json",
        headers={"authorization": f"Bearer {secret}"},
    ).json()
    shown = page_of(client, {**GEMV, "place": "any:cuda:h200", "base_environment": "default", "draws": 4})
    assert told == shown.context["plan"]
    assert (told["pairs"], told["stream"]) == (4, "adhoc")
    assert told["detects_percent"] > 0


def test_a_preset_chooses_what_is_not_chosen(client: Client, card: Accelerator) -> None:
    create_accelerator(suites=["operators"])
    chosen = {"suite": "operators", "preset": "operatorbench", "cases": ["aten.mm.default"]}
    page = page_of(client, chosen)
    assert not page.context["problem"]
    plan = page.context["plan"]
    assert plan["cases"] == ["aten.mm.default"]
    start(client, chosen)
    assert {(task.spec["dtype"], task.spec["knobs"]["inputs"]) for task in Task.objects.all()} == {
        ("float32", "torchbench")
    }
    assert "preset" not in page_of(client, GEMV).context["form"].fields, "none measures micro"


def test_what_the_plan_leaves_out_is_named(client: Client, card: Accelerator) -> None:
    plan = page_of(client, {"suite": "micro", "dtypes": ["int8"]}).context["plan"]
    left = [one["case"] for one in plan["left_out"]]
    assert sorted([*plan["cases"], *left]) == sorted(
        case.name for case in page_of(client, {"suite": "micro"}).context["cases"]
    )
    assert left
    assert all(one["reason"] for one in plan["left_out"])


@pytest.mark.parametrize(
    "chosen",
    [
        {**GEMV, "cases": ["nonsense"]},
        {**GEMV, "backends": ["rm -rf"]},
        {**GEMV, "repeats": "21"},
        {**GEMV, "draws": "1", "base_environment": "default"},
        {**GEMV, "environment": "nobody"},
        {**GEMV, "new_options": "nonsense=1"},
        {**GEMV, "knob_repeat": "0"},
        {**GEMV, "into": "Not A Name"},
        {**GEMV, "dtypes": ["float64"]},
    ],
)
def test_only_what_the_catalogue_has_is_started(
    client: Client, card: Accelerator, chosen: dict[str, Any]
) -> None:
    page = page_of(client, chosen)
    assert page.context["plan"] is None
    assert start(client, chosen).status_code == 422
    assert not Run.objects.exists()
    assert 'role="alert"' in page.content.decode()


def test_without_a_host_the_page_says_so(client: Client) -> None:
    client.force_login(create_user())
    page = page_of(client, GEMV)
    assert page.context["form"] is None
    assert page.context["problem"]
    assert start(client, GEMV).status_code == 422


def test_only_operators_start_runs(client: Client) -> None:
    create_accelerator()
    assert client.get("/runs/new/")["Location"].startswith("/login/")
    client.force_login(create_user(role=Role.UPLOADER))
    assert client.get("/runs/new/").status_code == 403
    assert start(client, GEMV).status_code == 403
    assert not Run.objects.exists()


def test_the_page_s_stream_is_not_that_of_the_results(client: Client, card: Accelerator) -> None:
    Stream.objects.create(name="laptop")
    text = page_of(client, {**GEMV, "stream": "laptop"}).content.decode()
    assert re.search(r'name="stream" value="laptop"', text)
    assert start(client, {**GEMV, "stream": "laptop"}).status_code == 302
    assert Run.objects.get().stream.name == "adhoc"
