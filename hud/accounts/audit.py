"""The audit log: every action that changes something or grants access adds a row."""

from contextvars import ContextVar
from datetime import date
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db.models import Q
from django.dispatch import receiver

from hud.models import Audit
from hud.tables.table import DataTable

# Set by `hud.accounts.access` for the time of a request, so that writers need not pass it on.
client_address: ContextVar[str] = ContextVar("client_address", default="")

# `key` of `key.revoke`
KINDS = (
    "login", "logout", "user", "key", "upload", "run", "regression", "annotation", "known_failure", "host",
    "schedule", "stream", "task", "rename", "rule", "webhook",
)  # fmt: skip
COLUMNS = DataTable[Audit](
    "id:int=pk at:datetime who:str action:str subject:str address:str detail:dict[str,Any]"
)


def note(*, who: str, action: str, subject: str, detail: dict[str, Any] | None = None) -> None:
    Audit.objects.create(
        who=who[:150], action=action, subject=subject[:200], address=client_address.get(), detail=detail or {}
    )


def read(
    rows: int,
    *,
    who: str = "",
    action: str = "",
    subject: str = "",
    since: date | None = None,
    until: date | None = None,
    before: int | None = None,
) -> tuple[list[Audit], int | None]:
    """Return a page of rows, newest first, and before which id the next page begins, None on the last one: 1
    statement. `who` and `subject` are parts of them, `action` is one or a kind of them; both days count."""
    lookups = {"who__icontains": who, "subject__icontains": subject, "pk__lt": before}
    lookups |= {"at__date__gte": since, "at__date__lte": until}
    condition = Q(**{lookup: value for lookup, value in lookups.items() if value})
    if action:
        condition &= Q(action=action) | Q(action__startswith=f"{action}.")
    audits = list(Audit.objects.filter(condition).order_by("-pk")[: rows + 1])
    return audits[:rows], audits[rows - 1].pk if len(audits) > rows else None


# Django's own signals: whatever way somebody logs in


@receiver(user_logged_in)
def _login(user: User, **_signal: Any) -> None:
    note(who=user.get_username(), action="login", subject=user.get_username())


@receiver(user_logged_out)
def _logout(user: User | None, **_signal: Any) -> None:
    if user is not None:
        note(who=user.get_username(), action="logout", subject=user.get_username())


@receiver(user_login_failed)
def _failed(credentials: dict[str, Any], **_signal: Any) -> None:
    name = str(credentials.get("username", "")).replace("\0", "")
    note(who="", action="login.failed", subject=name or "single sign-on")
