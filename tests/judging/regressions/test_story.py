"""The story that `make up` shows, from its recorded files: a planted change is found and explained, and what
a neighbour on the card caused is dismissed by pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import call_command

from hud.judging.compare.ab_runs import result_of
from hud.judging.comparison import SAME_CHOICE
from hud.judging.judge import process_pending
from hud.judging.regressions.confirm import confirm
from hud.judging.regressions.groups import group
from hud.models import Regression, Run

pytestmark = pytest.mark.django_db
FOLDER = Path(__file__).parents[3] / "hud" / "samples" / "story-h200"


def test_the_recorded_story_is_judged_as_it_was() -> None:
    call_command("ingest", str(FOLDER), "--json")
    while process_pending():
        pass
    confirm()
    firings = Run.objects.filter(stream__name="story", points__gt=20).order_by("order_time")
    assert [run.interpreter for run in firings] == 5 * ["night"] + 2 * ["planted"]
    assert len({run.order_time for run in firings}) == 7

    moved = Regression.objects.filter(series__experiment__case="layer_norm")
    assert set(moved.values_list("first_run", "points")) == {(firings[5].pk, 2)}
    assert len(set(moved.values_list("cause_row", flat=True))) == 1
    confirmed = moved.filter(state="confirmed")
    assert set(confirmed.values_list("series__metric__name", flat=True)) == {"device_speedup", SAME_CHOICE}
    assert set(moved.exclude(pk__in=confirmed).values_list("state", flat=True)) == {"open"}
    assert group(list(moved.select_related("series__experiment", "series__metric")))[0].first in confirmed
    pairs = Run.objects.get(interpreter="planted", base_interpreter="night")
    assert result_of(pairs)["verdict"] == "regressed"  # by kernels: two levels of the card's times hide it

    disturbed = Regression.objects.filter(series__experiment__case="gather_gemv")
    assert disturbed.filter(series__metric__name="device_bandwidth_gbps").get().change == pytest.approx(
        -0.4, abs=0.05
    )
    assert set(disturbed.values_list("state", flat=True)) == {"dismissed"}
