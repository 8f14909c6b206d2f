"""Register, drain and pause hosts, and list their accelerators. States follow from the last heartbeat."""

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Coalesce, Now
from django.utils import timezone

from hud.accounts import audit
from hud.accounts.keys import create_key, digest
from hud.hosts import quarantine
from hud.models import Accelerator, Aliases, ApiKey, Host
from hud.problems import Problem
from hud.sql import fetch_models
from runner.schema.protocol import PROTOCOL

HIDDEN_AFTER = timedelta(days=14)  # of silence; the host reappears with its next heartbeat
TOKEN_LIFE = timedelta(hours=1)  # registration tokens
_REGISTER = "register"  # the scope of a token; no key can be given it


def state_of(host: Host, now: datetime) -> str:
    """Return detached, lost, paused, drained, late or online."""
    if host.detached_at:
        return "detached"
    age_s = (now - host.last_beat).total_seconds() if host.last_beat else float("inf")
    if age_s > settings.HUD_LOST_S:
        return "lost"
    if host.paused_until and host.paused_until > now:
        return "paused"
    if host.drained:
        return "drained"
    return "late" if age_s > settings.HUD_LATE_S else "online"


def note_of(host: Host, state: str) -> str:
    """Return why a paused or drained host takes no work, else ''."""
    return host.note if state in {"paused", "drained"} else ""


def visible_hosts() -> QuerySet[Host]:
    """Return the attached hosts that sent a heartbeat, or were created, within HIDDEN_AFTER."""
    heard = Coalesce("last_beat", "created")
    return Host.objects.alias(heard=heard).filter(heard__gt=timezone.now() - HIDDEN_AFTER, detached_at=None)


def is_visible(host: Host, now: datetime) -> bool:
    return host.detached_at is None and (host.last_beat or host.created) > now - HIDDEN_AFTER


def present_accelerators() -> list[Accelerator]:
    """Return the accelerators of attached hosts, silent ones too: 1 statement."""
    attached = """JOIN hud_host host ON host.id = own.host_id
        WHERE own.present AND host.detached_at IS NULL ORDER BY host.name, own.name"""
    return fetch_models(Accelerator, attached, {}, host=Host)


def visible_accelerators() -> list[Accelerator]:
    """Return the accelerators of every visible host: 1 statement."""
    now = timezone.now()
    return [accelerator for accelerator in present_accelerators() if is_visible(accelerator.host, now)]


