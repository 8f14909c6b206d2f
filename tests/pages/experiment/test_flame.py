"""The icicle of device time on What changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone
from playwright.sync_api import expect

from hud.judging.kernels.attribution import attribute
from hud.models import Experiment
from hud.pages.code.flame import FlamePart, icicle, tree_of
from tests.support.compilations import AFTER, BEFORE, compiled, kernel, store
from tests.support.factories import create_environment, create_experiment, create_run
from tests.support.pages import page_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.servers import Hud

MLP, NORM = "models/gpt2.py:2 MLP.forward", "models/gpt2.py:3 Norm.forward"
BASE = compiled(
    kernel("triton_poi_fused_gelu_0", 60.0, lines=(MLP,)),
    kernel("triton_red_fused_norm_1", 20.0, lines=(MLP, NORM)),
    kernel("gone", 10.0, lines=(NORM,)),
    kernel("tiny", 0.1, lines=(NORM,)),
    kernel("copy", 5.0),
)
HEAD = compiled(replace(BASE.kernels[0], time_us=90.0), *BASE.kernels[1:2], *BASE.kernels[3:])


def sums(part: FlamePart) -> Any:
    return (pytest.approx(part.base_us), pytest.approx(part.head_us), pytest.approx(part.width_us))


def test_each_part_is_the_sum_of_its_parts() -> None:
    whole = tree_of(attribute([BASE], [HEAD]).changes)
    waiting = [whole]
    for part in waiting:
        if part.parts:
            own = [(one.base_us, one.head_us, one.width_us) for one in part.parts.values()]
            assert sums(part) == tuple(map(sum, zip(*own, strict=True)))
        waiting += part.parts.values()
    assert whole.base_us == pytest.approx(95.1)
    assert whole.head_us == pytest.approx(115.1)
    assert whole.width_us == pytest.approx(125.1)  # what is gone has its width too
    functions = whole.parts["gpt2.py"].parts
    assert {name: one.head_us for name, one in functions.items()} == {
        "MLP.forward": pytest.approx(100.0),
        "Norm.forward": pytest.approx(10.1),
    }
    kernels = functions["Norm.forward"].parts[":3"].parts.values()
    assert {one.name for one in kernels} == {"triton_red_fused_norm_1", "gone", "tiny"}


def test_without_times_or_lines_there_is_none() -> None:
    plain, untimed = compiled(kernel("copy", 5.0)), compiled(kernel("a", None, lines=(MLP,)), busy_us=None)
    for side in (plain, untimed, compiled()):
        assert icicle(attribute([side], [side]).changes, {}, one_point=False) == ""


def points(model: Experiment) -> dict[str, str]:
    before, after = create_run(order_time=timezone.now() - timedelta(days=1)), create_run()
    environment = create_environment(gpu_uuid="GPU-1")
    for run, one, text in ((before, BASE, BEFORE), (after, HEAD, AFTER)):
        code = {"gone": text, "triton_poi_fused_gelu_0": text}
        store(one, experiment=model, run=run, environment=environment, code=code)
    return {
        **{name: f"run:{run.pk}/experiment:{model.pk}" for name, run in (("base", before), ("head", after))},
        "stream": after.stream.name,
    }


@pytest.mark.django_db
def test_one_point_has_no_change(client: Client) -> None:
    sides = points(create_experiment())
    text = page_of(client, f"/code/?{urlencode({**sides, 'base': sides['head']})}")
    (flame,) = (part.partition("</section>")[0] for part in text.split('id="flame"')[1:])
    assert "slower" not in flame
    assert "100.0 µs" in flame


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 390])
def test_parts_are_as_wide_as_their_times(live_hud: Hud, page: Page, width: int) -> None:
    sides = points(create_experiment())
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{live_hud.url}/code/?{urlencode(sides)}")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    labels = page.locator(".flame .part")
    boxes = {label.get_attribute("title"): label.bounding_box() for label in labels.all()}
    widths = {str(title).partition(":")[0]: box["width"] for title, box in boxes.items() if box}
    assert widths["gpt2.py"] / widths["all kernels"] == pytest.approx(120.1 / 125.1, rel=0.02)
    assert widths["triton_poi_fused_gelu_0"] / widths["all kernels"] == pytest.approx(90 / 125.1, rel=0.02)
    assert "tiny" not in widths  # it is one of those too short to be drawn
    page.locator(".flame a.faster").click()
    expect(page.locator("#source")).to_contain_text("gone")
    assert "base=" in page.url
