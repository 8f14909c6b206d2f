"""The texts of messages: for Slack, as a comment on GitHub, as mail and in feeds. Standard Webhooks carry the
data itself."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from hud.models import Channel, Delivery
from hud.notifications.sending import sign
from hud.states.regressions import RegressionState

OVERDUE, RUN_ENDED, TEST, DIGEST = "overdue", "run.ended", "test", "digest"  # events that are no states
ASSIGNED = "assigned"  # a regression, to a person
_STATES = tuple(state.value for state in RegressionState if state != RegressionState.SUSPECT)
EVENTS = (*_STATES, ASSIGNED, OVERDUE, RUN_ENDED)
_LINES = 10  # of a text; the data names more
_SIMILAR = str.maketrans({"*": "\u2217", "`": "\u02cb", "~": "\u223c"})
_COMMIT = 10  # digits that are shown


def request_of(delivery: Delivery, now: datetime) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers to send, signed as of now. Raise ValueError for a secret that cannot
    sign."""
    follow = delivery.follow
    headers = {"Content-Type": "application/json"}
    if follow.channel == Channel.SLACK:
        return _json({"text": slack_text(delivery.event, delivery.data)}), headers
    if follow.channel == Channel.GITHUB:
        headers |= {"Authorization": f"Bearer {follow.secret}", "Accept": "application/vnd.github+json"}
        return _json({"body": markdown(delivery.event, delivery.data)}), headers
    of_regression = (*_STATES, ASSIGNED)
    kind = f"regression.{delivery.event}" if delivery.event in of_regression else delivery.event
    # the time of the event, and in the header that of the attempt
    said = {"type": kind, "timestamp": delivery.created.astimezone(UTC).isoformat()}
    body, message_id = _json({**said, "data": delivery.data}), f"msg_{delivery.message_id.hex}"
    timestamp = int(now.timestamp())
    headers |= {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    return body, headers | {"webhook-signature": sign(follow.secret, message_id, timestamp, body)}


def slack_text(event: str, data: dict[str, Any]) -> str:
    """Return the message in Slack's mrkdwn."""
    lines = _lines(event, data, "<{url}|{text}>", _slack)
    return "\n".join([f"*{_slack(headline(event, data))}*", *lines])


def markdown(event: str, data: dict[str, Any]) -> str:
    """Return the message as GitHub's Markdown."""
    lines = _lines(event, data, "[{text}]({url})", _plain)
    return "\n".join([f"**{_plain(headline(event, data))}**", "", *(f"- {line}" for line in lines)])


def plain_text(delivery: Delivery) -> str:
    """Return the lines of a mail or of an entry in a feed, with what led to it."""
    lines = _lines(delivery.event, delivery.data, "{text}\n  {url}", unlinked)
    return "\n".join([*lines, "", f"You follow {unlinked(str(delivery.follow))}."])


def headline(event: str, data: dict[str, Any]) -> str:
    """Return the message in one sentence."""
    if event == TEST:
        return "Compiler HUD: messages arrive here"
    if event == DIGEST:
        return f"Compiler HUD: {len(data['messages'])} changes"
    if event == RUN_ENDED:
        verdict = f", {data['verdict']}" if data["verdict"] else ""
        return f"Run {data['id']} of {data['stream']} {data['state']}{verdict}: {data['title']}"
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
    if event == DIGEST:
        messages = [(headline(one["event"], one["data"]), one["data"]["url"]) for one in data["messages"]]
        return [link.format(text=quoted(text), url=url) for text, url in messages]
    if event == RUN_ENDED:
        where = " ".join(filter(None, (data["branch"], data["commit"][:_COMMIT])))
        texts = [quoted(text) for text in (where, data["reason"]) if text]
        has_address = data["url"].startswith("http")
        return [link.format(text=f"run {data['id']}", url=data["url"]), *texts] if has_address else texts
    if event == OVERDUE:
        rows = [
            f"{quoted(row.get('stream', ''))} {quoted(row['suite'])} on {quoted(row['arch'] or 'any arch')}, "
            f"branch {quoted(row['branch'])}: latest result {row['since'][:16].replace('T', ' ')} UTC"
            for row in data["overdue"][:_LINES]
        ]
        return [*rows, *_more(data["total"] - len(rows))]
    rows = []
    for row in data["regressions"][:_LINES]:
        where = " ".join(filter(None, (row["backend"], row["mode"], row["dtype"], row["arch"])))
        commits = [row[name][:_COMMIT] for name in ("base_commit", "head_commit") if row[name]]
        between = f", {' to '.join(commits)}" if commits else ""
        title = quoted(f"{row['suite']} {row['case']}")
        if row["url"].startswith("http"):
            title = link.format(text=title, url=row["url"])
        rows.append(f"{title} ({quoted(where)}) {quoted(row['metric'])}: {quoted(_change(row) + between)}")
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


def unlinked(text: str) -> str:
    """Return text on one line, in which nothing is taken for a link."""
    return "".join(filter(str.isprintable, _one_line(text))).replace("://", ":\u200b//")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
