"""Which accelerators may take which runs: one rule for claims, the doorbell, queue positions and refusals.

In the statements `a` is the accelerator, `h` its host and `r` the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from hud.models import Accelerator, Host
from hud.queries.facts import lacking

HIDDEN_AFTER = timedelta(days=14)  # of silence; such a host counts no more, until it beats again

# This accelerator could take a task of this run, now or later.
FITS = """
    (a.present AND h.detached_at IS NULL
    AND r.device = a.device AND r.arch IN ('', a.arch) AND (r.host_id IS NULL OR r.host_id = a.host_id)
    AND a.labels @> r.labels
    AND a.catalog->'suites' ? (r.request->>'suite')
    AND (r.environment = '' OR a.catalog->'pythons' ? r.environment)
    AND (r.base_environment = '' OR a.catalog->'pythons' ? r.base_environment))
"""
# It may be given new tasks now.
OPEN = """
    (a.dirty = '' AND NOT h.drained AND (h.paused_until IS NULL OR h.paused_until <= clock_timestamp()))
"""
# Its host has been heard lately; `lost` in seconds.
HEARD = "(h.last_beat > clock_timestamp() - %(lost)s * interval '1 s')"
# Which of two runs goes first: what a person waits for, then first come, first served.
ORDER = "NOT r.watched, r.created, r.id"


@dataclass(frozen=True)
class Wish:
    """What a run asks of an accelerator; '' and None mean any."""

    device: str  # cuda or cpu
    host: Host | None = None
    arch: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""  # an interpreter by name
    base_environment: str = ""  # another one, to be measured in turn with it


def visible_hosts() -> QuerySet[Host]:
    """Hosts that are attached and were heard, or at least made, in the last two weeks."""
    since = Now() - HIDDEN_AFTER
    heard = Q(last_beat__gt=since) | Q(last_beat__isnull=True, created__gt=since)
    return Host.objects.filter(heard, detached_at__isnull=True)


def attached() -> list[Accelerator]:
    """Of every visible host."""
    found = Accelerator.objects.filter(present=True, host__in=visible_hosts())
    return list(found.select_related("host").order_by("host__name", "name"))


def labels_of(host: Host, given: Mapping[str, str], *, name: str, device: str, arch: str) -> dict[str, str]:
    """Labels of an accelerator: those its host was given, and the built-in ones, which nobody can change."""
    return {**given, "host": host.name, "accelerator": name, "device": device, "arch": arch}


def fitting(
    wish: Wish, suites: set[str], accelerators: Sequence[Accelerator]
) -> tuple[list[Accelerator], str]:
    """Which of these accelerators could take such a run; where none could, the reason in words."""
    if not accelerators:
        return [], "no host is attached; attach one with: python -m runner attach --hud URL --token TOKEN"
    left = [item for item in accelerators if wish.host is None or item.host_id == wish.host.pk]
    if wish.host and not left:
        return [], f"host {wish.host.name} is not attached"
    whose = f"host {wish.host.name}" if wish.host else "no attached host"
    fulfilled: list[str] = []
    for need in _needs(wish, suites):
        having = [item for item in left if need.wanted <= need.offered(item)]
        if not having:
            there = ", ".join(sorted(set().union(*map(need.offered, left)))) or "nothing"
            such = f" with {' and '.join(fulfilled)}" if fulfilled else ""
            lacks = "has not" if wish.host else "has"
            why = "; ".join(sorted(set().union(*map(need.why, left))))
            return [], f"{whose}{such} {lacks} {need.text}{why and f' ({why})'}; there are: {there}"
        left = having
        fulfilled.append(need.text)
    return left, ""


def not_offered(suites: Iterable[str]) -> dict[str, str]:
    """Which of these suites no attached host offers, and why; none where none is attached. 1 statement."""
    there = attached()
    lacks = {name: why for item in there for name, why in lacking(item.host.facts).items()}
    offered = {name for item in there for name in item.catalog.get("suites", [])}
    missing = set(suites) - offered if there else set()
    return {name: lacks.get(name, "no attached host offers it") for name in missing}


@dataclass(frozen=True)
class _Need:
    text: str
    wanted: set[str]
    offered: Callable[[Accelerator], set[str]]
    why: Callable[[Accelerator], set[str]] = lambda _item: set()  # it is not offered


def _needs(wish: Wish, suites: set[str]) -> list[_Need]:
    """In the order in which they are looked at."""
    needs = [_Need(f"arch {wish.arch}", {wish.arch}, lambda item: {item.arch})] if wish.arch else []
    needs.append(_Need(f"device {wish.device}", {wish.device}, lambda item: {item.device}))
    needs += [_label(key, value) for key, value in sorted(wish.labels.items())]
    for name in filter(None, (wish.environment, wish.base_environment)):
        text = f"an interpreter called {name}"
        needs.append(_Need(text, {name}, lambda item: set(item.catalog.get("pythons", []))))
    text = f"the suite {', '.join(sorted(suites))}"
    needs.append(_Need(text, suites, lambda item: set(item.catalog.get("suites", [])), _lacking(suites)))
    return needs


def _lacking(suites: set[str]) -> Callable[[Accelerator], set[str]]:
    def why(item: Accelerator) -> set[str]:
        found = lacking(item.host.facts)
        return {found[suite] for suite in suites if suite in found}

    return why


def _label(key: str, value: str) -> _Need:
    def offered(item: Accelerator) -> set[str]:
        return {f"{key}={item.labels[key]}"} if key in item.labels else set()

    return _Need(f"the label {key}={value}", {f"{key}={value}"}, offered)