def unavailable_suites(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return why a host does not offer a suite, by the suite's name."""
    lacking = facts.get("lacking")
    return dict(sorted(lacking.items())) if isinstance(lacking, dict) else {}


def inductor_options(accelerators: Iterable[Accelerator], interpreter: str) -> dict[str, Any]:
    """Return the inductor options, with their kinds, that the interpreter has on every accelerator's host."""
    pythons = [accelerator.host.facts.get("pythons", {}).get(interpreter, {}) for accelerator in accelerators]
    first, *others = [python.get("inductor_options", {}) for python in pythons] or [{}]
    return {name: kind for name, kind in first.items() if all(item.get(name) == kind for item in others)}


def register(*, token: str, name: str) -> tuple[Host, str]:
    """Register a host with a one-time token; return the host and its new key. Raise Problem 403.

    The name of an earlier host is free once an operator has detached it, or for a token that says it replaces
    that host. A host that is only silent keeps its name.
    """
    name = Aliases.read().current("host", name)
    with transaction.atomic():
        tokens = ApiKey.objects.filter(
            digest=digest(token), scopes=[_REGISTER], revoked__isnull=True, expires__gt=Now()
        )
        if tokens.update(revoked=Now()) != 1:
            raise Problem(403, "this token is unknown, used or expired; an operator makes a new one")
        host, new = Host.objects.select_for_update().get_or_create(name=name)
        replaces = ApiKey.objects.filter(digest=digest(token), host=host).exists()
        if not (new or host.detached_at or replaces):
            raise Problem(
                403,
                f"a host called {name} is attached; detach that one first, or give this one another --name",
            )
        Host.objects.filter(pk=host.pk).update(detached_at=None)
        ApiKey.objects.filter(host=host, revoked__isnull=True).update(revoked=Now())
        _key, secret = create_key(name=f"host {name}"[:100], scopes=["host"], who=f"host {name}", host=host)
        audit.note(who=f"host {name}", action="host.register", subject=name)
    return host, secret


def create_token(*, who: str, replaces: Host | None = None) -> str:
    """Return a registration token for one use within TOKEN_LIFE; it may take the name of the host that it
    replaces."""
    token = "hudt_" + secrets.token_urlsafe(24)
    ApiKey.objects.create(
        name="registration token",
        prefix=token[:11],
        digest=digest(token),
        scopes=[_REGISTER],
        host=replaces,
        expires=timezone.now() + TOKEN_LIFE,
    )
    detail = {"replaces": replaces.name} if replaces else {}
    audit.note(who=who, action="host.token", subject=token[:11], detail=detail)
    return token


def is_spoken(protocol: int) -> bool:
    return PROTOCOL - 1 <= protocol <= PROTOCOL


def check_protocol(protocol: int) -> None:
    """Raise Problem 409 for a host whose runner speaks neither this version of the protocol nor the last."""
    if not is_spoken(protocol):
        detail = f"this hud speaks protocol {PROTOCOL}, the host {protocol}: update the older one"
        raise Problem(409, detail, code="other_protocol")


def beat(
    *,
    host: Host,
    protocol: int,
    sent_at: float,
    facts: dict[str, Any],
    labels: dict[str, str],
    devices: Sequence[Accelerator],
) -> dict[str, Accelerator]:
    """Store a heartbeat with the host's devices, whose labels it adds; return its accelerators by name."""
    if not is_spoken(protocol) and host.facts.get("protocol") != protocol:
        Host.objects.filter(pk=host.pk).update(facts={**host.facts, "protocol": protocol})  # for its page
    check_protocol(protocol)
    aliases = Aliases.read()
    with transaction.atomic():
        Host.objects.filter(pk=host.pk).update(
            last_beat=Now(), facts=facts, labels=labels, clock_skew_s=sent_at - time.time()
        )
        for device in devices:
            built_in = {"host": host.name, "accelerator": device.name}  # a host cannot override these
            built_in |= {"device": device.device, "arch": device.arch}
            told = ("device", "device_name", "uuid", "unavailable_reason", "catalog")
            columns = {
                **{name: getattr(device, name) for name in told},
                "arch": aliases.current("arch", device.arch)[:60],
                "present": True,
                "labels": {**labels, **built_in},
            }
            Accelerator.objects.update_or_create(host=host, name=device.name, defaults=columns)
        quarantine.note_errors(host.facts.get("gpu_errors"), facts.get("gpu_errors"), host)
        Accelerator.objects.filter(host=host).exclude(name__in=[device.name for device in devices]).update(
            present=False
        )
    return {item.name: item for item in Accelerator.objects.filter(host=host, present=True)}


def control(action: str, *, host: Host, who: str, note: str = "", minutes: float = 0) -> None:
    """Let a host finish its running tasks and claim no more (`drain`), for some minutes (`pause`), or take
    work again (`resume`), with its cards in quarantine."""
    detail: dict[str, Any] = {} if action == "resume" else {"note": note}
    if action == "pause":
        until = timezone.now() + timedelta(minutes=minutes)
        detail["until"] = until.isoformat()
        columns: dict[str, Any] = {"paused_until": until}
    else:
        columns = {"drained": True} if action == "drain" else {"drained": False, "paused_until": None}
    Host.objects.filter(pk=host.pk).update(**columns, note=note[:500])
    if action == "resume":
        cards = Accelerator.objects.filter(host=host, quarantined_at__isnull=False)
        quarantine.release(cards, who=who, canaries_from=timezone.now())
    audit.note(who=who, action=f"host.{action}", subject=host.name, detail=detail)
