"""Remove what has ended and is older than its kind is kept: rows, and files below `HUD_DATA`.

`manage.py tick` does it once a day in small batches, `manage.py prune` at once. A file goes after its row was
committed away; one that is left behind by a crash has no row any more, and goes as an orphan.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.sessions.models import Session
from django.db.models import BigIntegerField, Count, QuerySet, Sum
from django.db.models.expressions import RawSQL
from django.utils import timezone

from hud.models import Artifact, Audit, DailyUse, IdempotencyKey, Import, KernelCode, Task

_BATCH = 500
_ORPHAN_AGE_S = 24 * 3600  # a younger file may be one whose row is not committed yet


@dataclass(frozen=True)
class Size:
    count: int
    bytes: int


@dataclass(frozen=True)
class Kind:
    """One kind of data with an age limit: `measure` counts what is too old, `prune` removes a batch of it."""

    name: str
    measure: Callable[[], Size]
    prune: Callable[[], int]


def kinds() -> list[Kind]:
    """Return everything that has an end, with the limits of the settings."""
    requests = _before(settings.HUD_KEEP_REQUESTS_DAYS)
    return [
        _task_logs(_before(settings.HUD_KEEP_LOGS_DAYS)),
        _artifacts(_before(settings.HUD_KEEP_ARTIFACTS_DAYS)),
        _rows(
            "kernel code", KernelCode.objects.filter(delivered__lt=_before(settings.HUD_KEEP_ARTIFACTS_DAYS))
        ),
        _files("refused files", lambda: _refused(_before(settings.HUD_KEEP_REFUSED_DAYS))),
        _rows("idempotency keys", IdempotencyKey.objects.filter(created__lt=requests)),
        _rows("ended imports", Import.objects.filter(finished__lt=requests)),
        _rows("daily use", DailyUse.objects.filter(day__lt=requests)),
        _rows("expired sessions", Session.objects.filter(expire_date__lt=timezone.now())),
        _rows("audit", Audit.objects.filter(at__lt=_before(settings.HUD_KEEP_AUDIT_DAYS))),
        _files("orphan files", orphans),
    ]


def batches() -> Iterator[tuple[str, int]]:
    """Prune everything, a batch for each step; yield the kind and how many went."""
    for kind in kinds():
        while count := kind.prune():
            yield kind.name, count


def _before(days: float) -> datetime:
    return timezone.now() - timedelta(days=days)


def _rows(name: str, old: QuerySet[Any]) -> Kind:
    def measure() -> Size:
        row = RawSQL(f'pg_column_size("{old.model._meta.db_table}".*)', [], BigIntegerField())  # noqa: S611 - our own table  # nosec B611
        found = old.aggregate(count=Count("pk"), bytes=Sum(row))
        return Size(found["count"], found["bytes"] or 0)

    def prune() -> int:
        batch = list(old.order_by("pk").values_list("pk", flat=True)[:_BATCH])
        old.model._default_manager.filter(pk__in=batch).delete()
        return len(batch)

    return Kind(name, measure, prune)


def _task_logs(before: datetime) -> Kind:
    old = Task.objects.filter(finished__lt=before, log_bytes__gt=0)

    def measure() -> Size:
        found = old.aggregate(count=Count("pk"), bytes=Sum("log_bytes"))
        return Size(found["count"], found["bytes"] or 0)

    def prune() -> int:
        batch = list(old.order_by("pk")[:_BATCH])
        Task.objects.filter(pk__in=[task.pk for task in batch]).update(log_bytes=0)
        for task in batch:
            for path in (_folder("tasklogs") / str(task.run_id)).glob(f"{task.uid}-*.log"):
                path.unlink(missing_ok=True)
        return len(batch)

    return Kind("task logs", measure, prune)


def _artifacts(before: datetime) -> Kind:
    old = Artifact.objects.filter(task__finished__lt=before)

    def measure() -> Size:
        found = old.aggregate(count=Count("pk"), bytes=Sum("size_bytes"))
        return Size(found["count"], found["bytes"] or 0)

    def prune() -> int:
        batch = list(old.order_by("pk")[:_BATCH])
        Artifact.objects.filter(pk__in=[artifact.pk for artifact in batch]).delete()
        for artifact in batch:
            (settings.HUD_DATA / artifact.path).unlink(missing_ok=True)
        return len(batch)

    return Kind("artifacts", measure, prune)


# ---- files without rows


def _files(name: str, find: Callable[[], Iterable[Path]]) -> Kind:
    def measure() -> Size:
        sizes = [_bytes_of(path) for path in find()]
        return Size(len(sizes), sum(sizes))

    def prune() -> int:
        batch = list(islice(find(), _BATCH))
        for path in batch:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        return sum(not path.exists() for path in batch)

    return Kind(name, measure, prune)


def orphans() -> Iterator[Path]:
    """Yield the files of tasks and imports that no row names, other than young ones."""
    for folder in _subfolders(_folder("artifacts")):
        paths = {str(path.relative_to(settings.HUD_DATA)): path for path in _old_files(folder)}
        known = set(Artifact.objects.filter(path__in=paths).values_list("path", flat=True))
        yield from (path for name, path in paths.items() if name not in known)
    before = _before(settings.HUD_KEEP_LOGS_DAYS)
    for folder in _subfolders(_folder("tasklogs")):
        tasks = Task.objects.filter(run_id=folder.name) if folder.name.isdecimal() else Task.objects.none()
        kept = {str(uid) for uid in tasks.exclude(finished__lt=before).values_list("uid", flat=True)}
        kept |= {str(uid) for uid in tasks.filter(log_bytes__gt=0).values_list("uid", flat=True)}
        yield from (path for path in _old_files(folder) if path.name.rpartition("-")[0] not in kept)
    waiting = {str(uid) for uid in Import.objects.filter(finished=None).values_list("uid", flat=True)}
    yield from (path for path in _old_files(_folder("imports")) if path.name not in waiting)


def _refused(before: datetime) -> Iterator[Path]:
    """Yield what the agent of this machine keeps of deliveries that were refused.

    Nothing if the agent has an account of its own: benchmark code could put a link to another folder there.
    """
    agent = _folder("agent")
    if agent.is_dir() and agent.stat().st_uid != os.getuid():
        return
    for path in _entries(agent / "refused"):
        with suppress(OSError):
            if path.stat().st_mtime < before.timestamp():
                yield path


def _folder(name: str) -> Path:
    return Path(settings.HUD_DATA) / name


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _subfolders(folder: Path) -> Iterator[Path]:
    return (path for path in _entries(folder) if path.is_dir())


def _old_files(folder: Path) -> Iterator[Path]:
    for path in _entries(folder):
        with suppress(OSError):
            if path.is_file() and path.stat().st_mtime < time.time() - _ORPHAN_AGE_S:
                yield path


def _bytes_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
