"""Schedules: runs that come of themselves, by cron expression and time zone.

`manage.py tick` fires each due time once: a `Firing` row, unique by schedule and time, in one transaction
with its runs. Of times that were missed, only the latest is made up. Nobody watches what a schedule asks
for, so a person's rerun goes ahead of it between two of its tasks.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from croniter import croniter
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Now

from hud.accounts import audit
from hud.models import Accelerator, Firing, Run, Schedule, State
from hud.runs import matching, requests
from hud.runs.matching import ResourceRequest
from runner import suites
from runner.schema.plan import Selection
from runner.suites import SUITES

logger = logging.getLogger(__name__)
FIELDS = "minute, hour, day of month, month, day of week"
CEILINGS = "daily ceilings"  # name of the schedule that every installation has
_CLOCK_CHANGE = timedelta(hours=2)  # no zone's clocks are set by more, when they are set twice a year
_NAMES = "jan feb mar apr may jun jul aug sep oct nov dec mon tue wed thu fri sat sun".replace(" ", "|")
_CRON_FIELD = re.compile(rf"([\d*/,#L-]|{_NAMES})+", re.IGNORECASE)


def check(schedule: Schedule) -> None:
    """Raises ValidationError, by field, for what could never fire."""
    faults = {
        "cron": _cron_fault(schedule.cron),
        "time_zone": _zone_fault(schedule.time_zone),
        "labels": _labels_fault(schedule.labels),
        "suite": _request_fault(schedule),
    }
    found = {field: text for field, text in faults.items() if text}
    if found:
        raise ValidationError(found)


def _cron_fault(cron: str) -> str:
    fields = cron.split()
    if len(fields) != 5:
        return f"a cron expression has five fields ({FIELDS}); this one has {len(fields)}"
    wrong = next((field for field in fields if not _CRON_FIELD.fullmatch(field)), None)
    if wrong is not None:
        return f"{wrong!r} is no field of a cron expression; the five are: {FIELDS}"
    try:
        croniter(cron, datetime(2026, 1, 1, tzinfo=UTC)).get_next()
    except (ValueError, KeyError) as error:
        return f"this never comes: {error}"
    return ""


def _zone_fault(name: str) -> str:
    return "" if _zone(name) else f"{name!r} is no time zone; one is UTC, another Europe/Berlin"


def _labels_fault(labels: Any) -> str:
    if isinstance(labels, dict) and all(isinstance(text, str) for pair in labels.items() for text in pair):
        return ""
    return 'labels are an object of texts, as {"gpu": "h200"}'


def _request_fault(schedule: Schedule) -> str:
    if schedule.suite not in SUITES:
        return f"no suite is called {schedule.suite!r}; there are: {', '.join(sorted(SUITES))}"
    device = schedule.device or SUITES[schedule.suite].devices[0]
    try:
        requests.check_size(requests.plan_suite(selection_of(schedule, device)), schedule.repeats)
    except requests.InvalidRunRequest as error:
        return str(error)
    return ""


def selection_of(schedule: Schedule, device: str) -> Selection:
    return Selection(
        schedule.suite,
        device,
        cases=schedule.cases,
        modes=schedule.modes,
        dtypes=schedule.dtypes,
        backends=schedule.backends,
    )


# What people do with them. Each writes an audit row.


def create(*, who: str, **fields: Any) -> Schedule:
    """Create a schedule; its first due time is yet to come. Raise ValidationError."""
    return save(Schedule(**fields), who=who)


def update(*, schedule: Schedule, who: str, **fields: Any) -> Schedule:
    """Other settings; due times that have passed by then are not made up. Raises ValidationError."""
    for name, value in fields.items():
        setattr(schedule, name, value)
    return save(schedule, who=who)


def save(schedule: Schedule, *, who: str) -> Schedule:
    """Checks and stores a new or changed schedule. Raises ValidationError."""
    schedule.active_from = Now()
    schedule.clean_fields(exclude=["active_from", "created"])
    schedule.validate_unique()
    check(schedule)
    with transaction.atomic():
        action = "schedule.change" if schedule.pk else "schedule.create"
        schedule.save()
        audit.note(who=who, action=action, subject=f"schedule {schedule.name}", detail=_said(schedule))
    schedule.refresh_from_db()
    return schedule


def enable(*, schedule: Schedule, who: str) -> None:
    """It fires from the next due time on."""
    if Schedule.objects.filter(pk=schedule.pk, enabled=False).update(enabled=True, active_from=Now()):
        audit.note(who=who, action="schedule.enable", subject=f"schedule {schedule.name}")


def disable(*, schedule: Schedule, who: str, reason: str = "") -> None:
    """It fires no more; its runs go on."""
    if Schedule.objects.filter(pk=schedule.pk, enabled=True).update(enabled=False):
        audit.note(
            who=who,
            action="schedule.disable",
            subject=f"schedule {schedule.name}",
            detail={"reason": reason} if reason else None,
        )


def delete(*, schedule: Schedule, who: str) -> None:
    """Its runs stay."""
    with transaction.atomic():
        audit.note(who=who, action="schedule.delete", subject=f"schedule {schedule.name}")
        schedule.delete()


def _said(schedule: Schedule) -> dict[str, Any]:
    skipped = {"id", "name", "created", "active_from"}
    return {
        field.name: getattr(schedule, field.name)
        for field in Schedule._meta.concrete_fields
        if field.name not in skipped
    }


def ship() -> None:
    """The schedule that every installation begins with. One that exists stays as its operator left it."""
    Schedule.objects.get_or_create(
        name=CEILINGS, defaults={"cron": "10 4 * * *", "suite": suites.CEILINGS, "everywhere": True}
    )


# When


def next_due(schedule: Schedule, after: datetime) -> datetime:
    """The first due time after a moment."""
    times = _due_times(schedule, after - _CLOCK_CHANGE, forwards=True)
    return next(due for due in times if due > after)


def latest_due(schedule: Schedule, now: datetime) -> datetime:
    """The last due time that has come."""
    times = _due_times(schedule, now + _CLOCK_CHANGE, forwards=False)
    return next(due for due in times if due <= now)


def _due_times(schedule: Schedule, start: datetime, *, forwards: bool) -> Iterator[datetime]:
    """Due times from `start` on, or back from it. They are those of a clock on the wall: a time that it
    leaves out comes as much later as it went forward; one that it shows twice comes once, or twice where
    every hour counts. croniter itself goes astray when it walks back over such a change."""
    zone = _zone(schedule.time_zone)
    if zone is None:
        raise ValueError(_zone_fault(schedule.time_zone))
    every_hour = schedule.cron.split()[1].startswith("*")
    walls = croniter(schedule.cron, start.astimezone(zone).replace(tzinfo=None))
    while True:
        wall = (walls.get_next if forwards else walls.get_prev)(datetime)
        first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        yield from sorted({first, second} if every_hour and second > first else {first}, reverse=not forwards)


def _zone(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):  # a folder's name, an unknown one, one too long
        return None


# Firing


def fire_due(now: datetime | None = None) -> list[Firing]:
    """Fires what is due, on the database's clock unless `now` is given."""
    now = now or _database_now()
    fired = []
    for schedule in Schedule.objects.filter(enabled=True).order_by("pk"):
        try:
            due = latest_due(schedule, now)
        except ValueError as error:  # written by other means than `save`
            disable(schedule=schedule, who="tick", reason=str(error))
            continue
        if due >= schedule.active_from and not schedule.firings.filter(due=due).exists():
            firing = fire(schedule, due)
            fired += [firing] if firing else []
    return fired


