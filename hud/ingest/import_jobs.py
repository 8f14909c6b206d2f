"""Import jobs: uploads that have too many records for one request.

The body is a file, the row has the progress. A job is one transaction, so an interrupted one starts again.
`manage.py imports` processes each in a child process, so that a bad one takes nothing else with it. Each
attempt has limits on memory and time. An import whose processes keep dying is failed with the reason.
"""

import logging
import multiprocessing
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial

import psutil
from django.conf import settings
from django.core.files.base import ContentFile
from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from hud.accounts.audit import client_address
from hud.files import files
from hud.ingest.receive import Content, answer_of, ingest
from hud.ingest.runs import keep_references
from hud.models import ApiKey, Import
from hud.problems import Problem, passing_problem
from hud.runs.streams import for_upload
from hud.server.processes import die_with_parent
from hud.sql import fetch_tuples
from runner.formats.errors import BadUpload
from runner.formats.parameters import Parameters

logger = logging.getLogger(__name__)
_OUT_OF_MEMORY, _DATABASE_AWAY = 70, 75  # exit statuses of a child
_WAITING = (Import.State.QUEUED, Import.State.RUNNING)  # nobody works on a running one but its one supervisor
_PATIENCE = timedelta(days=1)
_ROUND_S = 1.0  # between heartbeats while a child works


def submit(
    body: bytes, parameters: Parameters, *, key: ApiKey | None = None, idempotency_key: str = ""
) -> Import:
    """Store a body for `manage.py imports`; the same content with the same parameters is the same job.

    Raise BadUpload for an unknown format, Problem for the stream or the idempotency key.
    """
    with transaction.atomic():
        keep_references()
        stream = for_upload(parameters.stream, key)
        content = Content.of(body, parameters, stream)
        if key and idempotency_key:
            answer_of(key, idempotency_key, content)
        columns = {"parameters": parameters.given(), "key": key, "address": client_address.get()}
        job, is_new = Import.objects.exclude(state=Import.State.FAILED).get_or_create(
            content_key=content.request_key, stream=stream, defaults=columns
        )
        if is_new:
            files.save(body_name(job), ContentFile(body))
    return job


def body_name(job: Import) -> str:
    return f"imports/{job.uid}"


def process(job: Import) -> None:
    """Ingest an import. Raise MemoryError; what `passing_problem` knows without the database or files."""
    try:
        body = files.read(body_name(job))
        with transaction.atomic():
            parameters, report = Parameters.parse(job.parameters), partial(_report, job)
            receipt = ingest(body, parameters, key=job.key, on_progress=report, stream=job.stream)
            Import.objects.filter(pk=job.pk).update(
                state=Import.State.DONE,
                done_records=receipt.stored + receipt.duplicates + receipt.skipped_total,
                receipt=receipt.to_json(),
                finished=Now(),
            )
    except Problem as error:
        fail(job, str(error))
    except BadUpload as error:
        fail(job, error.detail, [fault.to_json() for fault in error.faults])
    except OSError as error:
        if passing_problem(error):
            raise
        fail(job, f"its body cannot be read: {error.strerror}")
    except (OperationalError, InterfaceError, MemoryError):
        raise
    except Exception:
        logger.exception("import %s ends with an error of ours", job.pk)
        fail(job, "an error of ours; it is in the log")
    else:
        files.delete(body_name(job))


def _report(job: Import, done: int) -> None:
    """Store progress over a second connection, outside the import's transaction."""
    with closing(connections.create_connection("default")) as other, other.cursor() as cursor:
        cursor.execute("UPDATE hud_import SET done_records = %s WHERE id = %s", [done, job.pk])


def fail(job: Import, detail: str, errors: Sequence[dict[str, object]] = ()) -> None:
    """End an import that has not ended yet, with its problem."""
    logger.warning("import %s is refused: %s", job.pk, detail)
    Import.objects.filter(pk=job.pk, finished__isnull=True).update(
        state=Import.State.FAILED, problem={"detail": detail, "errors": [*errors]}, finished=Now()
    )
    files.delete(body_name(job))


def next_job() -> Import | None:
    """Return the import whose turn it is, so that a backfill delays the others by one import at most.

    Keys take turns. Of one key's imports the oldest and the newest alternate. One whose process has died
    waits until nothing else does.
    """
    rows = fetch_tuples(
        """
        WITH waiting AS (
            SELECT id, key_id, attempts FROM hud_import WHERE state = ANY(%(waiting)s)
        ), keys AS (
            SELECT key_id, count(started) AS starts, max(started) AS latest FROM hud_import
            WHERE key_id IN (SELECT key_id FROM waiting) OR key_id IS NULL GROUP BY key_id
        )
        SELECT w.id FROM waiting w JOIN keys k ON k.key_id IS NOT DISTINCT FROM w.key_id
        ORDER BY w.attempts > 0, k.latest NULLS FIRST, k.key_id,
            CASE WHEN k.starts %% 2 = 0 THEN w.id ELSE -w.id END
        LIMIT 1
        """,
        {"waiting": list(_WAITING)},
    )
    return Import.objects.get(pk=rows[0][0]) if rows else None


def process_next(*, beat: Callable[[], None], stopped: Callable[[], bool]) -> bool:
    """Give the next import one attempt; return False if none waits. Call `beat` every second meanwhile.

    The attempt does not count where `stopped` ends it, or where it found the database away or its disk full,
    for a day.
    """
    job = next_job()
    if job is None:
        return False
    if job.attempts >= settings.HUD_IMPORT_ATTEMPTS:
        fail(job, f"its process died {job.attempts} times, in spite of the limits on it")
        return True
    started = {"attempts": F("attempts") + 1, "started": Now(), "done_records": 0}
    Import.objects.filter(pk=job.pk).update(state=Import.State.RUNNING, **started)
    connections.close_all()  # the child has its own
    child = multiprocessing.get_context("fork").Process(target=_attempt, args=[job.pk])
    child.start()
    until = time.monotonic() + settings.HUD_IMPORT_S
    try:
        while child.is_alive() and time.monotonic() < until and not stopped():
            child.join(min(_ROUND_S, until - time.monotonic()))
            beat()
        status = child.exitcode  # None: its time is over, or this process stops
    finally:
        child.kill()
        child.join()
    is_fresh = timezone.now() - job.created < _PATIENCE
    if (status is None and stopped()) or (status == _DATABASE_AWAY and is_fresh):
        Import.objects.filter(pk=job.pk, state=Import.State.RUNNING).update(attempts=F("attempts") - 1)
    elif status is None:
        fail(job, f"it took longer than {settings.HUD_IMPORT_S:g} s")
    elif status == _OUT_OF_MEMORY:
        fail(job, f"it needs more than {settings.HUD_IMPORT_MEMORY_MIB} MiB of memory")
    elif status:
        ended = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        logger.warning("the process of import %s ended with %s", job.pk, ended)
    return status != _DATABASE_AWAY


def _attempt(pk: int) -> None:
    """Process one import in a child process, under the limit on memory; the exit status says what came."""
    die_with_parent()
    limit = psutil.Process().memory_info().data + settings.HUD_IMPORT_MEMORY_MIB * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))  # without shared libraries and files
    try:
        job = Import.objects.select_related("key").get(pk=pk)
        client_address.set(job.address)  # for the audit
        process(job)
    except MemoryError:
        sys.exit(_OUT_OF_MEMORY)
    except (OperationalError, InterfaceError, OSError) as error:
        logger.warning("the database, or its body, is away: %s", error)
        sys.exit(_DATABASE_AWAY)
