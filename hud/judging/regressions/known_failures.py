"""Failures that are no news, because a list expects them or a person has marked them: they open no
regression, and one that is open ends without a message."""

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction

from hud.accounts import audit
from hud.judging.regressions.events import close
from hud.judging.regressions.groups import by_key
from hud.models import Experiment, KnownFailure, Notice, Regression, Series, Stream
from hud.points.expectations import Expectations
from hud.problems import Problem
from hud.states.regressions import ACTIVE, RegressionKind
from runner.formats.scalars import INVISIBLE

MOST_REASON = 1000  # characters


def mark(*, stream: Stream, experiment: Experiment, reason: str, who: str) -> KnownFailure:
    """Mark the failures of an experiment in a stream as known, with an audit line. Raise Problem 422."""
    reason = " ".join(reason.split())
    if not 1 <= len(reason) <= MOST_REASON or INVISIBLE.search(reason):
        raise Problem(422, f"1 to {MOST_REASON} characters that can be seen", at="/reason")
    with transaction.atomic():
        series = Series.objects.select_for_update().filter(experiment=experiment, stream=stream)
        if not series.order_by("pk"):  # which locks them
            words = "has no results of this experiment: name a stream that has"
            raise Problem(422, f"{stream.name} {words}", at="/stream")
        failure, _new = KnownFailure.objects.update_or_create(
            stream=stream, experiment=experiment, defaults={"reason": reason, "author": who[:150]}
        )
        _note(failure, who, "mark")
        active = Regression.objects.filter(
            series__experiment=experiment, series__stream=stream, state__in=ACTIVE
        ).select_related("series__metric")
        for regression in active.select_for_update(of=("self",)).order_by("pk"):
            if is_failure(regression):
                end(regression, reason, who=who)
    return failure


def forget(failure: KnownFailure, *, who: str) -> None:
    """Take a mark away, with an audit line. A failure that goes on is news again with the next night."""
    with transaction.atomic():
        _note(failure, who, "forget")
        failure.delete()


def is_failure(regression: Regression) -> bool:
    """Return whether there is no value any more, or no right one."""
    return regression.kind == RegressionKind.FAILURE or regression.series.metric.kind == "status"


def end(regression: Regression, reason: str, *, who: str = "", run_id: int | None = None) -> None:
    """Close the regression of a known failure; nobody is told, also not of its beginning."""
    close(regression, run_id=run_id, who=who, note=f"known failure: {reason}")
    Notice.objects.filter(regression=regression).delete()


def reasons(failing: Iterable[tuple[Series, datetime]]) -> dict[int, str]:
    """Return why failures at these times are no news, by series; '' if they are: 2 statements a stream."""
    why: dict[int, str] = {}
    for own in by_key(failing, lambda pair: pair[0].stream_id):
        expected = Expectations(own[0][0].stream_id, [series.experiment for series, _time in own])
        why |= {series.pk: expected.known_failure(series.experiment, time) for series, time in own}
    return why


def _note(failure: KnownFailure, who: str, event: str) -> None:
    subject = f"known failure of {failure.experiment} in {failure.stream}"
    audit.note(who=who, action=f"known_failure.{event}", subject=subject, detail={"reason": failure.reason})
