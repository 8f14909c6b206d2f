"""Notices become messages: one for each cause and change of state, and each run that ended, in the words of
each format.

A message is kept as data; its text is made when it is sent. Notices wait until the judge has nothing left to
judge, so that what one cause moved is one message, but never longer than two minutes.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from hud.judging.backlog import overdue_suites
from hud.judging.compare.ab_runs import result_of
from hud.judging.regressions.groups import CauseLines, group
from hud.models import (
    Delivery,
    Notice,
    OverdueSuite,
    Point,
    Regression,
    Run,
    RunEnd,
    Series,
    UnjudgedRun,
    Webhook,
    WebhookFormat,
)
from hud.notifications.sending import sign
from hud.states.regressions import AT_ONCE, RegressionState
from hud.tables.table import DataTable, under

OVERDUE, RUN_ENDED, TEST = "overdue", "run.ended", "test"  # events that are no states of a regression
_STATES = tuple(state.value for state in RegressionState if state != RegressionState.SUSPECT)
EVENTS = (*_STATES, OVERDUE, RUN_ENDED)
_LONGEST_WAIT = timedelta(minutes=2)
_MOST_NOTICES = 2000  # at once
_LISTED = 20  # regressions or suites that a message names
_OVERDUE = DataTable("stream suite branch arch since")
_LINES = 10  # of a text; the data names more
_SIMILAR = str.maketrans({"*": "\u2217", "`": "\u02cb", "~": "\u223c"})
_COMMIT = 10  # digits that are shown


def queue_messages() -> int:
    """Turn what is in the outbox into deliveries, in one transaction; return how many deliveries."""
    with transaction.atomic():
        notices = list(
            Notice.objects.select_for_update(skip_locked=True, of=("self",))
            .select_related(*(f"regression__series__{name}" for name in ("experiment", "metric", "stream")))
            .select_related(*(f"regression__{name}" for name in ("first_run", "last_good_run", "latest_run")))
            .order_by("pk")[:_MOST_NOTICES]
        )
        ended = list(RunEnd.objects.select_for_update(skip_locked=True).order_by("pk")[:_MOST_NOTICES])
        if not (notices or ended):
            return 0
        is_judging = UnjudgedRun.objects.exists() or Series.objects.filter(touched_at__isnull=False).exists()
        oldest = min([row.created for row in notices] + [row.created for row in ended])
        if is_judging and timezone.now() - oldest <= _LONGEST_WAIT:
            return 0
        for outbox, rows in ((Notice, notices), (RunEnd, ended)):
            outbox._default_manager.filter(pk__in=[row.pk for row in rows]).delete()
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
                data = _regression_data(state, cause, [same[line.pk] for line in cause.lines])
                deliveries += _deliveries(webhooks, state, data)
        listeners = [webhook for webhook in webhooks if RUN_ENDED in webhook.events]
        runs = Run.objects.filter(pk__in=[end.run_id for end in ended] if listeners else [])
        for run in runs.select_related("request", "stream").order_by("finished"):
            deliveries += _deliveries(listeners, RUN_ENDED, _run_data(run))
        Delivery.objects.bulk_create(deliveries)
    return len(deliveries)


def queue_overdue(now: datetime) -> int:
    """Queue a message about suites that became overdue, each once in a period; return how many deliveries."""
    with transaction.atomic():
        OverdueSuite.objects.filter(since__lt=now - timedelta(days=30)).delete()
        rows = [_OVERDUE.row(suite) for suite in overdue_suites(now)]
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


def _run_data(run: Run) -> dict[str, Any]:
    url = f"{settings.HUD_PUBLIC_URL}/runs/{run.pk}/"
    return {**_OF_RUN.row(run), **result_of(run), "url": url}


def _regression_data(state: str, cause: CauseLines, notices: Sequence[Notice]) -> dict[str, Any]:
    first = notices[0]
    listed = [notice.regression for notice in notices[:_LISTED]]
    return {
        "state": state,
        "stream": first.regression.series.stream.name,
        "cause": cause.why,
        "reason": first.regression.cause if cause.why == "host" else "",
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

_OF_RUN = DataTable[Run](
    """id=pk title reason stream=stream.name branch commit pull_request=request_or_empty.pull_request
    requested_by=request_or_empty.requested_by"""
)


# ---- the texts: for Slack, and as a comment on GitHub; Standard Webhooks carry the data itself


def request_of(delivery: Delivery, now: datetime) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers to send, signed as of now. Raise ValueError for a secret that cannot
    sign."""
    webhook = delivery.webhook
    headers = {"Content-Type": "application/json"}
    if webhook.format == WebhookFormat.SLACK:
        return _json({"text": slack_text(delivery.event, delivery.data)}), headers
    if webhook.format == WebhookFormat.GITHUB:
        headers |= {"Authorization": f"Bearer {webhook.secret}", "Accept": "application/vnd.github+json"}
        return _json({"body": markdown(delivery.event, delivery.data)}), headers
    kind = f"regression.{delivery.event}" if delivery.event in _STATES else delivery.event
    # the time of the event, and in the header that of the attempt
    said = {"type": kind, "timestamp": delivery.created.astimezone(UTC).isoformat()}
    body, message_id = _json({**said, "data": delivery.data}), f"msg_{delivery.message_id.hex}"
    timestamp = int(now.timestamp())
    headers |= {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    return body, headers | {"webhook-signature": sign(webhook.secret, message_id, timestamp, body)}


def slack_text(event: str, data: dict[str, Any]) -> str:
    """Return the message in Slack's mrkdwn."""
    lines = _lines(event, data, "<{url}|{text}>", _slack)
    return "\n".join([f"*{_slack(headline(event, data))}*", *lines])


def markdown(event: str, data: dict[str, Any]) -> str:
    """Return the message as GitHub's Markdown."""
    lines = _lines(event, data, "[{text}]({url})", _plain)
    return "\n".join([f"**{_plain(headline(event, data))}**", "", *(f"- {line}" for line in lines)])


def headline(event: str, data: dict[str, Any]) -> str:
    """Return the message in one sentence."""
    if event == TEST:
        return "Compiler HUD: this webhook works"
    if event == RUN_ENDED:
        found = f", {data['verdict']}" if data["verdict"] else ""
        return f"Run {data['id']} of {data['stream']} {data['state']}{found}: {data['title']}"
    if event == OVERDUE:
        return f"{data['total']} suite{'s' * (data['total'] != 1)} without results for 36 hours"
    rows = data["regressions"]
    words = {"open": "Regression", "confirmed": "Regression confirmed"}.get(event, f"Regression {event}")
    words += f" in {data['stream']}" if data.get("stream") else ""  # a message of an earlier release has none
    by = f" by {data['who']}" if data["who"] else ""
    host = ", probably the host" if data["cause"] == "host" else ""
    if data["experiments"] == 1:
        return f"{words}{by}: {rows[0]['suite']} {rows[0]['case']} {_change(rows[0])}{host}"
    family = f" of {rows[0]['suite']} on {rows[0]['backend']}" if data["cause"] == "backend" else ""
    return f"{words}{by}: {data['experiments']} experiments{family}{host}"


def _lines(event: str, data: dict[str, Any], link: str, quoted: Callable[[str], str]) -> Sequence[str]:
    if event == TEST:
        return []
    if event == RUN_ENDED:
        where = " ".join(filter(None, (data["branch"], data["commit"][:_COMMIT])))
        texts = [quoted(text) for text in (where, data["reason"]) if text]
        has_address = data["url"].startswith("http")
        return [link.format(text=f"run {data['id']}", url=data["url"]), *texts] if has_address else texts
    if event == OVERDUE:
        rows = [
            f"{quoted(one.get('stream', ''))} {quoted(one['suite'])} on {quoted(one['arch'] or 'any arch')}, "
            f"branch {quoted(one['branch'])}: latest result {one['since'][:16].replace('T', ' ')} UTC"
            for one in data["overdue"][:_LINES]
        ]
        return [*rows, *_more(data["total"] - len(rows))]
    rows = []
    for one in data["regressions"][:_LINES]:
        where = " ".join(filter(None, (one["backend"], one["mode"], one["dtype"], one["arch"])))
        commits = [one[name][:_COMMIT] for name in ("base_commit", "head_commit") if one[name]]
        between = f", {' to '.join(commits)}" if commits else ""
        title = quoted(f"{one['suite']} {one['case']}")
        if one["url"].startswith("http"):
            title = link.format(text=title, url=one["url"])
        rows.append(f"{title} ({quoted(where)}) {quoted(one['metric'])}: {quoted(_change(one) + between)}")
    note = [quoted(said) for said in (data.get("reason"), data["note"]) if said]
    return [*note, *rows, *_more(data["total"] - len(rows))]


def _more(count: int) -> list[str]:
    return [f"and {count} more"] if count > 0 else []


def _change(row: dict[str, Any]) -> str:
    if row["kind"] == "failure":
        return "failed"
    if row["change"] is None or row["before"] is None or row["after"] is None:
        return "moved"
    unit = f" {row['unit']}" if row["unit"] else ""
    return f"{row['before']:.4g} to {row['after']:.4g}{unit} ({row['change']:+.1%})".replace("-", "−")


def _slack(text: str) -> str:
    """Return text that Slack takes as it stands. It has no escapes: marks become similar characters, and an
    address gets a space of no width, so that it is no link."""
    text = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.translate(_SIMILAR).replace("://", ":\u200b//")


def _plain(text: str) -> str:
    """Return text that Markdown takes as it stands: no markup, no mention of people."""
    for char in "\\`*_[]<>#|~":
        text = text.replace(char, f"\\{char}")
    return _one_line(text).replace("@", "@\u200b").replace("://", ":\u200b//")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
