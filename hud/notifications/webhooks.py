"""Create, change, test and delete webhooks, each with an audit line."""

import base64
from secrets import token_bytes
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from hud.accounts import audit
from hud.models import Delivery, Webhook, WebhookFormat
from hud.notifications.deliver import attempt
from hud.notifications.formats import TEST
from hud.notifications.messages import EVENTS
from hud.notifications.sending import SECRET_PREFIX, CannotSend, check_address, secret_key

_KEY_BYTES = (24, 64)  # of Standard Webhooks


def save(webhook: Webhook, *, who: str) -> None:
    """Store a new or changed webhook; one of the standard format without a secret gets one. Raise
    ValidationError, by field, also for an address that is not public."""
    if webhook.format == WebhookFormat.STANDARD:
        webhook.secret = webhook.secret or SECRET_PREFIX + base64.b64encode(token_bytes(32)).decode()
        try:
            size = len(secret_key(webhook.secret))
        except ValueError as error:
            raise ValidationError({"secret": "it is whsec_ and base64, or empty for a new one"}) from error
        if not _KEY_BYTES[0] <= size <= _KEY_BYTES[1]:
            raise ValidationError({"secret": f"it stands for {size} bytes; it must be 24 to 64"})
    elif webhook.format == WebhookFormat.GITHUB and not webhook.secret:
        raise ValidationError({"secret": "a comment on GitHub needs a token that may write it"})
    if unknown := set(webhook.events) - set(EVENTS):
        raise ValidationError({"events": f"no such event: {', '.join(sorted(unknown))}"})
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
