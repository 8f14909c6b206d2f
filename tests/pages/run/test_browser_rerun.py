"""The whole way in a browser: sign in, press rerun, watch a real worker run it, see the new point."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth import get_user_model

from hud.accounts.keys import create_key
from hud.ingest import ingest
from hud.models import Accelerator, Experiment, Host, Measurement, Run, Task
from runner.formats.parameters import Parameters
from runner.system.processes import read_process
from tests.support.hosts import ANSWERS_FOR_COMPILE, HostProcess
from tests.support.records import as_list, v3_record
from tests.support.servers import Hud
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
RUN_MS = 240_000  # inductor's first compile on a busy machine
FEWEST_SAMPLES = """
if "runner.launch.child" in sys.orig_argv:
    from runner.suites.micro import run
    run._BUDGET_S = 0
"""


@pytest.fixture
def host(live_hud: Hud, tmp_path: Path, inductor_cache: dict[str, str]) -> Iterator[HostProcess]:
    """A real agent on this machine's CPU, with a real worker. Kernels that are compiled already it reuses."""
    _key, secret = create_key(name="host", scopes=["host"], who="test", host=Host.objects.create(name="here"))
    arguments = ["-m", "runner", "attach", "--hud", live_hud.url, "--key", secret, "--devices", "cpu"]
    variables = ",".join(f"{name}={value}" for name, value in inductor_cache.items())
    arguments += ["--python", f"default={sys.executable},{variables}"]
    (tmp_path / "sitecustomize.py").write_text(ANSWERS_FOR_COMPILE + FEWEST_SAMPLES)
    arguments += ["--data", str(tmp_path / "agent")]
    process = HostProcess(tmp_path, arguments, {**os.environ, "PYTHONPATH": str(tmp_path)})
    process.start()
    wait_for(lambda: Accelerator.objects.filter(host__name="here").exists(), "the host's first beat")
    yield process
    process.stop()


@pytest.fixture
def experiment() -> Experiment:
    """A result of one size on an H200, so that a rerun compiles one kernel."""
    record = v3_record()
    record["benchmark"]["name"] = "Compiler HUD micro"  # PyTorch's own records are of the mean over sizes
    record["benchmark"]["extra_info"]["knobs"] = {"D": 1024}
    record["model"] |= {"backend": "inductor", "origins": ["micro"]}
    ingest(as_list(record), Parameters(source="pytorch-scripts"))
    return Experiment.objects.get()


@pytest.fixture
def operator(page: Page, live_hud: Hud) -> Page:
    """Somebody signed in."""
    get_user_model().objects.create_superuser("operator", password="secret")
    page.goto(f"{live_hud.url}/login/")
    page.fill("input[name=username]", "operator")
    page.fill("input[name=password]", "secret")
    page.click("button:has-text('Log in')")
    page.wait_for_url(f"{live_hud.url}/")
    return page


def press_rerun(page: Page, hud: Hud, experiment: Experiment) -> Run:
    before = set(Run.objects.values_list("pk", flat=True))
    page.goto(f"{hud.url}/experiments/{experiment.pk}/")
    page.click("button:has-text('Rerun')")
    page.wait_for_url("**/runs/*/")
    return Run.objects.exclude(pk__in=before).get()


def test_reruns_succeed_wait_and_are_cancelled(
    operator: Page, live_hud: Hud, host: HostProcess, experiment: Experiment
) -> None:
    """One story, because a host takes seconds to attach."""
    _rerun_ends_succeeded_with_a_new_point_beside_the_old_one(operator, live_hud, experiment)
    _a_second_run_waits_in_place_1_and_cancel_leaves_nothing_alive(operator, live_hud, host, experiment)


def _rerun_ends_succeeded_with_a_new_point_beside_the_old_one(
    operator: Page, live_hud: Hud, experiment: Experiment
) -> None:
    run = press_rerun(operator, live_hud, experiment)
    operator.wait_for_selector("text=succeeded", timeout=RUN_MS)
    run.refresh_from_db()
    assert run.state == "succeeded", run.reason
    found = Measurement.objects.filter(run=run, series__metric__name="compiled_latency_ms")
    points = found.select_related("series__experiment")
    assert {point.series.experiment.knobs["D"] for point in points} == {1024}
    assert {(point.series.experiment.backend, point.status) for point in points} == {("inductor", 0)}
    assert all(point.n >= 20 and len(point.samples or []) == point.n for point in points)
    operator.goto(f"{live_hud.url}/experiments/{experiment.pk}/")
    assert "2542.40 GB/s" in operator.inner_text("main")
    assert "cpu-x86_64" in operator.inner_text("main"), "the sibling on this machine's device"
    sibling = Experiment.objects.get(case="layer_norm", device="cpu", knobs={"D": 1024}, backend="inductor")
    assert operator.locator(f"a[href^='/experiments/{sibling.pk}/']").count() >= 1
    operator.wait_for_selector("svg.plot")


def _a_second_run_waits_in_place_1_and_cancel_leaves_nothing_alive(
    operator: Page, live_hud: Hud, host: HostProcess, experiment: Experiment
) -> None:
    first = press_rerun(operator, live_hud, experiment)
    operator.wait_for_selector("text=running", timeout=RUN_MS)
    wait_for(lambda: Task.objects.filter(run=first, state="running").exists(), "the first task")
    second = press_rerun(operator, live_hud, experiment)
    with urllib.request.urlopen(f"{live_hud.url}/api/v1/runs/{second.pk}") as answer:
        assert b'"queue_position": 1' in answer.read()
    operator.click("button:has-text('Cancel')")
    operator.wait_for_selector("text=cancelled")
    operator.goto(f"{live_hud.url}/runs/{first.pk}/")
    wait_for(lambda: children_of(host.pid, "runner.launch.child"), "the child of the first run")
    operator.click("button:has-text('Cancel')")
    wait_for(
        lambda: Run.objects.get(pk=first.pk).state == "cancelled",
        "the end of the cancelled run",
        timeout_s=15,
    )
    assert not children_of(host.pid, "runner.launch.child")
    assert Run.objects.get(pk=second.pk).state == "cancelled"
    operator.wait_for_selector("text=cancelled")


def children_of(agent: int, words: str) -> list[int]:
    """Living processes below the agent whose command line holds the words."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        process = read_process(int(entry.name))
        if process is None or process.dead:
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in command and descends(process.parent, agent):
            found.append(int(entry.name))
    return found


def descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        process = read_process(pid)
        if process is None:
            return False
        pid = process.parent
    return False
