"""Which accelerators may take which runs: one rule for claims, wake-ups, queue positions and refusals.

In the statements `a` is the accelerator, `h` its host and `r` the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from hud.hosts.registration import unavailable_suites, visible_hosts
from hud.models import Accelerator, Host

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
class ResourceRequest:
    """What a run asks of an accelerator; '' and None mean any."""

    device: str  # cuda or cpu
    host: Host | None = None
    arch: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: str = ""  # an interpreter by name
    base_environment: str = ""  # another one, to be measured in turn with it


def attached() -> list[Accelerator]:
    """Return the accelerators of every visible host."""
    found = Accelerator.objects.filter(present=True, host__in=visible_hosts())
    return list(found.select_related("host").order_by("host__name", "name"))


def eligible_accelerators(
    request: ResourceRequest, suites: set[str], accelerators: Sequence[Accelerator]
) -> tuple[list[Accelerator], str]:
    """Return the accelerators that could take such a run, and the reason where none could."""
    if not accelerators:
        return [], "no host is attached; attach one with: python -m runner attach --hud URL --token TOKEN"
    left = [item for item in accelerators if request.host is None or item.host_id == request.host.pk]
    if request.host and not left:
        return [], f"host {request.host.name} is not attached"
    whose = f"host {request.host.name}" if request.host else "no attached host"
    fulfilled: list[str] = []
    for need in _needs(request, suites):
        having = [item for item in left if need.wanted <= need.offered(item)]
        if not having:
            there = ", ".join(sorted(set().union(*map(need.offered, left)))) or "nothing"
            such = f" with {' and '.join(fulfilled)}" if fulfilled else ""
            lacks = "has not" if request.host else "has"
            why = "; ".join(sorted(set().union(*map(need.why, left))))
            return [], f"{whose}{such} {lacks} {need.text}{why and f' ({why})'}; there are: {there}"
        left = having
        fulfilled.append(need.text)
    return left, ""


def not_offered(suites: Iterable[str]) -> dict[str, str]:
    """Return why no attached host offers these suites; nothing where none is attached. 1 statement."""
    there = attached()
    lacks = {name: why for item in there for name, why in unavailable_suites(item.host.facts).items()}
    offered = {name for item in there for name in item.catalog.get("suites", [])}
    missing = set(suites) - offered if there else set()
    return {name: lacks.get(name, "no attached host offers it") for name in missing}


@dataclass(frozen=True)
class _Need:
    text: str
    wanted: set[str]
    offered: Callable[[Accelerator], set[str]]
    why: Callable[[Accelerator], set[str]] = lambda _item: set()  # it is not offered


def _needs(request: ResourceRequest, suites: set[str]) -> list[_Need]:
    """In the order in which they are looked at."""

    def label(item: Accelerator, key: str) -> set[str]:
        return {f"{key}={item.labels[key]}"} if key in item.labels else set()

    def why(item: Accelerator) -> set[str]:
        found = unavailable_suites(item.host.facts)
        return {found[suite] for suite in suites if suite in found}

    needs = [_Need(f"arch {request.arch}", {request.arch}, lambda item: {item.arch})] if request.arch else []
    needs.append(_Need(f"device {request.device}", {request.device}, lambda item: {item.device}))
    for key, value in sorted(request.labels.items()):
        needs.append(_Need(f"the label {key}={value}", {f"{key}={value}"}, partial(label, key=key)))
    for name in filter(None, (request.environment, request.base_environment)):
        text = f"an interpreter called {name}"
        needs.append(_Need(text, {name}, lambda item: set(item.catalog.get("pythons", []))))
    text = f"the suite {', '.join(sorted(suites))}"
    needs.append(_Need(text, suites, lambda item: set(item.catalog.get("suites", [])), why))
    return needs
