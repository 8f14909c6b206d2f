"""The events of a regression: each changes its state by the table, is written down, and is put into the
outbox for those who are to be told, all in the caller's transaction."""

from datetime import timedelta

from django.utils import timezone

from hud.judging.regressions.states import Event, next_state
from hud.models import Notice, Regression, RegressionEvent, Run

State = Regression.State
_NEWS = timedelta(days=2)  # an event about older points is one of a backfill


def apply(
    regression: Regression, event: Event, *, who: str = "", note: str = "", run_id: int | None = None
) -> None:
    before = regression.state
    set_state(regression, event)
    regression.save()
    record(regression, before, event=event, who=who, note=note, run_id=run_id)


def close(regression: Regression, *, run_id: int | None = None, who: str = "", note: str = "") -> None:
    """Close an active regression that is none any more."""
    event = Event.DISAGREED if regression.state == State.SUSPECT else Event.RECOVERED
    apply(regression, event, who=who, note=note, run_id=run_id)


def set_state(regression: Regression, event: Event) -> None:
    after = next_state(State(regression.state), event)
    assert after, f"{event} means nothing in the state {regression.state}"
    regression.state, regression.state_since = after, timezone.now()


def record(
    regression: Regression,
    before: str | None = None,
    *,
    event: str = "seen",
    who: str = "",
    note: str = "",
    run_id: int | None = None,
) -> None:
    """Write down an event that led here from the state `before`, '' for the beginning; None: none changed."""
    after = regression.state
    before = after if before is None else before
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
    recent = Run.objects.filter(order_time__gt=timezone.now() - _NEWS)
    newest = recent.filter(pk__in=[run_id, regression.latest_run_id])
    is_muted = regression.muted_until and regression.muted_until > timezone.now()
    # of suspects webhooks hear nothing, nor of their end
    was_told = before not in {"", State.SUSPECT} and after != State.SUSPECT
    is_news = before != after and (was_told or after in {State.OPEN, State.CONFIRMED})
    if is_news and not is_muted and (who or newest.exists()):
        Notice.objects.create(regression=regression, state=after, note=note, who=who)
