"""Import jobs: uploads with more records than one request may carry, taken in whole in the background.

The body waits in a file, the row says how far it is. A job that was interrupted starts anew: it stores in
one transaction, so nothing of the first try is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, connections, transaction
from django.db.models.functions import Now

from hud.embedded import make_folder
from hud.ingest.receive import BadUpload, Receipt, content_key_of, ingest, keep_key, request_key
from hud.models import ApiKey, Import
from runner.formats.parameters import Parameters, switch

logger = logging.getLogger(__name__)
_LOCK_SPACE = 7_014_002


def submit(
    body: bytes, parameters: Parameters, *, key: ApiKey | None = None, idempotency_key: str = ""
) -> Import:
    """Puts a body aside for `work_off`; the same content with the same parameters is the same job.

    Raises BadUpload for a body that is of no format, KeyInUse or KeyMisused for its idempotency key.
    """
    said = content_key_of(body, parameters)
    content_key = said
    if switch(parameters.partial):
        content_key = f"partial:{said}"[:64]  # its outcome may be another than the whole one's
    with transaction.atomic():
        if key and idempotency_key:
            keep_key(key, idempotency_key, request_key(said, parameters))
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


def work_off() -> bool:
    """Takes in one waiting import; False where none waits. Any number of processes may call it."""
    waiting = Import.objects.filter(state__in=[Import.State.QUEUED, Import.State.RUNNING]).order_by("pk")
    for job in waiting[:10]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [_LOCK_SPACE, job.pk])
            if not cursor.fetchone()[0]:
                continue  # another process is at it
            try:
                _take_in(job)
            finally:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [_LOCK_SPACE, job.pk])
        return True
    return False


def _take_in(job: Import) -> None:
    Import.objects.filter(pk=job.pk).update(state=Import.State.RUNNING, done_records=0)
    try:
        body = body_path(job).read_bytes()
        with transaction.atomic():
            receipt = ingest(body, Parameters.parse(job.parameters), key=job.key, on_progress=_reporter(job))
            _end(job, receipt)
    except BadUpload as error:
        _fail(job, error.detail, [fault.to_json() for fault in error.faults])
    except OSError as error:
        _fail(job, f"its body cannot be read: {error.strerror}", [])
    except (OperationalError, InterfaceError):
        raise  # the database is away: the job starts anew when it is back
    except Exception:
        # one bad import must not hold up those behind it, nor the verdicts
        logger.exception("import %s ends with an error of ours", job.pk)
        _fail(job, "an error of ours; it is in the log", [])
    body_path(job).unlink(missing_ok=True)


def _reporter(job: Import) -> Callable[[int], None]:
    """Progress goes over a connection of its own: the import's transaction shows nothing until its end."""

    def report(done: int) -> None:
        other = connections.create_connection("default")
        try:
            with other.cursor() as cursor:
                cursor.execute("UPDATE hud_import SET done_records = %s WHERE id = %s", [done, job.pk])
        finally:
            other.close()

    return report


def _end(job: Import, receipt: Receipt) -> None:
    Import.objects.filter(pk=job.pk).update(
        state=Import.State.DONE,
        done_records=receipt.stored + receipt.duplicates + len(receipt.skipped),
        receipt=receipt.to_json(),
        finished=Now(),
    )


def _fail(job: Import, detail: str, errors: list[dict[str, object]]) -> None:
    logger.warning("import %s is refused: %s", job.pk, detail)
    Import.objects.filter(pk=job.pk).update(
        state=Import.State.FAILED, problem={"detail": detail, "errors": errors}, finished=Now()
    )
