"""Create, change, test and delete follows, each with an audit line, and deliver messages to them.

An attempt is noted before it is made, and repeated until the receiver has answered with 2xx. Where a process
ends between sending and noting the answer, a standard webhook gets the message again, under the same id; what
cannot drop a repeat (Slack, GitHub, mail) does not. Any number of processes may deliver.
"""

import base64
import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from secrets import token_bytes, token_urlsafe
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.mail import EmailMessage, get_connection
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from hud.accounts import audit
from hud.accounts.roles import scopes_of_user
from hud.judging.regressions.groups import of_cause
from hud.models import Channel, Delivery, Follow, Regression, RegressionEvent, Series
from hud.notifications.messages import RELATED, of_events, queue_messages, queue_overdue
from hud.notifications.sending import (
    SECRET_PREFIX,
    CannotSend,
    WebhookAnswer,
    check_address,
    post,
    secret_key,
)
from hud.notifications.texts import DIGEST, TEST, headline, plain_text, request_of, unlinked
from hud.states.regressions import TOLD

logger = logging.getLogger(__name__)
# seconds from one attempt to the next; after the last one a message is given up
BACKOFF_S = (5, 30, 120, 600, 3600, 4 * 3600, 10 * 3600, 24 * 3600)
_PREVIEWED = 100  # changes
_AT_ONCE_S = 30  # an attempt takes less; until then nobody else makes it
_GONE = 410  # the receiver wants no more messages
_OVERDUE_EVERY_S = 60.0
_KEPT = timedelta(days=30)  # of what was delivered or given up
_MOST = 100  # follows of a person
LOOK_BACK = timedelta(days=14)
POSTED = (Channel.STANDARD, Channel.SLACK, Channel.GITHUB)
_WAITS = Q(delivered=None, given_up=None)
_PATHS = {name: f"experiment__{name}" for name in ("suite", "case", "arch")} | {"stream": "stream"}


def save(follow: Follow, *, who: str) -> None:
    """Store a new or changed follow; a standard webhook and a feed without a secret get one. Raise
    ValidationError, by field, also for an address that is not public."""
    if follow.channel == Channel.STANDARD:
        follow.secret = follow.secret or SECRET_PREFIX + base64.b64encode(token_bytes(32)).decode()
        try:
            secret_key(follow.secret)
        except ValueError as error:
            text = "it is whsec_ and 24 to 64 bytes in base64, or empty for a new one"
            raise ValidationError({"secret": text}) from error
    elif follow.channel == Channel.GITHUB and not follow.secret:
        raise ValidationError({"secret": "a comment on GitHub needs a token that may write it"})
    elif follow.channel == Channel.FEED:
        follow.secret = follow.secret or token_urlsafe(32)
    if follow.channel not in POSTED and not (follow.channel == Channel.MAIL and _is_of_operators(follow)):
        follow.url = ""  # mail goes to the address of the login
    address = follow.receiver[1]
    if follow.channel == Channel.MAIL and not ("@" in address and address.isprintable()):
        raise ValidationError({"url": "this needs a mail address, and the login has none"})
    if follow.channel in POSTED:
        try:
            check_address(follow.url, private=_may_be_private(follow))
        except CannotSend as error:
            raise ValidationError({"url": str(error)}) from error
    with transaction.atomic():
        if follow.pk is None and follow.user and follow.user.follows.count() >= _MOST:
            raise ValidationError(f"{_MOST} follows are the most that a person may have")
        action = "follow.change" if follow.pk else "follow.create"
        follow.save()
        # neither the secret nor the path, which may be one
        detail: dict[str, Any] = {"host": urlsplit(follow.url).netloc, **follow.conditions}
        detail |= {name: getattr(follow, name) for name in ("channel", "hour", "events", "active")}
        audit.note(who=who, action=action, subject=f"follow {follow}", detail=detail)


