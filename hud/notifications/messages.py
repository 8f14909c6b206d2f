"""Notices become messages: one for each cause and change of state, and each run that ended, to each receiver
that follows it.

A message is kept as data; its text is made when it is sent. Notices wait until the judge has nothing left to
judge, so that what one cause moved is one message, but never longer than two minutes.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from hud.judging.backlog import overdue_suites
from hud.judging.compare.ab_runs import result_of
from hud.judging.regressions.groups import CauseLines, by_key, group
from hud.models import (
    Delivery,
    Follow,
    Notice,
    OverdueSuite,
    Point,
    Regression,
    RegressionEvent,
    Run,
    RunEnd,
    Series,
    UnjudgedRun,
)
from hud.notifications.texts import OVERDUE, RUN_ENDED
from hud.states.regressions import AT_ONCE
from hud.tables.table import DataTable, under

_LONGEST_WAIT = timedelta(minutes=2)
_MOST_NOTICES = 2000  # at once
_LISTED = 20  # regressions or suites that a message names
T = TypeVar("T")
RELATED = [
    *(f"regression__series__{name}" for name in ("experiment", "metric", "stream")),
    *(f"regression__{name}" for name in ("first_run", "last_good_run", "latest_run", "owner")),
]
_OVERDUE = DataTable("stream suite branch arch since")


def queue_messages() -> int:
    """Turn what is in the outbox into deliveries, in one transaction; return how many deliveries."""
    with transaction.atomic():
        waiting = Notice.objects.select_for_update(skip_locked=True, of=("self",)).select_related(*RELATED)
        notices = list(waiting.order_by("pk")[:_MOST_NOTICES])
        ended = list(RunEnd.objects.select_for_update(skip_locked=True).order_by("pk")[:_MOST_NOTICES])
        if not (notices or ended):
            return 0
        is_judging = UnjudgedRun.objects.exists() or Series.objects.filter(touched_at__isnull=False).exists()
        oldest = min([row.created for row in notices] + [row.created for row in ended])
        if is_judging and timezone.now() - oldest <= _LONGEST_WAIT:
            return 0
        for outbox, rows in ((Notice, notices), (RunEnd, ended)):
            outbox._default_manager.filter(pk__in=[row.pk for row in rows]).delete()
        follows = active_follows()
        deliveries = [*_of_notices(follows, notices), *_of_ends(follows, [end.run_id for end in ended])]
        Delivery.objects.bulk_create(deliveries)
    return len(deliveries)


def _of_notices(follows: Sequence[Follow], notices: Iterable[Notice]) -> Iterator[Delivery]:
    now = timezone.now()
    together: dict[tuple[str, int], dict[int, Notice]] = {}  # of one state and stream
    for notice in notices:
        one = notice.regression
        if not (one.muted_until and one.muted_until > now):
            together.setdefault((notice.state, one.series.stream.pk), {})[one.pk] = notice
    for (state, _stream), same in together.items():
        for cause in group([notice.regression for notice in same.values()]) if follows else ():
            of_cause = [same[line.pk] for line in cause.lines]
            data = partial(_regression_data, state, cause.why)
            yield from _deliveries(follows, state, of_cause, lambda one: _FOLLOWED.row(one.regression), data)


def of_events(follow: Follow, events: Iterable[RegressionEvent]) -> list[Delivery]:
    """Return the messages, not stored, that a follow would get of what happened to regressions."""
    notices = [
        Notice(regression=one.regression, state=one.after, note=one.note, who=one.who) for one in events
    ]
    return list(_of_notices([follow], notices))


def of_cause(cause: CauseLines) -> dict[str, Any]:
    """Return what a message would say of a cause as it is."""
    notices = [Notice(regression=line, state=line.state, note=line.note) for line in cause.lines]
    return _regression_data(cause.first.state, cause.why, notices)


def _of_ends(follows: Sequence[Follow], ids: Sequence[int]) -> Iterator[Delivery]:
    if not any(RUN_ENDED in follow.events for follow in follows):
        return
    for run in Run.objects.filter(pk__in=ids).select_related("request", "stream").order_by("finished"):
        yield from _deliveries(follows, RUN_ENDED, [run], _about_run, _run_data)


def queue_overdue(now: datetime) -> int:
    """Queue a message about suites that became overdue, each once in a period; return how many deliveries."""
    with transaction.atomic():
        OverdueSuite.objects.filter(since__lt=now - timedelta(days=30)).delete()
        rows = [_OVERDUE.row(suite) for suite in overdue_suites(now)]
        new = [row for row in rows if OverdueSuite.objects.get_or_create(**row)[1]]
        deliveries = list(_deliveries(active_follows(), OVERDUE, new, lambda row: row, _overdue_data))
        Delivery.objects.bulk_create(deliveries)
    return len(deliveries)


def active_follows() -> list[Follow]:
    """Return the follows that are not paused, those at once first: 1 statement."""
    follows = Follow.objects.filter(active=True).exclude(user__is_active=False)
    return list(
        follows.select_related("user", "owner", "stream", "regression").order_by(
            F("hour").asc(nulls_first=True), "pk"
        )
    )


def _deliveries(
    follows: Iterable[Follow],
    event: str,
    subjects: Sequence[T],
    about: Callable[[T], Mapping[str, object]],
    data: Callable[[Sequence[T]], dict[str, Any]],
) -> Iterator[Delivery]:
    """Yield a message for each receiver that follows one of the subjects, with the `data` of those that it
    follows; `about` returns what conditions may ask of a subject."""
    message_id, now = uuid.uuid4(), timezone.now()
    facts = [about(subject).items() for subject in subjects]
    for same in by_key((one for one in follows if event in one.events), lambda one: one.receiver):
        wanted = [one.conditions.items() for one in same]
        fits = [[conditions <= known for known in facts] for conditions in wanted]
        told = [subject for subject, *fit in zip(subjects, *fits, strict=True) if any(fit)]
        if told:
            first = next(one for one, fit in zip(same, fits, strict=True) if any(fit))
            due = first.next_due(now)
            yield Delivery(follow=first, message_id=message_id, event=event, data=data(told), due=due)


def _about_run(run: Run) -> dict[str, object]:
    request = run.request_or_empty
    return {"stream": run.stream.name, "suite": request.selection.get("suite"), "arch": request.arch}


def _overdue_data(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    listed = [{**row, "since": row["since"].isoformat()} for row in rows[:_LISTED]]
    return {"total": len(rows), "overdue": listed, "url": f"{settings.HUD_PUBLIC_URL}/"}


def _run_data(runs: Sequence[Run]) -> dict[str, Any]:
    return {**_OF_RUN.row(runs[0]), **result_of(runs[0])}


def _regression_data(state: str, why: str, notices: Sequence[Notice]) -> dict[str, Any]:
    first = notices[0]
    listed = [notice.regression for notice in notices[:_LISTED]]
    return {
        "state": state,
        "stream": first.regression.series.stream.name,
        "cause": why,
        "reason": first.regression.cause if why == "host" else "",
        "total": len(notices),
        "experiments": len({notice.regression.series.experiment_id for notice in notices}),
        "who": first.who,
        "note": first.note,
        "regressions": _rows(listed),
        "url": _url(first.regression),
    }


def _rows(regressions: Sequence[Regression]) -> list[dict[str, Any]]:
    """Return what a message says of regressions: their numbers are those of the newest point that moved, 1
    statement. A small step or a drift is one of many points, and has numbers of its own."""
    series, runs = ([getattr(one, name) for one in regressions] for name in ("series_id", "latest_run_id"))
    moved = Point.objects.filter(series__in=series, run__in=runs, verdict_code__isnull=False)
    points = {
        (point.series_id, point.run_id, point.environment.class_key): point
        for point in moved.select_related("environment").order_by("order_time")
    }
    rows = [_COLUMNS.row(regression) for regression in regressions]
    for one, row in zip(regressions, rows, strict=True):
        point = points.get((one.series_id, one.latest_run_id or 0, one.class_key))
        if point and one.kind in AT_ONCE:
            row |= {"before": point.level, "after": point.value}
            row |= {"change": point.change, "factor": point.factor}
    return rows


def _url(regression: Regression) -> str:
    return f"{settings.HUD_PUBLIC_URL}/regressions/?id={regression.pk}"


_COLUMNS = DataTable(
    f"""id=pk {under("series.experiment", "suite mode dtype backend arch")} case=series.experiment.title
    metric=series.metric.name unit=series.metric.unit kind before after change factor since
    base_commit=last_good_run?.commit head_commit=first_run?.commit url""",
    since=lambda one: one.since.isoformat(),
    url=_url,
)

_FOLLOWED = DataTable[Regression](
    f"""owner=owner?.username stream=series.stream.name regression=cause_key
    {under("series.experiment", "suite case arch")}"""
)
_OF_RUN = DataTable[Run](
    """id=pk title reason stream=stream.name branch commit pull_request=request_or_empty.pull_request
    requested_by=request_or_empty.requested_by url""",
    url=lambda run: f"{settings.HUD_PUBLIC_URL}/runs/{run.pk}/",
)
