"""The audit log: every action that changes something or grants access adds a row."""

from collections.abc import Mapping
from contextvars import ContextVar
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
    "schedule", "stream", "task", "rename", "rule", "webhook", "follow",
)  # fmt: skip
COLUMNS = DataTable[Audit](
    "id:int=pk at:datetime who:str action:str subject:str address:str detail:dict[str,Any]"
)


def note(*, who: str, action: str, subject: str, detail: dict[str, Any] | None = None) -> None:
    Audit.objects.create(
        who=who[:150], action=action, subject=subject[:200], address=client_address.get(), detail=detail or {}
    )


def read(criteria: Mapping[str, Any], rows: int) -> tuple[list[Audit], int | None]:
    """Return a page of rows that meet all criteria, newest first, and before which id the next page begins,
    None on the last one: 1 statement. `who` and `subject` are parts, `action` is one or a kind of them, the
    days `since` and `until` are included, `before` is an id. '' and None are any."""
    lookups = {"who": "who__icontains", "subject": "subject__icontains", "since": "at__date__gte"}
    lookups |= {"until": "at__date__lte", "before": "pk__lt"}
    condition = Q(**{lookup: value for name, lookup in lookups.items() if (value := criteria[name])})
    if action := criteria["action"]:
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
