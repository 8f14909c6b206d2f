"""The pages in a browser: they draw, nothing is refused by the policy, no script fails."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from hud.files import files
from hud.models import Experiment, Run, State, Task
from hud.runs import logs
from tests.support.factories import (
    create_accelerator,
    create_ceiling,
    create_experiment,
    create_measurement,
    create_run,
    create_task,
    create_user,
    create_verdict,
)
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.servers import Hud

pytestmark = pytest.mark.browser
_TELL_VIOLATIONS = """document.addEventListener("securitypolicyviolation",
    (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`))"""

_AT_END = "log => log.scrollHeight - log.scrollTop - log.clientHeight < 24"


@pytest.fixture
def quiet(page: Page) -> Iterator[Page]:
    """A page that fails its test where the browser complained of anything."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.add_init_script(_TELL_VIOLATIONS)
    yield page
    assert not complaints, f"the browser complained: {complaints}"


@pytest.fixture
def experiment(live_hud: Hud) -> Experiment:
    """Some history with every verdict and a target, on two devices."""
    create_ceiling()
    now = timezone.now()
    experiment = create_experiment()
    for day, verdict in enumerate(("new", "improved", "unchanged", "inconclusive", "regressed")):
        samples = [2500.0 + day, 2510.0, 2490.0]
        measurement = create_measurement(experiment, samples=samples, at=now - timedelta(days=9 - day))
        if verdict not in ("new", "unchanged"):
            create_verdict(measurement, verdict, change=0.01, noise=0.002, factor=5)
    create_measurement(experiment, metric="device_latency_ms", value=0.0073)
    create_measurement(create_experiment(arch="cpu-x86_64", device="cpu"), samples=[17.0, 18.0])
    return experiment


def log_more(task: Task, text: str) -> None:
    """What the host's delivery does: append, then say how long the log is."""
    task.refresh_from_db()
    files.append(logs.log_name(task), task.log_bytes, text.encode())
    Task.objects.filter(pk=task.pk).update(log_bytes=task.log_bytes + len(text.encode()))


def test_a_point_is_chosen_by_click_and_by_key_and_its_details_stay(
    live_hud: Hud, quiet: Page, experiment: Experiment
) -> None:
    quiet.goto(f"{live_hud.url}/experiments/{experiment.pk}/?metric=device_bandwidth_gbps")
    dots = quiet.locator(".chart-row.tall path.dots").get_attribute("d")
    assert dots
    assert dots.count("M") == 5
    box = quiet.locator(".chart-row.tall .drawing").bounding_box()
    assert box
    quiet.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    card = quiet.locator(".point-card")
    expect(card).to_contain_text("GB/s")
    chosen = parse_qs(urlsplit(quiet.url).query)["point"]
    quiet.mouse.move(5, 5)
    quiet.keyboard.press("ArrowRight")
    expect(card).to_be_visible()
    assert parse_qs(urlsplit(quiet.url).query)["point"] != chosen
    quiet.reload()
    expect(card).to_be_visible()
    quiet.locator(".multiples").focus()
    quiet.keyboard.press("Escape")
    expect(card).to_have_count(0)


def test_a_filter_goes_into_the_url_without_the_empty_ones(
    live_hud: Hud, quiet: Page, experiment: Experiment
) -> None:
    quiet.goto(f"{live_hud.url}/suites/micro/")
    quiet.select_option("select[name=arch]", "cpu-x86_64")
    quiet.wait_for_url("**/suites/micro/?stream=import&arch=cpu-x86_64")
    assert quiet.locator("table.suite tbody tr").count() == 1
    quiet.goto(f"{live_hud.url}/experiments/{experiment.pk}/")
    quiet.select_option(".chart-bar select[name=metric]", "device_latency_ms")
    quiet.wait_for_url("**/?*metric=device_latency_ms*")
    assert "0.0073 ms" in quiet.locator(".state-line").inner_text()


def test_the_theme_is_chosen_and_kept(live_hud: Hud, quiet: Page) -> None:
    quiet.goto(f"{live_hud.url}/")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = quiet.evaluate(paper)
    switch = quiet.locator("[data-theme-switch]")
    switch.click()
    switch.click()
    assert switch.get_attribute("aria-label") == "Theme: dark"
    assert quiet.evaluate(paper) != light
    quiet.reload()
    assert quiet.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_run_is_followed_to_its_end(live_hud: Hud, quiet: Page, experiment: Experiment) -> None:
    accelerator = create_accelerator()
    run = create_run("running", host=accelerator.host, device="cuda", experiment=experiment)
    first = create_task(run, state="running", accelerator=accelerator, attempt=1)
    second = create_task(run)
    log_more(first, "first words\n")
    quiet.goto(f"{live_hud.url}/runs/{run.pk}/")
    log = quiet.locator("#log")
    assert "first words" in log.inner_text()

    log_more(first, "<b>more</b> words\n" * 200)
    expect(log).to_contain_text("<b>more</b> words")
    wait_for(lambda: log.evaluate(_AT_END), "the log at its end")
    quiet.locator("[data-log-follow]").click()  # pauses
    log.evaluate("log => log.scrollTo(0, 0)")
    log_more(first, "the last of the first\n")
    expect(log).to_contain_text("the last of the first")
    assert log.evaluate("log => log.scrollTop") == 0
    quiet.keyboard.press("l")
    expect(log).to_be_focused()
    assert log.locator(".ln").nth(201).get_attribute("id") == "L202"

    now = timezone.now()
    Task.objects.filter(pk=first.pk).update(state=Task.State.DONE, status="ok", finished=now)
    create_measurement(experiment, samples=[2600.0, 2601.0], run=run)
    quiet.wait_for_selector("text=2600.5 GB/s")
    Task.objects.filter(pk=second.pk).update(
        state=Task.State.RUNNING,
        accelerator=accelerator,
        started=now,
        token=run.uid,
        lease_until=now,
        attempt=1,
    )
    log_more(Task.objects.get(pk=second.pk), "words of the second\n")
    expect(log).to_contain_text("words of the second")

    Task.objects.filter(pk=second.pk).update(state=Task.State.DONE, status="ok", finished=now)
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED, finished=now)
    quiet.wait_for_selector(".status-line >> text=succeeded")
    assert quiet.locator("button:has-text('Cancel')").count() == 0
    expect(quiet.locator("#announcer")).to_contain_text("succeeded")

    quiet.goto(f"{live_hud.url}/runs/{run.pk}/?task=0#L2")
    expect(log.locator(".here")).to_have_attribute("id", "L2")
    for key in "jjk":
        quiet.keyboard.press(key)
    expect(quiet.locator("tr[data-chosen]")).to_have_count(1)
    quiet.keyboard.press("/")
    expect(quiet.locator("input[name=q][data-key='/']")).to_be_focused()


@pytest.mark.parametrize("width", [768, 1280, 1440])
def test_no_column_of_a_runs_results_is_cut(live_hud: Hud, quiet: Page, width: int) -> None:
    create_ceiling()
    experiment = create_experiment(case="gather_gemv", knobs={"D": "mean", "sizes": "1024,4096,8192,16384"})
    measurement = create_measurement(experiment, value=1900.0, target=2429.0)
    create_verdict(measurement, "regressed", change=-0.125, noise=0.002, factor=12.5)
    quiet.set_viewport_size({"width": width, "height": 900})
    quiet.goto(f"{live_hud.url}/runs/{measurement.run_id}/")
    expect(quiet.locator(".results thead th").last).to_have_text("Since, cause")
    assert quiet.locator(".scroll:has(.results)").evaluate("box => box.scrollWidth - box.clientWidth") <= 1


def test_a_host_is_told_while_its_page_refreshes(live_hud: Hud, quiet: Page) -> None:
    accelerator = create_accelerator()
    create_user()
    quiet.goto(f"{live_hud.url}/login/?next=/hosts/")
    quiet.fill("#id_username", "olga")
    quiet.fill("#id_password", "open sesame")
    quiet.click("button.primary")
    quiet.click("summary:has-text('Pause, drain or detach')")
    quiet.locator("form[action$=drain] input[name=note]").fill("new driver")
    quiet.wait_for_event("response", lambda response: response.url.endswith("/hosts/live"))
    quiet.click("button:has-text('Drain')")
    quiet.wait_for_selector(f"text=Draining {accelerator.host.name}")
    assert quiet.locator(".host >> text=drained").count() == 1
    quiet.click("button:has-text('Resume')")
    quiet.wait_for_selector(".host >> text=online")
