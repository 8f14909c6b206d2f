"""The events of a regression: each changes its state by the table, and is written down."""

from __future__ import annotations

from django.utils import timezone

from hud.judging.regressions.states import Event, next_state
from hud.models import Regression, RegressionEvent

State = Regression.State


def apply(
    regression: Regression, event: Event, *, who: str = "", note: str = "", run_id: int | None = None
) -> None:
    before = regression.state
    set_state(regression, event)
    regression.save()
    record(regression, before, regression.state, event=event, who=who, note=note, run_id=run_id)


def set_state(regression: Regression, event: Event) -> None:
    after = next_state(State(regression.state), event)
    assert after, f"{event} means nothing in the state {regression.state}"
    regression.state, regression.state_since = after, timezone.now()


def record(
    regression: Regression,
    before: str,
    after: str,
    *,
    event: str = "seen",
    who: str = "",
    note: str = "",
    run_id: int | None = None,
) -> None:
    # one point that nothing else agreed with was noise and no level, unless a person takes it for one
    is_level = after == State.ACCEPTED or (after == State.DISMISSED and regression.points > 1)
    RegressionEvent.objects.create(
        regression=regression,
        event=event,
        before=before,
        after=after,
        who=who,
        note=note,
        run_id=run_id,
        level_since=regression.since if is_level and before != after else None,
    )
