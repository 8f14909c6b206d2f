"""Schedules as a page shows them, with the next due time and the last runs."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Prefetch
from django.utils import timezone

from hud.models import NIGHTLY, RunRequest, Schedule, ScheduleTrigger
from hud.runs.schedules import CEILINGS, next_due
from hud.tables.table import DataTable, under

_SAID = """name enabled cron time_zone suite cases modes dtypes backends compilations repeats device
    environment labels everywhere"""
COLUMNS = DataTable(
    f"id=schedule.pk {under('schedule', _SAID)} stream next_due last_due last_reason=last?.reason last_runs",
    stream=lambda line: line.schedule.stream.name if line.schedule.stream else NIGHTLY,
    last_due=lambda line: line.last.due if line.last else None,
    last_runs=lambda line: [request.pk for request in line.last.requests.all()] if line.last else [],
)


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
