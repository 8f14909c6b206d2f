"""Regressions as rows: opened, followed and closed by the judge, decided by people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from hud.accounts import audit
from hud.judging.levels import Level, Move, Point
from hud.judging.regression_states import ACTIVE, BY_PEOPLE, SETTLED, Event, next_state, possible
from hud.judging.verdict import Verdict
from hud.models import Regression, RegressionEvent, Series

_AGREE = 2  # points that moved the same way open a suspect where no host repeats it
State = Regression.State


class CannotDo(Exception):
    """A regression's state does not permit the event. The text says what is possible."""


@dataclass(frozen=True)
class Judged:
    """A series in one class of environments after its newest point was judged."""

    series: Series
    class_key: str
    level: Level
    newest: Point
    verdict: Verdict


def settled(series_ids: Collection[int]) -> dict[tuple[int, str], list[datetime]]:
    """Return when a decision has ended the level of these series, by series and class."""
    found: dict[tuple[int, str], list[datetime]] = {}
    decided = Regression.objects.filter(series__in=series_ids, state__in=SETTLED).exclude(drifts=True)
    for series_id, class_key, since, points in decided.values_list("series", "class_key", "since", "points"):
        if points >= _AGREE:  # one point that nothing else agreed with was noise, and no level
            found.setdefault((series_id, class_key), []).append(since)
    return found


def update(judged: Sequence[Judged]) -> None:
    """Open, follow and close the regressions of series that were just judged: 2 statements where nothing has
    moved."""
    latest: dict[tuple[int, str], Regression] = {}
    found = Regression.objects.filter(series__in=[one.series.pk for one in judged]).order_by("pk")
    for regression in found:
        latest[regression.series_id, regression.class_key] = regression
    for one in judged:
        known = latest.get((one.series.pk, one.class_key))
        move = one.level.move
        if move and move.worse and not move.back:
            _follow(one, move, known)
        elif known and known.state in ACTIVE and not known.drifts:
            _come_back(one, move, known)


def _follow(one: Judged, move: Move, known: Regression | None) -> None:
    """Open a regression for the move, or bring the one that is there up to date."""
    regression = known if known and _is_same(known, move) else Regression(failed=move.failed)
    regression.series, regression.class_key = one.series, one.class_key
    is_new, before = regression.pk is None, regression.state
    is_sure = move.certain or move.points >= _AGREE
    if regression.state not in ACTIVE:
        if not is_sure:
            return  # one point is not yet the same thing again
        _set_state(regression, Event.MOVED_AGAIN)
    regression.since, regression.points = move.time, move.points
    regression.first_run_id, regression.last_good_run_id = move.run_id, move.last_good_run
    regression.latest_run_id = one.newest.run_id
    regression.before, regression.after = one.verdict.baseline, move.latest
    regression.change, regression.factor = one.verdict.change, one.verdict.factor
    regression.save()
    if is_new:
        _record(regression, "", regression.state, run_id=move.run_id)
    elif regression.state != before:
        _record(regression, before, regression.state, event=Event.MOVED_AGAIN, run_id=move.run_id)
    if regression.state == State.SUSPECT and is_sure:
        _apply(regression, Event.AGREED, run_id=one.newest.run_id)


def _is_same(regression: Regression, move: Move) -> bool:
    """Return whether the move is this regression's, going on or beginning again."""
    return regression.state != State.ACCEPTED and regression.failed == move.failed


def _come_back(one: Judged, move: Move | None, regression: Regression) -> None:
    """Close an active regression whose series is at its level again."""
    if regression.state == State.SUSPECT:
        _apply(regression, Event.DISAGREED, run_id=one.newest.run_id)
    elif move is None:
        _apply(regression, Event.RECOVERED, run_id=one.newest.run_id)


def act(*, regression: Regression, event: Event, who: str, note: str = "") -> Regression:
    """Apply a person's decision, with an audit line. Raise CannotDo if the state does not permit it.

    Accepting or dismissing makes the present level the baseline: the series is judged again from there.
    """
    with transaction.atomic():
        regression = Regression.objects.select_for_update().select_related("series").get(pk=regression.pk)
        state = State(regression.state)
        if event not in BY_PEOPLE or next_state(state, event) is None:
            words = ", ".join(possible(state)) or "nothing"
            raise CannotDo(f"a regression that is {state} can be: {words}; not {event}")
        if note:
            regression.note = note
        _apply(regression, event, who=who, note=note)
        if regression.state in SETTLED:
            judge_again([regression])
        audit.note(who=who, action=f"regression.{event}", subject=_subject(regression), detail={"note": note})
    return regression


def mute(*, regression: Regression, who: str, until: datetime | None, note: str = "") -> Regression:
    """Silence a regression until a time, None to end that, with an audit line."""
    with transaction.atomic():
        regression.muted_until = until
        regression.save(update_fields=["muted_until"])
        detail = {"until": until.isoformat() if until else None, "note": note}
        audit.note(who=who, action="regression.mute", subject=_subject(regression), detail=detail)
        _record(regression, regression.state, regression.state, event="mute", who=who, note=note)
    return regression


def assign(*, regression: Regression, owner: User | None, who: str) -> Regression:
    """Give a regression to a person, with an audit line."""
    with transaction.atomic():
        regression.owner = owner
        regression.save(update_fields=["owner"])
        name = owner.get_username() if owner else ""
        audit.note(who=who, action="regression.assign", subject=_subject(regression), detail={"owner": name})
        _record(regression, regression.state, regression.state, event="assign", who=who, note=name)
    return regression


def decide_by_pairs(*, regression: Regression, confirmed: bool, run_id: int) -> None:
    """Apply the result of a comparison in pairs."""
    event = Event.CONFIRMED_BY_PAIRS if confirmed else Event.NOT_REPRODUCED
    if next_state(State(regression.state), event):
        with transaction.atomic():
            _apply(regression, event, run_id=run_id)
            if regression.state in SETTLED:
                judge_again([regression])


def judge_again(decided: Iterable[Regression]) -> None:
    """Mark the series of these regressions for the judge, from where they moved."""
    for one in decided:
        series = Series.objects.select_for_update().get(pk=one.series_id)
        series.touched_at = min(filter(None, (series.touched_at, one.since)))
        series.touched_until = series.touched_until or one.since
        series.save(update_fields=["touched_at", "touched_until"])


def _apply(
    regression: Regression, event: Event, *, who: str = "", note: str = "", run_id: int | None = None
) -> None:
    before = regression.state
    _set_state(regression, event)
    regression.save()
    _record(regression, before, regression.state, event=event, who=who, note=note, run_id=run_id)


def _set_state(regression: Regression, event: Event) -> None:
    after = next_state(State(regression.state), event)
    assert after, f"{event} means nothing in the state {regression.state}"
    regression.state, regression.state_since = after, timezone.now()


def _record(
    regression: Regression,
    before: str,
    after: str,
    *,
    event: str = "seen",
    who: str = "",
    note: str = "",
    run_id: int | None = None,
) -> None:
    RegressionEvent.objects.create(
        regression=regression, event=event, before=before, after=after, who=who, note=note, run_id=run_id
    )


def _subject(regression: Regression) -> str:
    return f"regression {regression.pk} of {regression.series.experiment}"
