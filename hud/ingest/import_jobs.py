"""Import jobs: uploads that have too many records for one request.

The body is a file, the row has the progress. A job is one transaction, so an interrupted one starts again.
`manage.py imports` processes each in a process of its own (`hud/ingest/import_processes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from django.conf import settings
from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models.functions import Now

from hud.accounts.audit import client_address
from hud.ingest.receive import Content, ingest, keep_key
from hud.models import ApiKey, Import
from hud.runs.streams import StreamRefused, for_upload
from hud.server.embedded import make_folder
from runner.formats.errors import BadUpload
from runner.formats.parameters import Parameters

logger = logging.getLogger(__name__)


def submit(
    body: bytes, parameters: Parameters, *, key: ApiKey | None = None, idempotency_key: str = ""
) -> Import:
    """Store a body for `manage.py imports`; the same content with the same parameters is the same job.

    Raise BadUpload for an unknown format, StreamRefused, KeyInUse or KeyMisused for the idempotency key.
    """
    with transaction.atomic():
        stream = for_upload(parameters.stream, key)
        content = Content.of(body, parameters, stream)
        if key and idempotency_key:
            keep_key(key, idempotency_key, content)
        job, new = Import.objects.get_or_create(
            content_key=content.request_key,
            stream=stream,
            state__in=[Import.State.QUEUED, Import.State.RUNNING, Import.State.DONE],
            defaults={
                "parameters": parameters.given(),
                "key": key,
                "address": client_address.get(),
                "state": Import.State.QUEUED,
            },
        )
        if new:
            path = body_path(job)
            make_folder(path.parent)
            path.touch(mode=0o600)
            path.write_bytes(body)
    return job


def body_path(job: Import) -> Path:
    return Path(settings.HUD_DATA) / "imports" / str(job.uid)


def process(job: Import) -> None:
    """Ingest an import. Raise MemoryError; OperationalError or InterfaceError without the database."""
    try:
        body = body_path(job).read_bytes()
        with transaction.atomic():
            parameters, report = Parameters.parse(job.parameters), _reporter(job)
            receipt = ingest(body, parameters, key=job.key, on_progress=report, stream=job.stream)
            Import.objects.filter(pk=job.pk).update(
                state=Import.State.DONE,
                done_records=receipt.stored + receipt.duplicates + receipt.skipped_total,
                receipt=receipt.to_json(),
                finished=Now(),
            )
    except StreamRefused as error:
        fail(job, str(error))
    except BadUpload as error:
        fail(job, error.detail, [fault.to_json() for fault in error.faults])
    except OSError as error:
        fail(job, f"its body cannot be read: {error.strerror}")
    except (OperationalError, InterfaceError, MemoryError):
        raise
    except Exception:
        logger.exception("import %s ends with an error of ours", job.pk)
        fail(job, "an error of ours; it is in the log")
    else:
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


def fail(job: Import, detail: str, errors: Sequence[dict[str, object]] = ()) -> None:
    """End an import that has not ended yet, with its problem."""
    logger.warning("import %s is refused: %s", job.pk, detail)
    Import.objects.filter(pk=job.pk, finished__isnull=True).update(
        state=Import.State.FAILED, problem={"detail": detail, "errors": [*errors]}, finished=Now()
    )
    body_path(job).unlink(missing_ok=True)