def fire(schedule: Schedule, due: datetime) -> Firing | None:
    """Asks for the runs of one due time, in one transaction; None where another tick was first."""
    try:
        with transaction.atomic():
            firing = Firing.objects.create(schedule=schedule, due=due)
            reasons = [reason for place in _places(schedule) if (reason := _request(schedule, firing, place))]
            Firing.objects.filter(pk=firing.pk).update(reason="; ".join(reasons)[:1000])
    except IntegrityError:
        return None
    firing.refresh_from_db()
    return firing


@dataclass(frozen=True)
class _Place:
    """Where one run of a schedule goes: on any accelerator that fits, or on this one."""

    device: str
    accelerator: Accelerator | None = None


def _places(schedule: Schedule) -> list[_Place]:
    if not schedule.everywhere:
        return [_Place(schedule.device or "cuda")]
    devices = [schedule.device] if schedule.device else SUITES[schedule.suite].devices
    accelerators = matching.attached()
    able = [
        item
        for device in devices
        for item in matching.eligible_accelerators(
            ResourceRequest(device, labels=schedule.labels, environment=schedule.environment),
            {schedule.suite},
            accelerators,
        )[0]
    ]
    return [_Place(item.device, item) for item in able] or [_Place(devices[0])]


def _request(schedule: Schedule, firing: Firing, place: _Place) -> str:
    """Asks for one run; returns why there is none, or ''."""
    labels, host = dict(schedule.labels), None
    if place.accelerator:
        labels["accelerator"], host = place.accelerator.name, place.accelerator.host
    waiting = Run.objects.filter(
        firing__schedule=schedule, state=State.QUEUED, cancel_asked=None, host=host, labels=labels
    ).first()
    if waiting:
        return f"run {waiting.pk} of an earlier time has not started yet"
    try:
        requests.request_suite(
            selection_of(schedule, place.device),
            requests.RunOptions(
                ResourceRequest(place.device, host, labels=labels, environment=schedule.environment),
                who=f"schedule {schedule.name}",
                repeats=schedule.repeats,
                interactive=False,
                trigger=firing,
            ),
        )
    except requests.InvalidRunRequest as error:
        return str(error)
    return ""


def _database_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now
