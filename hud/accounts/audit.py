"""The audit log: every action that changes a host or grants access adds a row."""

from __future__ import annotations

from typing import Any

from hud.models import Audit


def note(*, who: str, action: str, subject: str, detail: dict[str, Any] | None = None) -> None:
    Audit.objects.create(who=who[:150], action=action, subject=subject[:200], detail=detail or {})
