"""Remove what has ended and is older than its kind is kept: rows and files.

`manage.py tick` does it once a day in small batches, `manage.py prune` at once. Files go last, as orphans,
once their rows were committed away.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db.models import BigIntegerField, Count, QuerySet, Sum
from django.db.models.expressions import RawSQL
from django.utils import timezone

from hud import partitions
from hud.archive.months import OldSamples
from hud.files import files, names_in
from hud.models import (
    ArchivedMonth,
    Artifact,
    Audit,
    IdempotencyKey,
    Import,
    KeptValue,
    KernelCode,
    LimitUse,
    Task,
)
from hud.models.archive import POINTS, SAMPLES
from hud.points.kept import STORED
from hud.runs.logs import log_name

_BATCH = 500
_ORPHAN_AGE = timedelta(days=1)  # a younger file may be one whose row is not committed yet


@dataclass(frozen=True)
class Rows:
    """Rows that are too old, and the bytes of their files, which the column `size` has. With `cleared` the
    rows stay, with these values."""

    name: str
    old: QuerySet[Any]
    size: str = ""
    cleared: Mapping[str, Any] = field(default_factory=dict)

    def measure(self) -> tuple[int, int]:
        """Return how many are too old, and their bytes."""
        table = self.old.model._meta.db_table
        row = RawSQL(f'pg_column_size("{table}".*)', [], BigIntegerField())  # noqa: S611 - our own table  # nosec B611
        totals = self.old.aggregate(count=Count("pk"), bytes=Sum(self.size or row))
        return totals["count"], totals["bytes"] or 0

    def prune(self) -> Iterator[int]:
        """Remove them; yield after each batch how many went."""
        while batch := list(self.old.order_by("pk").values_list("pk", flat=True)[:_BATCH]):
            rows = self.old.model._default_manager.filter(pk__in=batch)
            if self.cleared:
                rows.update(**self.cleared)
            else:
                rows.delete()
            yield len(batch)


class OrphanFiles:
    """Files of tasks, imports and the archive that no row names, other than young ones."""

    name = "orphan files"

    def measure(self) -> tuple[int, int]:
        sizes = [files.size(name) for names in orphans() for name in names]
        return len(sizes), sum(sizes)

    def prune(self) -> Iterator[int]:
        """Remove them; yield after each folder how many went."""
        for names in orphans():
            for name in names:
                files.delete(name)
            yield len(names)


def kinds() -> list[Rows | OldSamples | OrphanFiles]:
    """Return everything that has an end, with the limits of the settings."""
    requests, artifacts = _before(settings.HUD_KEEP_REQUESTS_DAYS), _before(settings.HUD_KEEP_ARTIFACTS_DAYS)
    now = timezone.now()
    longest = now + timedelta(seconds=settings.SESSION_COOKIE_AGE, days=1)  # else of a clock that was ahead
    logs = Task.objects.filter(finished__lt=_before(settings.HUD_KEEP_LOGS_DAYS), log_bytes__gt=0)
    return [
        Rows("task logs", logs, "log_bytes", {"log_bytes": 0}),
        Rows("artifacts", Artifact.objects.filter(task__finished__lt=artifacts), "size_bytes"),
        Rows("kernel code", KernelCode.objects.filter(delivered__lt=artifacts)),
        Rows("idempotency keys", IdempotencyKey.objects.filter(created__lt=requests)),
        Rows("ended imports", Import.objects.filter(finished__lt=requests)),
        Rows("kept values", KeptValue.objects.filter(at__lt=now - STORED)),
        Rows("use of limits", LimitUse.objects.filter(at__lt=requests)),
        Rows("expired sessions", Session.objects.exclude(expire_date__range=(now, longest))),
        Rows("audit", Audit.objects.filter(at__lt=_before(settings.HUD_KEEP_AUDIT_DAYS))),
        OldSamples(settings.HUD_KEEP_SAMPLES_DAYS),
        OrphanFiles(),
    ]


def batches() -> Iterator[tuple[str, int]]:
    """Prune everything, a batch for each step; yield the kind and how many went."""
    partitions.look_after()
    for kind in kinds():
        for count in kind.prune():
            yield kind.name, count


def _before(days: float) -> datetime:
    return timezone.now() - timedelta(days=days)


def orphans() -> Iterator[list[str]]:
    """Yield of each folder the files that no row names, other than young ones."""
    for folder in names_in("artifacts", folders=True):
        names = names_in(folder)
        yield _old(names, Artifact.objects.filter(path__in=names).values_list("path", flat=True))
    before = _before(settings.HUD_KEEP_LOGS_DAYS)
    for folder in names_in("tasklogs", folders=True):
        run_id = folder.rpartition("/")[2]
        tasks = Task.objects.filter(run_id=run_id) if run_id.isdecimal() else Task.objects.none()
        named = tasks.exclude(finished__lt=before) | tasks.filter(log_bytes__gt=0)
        named = named.only("uid", "run_id", "attempt")
        kept = [log_name(task, n) for task in named for n in range(task.attempt + 1)]
        yield _old(names_in(folder), kept)
    for folder in names_in("archive", folders=True):
        months = ArchivedMonth.objects.filter(path__startswith=f"{folder}/")
        yield _old(names_in(folder), [row.file(kind) for row in months for kind in (POINTS, SAMPLES)])
    waiting = Import.objects.filter(finished=None).values_list("uid", flat=True)
    yield _old(names_in("imports"), [f"imports/{uid}" for uid in waiting])


def _old(names: Iterable[str], named: Iterable[str]) -> list[str]:
    """Return the files that no row names and that have not changed for a day."""
    before, old = timezone.now() - _ORPHAN_AGE, []
    for name in {*names}.difference(named):
        with suppress(FileNotFoundError):  # its import has just ended
            old += [name] if files.get_modified_time(name) < before else []
    return old
