"""Schedules as a page shows them, with the next due time and the last runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Prefetch
from django.utils import timezone

from hud.models import NIGHTLY, RunRequest, Schedule, ScheduleTrigger
from hud.runs.schedules import CEILINGS, next_due


@dataclass(slots=True)
class ScheduleLine:
    schedule: Schedule
    next_due: datetime | None  # None while disabled
    last: ScheduleTrigger | None = None

    @property
    def shipped(self) -> bool:
        """Return whether `manage.py bootstrap` creates it again once deleted."""
        return self.schedule.name == CEILINGS

    @property
    def asks(self) -> str:
        """Return the suite and filters in words."""
        one = self.schedule
        parts = [one.cases, one.modes, one.dtypes, one.backends]
        compilations = f"{one.compilations} compilations" if one.compilations else ""
        repeats = f"{one.repeats} processes" if one.repeats > 1 else ""
        filters = (", ".join(part) for part in parts)
        return "; ".join(filter(None, [one.suite, *filters, compilations, repeats]))

    @property
    def place(self) -> str:
        """Return the accelerators in words."""
        one = self.schedule
        which = "every accelerator" if one.everywhere else "any accelerator"
        labels = [f"{key}={text}" for key, text in sorted(one.labels.items())]
        python = f"Python {one.environment}" if one.environment else ""
        return ", ".join(filter(None, [which, one.device, *labels, python]))

    def to_row(self) -> dict[str, Any]:
        one = self.schedule
        return {
            "id": one.pk, "name": one.name, "enabled": one.enabled, "cron": one.cron,
            "time_zone": one.time_zone, "suite": one.suite, "cases": one.cases, "modes": one.modes,
            "dtypes": one.dtypes, "backends": one.backends, "compilations": one.compilations,
            "repeats": one.repeats, "device": one.device, "environment": one.environment,
            "labels": one.labels, "everywhere": one.everywhere,
            "stream": one.stream.name if one.stream else NIGHTLY,
            "next_due": self.next_due, "last_due": self.last.due if self.last else None,
            "last_reason": self.last.reason if self.last else "",
            "last_runs": [request.pk for request in self.last.requests.all()] if self.last else [],
        }  # fmt: skip


def read() -> list[ScheduleLine]:
    """Return every schedule by name, in 3 statements."""
    requests = Prefetch("requests", RunRequest.objects.select_related("run"))
    newest = ScheduleTrigger.objects.order_by("schedule_id", "-due").distinct("schedule_id")
    found = Schedule.objects.select_related("stream").prefetch_related(
        Prefetch("triggers", newest.prefetch_related(requests), to_attr="latest")
    )
    lines = []
    for schedule in found.order_by("name"):
        last = next(iter(schedule.latest), None)
        try:
            due = next_due(schedule, timezone.now()) if schedule.enabled else None
        except ValueError:  # written by other means than the form; tick switches it off
            due = None
        lines.append(ScheduleLine(schedule, due, last))
    return lines
