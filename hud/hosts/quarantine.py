"""Cards in quarantine: they take canaries and nothing else, until they are good again or a person resumes
their host (`hud.states.fleet` decides)."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from hud.accounts import audit
from hud.models import Accelerator, Host

JUDGE = "judge"


def quarantine(card: Accelerator, reason: str, *, since: datetime) -> None:
    with transaction.atomic():
        Accelerator.objects.filter(pk=card.pk).update(quarantine_reason=reason[:300], quarantined_at=since)
        subject = f"{card.host.name} {card.name}"
        audit.note(who=JUDGE, action="card.quarantine", subject=subject, detail={"reason": reason})


def release(cards: Iterable[Accelerator], *, who: str, canaries_from: datetime | None = None) -> None:
    """Let cards take work again; with `canaries_from` their later readings are the new baseline."""
    for card in cards:
        card.quarantine_reason, card.quarantined_at = "", None
        card.canaries_from = canaries_from or card.canaries_from
        with transaction.atomic():
            card.save(update_fields=["quarantine_reason", "quarantined_at", "canaries_from"])
            audit.note(who=who, action="card.release", subject=f"{card.host.name} {card.name}")


def note_errors(before: object, now: object, host: Host) -> None:
    """Quarantine the cards of a host whose count of uncorrected ECC errors has risen since its last
    heartbeat."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return
    risen = [uuid for uuid, count in now.items() if count > before.get(uuid, 0)]
    for card in Accelerator.objects.filter(host=host, uuid__in=risen, quarantined_at=None):
        quarantine(card, f"{now[card.uuid]} uncorrected ECC errors", since=timezone.now())
