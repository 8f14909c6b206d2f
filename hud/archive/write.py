"""Write closed months into the archive, and compare it with PostgreSQL."""

import hashlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from tempfile import TemporaryFile
from typing import Any

import pyarrow as pa
from django.core.files import File
from django.utils import timezone
from pyarrow import parquet

from hud.archive.months import ClosedMonth, archived_months, closed_months, due, has_files, local_path
from hud.archive.tables import ArchiveContent, read
from hud.files import files
from hud.models import ArchivedMonth
from hud.models.archive import POINTS, SAMPLES

logger = logging.getLogger(__name__)


def write_due() -> Iterator[ArchivedMonth]:
    """Write what is due; yield each month whose content is not what was archived."""
    stale, without_runs = due()
    ArchivedMonth.objects.filter(pk__in=[row.pk for row in without_runs]).delete()
    for month in stale:
        if row := write(month):
            yield row


def write(month: ClosedMonth) -> ArchivedMonth | None:
    """Write a month; return its row, None where its content is archived already, or where it changes
    meanwhile: then it is due again."""
    archived = ArchivedMonth.objects.filter(stream=month.stream_id, month=month.month).first()
    with ExitStack() as stack:
        outputs = {kind: stack.enter_context(TemporaryFile()) for kind in (POINTS, SAMPLES)}
        rows, digest = _content(month, archived, outputs)
        if closed_months(month.stream_id, month.month, month.month) != [month]:
            return None
        if archived and archived.digest == digest and has_files(archived):
            archived.versions = month.versions
            archived.save(update_fields=["versions"])
            return None
        row = ArchivedMonth(
            pk=archived.pk if archived else None,
            stream_id=month.stream_id,
            month=month.month,
            path=f"archive/{month.stream_id}/{month.month:%Y-%m}-{secrets.token_hex(4)}",
            versions=month.versions,
            digest=digest,
            points=rows[POINTS],
            sampled=rows[SAMPLES],
            size_bytes=sum(output.tell() for output in outputs.values()),
            written=timezone.now(),
        )
        for kind, output in outputs.items():
            output.seek(0)
            files.save(row.file(kind), File(output))
    row.save()
    return row


def verify() -> Iterator[tuple[ClosedMonth, str]]:
    """Compare the archive with PostgreSQL; yield each closed month with what differs, '' for nothing."""
    archived = archived_months()
    for month in closed_months():
        row = archived.get((month.stream_id, month.month))
        if row is None or row.versions != month.versions:
            yield month, "changed since it was archived" if row else "not archived yet"
        elif not has_files(row) or _digest_of_files(row) != row.digest:
            yield month, "its files are not what was written"
        else:
            yield month, "" if _content(month, row)[1] == row.digest else "PostgreSQL has something else"


def _content(
    month: ClosedMonth, archived: ArchivedMonth | None, outputs: Mapping[str, Any] | None = None
) -> tuple[dict[str, int], str]:
    """Return the number of rows of each kind and the digest of a month, and write it to `outputs`."""
    samples = None
    if archived:
        with suppress(FileNotFoundError):
            samples = local_path(archived.file(SAMPLES))
    contents = {}
    with ExitStack() as stack:
        for kind in (POINTS, SAMPLES):
            contents[kind] = ArchiveContent(kind, (outputs or {}).get(kind))
            stack.callback(contents[kind].close)  # after an error too, while its output is open
            for table in read(kind, month.run_ids, samples):
                contents[kind].add(table)
        return {kind: content.rows for kind, content in contents.items()}, _digest(contents)


def _digest(contents: Mapping[str, ArchiveContent]) -> str:
    return hashlib.sha256("\n".join(content.close() for content in contents.values()).encode()).hexdigest()


def _digest_of_files(row: ArchivedMonth) -> str:
    contents = {kind: ArchiveContent(kind) for kind in (POINTS, SAMPLES)}
    try:
        for kind, content in contents.items():
            with parquet.ParquetFile(local_path(row.file(kind))) as file:
                for number in range(file.num_row_groups):
                    content.add(file.read_row_group(number))
    except (OSError, pa.ArrowException):  # cut off, or none at all
        return ""
    return _digest(contents)
