"""Schedules: request runs at the times of a cron expression in a time zone.

`manage.py tick` fires each due time once: a `ScheduleTrigger` row, unique by schedule and time, in one
transaction with its runs. After an outage only the latest missed time is made up. A person's rerun goes ahead
of scheduled runs, between two of their tasks.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Prefetch
from django.db.models.functions import Now
from django.utils import timezone

from hud.accounts import audit
from hud.hosts.registration import visible_accelerators
from hud.models import NIGHTLY, Accelerator, RunRequest, Schedule, ScheduleTrigger, State
from hud.runs import matching, requests
from hud.runs.matching import ResourceRequest
from hud.sql import fetch_tuples
from hud.tables.table import DataTable, under
from runner import suites
from runner.schema.suite import BadRequest
from runner.schema.tasks import Replication, Selection
from runner.suites import PRESETS, suite_of

logger = logging.getLogger(__name__)
# of a stored schedule: its zone, a folder or a name that is too long or that this machine does not know; cron
_NO_TIMES = (ValueError, KeyError, OSError, CronSimError)

FIELDS = "minute, hour, day of month, month, day of week"
CEILINGS = "daily ceilings"  # the schedule of every new installation

SETTINGS = """name enabled cron time_zone preset suite cases modes dtypes backends compilations repeats device
    environment labels everywhere"""


@dataclass(frozen=True, slots=True)
class ScheduleLine:
    """A schedule with its next due time, None while it has none, and the last time it fired."""

    schedule: Schedule
    next_due: datetime | None
    last: ScheduleTrigger | None


COLUMNS = DataTable[ScheduleLine](
    f"""id=schedule.pk {under("schedule", SETTINGS)} stream next_due last_due last_reason=last?.reason
    last_runs""",
    stream=lambda line: line.schedule.stream.name if line.schedule.stream else NIGHTLY,
    last_due=lambda line: line.last.due if line.last else None,
    last_runs=lambda line: [request.pk for request in line.last.requests.all()] if line.last else [],
)


def read() -> list[ScheduleLine]:
    """Return every schedule by name, in 3 statements."""
    requests_of_it = Prefetch("requests", RunRequest.objects.select_related("run"))
    newest = ScheduleTrigger.objects.order_by("schedule_id", "-due").distinct("schedule_id")
    newest = newest.prefetch_related(requests_of_it)
    schedules = Schedule.objects.select_related("stream").order_by("name")
    lines = []
    for schedule in schedules.prefetch_related(Prefetch("triggers", newest, to_attr="latest")):
        due = None
        with suppress(*_NO_TIMES):
            due = next_due(schedule, timezone.now()) if schedule.enabled else None
        lines.append(ScheduleLine(schedule, due, next(iter(schedule.latest), None)))
    return lines


def check(schedule: Schedule) -> None:
    """Raise ValidationError, by field, for a schedule that could never fire."""
    faults = {"cron": _cron_fault(schedule.cron), "suite": _request_fault(schedule)}
    try:
        ZoneInfo(schedule.time_zone)
    except _NO_TIMES:
        faults["time_zone"] = f"{schedule.time_zone!r} is no time zone; one is UTC, another Europe/Berlin"
    labels: Any = schedule.labels
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
        faults["labels"] = 'labels are an object of texts, as {"gpu": "h200"}'
    if any(faults.values()):
        raise ValidationError({field: text for field, text in faults.items() if text})


def _cron_fault(cron: str) -> str:
    fields = cron.split()
    if len(fields) != 5:
        return f"a cron expression has five fields ({FIELDS}); this one has {len(fields)}"
    try:
        if next(CronSim(cron, timezone.now()), None):
            return ""
    except CronSimError as error:
        return f"{error}: the five fields of a cron expression are {FIELDS}"
    return "this never comes"


def _request_fault(schedule: Schedule) -> str:
    try:
        specs = requests.tasks_of(selection_of(schedule, schedule.device or "cuda"), schedule.preset)
        requests.processes_of(specs, Replication(schedule.compilations, schedule.repeats))
    except BadRequest as error:
        return str(error)
    return ""


def selection_of(schedule: Schedule, device: str) -> Selection:
    filters = {name: getattr(schedule, name) for name in ("cases", "modes", "dtypes", "backends")}
    return Selection(schedule.suite, device, **filters)


# Changes by people; each writes an audit row.


def save(schedule: Schedule, *, who: str) -> Schedule:
    """Check and store a schedule; due times before now are not made up. Raise ValidationError."""
    schedule.active_from = Now()
    schedule.full_clean(exclude=["active_from", "created"])
    check(schedule)
    with transaction.atomic():
        action = "schedule.change" if schedule.pk else "schedule.create"
        schedule.save()
        skipped = {"id", "name", "created", "active_from"}
        columns = [field.attname for field in Schedule._meta.concrete_fields if field.name not in skipped]
        detail = {name: getattr(schedule, name) for name in columns}
        audit.note(who=who, action=action, subject=f"schedule {schedule.name}", detail=detail)
    schedule.refresh_from_db()
    return schedule


def switch(*, schedule: Schedule, enabled: bool, who: str) -> None:
    """Let a schedule fire from its next due time on, or stop it from firing; its runs go on."""
    columns = {"enabled": True, "active_from": Now()} if enabled else {"enabled": False}
    if Schedule.objects.filter(pk=schedule.pk, enabled=not enabled).update(**columns):
        action = "schedule.enable" if enabled else "schedule.disable"
        audit.note(who=who, action=action, subject=f"schedule {schedule.name}")


def delete(*, schedule: Schedule, who: str) -> None:
    """Delete a schedule; its runs stay."""
    with transaction.atomic():
        audit.note(who=who, action="schedule.delete", subject=f"schedule {schedule.name}")
        schedule.delete()


def create_default() -> None:
    """Create the schedule of every new installation, unless it exists, changed or not."""
    Schedule.objects.get_or_create(
        name=CEILINGS, defaults={"cron": "10 4 * * *", "suite": suites.CEILINGS, "everywhere": True}
    )


def next_due(schedule: Schedule, after: datetime) -> datetime:
    """Return the first due time after a moment."""
    return next(due for due in _due_times(schedule, after) if due > after)  # once where a time repeats


def latest_due(schedule: Schedule, now: datetime) -> datetime:
    """Return the latest due time that is not in the future."""
    return next(_due_times(schedule, now + datetime.resolution, reverse=True))


def _due_times(schedule: Schedule, start: datetime, *, reverse: bool = False) -> Iterator[datetime]:
    """Return due times after `start`, or before it backwards, by the rules of Debian's cron: a time that
    daylight saving skips comes when the clock goes forward; a repeated one comes once, or twice if every hour
    is due."""
    times = CronSim(schedule.cron, start.astimezone(ZoneInfo(schedule.time_zone)), reverse)
    return (due.astimezone(UTC) for due in times)


def fire_due(now: datetime | None = None) -> list[ScheduleTrigger]:
    """Fire every schedule that is due at `now`, by default the time of the database."""
    if now is None:
        ((now,),) = fetch_tuples("SELECT clock_timestamp()", {})
    assert now
    fired: list[ScheduleTrigger] = []
    for schedule in Schedule.objects.filter(enabled=True).order_by("pk"):
        try:
            due = latest_due(schedule, now)
        except _NO_TIMES:  # the others go on
            logger.exception("schedule %s was not fired", schedule.name)
            continue
        if due >= schedule.active_from and not schedule.triggers.filter(due=due).exists():
            fired += filter(None, [fire(schedule, due)])
    return fired


def fire(schedule: Schedule, due: datetime) -> ScheduleTrigger | None:
    """Request the runs of one due time in one transaction; return None if another tick has done it."""
    try:
        with transaction.atomic():
            trigger = ScheduleTrigger.objects.create(schedule=schedule, due=due)
            reasons = [_request(trigger, *target) for target in _targets(schedule)]
            trigger.reason = "; ".join(filter(None, reasons))[:1000]
            trigger.save(update_fields=["reason"])
    except IntegrityError:
        return None
    return trigger


def _targets(schedule: Schedule) -> list[tuple[str, Accelerator | None]]:
    """Return the device of each run, and its accelerator if it may not run on any other."""
    if not schedule.everywhere:
        return [(schedule.device or "cuda", None)]
    names = [schedule.suite] if schedule.suite else PRESETS[schedule.preset]["suites"]
    devices = [schedule.device] if schedule.device else suite_of(names[0]).devices
    accelerators = visible_accelerators()
    able: list[Accelerator] = []
    for device in devices:
        needed = ResourceRequest(device, labels=schedule.labels, interpreter=schedule.environment)
        able += matching.eligible_accelerators(needed, {*names}, accelerators)[0]
    return [(item.device, item) for item in able] or [(devices[0], None)]


def _request(trigger: ScheduleTrigger, device: str, accelerator: Accelerator | None) -> str:
    """Request one run; return why there is none, or ''."""
    schedule, host = trigger.schedule, None
    labels, interpreter = dict(schedule.labels), schedule.environment
    if accelerator:
        if schedule.suite == suites.CEILINGS and suites.CANARY in accelerator.catalog.get("pythons", []):
            interpreter = interpreter or suites.CANARY
        labels["accelerator"], host = accelerator.name, accelerator.host
    queued = RunRequest.objects.filter(run__state=State.QUEUED, run__cancel_asked=None)
    waiting = queued.filter(trigger__schedule=schedule, host=host, labels=labels).first()
    if waiting:
        return f"run {waiting.pk} of an earlier time has not started yet"
    try:
        requests.request_suite(
            selection_of(schedule, device),
            requests.RunOptions(
                ResourceRequest(device, host, labels=labels, interpreter=interpreter),
                who=f"schedule {schedule.name}",
                replication=Replication(schedule.compilations, schedule.repeats),
                run_class="night",
                trigger=trigger,
            ),
            preset=schedule.preset,
        )
    except BadRequest as error:
        return str(error)
    return ""