def set_active(follow: Follow, *, active: bool, who: str) -> None:
    """Pause or resume a follow. What waited for it meanwhile is old news, and dropped."""
    with transaction.atomic():
        if active and not follow.active:
            follow.deliveries.filter(delivered=None).delete()
        follow.active = active
        follow.save(update_fields=["active"])
        audit.note(who=who, action=f"follow.{'resume' if active else 'pause'}", subject=f"follow {follow}")


def delete(follow: Follow, *, who: str) -> None:
    with transaction.atomic():
        audit.note(who=who, action="follow.delete", subject=f"follow {follow}")
        follow.delete()


def test(follow: Follow, *, who: str) -> bool:
    """Send a message now, once; return whether it was received. The follow has the result."""
    audit.note(who=who, action="follow.test", subject=f"follow {follow}")
    data: dict[str, Any] = {"follow": str(follow), "who": who, "url": f"{settings.HUD_PUBLIC_URL}/follow/"}
    delivery = Delivery.objects.create(
        follow=follow, event=TEST, data=data, attempts=1, given_up=timezone.now()
    )
    delivery.refresh_from_db()
    received = attempt(delivery)
    follow.refresh_from_db()
    return received


def matched(follow: Follow) -> dict[str, int]:
    """Count series and open regressions that meet the conditions, and changes of the last two weeks that did:
    3 statements."""
    series, regressions, changes = _meeting(follow)
    is_open = regressions.filter(state__in=TOLD)
    return {"series": series.count(), "open": is_open.count(), "changes": changes.count()}


def preview(follow: Follow) -> tuple[datetime | None, list[tuple[str, str]]]:
    """Return the last day of two weeks with changes, and the messages of that day with their addresses."""
    newest = list(_meeting(follow)[2].select_related(*RELATED).order_by("-at")[:_PREVIEWED])
    last_day = [one for one in newest if one.at.date() == newest[0].at.date()]
    messages = [(headline(one.event, one.data), one.data["url"]) for one in of_events(follow, last_day)]
    return (newest[0].at if newest else None), messages


def _meeting(
    follow: Follow,
) -> tuple[QuerySet[Series], QuerySet[Regression], QuerySet[RegressionEvent]]:
    """Return the series, regressions and recent changes of state that meet the conditions."""
    wanted = {path: getattr(follow, name) for name, path in _PATHS.items() if getattr(follow, name)}
    series = Series.objects.filter(**wanted)
    regressions = Regression.objects.filter(**{f"series__{path}": value for path, value in wanted.items()})
    if follow.owner:
        regressions = regressions.filter(owner=follow.owner)
    if follow.regression:
        regressions = regressions.filter(pk__in=of_cause(follow.regression).values("pk"))
    if follow.owner or follow.regression:
        series = series.filter(pk__in=regressions.values("series"))
    changes = RegressionEvent.objects.filter(
        regression__in=regressions, at__gte=timezone.now() - LOOK_BACK, after__in=follow.events
    )
    return series, regressions, changes.exclude(before=F("after"))


# ---- delivery


def deliver_until(stop: threading.Event) -> None:
    """Deliver beside the work of `tick`, which must not wait for a slow receiver."""
    looked = -_OVERDUE_EVERY_S
    while not stop.is_set():
        sent = 0
        try:
            if time.monotonic() - looked >= _OVERDUE_EVERY_S:
                looked = time.monotonic()
                queue_overdue(timezone.now())
                Delivery.objects.filter(created__lt=timezone.now() - _KEPT).delete()
            sent = deliver()
        except (DatabaseError, InterfaceError) as error:
            logger.warning("messages wait for the database: %s", error)
            connection.close()
        except Exception:  # one message that cannot be made must not stop the others for good
            logger.exception("messages were not delivered")
        if not sent:
            stop.wait(settings.HUD_TICK_S)
    connection.close()


def deliver() -> int:
    """Queue what is in the outbox, and make every attempt that is due; return how many were made."""
    queue_messages()
    interrupted = Delivery.objects.filter(_WAITS, began__isnull=False, due__lte=timezone.now())
    interrupted.exclude(follow__channel=Channel.STANDARD).update(given_up=timezone.now())
    made = 0
    while delivery := _claim():
        attempt(delivery)
        made += 1
    return made


