"""The client: calls that are repeated, runs that are started once, results that are waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from hud.accounts.keys import create_key
from hud.models import Accelerator, Run, State
from runner.client.connection import Unreachable, WrongUsage
from runner.client.hud import Hud, run_by_ci
from tests.support import servers
from tests.support.claims import attach, in_thread
from tests.support.factories import create_run, create_task
from tests.support.waiting import wait_for

LAYER_NORM = {"suite": "micro", "cases": ["layer_norm"], "environment": "default"}


@pytest.fixture
def key(live_hud: servers.Hud) -> str:
    return create_key(name="ci", scopes=["read", "run"], who="t")[1]


@pytest.fixture
def host(live_hud: servers.Hud) -> Accelerator:
    accelerator = attach("h1")
    Accelerator.objects.filter(pk=accelerator.pk).update(
        catalog={"suites": ["micro"], "pythons": ["default"]}
    )
    return accelerator


class Forgetful(Hud):
    """A HUD whose first answer is lost on its way."""

    lost = 0

    def call(self, method: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        answer = super().call(method, path, body, **more)
        if not self.lost:
            self.lost = 1
            raise Unreachable("lost")
        return answer


def test_a_run_is_started_once_though_its_answer_is_lost(
    live_hud: servers.Hud, host: Accelerator, key: str
) -> None:
    hud = Forgetful(live_hud.url, key)
    assert hud.start(LAYER_NORM) == Run.objects.get().pk
    assert hud.lost
    assert Hud(live_hud.url, key).start(LAYER_NORM) != Run.objects.first().pk  # type: ignore[union-attr]
    assert Run.objects.count() == 2


def test_a_result_is_waited_for(live_hud: servers.Hud, key: str) -> None:
    run = create_task(create_run(State.RUNNING)).run
    hud = Hud(live_hud.url, key)
    assert hud.result(run.pk, time.monotonic() + 0.1)["state"] == "running"
    results: list[Mapping[str, Any]] = []
    waiting = in_thread(lambda: results.append(hud.result(run.pk, time.monotonic() + 60)))
    hud.cancel(run.pk)
    wait_for(lambda: results, "the result")
    waiting.join()
    assert results[0]["state"] == "cancelled"


@pytest.mark.parametrize(
    ("variables", "about"),
    [
        ({}, {}),
        (
            {"GITHUB_SHA": "a1", "GITHUB_REF_NAME": "main", "GITHUB_REF": "refs/heads/main"},
            {"branch": "main"},
        ),
        (
            {"GITHUB_SHA": "a1", "GITHUB_HEAD_REF": "main", "GITHUB_REF": "refs/pull/7/merge"},
            {"branch": "pull/7", "pull_request": 7},
        ),
        (
            {"CI_COMMIT_SHA": "a1", "CI_COMMIT_REF_NAME": "topic", "CI_MERGE_REQUEST_IID": "12"},
            {"branch": "pull/12", "pull_request": 12},
        ),
    ],
)
def test_a_run_of_a_ci_job_has_its_commit_and_pull_request(
    variables: dict[str, str], about: dict[str, Any]
) -> None:
    assert run_by_ci(variables) == ({"commit": "a1", **about} if variables else {})


def test_address_and_key_come_from_the_environment(
    live_hud: servers.Hud, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HUD_URL", raising=False)
    with pytest.raises(WrongUsage):
        Hud()
    monkeypatch.setenv("HUD_URL", live_hud.url + "/")
    monkeypatch.setenv("HUD_KEY", key)
    run = create_task(create_run(State.RUNNING)).run
    hud = Hud()
    assert [one["id"] for one in hud.get("runs", state="running", stream="")["items"]] == [run.pk]
    hud.cancel(run.pk)
    assert hud.page(f"runs/{run.pk}")["run"]["state"] == "cancelled"
    assert hud.link("compare/", base="run:1", head=["run:2", "run:3"]).endswith(
        "/compare/?base=run%3A1&head=run%3A2&head=run%3A3"
    )
