"""Count the clicks from the overview to what people come for; use the inbox by keyboard."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from hud.models import Experiment, Regression, Run, Target
from tests.support.compilations import mobilenet, planted, store
from tests.support.factories import (
    create_accelerator,
    create_environment,
    create_experiment,
    create_host,
    create_measurement,
    create_metric,
    create_regression,
    create_run,
    create_user,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.servers import Hud

pytestmark = pytest.mark.browser
OLD, NEW = ("2.10.0", "aaa"), ("2.11.0", "bbb")


@pytest.fixture
def nights(live_hud: Hud) -> tuple[Run, Run]:
    """Two nights of two models that regressed, on a host that still has both versions of torch."""
    now = timezone.now()
    pythons = {
        name: {"torch": torch, "torch_git": git} for name, (torch, git) in (("old", OLD), ("new", NEW))
    }
    host = create_host("h200-a", facts={"pythons": pythons})
    create_accelerator(host, pythons=["old", "new"], suites=["timm"])
    environments = [create_environment(torch=torch, torch_git=git) for torch, git in (OLD, NEW)]
    runs = tuple(
        create_run(order_time=now - timedelta(days=days), commit=commit * 5, host_name="h200-a")
        for days, commit in ((7, "cb4e520a"), (0, "ca3512fb"))
    )
    for case, values in (("nfnet_l0", (1.9, 1.7)), ("mobilenetv2_100", (1.9, 1.2))):
        for backend in ("inductor", "aot_eager", "cudagraphs"):
            one = create_experiment(suite="timm", case=case, knobs={}, backend=backend)
            for run, value, environment in zip(runs, values, environments, strict=True):
                shown = value if backend == "inductor" else values[0]
                point: dict[str, Any] = {"metric": "device_speedup", "run": run, "environment": environment}
                last = create_measurement(one, value=shown, **point)
            if backend == "inductor":
                change = values[1] / values[0] - 1
                moved = {
                    "change": change,
                    "before": values[0],
                    "last_good_run": runs[0],
                    "points": 2,
                }
                create_regression(last, factor=-200 * change, **moved)
    return runs[0], runs[1]


@pytest.fixture
def kernels(nights: tuple[Run, Run]) -> None:
    """The kernels of the slower model in both nights."""
    first, second = mobilenet()[:2]
    slower = Experiment.objects.get(case="mobilenetv2_100", backend="inductor")
    for found, run in zip((first, planted(second)), nights, strict=True):
        store(found, experiment=slower, run=run)


class Visit:
    """A visit that begins on the overview and counts its clicks."""

    def __init__(self, page: Page, hud: Hud) -> None:
        self.page, self.clicks = page, 0
        page.goto(f"{hud.url}/")

    def click(self, selector: str) -> None:
        self.page.locator(selector).first.click()
        self.clicks += 1


def log_in(page: Page, hud: Hud) -> None:
    create_user()
    page.goto(f"{hud.url}/login/")
    page.fill("#id_username", "olga")
    page.fill("#id_password", "open sesame")
    page.click("button.primary")
    page.wait_for_url(f"{hud.url}/")


def test_the_worst_of_two_nights_is_rerun_in_pairs(
    live_hud: Hud, page: Page, nights: tuple[Run, Run]
) -> None:
    log_in(page, live_hud)
    visit = Visit(page, live_hud)
    visit.click("text=Compare these two")
    assert page.locator("table.compared tbody th a").first.inner_text() == "mobilenetv2_100"
    visit.click("table.compared >> text=Rerun in pairs")
    visit.click("#rerun button.primary")
    page.wait_for_url("**/runs/*/")
    run = Run.objects.latest("pk")
    assert (run.base_interpreter, run.interpreter) == ("old", "new")
    assert visit.clicks <= 3


def test_the_cause_and_the_backends_are_one_click_away(
    live_hud: Hud, page: Page, nights: tuple[Run, Run], kernels: None
) -> None:
    visit = Visit(page, live_hud)
    visit.click(".look-rows >> text=What changed")
    page.wait_for_selector(".attribution")
    again = Visit(page, live_hud)
    again.click(".look-rows >> text=mobilenetv2_100")
    page.wait_for_selector("table.backends")
    backends = page.locator("table.backends tbody th").all_inner_texts()
    assert {"inductor", "aot_eager", "cudagraphs"} <= set(backends)
    assert (visit.clicks, again.clicks) == (1, 1)


def test_missed_targets_stand_on_the_overview(live_hud: Hud, page: Page, nights: tuple[Run, Run]) -> None:
    Target.objects.create(metric=create_metric(), arch="h200", value=1000)
    for number in range(25):
        create_measurement(create_experiment(case=f"kernel_{number}"), value=900 - number)
    Visit(page, live_hud)
    rows = page.locator(".look-rows tr")
    assert rows.filter(has_text="missed").count() == 18
    page.click("#look >> text=show all")
    page.wait_for_url("**rows=all**")
    assert rows.filter(has_text="missed").count() == 25


def test_a_model_is_found_by_a_key(live_hud: Hud, page: Page, nights: tuple[Run, Run]) -> None:
    visit = Visit(page, live_hud)
    page.keyboard.press("Control+k")
    page.keyboard.type("mobilenetv2_100")
    options = page.locator("dialog [role=option]")
    options.first.wait_for()
    page.keyboard.press("ArrowDown")
    assert options.nth(1).get_attribute("aria-selected") == "true"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/models/timm/mobilenetv2_100/?stream=import")
    assert visit.clicks == 0
    page.keyboard.press("/")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    page.click("header [name=q]")
    page.keyboard.type("mobilenetv2_100")
    options.first.wait_for()


def test_a_plan_of_another_choice_is_not_offered(live_hud: Hud, page: Page, nights: tuple[Run, Run]) -> None:
    log_in(page, live_hud)
    page.goto(f"{live_hud.url}/runs/new/?suite=timm")
    start = page.locator("[data-start]")
    before = start.inner_text()
    page.locator("[name=cases]").first.check()
    assert start.is_disabled()
    assert start.inner_text() != before
    page.click("[data-plan]")
    page.wait_for_url("**cases=**")
    assert "=&" not in page.url
    assert start.is_enabled()


def test_any_two_runs_are_compared_in_three_clicks(
    live_hud: Hud, page: Page, nights: tuple[Run, Run]
) -> None:
    visit = Visit(page, live_hud)
    visit.click("nav >> text=Runs")
    page.wait_for_url("**/runs/?stream=import")
    visit.click(f"[value='run:{nights[1].pk}']")
    visit.click(f"button[value='run:{nights[0].pk}']")
    page.wait_for_url(f"**/compare/?*base=run*{nights[0].pk}&head=run*{nights[1].pk}")
    assert visit.clicks <= 3


def test_rows_are_chosen_by_keyboard(live_hud: Hud, page: Page, nights: tuple[Run, Run]) -> None:
    Visit(page, live_hud)
    for key in "jr":
        page.keyboard.press(key)
    page.wait_for_url("**base_environment=old**")
    page.goto(f"{live_hud.url}/runs/")
    for key in "jxjxc":
        page.keyboard.press(key)
    page.wait_for_url(f"**/compare/?*base=run*{nights[0].pk}&head=run*{nights[1].pk}")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.select_option("select[name=verdict]", "unchanged")
    page.wait_for_url("**verdict=unchanged**")
    assert page.locator("table.compared tbody th a").count() == 4


def test_the_inbox_is_worked_off_by_keyboard(live_hud: Hud, page: Page, nights: tuple[Run, Run]) -> None:
    log_in(page, live_hud)
    page.goto(f"{live_hud.url}/regressions/")
    page.wait_for_selector(".bulk button:disabled")  # nothing is selected
    for key in "jxjx":
        page.keyboard.press(key)
    page.wait_for_selector("text=2 selected")
    page.click(".bulk button[value=acknowledge]")
    page.wait_for_selector("tr[data-row] >> text=acknowledged")
    assert set(Regression.objects.values_list("state", flat=True)) == {"acknowledged"}
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**open=*")
    page.keyboard.press("a")
    assert page.evaluate("document.activeElement.value") == "accept"
    page.keyboard.press("Enter")
    page.wait_for_selector("input[name=note]:invalid")  # without a reason nothing is sent
    page.fill("input[name=note]", "needed for correctness")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1 >> text=accepted")