def attempt(delivery: Delivery) -> bool:
    """Send a delivery that this process has claimed, and note the result."""
    now, row = timezone.now(), Delivery.objects.filter(pk=delivery.pk)
    try:
        answer = _send(delivery, now, lambda: row.update(began=timezone.now()))
    except (CannotSend, ValueError, OSError) as error:
        answer = WebhookAnswer(0, str(error))
    result = f"{answer.status} {answer.text}".strip() if answer.status else answer.text
    outcome = {"last_at": now, "last_ok": answer.ok, "last_result": result[:300]}
    ended = timezone.now()
    change: dict[str, datetime | None]
    if answer.ok:
        change = {"delivered": ended}
    elif answer.status == _GONE or delivery.attempts > len(BACKOFF_S):
        change = {"given_up": ended}
    else:
        change = {"due": ended + timedelta(seconds=BACKOFF_S[delivery.attempts - 1])}
    with transaction.atomic():
        if answer.status == _GONE:
            outcome["active"] = False
        Follow.objects.filter(pk=delivery.follow_id).update(**outcome)
        row.update(began=None, **change)
    return answer.ok


def _send(delivery: Delivery, now: datetime, begin: Callable[[], object]) -> WebhookAnswer:
    """Send a message by its channel; `begin` is called just before what cannot be taken back."""
    follow = delivery.follow
    channel, address, _secret = follow.receiver
    if channel == Channel.FEED:
        return WebhookAnswer(200, "in the feed")
    if channel != Channel.MAIL:
        body, headers = request_of(delivery, now)
        return post(address, body, headers, private=_may_be_private(follow), begin=begin)
    if not settings.EMAIL_HOST:
        raise CannotSend("EMAIL_HOST is not set")
    domain = settings.DEFAULT_FROM_EMAIL.rpartition("@")[2].strip(">")
    about = {"Message-ID": f"<{delivery.message_id}@{domain}>", "Auto-Submitted": "auto-generated"}
    subject, text = unlinked(headline(delivery.event, delivery.data)), plain_text(delivery)
    with get_connection() as server:
        begin()
        EmailMessage(subject, text, to=[address], headers=about, connection=server).send()
    return WebhookAnswer(250, f"sent to {address}")


def _is_of_operators(follow: Follow) -> bool:
    return follow.user is None or "rules" in scopes_of_user(follow.user)


def _may_be_private(follow: Follow) -> bool:
    """Return whether its address may be a private one."""
    return bool(settings.HUD_WEBHOOK_PRIVATE) and _is_of_operators(follow)


def _claim() -> Delivery | None:
    """Return the delivery that is due the longest, with this attempt counted; None where nothing is due. What
    is due for a digest becomes one message."""
    with transaction.atomic():
        now = timezone.now()
        unlocked = Delivery.objects.select_for_update(skip_locked=True, of=("self",))
        waiting = unlocked.select_related("follow__user").filter(_WAITS, due__lte=now, follow__active=True)
        waiting = waiting.exclude(follow__user__is_active=False).order_by("due", "pk")
        delivery = waiting.first()
        if not delivery:
            return None
        if delivery.follow.hour is not None and delivery.event != DIGEST and not delivery.attempts:
            parts = [
                one
                for one in waiting.filter(follow__hour__isnull=False, attempts=0).exclude(event=DIGEST)
                if one.follow.receiver == delivery.follow.receiver
            ]
            if len(parts) > 1:
                delivery.data = {"messages": [{"event": one.event, "data": one.data} for one in parts]}
                delivery.event = DIGEST
                Delivery.objects.filter(pk__in=[one.pk for one in parts if one != delivery]).delete()
        delivery.attempts += 1
        delivery.due = now + timedelta(seconds=_AT_ONCE_S)
        delivery.save(update_fields=["attempts", "due", "event", "data"])
        return delivery
