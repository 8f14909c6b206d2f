"""Deliver messages, at least once: an attempt is noted before it is made, and repeated until the receiver has
answered with 2xx. Any number of processes may deliver."""

import logging
import threading
import time
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.utils import timezone

from hud.models import Delivery, Webhook
from hud.notifications.formats import request_of
from hud.notifications.messages import queue_messages, queue_overdue
from hud.notifications.sending import Answer, CannotSend, post

logger = logging.getLogger(__name__)
# seconds from one attempt to the next; after the last one a message is given up
BACKOFF_S = (5, 30, 120, 600, 3600, 4 * 3600, 10 * 3600, 24 * 3600)
_AT_ONCE_S = 30  # an attempt takes less; until then nobody else makes it
_GONE = 410  # the receiver wants no more messages
_OVERDUE_EVERY_S = 60.0
_KEPT = timedelta(days=30)  # of what was delivered or given up


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
        answer = Answer(0, str(error))
    result = f"{answer.status} {answer.text}".strip() if answer.status else answer.text
    seen = {"last_at": now, "last_ok": answer.ok, "last_result": result[:300]}
    with transaction.atomic():
        if answer.status == _GONE:
            seen["active"] = False
        Webhook.objects.filter(pk=delivery.webhook_id).update(**seen)
        if answer.ok:
            Delivery.objects.filter(pk=delivery.pk).update(delivered=timezone.now())
        elif answer.status == _GONE or delivery.attempts > len(BACKOFF_S):
            Delivery.objects.filter(pk=delivery.pk).update(given_up=timezone.now())
        else:
            due = timezone.now() + timedelta(seconds=BACKOFF_S[delivery.attempts - 1])
            Delivery.objects.filter(pk=delivery.pk).update(due=due)
    return answer.ok


def _claim() -> Delivery | None:
    """Return the delivery that is due the longest, with this attempt counted; None where nothing is due."""
    with transaction.atomic():
        waiting = Delivery.objects.filter(delivered=None, given_up=None, webhook__active=True)
        found = (
            waiting.filter(due__lte=timezone.now())
            .select_for_update(skip_locked=True, of=("self",))
            .select_related("webhook")
            .order_by("due", "pk")
            .first()
        )
        if found is None:
            return None
        found.attempts += 1
        found.due = timezone.now() + timedelta(seconds=_AT_ONCE_S)
        found.save(update_fields=["attempts", "due"])
        return found
