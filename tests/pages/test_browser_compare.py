"""Compare, search and the inbox by keyboard, without a complaint of the browser."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from hud.models import Run
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_user,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.servers import Hud

pytestmark = pytest.mark.browser


@pytest.fixture
def nights(live_hud: Hud) -> tuple[Run, Run]:
    """Two runs of two cases, and an open regression of each."""
    now = timezone.now()
    runs = create_run(order_time=now - timedelta(days=1)), create_run(order_time=now)
    for case, values in (("slow", (2500.0, 1000.0)), ("slower", (2500.0, 500.0))):
        for run, value in zip(runs, values, strict=True):
            last = create_measurement(create_experiment(case=case), value=value, run=run)
        create_regression(last, change=value / 2500 - 1, before=2500.0, last_good_run=runs[0], points=2)
    return runs


def test_search_opens_by_a_key_and_leads_to_a_page(
    live_hud: Hud, page: Page, nights: tuple[Run, Run]
) -> None:
    page.goto(f"{live_hud.url}/compare/")
    page.keyboard.press("Control+k")
    page.keyboard.type("slower")
    options = page.locator("dialog [role=option]")
    options.first.wait_for()
    page.keyboard.press("ArrowDown")
    assert options.nth(1).get_attribute("aria-selected") == "true"
    page.keyboard.press("Enter")
    page.wait_for_url("**/experiments/*/")
    page.keyboard.press("/")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_the_inbox_is_worked_off_by_keyboard(live_hud: Hud, page: Page, nights: tuple[Run, Run]) -> None:
    create_user()
    page.goto(f"{live_hud.url}/login/?next=/regressions/")
    page.fill("#id_username", "olga")
    page.fill("#id_password", "open sesame")
    page.click("button.primary")
    page.wait_for_selector(".bulk button:disabled")  # nothing is selected
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.wait_for_selector("text=2 selected")
    page.click(".bulk button[value=acknowledge]")
    page.wait_for_selector("tr[data-row] >> text=acknowledged")
    assert page.locator("tr[data-row] >> text=acknowledged").count() == 2
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**open=*")
    assert page.locator(".regression-detail").count() == 1


@pytest.mark.parametrize("width", [390, 1440])
def test_a_comparison_fits_its_window(live_hud: Hud, page: Page, nights: tuple[Run, Run], width: int) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{live_hud.url}/compare/?base=run:{nights[0].pk}&head=run:{nights[1].pk}")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.select_option("select[name=verdict]", "inconclusive")
    page.wait_for_url("**verdict=inconclusive**")
    assert page.locator("table.compared tbody th a").count() == 2
    assert not complaints
