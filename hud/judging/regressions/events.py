"""The events of a regression, by the judge, by comparisons in pairs and by people: each changes its state by
the table, is written down, and is put into the outbox for those who are to be told, in one transaction."""

from datetime import datetime, timedelta

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from hud.accounts import audit
from hud.judging.regressions.groups import of_cause
from hud.models import Notice, Regression, RegressionEvent, Run, Series
from hud.points.write import touch_series
from hud.problems import Problem
from hud.states.regressions import ACTIVE, BY_PEOPLE, SETTLED, Event, next_state, possible

State = Regression.State
_WHOLE = (Event.ACCEPT, Event.DISMISS)  # of all regressions of a cause, or of none
LONGEST_MUTE = timedelta(days=366)
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
    since = regression.since if is_level and before != after else None
    words = {"event": event, "before": before, "after": after, "who": who, "note": note}
    RegressionEvent.objects.create(regression=regression, run_id=run_id, level_since=since, **words)
    recent = Run.objects.filter(order_time__gt=timezone.now() - _NEWS)
    newest = recent.filter(pk__in=[run_id, regression.latest_run_id])
    is_muted = regression.muted_until and regression.muted_until > timezone.now()
    # of suspects webhooks hear nothing, nor of their end
    was_told = before not in {"", State.SUSPECT} and after != State.SUSPECT
    is_news = before != after and (was_told or after in {State.OPEN, State.CONFIRMED})
    if is_news and not is_muted and (who or newest.exists()):
        Notice.objects.create(regression=regression, state=after, note=note, who=who)


def act(*, regression: Regression, event: Event, who: str, note: str = "") -> Regression:
    """Apply a person's decision, with an audit line. Raise Problem 409 if the state does not permit it.

    Accepting or dismissing makes the present level the baseline, reopening the one before: the series is
    judged again from there.
    """
    with transaction.atomic():
        regression = _locked(regression)
        state = State(regression.state)
        if event not in BY_PEOPLE or next_state(state, event) is None:
            last = regression.events.exclude(who="").filter(after=state).last()
            by = f" by {last.who} on {last.at:%-d %b at %H:%M} UTC" if last and state in SETTLED else ""
            fitting = " or ".join(possible(state)) or "nothing"
            case = regression.series.experiment.title
            raise Problem(409, f"{case} is {state}{by}: {fitting} is possible, not {event}")
        if note:
            regression.note = note
        if event == Event.REOPEN:
            same = {"series": regression.series_id, "class_key": regression.class_key}
            if again := Regression.objects.filter(**same, state__in=ACTIVE).first():
                raise Problem(409, f"the series moved again: regression {again.pk} is {again.state}")
            regression.events.update(level_since=None)  # no decision ends its level any more
        apply(regression, event, who=who, note=note)
        if not {state, regression.state}.isdisjoint(SETTLED):
            _judge_again(regression)
        _audit(regression, event, who, note=note)
    return regression


def decide(
    regression: Regression, event: str, *, who: str, note: str = "", until: datetime | None = None
) -> set[int]:
    """Apply a person's decision, an event or `mute`, to all regressions of a cause that wait as this one
    does; return their ids. Raise Problem 409 where the state does not permit it, 422 for one that takes them
    from the list without a reason."""
    note = " ".join(note.split())
    with transaction.atomic():
        cause = of_cause(regression)
        list(Series.objects.select_for_update().filter(regressions__in=cause.values("pk")).order_by("pk"))
        members = list(cause.select_related("series__experiment").order_by("pk"))
        refused = list[Problem]()
        for member in members:
            try:
                if event == "mute":
                    mute(regression=member, who=who, until=until, note=note)
                else:
                    act(regression=member, event=Event(event), who=who, note=note)
            except Problem as error:  # noqa: PERF203 — the others are decided on
                refused.append(error)
        if len(refused) == len(members) or (refused and event in _WHOLE):
            raise refused[0]
        if not note and (event in _WHOLE or until):
            raise Problem(422, f"{event} needs a reason", at="/note")
    return {member.pk for member in members}


def mute(*, regression: Regression, who: str, until: datetime | None, note: str = "") -> Regression:
    """Silence a regression until a time, None to end that, with an audit line. Raise Problem 422 unless the
    time is within a year from now, 409 for a regression that is closed."""
    if until is not None and not timedelta() < until - timezone.now() <= LONGEST_MUTE:
        raise Problem(422, "a regression is muted until a time in the future, within a year", at="/until")
    with transaction.atomic():
        if until is not None and regression.state not in ACTIVE:
            text = f"a regression that is {regression.state} waits for nobody and cannot be muted"
            raise Problem(409, text)
        regression.muted_until = until
        regression.save(update_fields=["muted_until"])
        _audit(regression, "mute", who, until=until.isoformat() if until else None, note=note)
        record(regression, event="mute", who=who, note=note)
    return regression


def assign(*, regression: Regression, owner: User | None, who: str) -> Regression:
    """Give a regression to a person, with an audit line."""
    with transaction.atomic():
        regression.owner = owner
        regression.save(update_fields=["owner"])
        name = owner.get_username() if owner else ""
        _audit(regression, "assign", who, owner=name)
        record(regression, event="assign", who=who, note=name)
        if owner:
            Notice.objects.create(regression=regression, state="assigned", who=who)
    return regression


def decide_by_pairs(*, regression: Regression, confirmed: bool, run_id: int, cause: str = "") -> None:
    """Apply the result of a comparison in pairs. With the cause "choice" the regression is of that kind."""
    event = Event.CONFIRMED_BY_PAIRS if confirmed else Event.NOT_REPRODUCED
    with transaction.atomic():
        regression = _locked(regression)
        if next_state(State(regression.state), event):
            if confirmed and cause == "choice":
                regression.kind = Regression.Kind.CHOICE
            regression.undecided = False
            apply(regression, event, note=cause, run_id=run_id)
            if regression.state in SETTLED:
                _judge_again(regression)


def leave_undecided(*, regression: Regression, note: str, run_id: int) -> None:
    """Write down that a comparison in pairs could not tell. The state stays."""
    with transaction.atomic():
        regression = _locked(regression)
        regression.undecided = True
        regression.save(update_fields=["undecided"])
        record(regression, event="cannot tell", note=note, run_id=run_id)


def _locked(regression: Regression) -> Regression:
    """Return the regression as it is now, locked; its series first, as the judge does."""
    Series.objects.select_for_update().get(pk=regression.series_id)
    locked = Regression.objects.select_for_update(of=("self",)).select_related("series__experiment")
    return locked.get(pk=regression.pk)


def _judge_again(regression: Regression) -> None:
    """Mark the series for the judge, from where it moved."""
    touch_series([regression.series_id], regression.since, regression.since)


def _audit(regression: Regression, event: str, who: str, **detail: str | None) -> None:
    subject = f"regression {regression.pk} of {regression.series.experiment}"
    audit.note(who=who, action=f"regression.{event}", subject=subject, detail=detail)
