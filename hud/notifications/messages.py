"""Notices become messages: one for each cause and change of state, in the words of each format.

A message is kept as data; its text is made when it is sent. Notices wait until the judge has nothing left to
judge, so that what one cause moved is one message, but never longer than two minutes.
"""

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from hud.judging.overdue import overdue_suites
from hud.judging.regressions.groups import Group, group
from hud.judging.regressions.states import AT_ONCE, RegressionState
from hud.models import Delivery, Notice, OverdueSuite, Point, Regression, Series, UnjudgedRun, Webhook
from hud.tables.table import DataTable, under

OVERDUE = "overdue"
EVENTS = (*(state.value for state in RegressionState if state != RegressionState.SUSPECT), OVERDUE)
_LONGEST_WAIT = timedelta(minutes=2)
_MOST_NOTICES = 2000  # at once
_LISTED = 20  # regressions or suites that a message names
_OVERDUE = DataTable("stream suite branch arch since")


def queue_messages() -> int:
    """Turn what is in the outbox into deliveries, in one transaction; return how many deliveries."""
    with transaction.atomic():
        notices = list(
            Notice.objects.select_for_update(skip_locked=True, of=("self",))
            .select_related(*(f"regression__series__{name}" for name in ("experiment", "metric", "stream")))
            .select_related(*(f"regression__{name}" for name in ("first_run", "last_good_run", "latest_run")))
            .order_by("pk")[:_MOST_NOTICES]
        )
        if not notices:
            return 0
        is_judging = UnjudgedRun.objects.exists() or Series.objects.filter(touched_at__isnull=False).exists()
        if is_judging and timezone.now() - notices[0].created <= _LONGEST_WAIT:
            return 0
        Notice.objects.filter(pk__in=[notice.pk for notice in notices]).delete()
        webhooks = list(Webhook.objects.filter(active=True))
        now = timezone.now()
        deliveries: list[Delivery] = []
        together: dict[tuple[str, int], dict[int, Notice]] = {}  # of one state and stream
        for notice in notices:
            one = notice.regression
            if not (one.muted_until and one.muted_until > now):
                together.setdefault((notice.state, one.series.stream.pk), {})[one.pk] = notice
        for (state, _stream), same in together.items():
            for cause in group([notice.regression for notice in same.values()]) if webhooks else ():
                data = _regression_data(state, cause, [same[one.pk] for one in cause.members])
                deliveries += _deliveries(webhooks, state, data)
        Delivery.objects.bulk_create(deliveries)
    return len(deliveries)


def queue_overdue(now: datetime) -> int:
    """Queue a message about suites that became overdue, each once in a period; return how many deliveries."""
    with transaction.atomic():
        OverdueSuite.objects.filter(since__lt=now - timedelta(days=30)).delete()
        rows = [_OVERDUE.row(one) for one in overdue_suites(now)]
        new = [row for row in rows if OverdueSuite.objects.get_or_create(**row)[1]]
        if not new:
            return 0
        data = {
            "total": len(new),
            "overdue": [{**row, "since": row["since"].isoformat()} for row in new[:_LISTED]],
            "url": f"{settings.HUD_PUBLIC_URL}/",
        }
        deliveries = _deliveries(list(Webhook.objects.filter(active=True)), OVERDUE, data)
        Delivery.objects.bulk_create(deliveries)
    return len(deliveries)


def _deliveries(webhooks: Iterable[Webhook], event: str, data: dict[str, Any]) -> list[Delivery]:
    message_id = uuid.uuid4()
    return [
        Delivery(webhook=webhook, message_id=message_id, event=event, data=data)
        for webhook in webhooks
        if event in webhook.events
    ]


def _regression_data(state: str, group: Group, notices: Sequence[Notice]) -> dict[str, Any]:
    first = notices[0]
    listed = [notice.regression for notice in notices[:_LISTED]]
    return {
        "state": state,
        "stream": first.regression.series.stream.name,
        "cause": group.why,
        "reason": first.regression.cause if group.why == "host" else "",
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
    rows = [_COLUMNS.row(one) for one in regressions]
    for one, row in zip(regressions, rows, strict=True):
        point = points.get((one.series_id, one.latest_run_id or 0, one.class_key))
        if point and one.kind in AT_ONCE:
            row |= {"before": point.level, "after": point.value}
            row |= {"change": point.change, "factor": point.factor}
    return rows


def _url(one: Regression) -> str:
    return f"{settings.HUD_PUBLIC_URL}/regressions/?id={one.pk}"


_COLUMNS = DataTable(
    f"""id=pk {under("series.experiment", "suite mode dtype backend arch")} case=series.experiment.title
    metric=series.metric.name unit=series.metric.unit kind before after change factor since
    base_commit=last_good_run?.commit head_commit=first_run?.commit url""",
    since=lambda one: one.since.isoformat(),
    url=_url,
)
