"""Import jobs: ingest uploads in the background that have too many records for one request.

The body is a file, the row has the progress. A job is one transaction, so an interrupted one starts again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, connections, transaction
from django.db.models.functions import Now

from hud.ingest.receive import Content, ingest, keep_key
from hud.models import ApiKey, Import
from hud.server.embedded import make_folder
from runner.formats.errors import BadUpload
from runner.formats.parameters import Parameters

logger = logging.getLogger(__name__)
_LOCK_SPACE = 7_014_002


def submit(
    body: bytes, parameters: Parameters, *, key: ApiKey | None = None, idempotency_key: str = ""
) -> Import:
    """Store a body for `process_pending`; the same content with the same parameters is the same job.

    Raise BadUpload for an unknown format, KeyInUse or KeyMisused for the idempotency key.
    """
    content_key = Content.of(body, parameters).request_key
    with transaction.atomic():
        if key and idempotency_key:
            keep_key(key, idempotency_key, content_key)
        job, new = Import.objects.get_or_create(
            content_key=content_key,
            state__in=[Import.State.QUEUED, Import.State.RUNNING, Import.State.DONE],
            defaults={"parameters": parameters.given(), "key": key, "state": Import.State.QUEUED},
        )
        if new:
            path = body_path(job)
            make_folder(path.parent)
            path.touch(mode=0o600)
            path.write_bytes(body)
    return job


def body_path(job: Import) -> Path:
    return Path(settings.HUD_DATA) / "imports" / str(job.uid)


def process_pending() -> bool:
    """Ingest one queued import; return False if there is none. Several processes may call this."""
    waiting = Import.objects.filter(state__in=[Import.State.QUEUED, Import.State.RUNNING]).order_by("pk")
    for job in waiting[:10]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [_LOCK_SPACE, job.pk])
            if not cursor.fetchone()[0]:
                continue  # another process ingests it
            try:
                _process(job)
            finally:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [_LOCK_SPACE, job.pk])
        return True
    return False


def _process(job: Import) -> None:
    Import.objects.filter(pk=job.pk).update(state=Import.State.RUNNING, done_records=0)
    try:
        body = body_path(job).read_bytes()
        with transaction.atomic():
            receipt = ingest(body, Parameters.parse(job.parameters), key=job.key, on_progress=_reporter(job))
            Import.objects.filter(pk=job.pk).update(
                state=Import.State.DONE,
                done_records=receipt.stored + receipt.duplicates + len(receipt.skipped),
                receipt=receipt.to_json(),
                finished=Now(),
            )
    except BadUpload as error:
        _fail(job, error.detail, [fault.to_json() for fault in error.faults])
    except OSError as error:
        _fail(job, f"its body cannot be read: {error.strerror}", [])
    except (OperationalError, InterfaceError):
        raise  # the database is down; the job starts again when it is back
    except Exception:
        # a bad import must not block later ones and the verdicts
        logger.exception("import %s ends with an error of ours", job.pk)
        _fail(job, "an error of ours; it is in the log", [])
    body_path(job).unlink(missing_ok=True)


def _reporter(job: Import) -> Callable[[int], None]:
    """Return a callback that stores progress over a second connection, outside the import's transaction."""

    def report(done: int) -> None:
        other = connections.create_connection("default")
        try:
            with other.cursor() as cursor:
                cursor.execute("UPDATE hud_import SET done_records = %s WHERE id = %s", [done, job.pk])
        finally:
            other.close()

    return report


def _fail(job: Import, detail: str, errors: list[dict[str, object]]) -> None:
    logger.warning("import %s is refused: %s", job.pk, detail)
    Import.objects.filter(pk=job.pk).update(
        state=Import.State.FAILED, problem={"detail": detail, "errors": errors}, finished=Now()
    )
