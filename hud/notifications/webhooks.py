"""Create, change, test and delete webhooks, each with an audit line, and deliver messages to them.

A message is delivered at least once: an attempt is noted before it is made, and repeated until the receiver
has answered with 2xx. Any number of processes may deliver.
"""

import base64
import logging
import threading
import time
from datetime import timedelta
from secrets import token_bytes
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.utils import timezone

from hud.accounts import audit
from hud.models import Delivery, Webhook, WebhookFormat
from hud.notifications.messages import TEST, queue_messages, queue_overdue, request_of
from hud.notifications.sending import (
    SECRET_PREFIX,
    CannotSend,
    WebhookAnswer,
    check_address,
    post,
    secret_key,
)

logger = logging.getLogger(__name__)
# seconds from one attempt to the next; after the last one a message is given up
BACKOFF_S = (5, 30, 120, 600, 3600, 4 * 3600, 10 * 3600, 24 * 3600)
_AT_ONCE_S = 30  # an attempt takes less; until then nobody else makes it
_GONE = 410  # the receiver wants no more messages
_OVERDUE_EVERY_S = 60.0
_KEPT = timedelta(days=30)  # of what was delivered or given up


def save(webhook: Webhook, *, who: str) -> None:
    """Store a new or changed webhook; one of the standard format without a secret gets one. Raise
    ValidationError, by field, also for an address that is not public."""
    if webhook.format == WebhookFormat.STANDARD:
        webhook.secret = webhook.secret or SECRET_PREFIX + base64.b64encode(token_bytes(32)).decode()
        try:
            secret_key(webhook.secret)
        except ValueError as error:
            text = "it is whsec_ and 24 to 64 bytes in base64, or empty for a new one"
            raise ValidationError({"secret": text}) from error
    elif webhook.format == WebhookFormat.GITHUB and not webhook.secret:
        raise ValidationError({"secret": "a comment on GitHub needs a token that may write it"})
    try:
        check_address(webhook.url)
    except CannotSend as error:
        raise ValidationError({"url": str(error)}) from error
    with transaction.atomic():
        webhook.validate_unique()
        action = "webhook.change" if webhook.pk else "webhook.create"
        webhook.save()
        # neither the secret nor the path, which may be one
        detail: dict[str, Any] = {"host": webhook.url.split("/")[2]}
        detail |= {name: getattr(webhook, name) for name in ("format", "events", "active")}
        audit.note(who=who, action=action, subject=f"webhook {webhook.name}", detail=detail)


def set_active(webhook: Webhook, *, active: bool, who: str) -> None:
    """Pause or resume a webhook. What waited for it meanwhile is old news, and dropped."""
    with transaction.atomic():
        if active and not webhook.active:
            webhook.deliveries.filter(delivered=None).delete()
        webhook.active = active
        webhook.save(update_fields=["active"])
        action = "webhook.resume" if active else "webhook.pause"
        audit.note(who=who, action=action, subject=f"webhook {webhook.name}")


def delete(webhook: Webhook, *, who: str) -> None:
    with transaction.atomic():
        audit.note(who=who, action="webhook.delete", subject=f"webhook {webhook.name}")
        webhook.delete()


def test(webhook: Webhook, *, who: str) -> bool:
    """Send a message now, once; return whether it was received. The webhook has the result."""
    audit.note(who=who, action="webhook.test", subject=f"webhook {webhook.name}")
    data: dict[str, Any] = {"webhook": webhook.name, "who": who}
    delivery = Delivery.objects.create(
        webhook=webhook, event=TEST, data=data, attempts=1, given_up=timezone.now()
    )
    delivery.refresh_from_db()
    received = attempt(delivery)
    webhook.refresh_from_db()
    return received


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
    made = 0
    while delivery := _claim():
        attempt(delivery)
        made += 1
    return made


def attempt(delivery: Delivery) -> bool:
    """Send a delivery that this process has claimed, and note the result."""
    now = timezone.now()
    try:
        answer = post(delivery.webhook.url, *request_of(delivery, now))
    except (CannotSend, ValueError) as error:
        answer = WebhookAnswer(0, str(error))
    result = f"{answer.status} {answer.text}".strip() if answer.status else answer.text
    outcome = {"last_at": now, "last_ok": answer.ok, "last_result": result[:300]}
    ended = timezone.now()
    if answer.ok:
        change = {"delivered": ended}
    elif answer.status == _GONE or delivery.attempts > len(BACKOFF_S):
        change = {"given_up": ended}
    else:
        change = {"due": ended + timedelta(seconds=BACKOFF_S[delivery.attempts - 1])}
    with transaction.atomic():
        if answer.status == _GONE:
            outcome["active"] = False
        Webhook.objects.filter(pk=delivery.webhook_id).update(**outcome)
        Delivery.objects.filter(pk=delivery.pk).update(**change)
    return answer.ok


def _claim() -> Delivery | None:
    """Return the delivery that is due the longest, with this attempt counted; None where nothing is due."""
    with transaction.atomic():
        unlocked = Delivery.objects.select_for_update(skip_locked=True, of=("self",)).select_related(
            "webhook"
        )
        waiting = unlocked.filter(delivered=None, given_up=None, webhook__active=True)
        delivery = waiting.filter(due__lte=timezone.now()).order_by("due", "pk").first()
        if delivery:
            delivery.attempts += 1
            delivery.due = timezone.now() + timedelta(seconds=_AT_ONCE_S)
            delivery.save(update_fields=["attempts", "due"])
        return delivery
