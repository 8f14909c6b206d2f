"""Take decisions on regressions back."""

from __future__ import annotations

import pytest

from hud.judging.judge import process_pending
from hud.judging.regressions import events
from hud.models import Point, Regression
from hud.problems import Problem
from hud.states.regressions import Event
from tests.judging.regressions.test_regressions import history, nights, quiet, states

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("event", [Event.ACCEPT, Event.DISMISS])
def test_a_decision_is_taken_back(event: Event) -> None:
    history(*quiet(20))
    nights(*([2000.0] * 6), first=20)
    regression = Regression.objects.get()
    events.decide(regression, event, who="mara", note="needed")
    nights(*([2000.0] * 4), first=26)
    assert Point.objects.latest("order_time").verdict == "unchanged"
    events.decide(Regression.objects.get(), Event.REOPEN, who="noor")
    while process_pending():
        pass
    assert states() == ["open"]
    moved = Point.objects.filter(order_time__gte=regression.since)
    assert {point.verdict for point in moved} == {"regressed"}
    assert [one.who for one in regression.events.exclude(who="")] == ["mara", "noor"]
    nights(*([2500.0] * 4), first=30)
    assert states() == ["resolved"]


def test_a_decision_stands_where_the_series_has_moved_again() -> None:
    history(*quiet(20))
    nights(*([2000.0] * 6), first=20)
    accepted = Regression.objects.get()
    events.decide(accepted, Event.ACCEPT, who="mara", note="needed")
    nights(*([1500.0] * 2), first=26)
    assert states() == ["accepted", "open"]
    with pytest.raises(Problem):
        events.decide(accepted, Event.REOPEN, who="mara")
    assert states() == ["accepted", "open"]
