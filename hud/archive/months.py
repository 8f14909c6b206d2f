"""Which months are archived, and which have to be written anew.

A month of a stream is closed once it is over. Whatever changes points or measurements makes new versions of
the rows of their runs, in the same transaction (`hud.points.write.touch_runs`). So a month is written anew
where its runs have other versions: after a deletion, a replacement, a merge, a verdict, a late upload.
"""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import OperationalError, transaction
from django.utils import timezone

from hud import partitions
from hud.files import files
from hud.models import ArchivedMonth, DetailedMeasurement
from hud.models.archive import POINTS, SAMPLES
from hud.server.embedded import make_folder
from hud.sql import execute, fetch_tuples, int_array

WRITTEN_EVERY_H = 6  # by `tick`
_MONTH = "date_trunc('month', {} AT TIME ZONE 'UTC')::date"
_START = "({}::timestamp AT TIME ZONE 'UTC')"  # of a month
_VERSIONS = "md5(string_agg(concat_ws(' ', id, xmin, ctid), ',' ORDER BY id))"
# The condition is of the statement's own snapshot: what is replaced later is locked, or another row by then
_SAMPLES = f"""hud_detailedmeasurement WHERE run_id = ANY(%(runs)s::int[]) AND samples IS NOT NULL
    AND (SELECT {_VERSIONS} FROM hud_run WHERE id = ANY(%(runs)s::int[])) = %(versions)s"""  # noqa: S608 — as below  # nosec B608
# Versions of rows, and no keys, for the same reason. Each partition counts its own
_DROP = f"""
    WITH old AS (SELECT tableoid, ctid FROM {_SAMPLES} LIMIT 500 FOR UPDATE SKIP LOCKED)
    UPDATE hud_detailedmeasurement m SET samples = NULL FROM old
    WHERE m.ctid = old.ctid AND m.tableoid = old.tableoid"""  # noqa: S608 — constants  # nosec B608


@dataclass(frozen=True)
class ClosedMonth:
    stream_id: int
    month: date
    versions: str  # of the rows of its runs
    run_ids: list[int]

    @property
    def params(self) -> dict[str, Any]:
        return {"runs": int_array(self.run_ids), "versions": self.versions}


def closed_months(
    stream_id: int | None = None, first: date = date.min, last: date = date.max
) -> list[ClosedMonth]:
    """Return the closed months that have runs, of one stream or all, from one month to another: 1 statement,
    which reads the runs of a stream in these months by an index."""
    rows = fetch_tuples(
        f"""
        SELECT stream_id, {_MONTH.format("order_time")},
            {_VERSIONS}, array_agg(id ORDER BY id)
        FROM hud_run WHERE (%(stream)s::int IS NULL OR stream_id = %(stream)s)
            AND order_time >= {_START.format("%(first)s::date")}
            AND order_time < {_START.format(_MONTH.format("now()"))}
            AND order_time < {_START.format("(%(last)s::date + interval '1 month')")}
        GROUP BY 1, 2 ORDER BY 1, 2
        """,  # noqa: S608 — constants of this module  # nosec B608
        {"stream": stream_id, "first": first, "last": last},
    )
    return [ClosedMonth(*row) for row in rows]


def archived_months() -> dict[tuple[int, date], ArchivedMonth]:
    return {(row.stream_id, row.month): row for row in ArchivedMonth.objects.order_by("stream", "month")}


def due() -> tuple[list[ClosedMonth], list[ArchivedMonth]]:
    """Return the months to be written, and the rows of months that have no run any more: 2 statements."""
    archived, stale = archived_months(), []
    for month in closed_months():
        row = archived.pop((month.stream_id, month.month), None)
        if row is None or row.versions != month.versions or not has_files(row):
            stale.append(month)
    return stale, list(archived.values())


def has_files(row: ArchivedMonth) -> bool:
    return all(files.exists(row.file(kind)) for kind in (POINTS, SAMPLES))


def local_path(name: str) -> Path:
    """Return where a file of the archive lies on this machine, to which one of a bucket is copied once. Raise
    FileNotFoundError."""
    path = Path(settings.HUD_DATA) / name
    if not path.exists():
        make_folder(path.parent)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            with files.open(name) as source, partial.open("xb") as target:
                shutil.copyfileobj(source, target)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        kind = name.rpartition("-")[2]
        for outdated in path.parent.glob(f"{path.name[: len('2026-01')]}-*-{kind}"):
            if outdated != path:
                outdated.unlink(missing_ok=True)
    return path


class OldSamples:
    """Samples in archived months that ended over so many `days` ago. Their rows stay, with value and spread;
    where something has changed since the month was archived, so do the samples."""

    name = "archived samples"

    def __init__(self, days: float) -> None:
        self._days = days  # 0: none is old

    def measure(self) -> tuple[int, int]:
        statement = f"SELECT count(*), coalesce(sum(pg_column_size(samples)), 0) FROM {_SAMPLES}"  # noqa: S608 — constants  # nosec B608
        rows = [fetch_tuples(statement, month.params)[0] for month in self._months()]
        return sum(count for count, _bytes in rows), sum(size_bytes for _count, size_bytes in rows)

    def prune(self) -> Iterator[int]:
        """Drop them; yield after each batch how many went."""
        if months := list(self._months()):
            for name, bounds in partitions.of_runs():
                count = 0
                with suppress(OperationalError), partitions.briefly():  # in use: another day
                    count = self._drop_partition(name, bounds, months)
                yield count
        for month in months:
            while count := execute(_DROP, month.params):
                yield count

    def _drop_partition(self, name: str, bounds: str, months: list[ClosedMonth]) -> int:
        """Drop a partition all of whose runs are of these months, with a copy without samples in its place:
        no later row comes where single ones have gone. Return how many samples went."""
        runs = [int_array(pk for month in months for pk in month.run_ids)]
        others = f"SELECT FROM {name} WHERE run_id <> ALL(%s::int[])"
        ((count,),) = fetch_tuples(f"SELECT count(samples) FROM {name} WHERE NOT EXISTS ({others})", runs)  # noqa: S608  # nosec B608
        if count:
            columns = ", ".join(str(field.column) for field in DetailedMeasurement._meta.concrete_fields)
            copied = columns.replace(" samples,", " NULL,")
            execute(
                f"""CREATE TABLE {name}_new (LIKE {name} INCLUDING ALL);
                INSERT INTO {name}_new ({columns}) SELECT {copied} FROM {name};
                LOCK TABLE {partitions.MEASUREMENTS.name} IN ACCESS EXCLUSIVE MODE"""  # noqa: S608  # nosec B608
            )
            if list(self._months()) != months:  # written to meanwhile
                transaction.set_rollback(True)
                return 0
            execute(
                f"""ALTER TABLE {partitions.MEASUREMENTS.name} DETACH PARTITION {name};
                DROP TABLE {name};
                ALTER TABLE {name}_new RENAME TO {name};
                ALTER TABLE {partitions.MEASUREMENTS.name} ATTACH PARTITION {name} {bounds}"""
            )
        return int(count)

    def _months(self) -> Iterator[ClosedMonth]:
        """Yield those that are old, and in the archive as they are."""
        before = timezone.now().date() - timedelta(days=self._days + 31)
        old = ArchivedMonth.objects.filter(month__lt=before, sampled__gt=0) if self._days else ()
        for row in old:
            if files.exists(row.file(SAMPLES)):
                closed = closed_months(row.stream_id, row.month, row.month)
                yield from (month for month in closed if month.versions == row.versions)
