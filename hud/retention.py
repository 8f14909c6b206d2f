"""Remove what has ended and is older than its kind is kept: rows, and files below `HUD_DATA`.

`manage.py tick` does it once a day in small batches, `manage.py prune` at once. A file goes after its row was
committed away; one that is left behind by a crash has no row any more, and goes as an orphan.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db.models import BigIntegerField, Count, QuerySet, Sum
from django.db.models.expressions import RawSQL
from django.utils import timezone

from hud.models import Artifact, Audit, IdempotencyKey, Import, KernelCode, LimitUse, Task

_BATCH = 500
_ORPHAN_AGE_S = 24 * 3600  # a younger file may be one whose row is not committed yet


@dataclass(frozen=True)
class Rows:
    """Rows that are too old, and the files of each, whose bytes the column `size` has. With `cleared` the
    rows stay, with these values."""

    name: str
    old: QuerySet[Any]
    size: str = ""
    files_of: Callable[[Any], Iterable[Path]] | None = None
    cleared: Mapping[str, Any] = field(default_factory=dict)

    def measure(self) -> tuple[int, int]:
        """Return how many are too old, and their bytes."""
        table = self.old.model._meta.db_table
        row = RawSQL(f'pg_column_size("{table}".*)', [], BigIntegerField())  # noqa: S611 - our own table  # nosec B611
        totals = self.old.aggregate(count=Count("pk"), bytes=Sum(self.size or row))
        return totals["count"], totals["bytes"] or 0

    def prune(self) -> int:
        """Remove a batch of them; return how many."""
        batch = list((self.old if self.files_of else self.old.only("pk")).order_by("pk")[:_BATCH])
        rows = self.old.model._default_manager.filter(pk__in=[row.pk for row in batch])
        if self.cleared:
            rows.update(**self.cleared)
        else:
            rows.delete()
        for path in chain.from_iterable(map(self.files_of, batch)) if self.files_of else ():
            path.unlink(missing_ok=True)
        return len(batch)


class OrphanFiles:
    """Files of tasks and imports that no row names, other than young ones."""

    name = "orphan files"

    def measure(self) -> tuple[int, int]:
        sizes = [path.stat().st_size for path in orphans()]
        return len(sizes), sum(sizes)

    def prune(self) -> int:
        """Remove a batch of them; return how many."""
        batch = list(islice(orphans(), _BATCH))
        for path in batch:
            path.unlink(missing_ok=True)
        return len(batch)


def kinds() -> list[Rows | OrphanFiles]:
    """Return everything that has an end, with the limits of the settings."""
    requests, artifacts = _before(settings.HUD_KEEP_REQUESTS_DAYS), _before(settings.HUD_KEEP_ARTIFACTS_DAYS)
    logs = Task.objects.filter(finished__lt=_before(settings.HUD_KEEP_LOGS_DAYS), log_bytes__gt=0)
    return [
        Rows(
            "task logs",
            logs,
            "log_bytes",
            lambda task: settings.HUD_DATA.glob(f"tasklogs/{task.run_id}/{task.uid}-*.log"),
            {"log_bytes": 0},
        ),
        Rows(
            "artifacts",
            Artifact.objects.filter(task__finished__lt=artifacts),
            "size_bytes",
            lambda artifact: [settings.HUD_DATA / artifact.path],
        ),
        Rows("kernel code", KernelCode.objects.filter(delivered__lt=artifacts)),
        Rows("idempotency keys", IdempotencyKey.objects.filter(created__lt=requests)),
        Rows("ended imports", Import.objects.filter(finished__lt=requests)),
        Rows("use of limits", LimitUse.objects.filter(at__lt=requests)),
        Rows("expired sessions", Session.objects.filter(expire_date__lt=timezone.now())),
        Rows("audit", Audit.objects.filter(at__lt=_before(settings.HUD_KEEP_AUDIT_DAYS))),
        OrphanFiles(),
    ]


def batches() -> Iterator[tuple[str, int]]:
    """Prune everything, a batch for each step; yield the kind and how many went."""
    for kind in kinds():
        while count := kind.prune():
            yield kind.name, count


def _before(days: float) -> datetime:
    return timezone.now() - timedelta(days=days)


def orphans() -> Iterator[Path]:
    """Yield the files of tasks and imports that no row names, other than young ones."""
    for folder in sorted(settings.HUD_DATA.glob("artifacts/*/")):
        paths = {str(path.relative_to(settings.HUD_DATA)): path for path in _old_files(folder)}
        known = set(Artifact.objects.filter(path__in=paths).values_list("path", flat=True))
        yield from (path for name, path in paths.items() if name not in known)
    before = _before(settings.HUD_KEEP_LOGS_DAYS)
    for folder in sorted(settings.HUD_DATA.glob("tasklogs/*/")):
        tasks = Task.objects.filter(run_id=folder.name) if folder.name.isdecimal() else Task.objects.none()
        kept = {str(uid) for uid in tasks.exclude(finished__lt=before).values_list("uid", flat=True)}
        kept |= {str(uid) for uid in tasks.filter(log_bytes__gt=0).values_list("uid", flat=True)}
        yield from (path for path in _old_files(folder) if path.name.rpartition("-")[0] not in kept)
    waiting = {str(uid) for uid in Import.objects.filter(finished=None).values_list("uid", flat=True)}
    yield from (path for path in _old_files(settings.HUD_DATA / "imports") if path.name not in waiting)


def _old_files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, if it exists, that have not changed for a day."""
    for path in sorted(folder.glob("*")):
        with suppress(OSError):
            if path.is_file() and path.stat().st_mtime < time.time() - _ORPHAN_AGE_S:
                yield path
