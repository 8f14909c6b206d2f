"""The one door for results: bytes → format → observations → rows → receipt.

HTTP, the command line and the runner's delivery all come through `ingest` or `deliver`.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from hud.ingest.errors import BadUpload, Fault, MalformedUpload, UploadTooLarge
from hud.ingest.formats import format_of
from hud.ingest.observe import Observation, Observer, RunKey
from hud.ingest.parameters import Parameters
from hud.ingest.store import Stored, store
from hud.models import ApiKey, Run, State, Upload

__all__ = ["BadUpload", "Receipt", "deliver", "inflate", "ingest"]

_MAX_FAULTS = 20
_MAX_RATIO = 100  # inflated bytes for each byte on the wire


@dataclass
class Receipt:
    """What became of an upload. `skipped` entries have the place and the reason."""

    id: int | None = None
    run_ids: list[int] = field(default_factory=list)
    stored: int = 0
    duplicates: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def inflate(body: bytes) -> bytes:
    """A gzip body's content; raises MalformedUpload or UploadTooLarge, never holding more than the limit."""
    limit = settings.HUD_MAX_BODY_BYTES
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        content = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise MalformedUpload("the body is not gzip", [Fault("", str(error))]) from error
    if len(content) > limit or len(content) > _MAX_RATIO * max(len(body), 1024):
        raise UploadTooLarge(f"the body is over {limit} bytes, or over {_MAX_RATIO} times its gzip size")
    if not inflater.eof or inflater.unused_data:
        raise MalformedUpload("the gzip body is cut off or followed by something else")
    return content


def ingest(body: bytes, parameters: Parameters, *, key: ApiKey | None = None) -> Receipt:
    """Stores an upload whole or not at all. Raises BadUpload with every fault.

    The same content with the same parameters is the same upload: it stores nothing new.
    """
    name, observer = _observed(body, parameters)
    observations = observer.observations
    content_key = _content_key(body, name, parameters)
    if parameters.dry_run in {"1", "true"}:
        return Receipt(
            skipped=observer.skipped, warnings=["dry run: nothing was stored"], stored=len(observations)
        )
    with transaction.atomic():
        upload_id = _claim_upload(content_key, name, parameters, key)
        if upload_id is None:
            return _receipt_again(content_key)
        runs = _runs(observations, parameters, upload_id)
        result = store(observations, run_ids=runs)
        receipt = Receipt(
            id=upload_id,
            run_ids=sorted({run_id for run_id, _at in runs.values()}),
            stored=result.stored,
            duplicates=result.duplicates,
            skipped=observer.skipped + _conflicts(result),
        )
        receipt.links = {"runs": f"/runs/{receipt.run_ids[0]}/"} if receipt.run_ids else {}
        Upload.objects.filter(pk=upload_id).update(receipt=receipt.to_json())
    return receipt


def deliver(body: bytes, run: Run, *, process: int) -> Receipt:
    """Stores what a task of `run` measured, in the caller's transaction. Raises BadUpload.

    A later attempt of a task replaces what an earlier one delivered.
    """
    _name, observer = _observed(body, Parameters(format="v3", source="runner"))
    runs = {item.run: (run.pk, run.at) for item in observer.observations}
    result = store(observer.observations, run_ids=runs, process=process, replace=True)
    return Receipt(
        run_ids=[run.pk],
        stored=result.stored,
        duplicates=result.duplicates,
        skipped=observer.skipped + _conflicts(result),
    )


def _observed(body: bytes, parameters: Parameters) -> tuple[str, Observer]:
    if len(body) > settings.HUD_MAX_BODY_BYTES:
        raise UploadTooLarge(f"the body is over {settings.HUD_MAX_BODY_BYTES} bytes")
    if not body.strip():
        raise MalformedUpload("the body is empty", [Fault("", "nothing to read")])
    name, file_format = format_of(parameters.format, body, parameters.filename)
    observer = Observer(parameters)
    for count, placed in enumerate(file_format.read(body, parameters.filename), start=1):
        if count > settings.HUD_MAX_RECORDS:
            raise UploadTooLarge(f"more than {settings.HUD_MAX_RECORDS} records in one upload")
        observer.take(placed)
        if len(observer.faults) >= _MAX_FAULTS:
            break
    if observer.faults:
        raise BadUpload("values of the upload are wrong", observer.faults)
    return name, observer


def _content_key(body: bytes, name: str, parameters: Parameters) -> str:
    digest = hashlib.sha256(json.dumps([name, parameters.identity()], sort_keys=True).encode())
    digest.update(b"\0")
    digest.update(body)
    return digest.hexdigest()


def _claim_upload(content_key: str, name: str, parameters: Parameters, key: ApiKey | None) -> int | None:
    """The new upload's id; None where the same content is stored already. A concurrent twin waits here
    until the first one has committed."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO hud_upload (content_key, filename, format, parameters, receipt, key_id)
            VALUES (%s, %s, %s, %s::jsonb, '{}', %s) ON CONFLICT (content_key) DO NOTHING RETURNING id
            """,
            [content_key, parameters.filename, name, json.dumps(parameters.given()), key.pk if key else None],
        )
        row = cursor.fetchone()
    return int(row[0]) if row else None


def _receipt_again(content_key: str) -> Receipt:
    upload = Upload.objects.get(content_key=content_key)
    receipt = Receipt(**upload.receipt)
    receipt.duplicates += receipt.stored
    receipt.stored = 0
    return receipt


def _runs(
    observations: Sequence[Observation], parameters: Parameters, upload_id: int
) -> dict[RunKey, tuple[int, datetime]]:
    """A run for each commit and host of the upload; one that a file of the same run made is joined."""
    suites: dict[RunKey, set[str]] = {}
    for item in observations:
        suites.setdefault(item.run, set()).add(item.identity[0])
    found: dict[RunKey, tuple[int, datetime]] = {}
    for key in sorted(suites, key=lambda item: (item.source, item.external_id or "", item.host, item.commit)):
        found[key] = _run(key, sorted(suites[key]), parameters, upload_id)
    return found


def _run(key: RunKey, suites: list[str], parameters: Parameters, upload_id: int) -> tuple[int, datetime]:
    title = f"{key.source}: {', '.join(suites)}"[:300]
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO hud_run (uid, state, reason, title, request, host_name, arch, device, upload_id,
                source, external_id, repo, branch, "commit", provenance, at, at_source, requested_by, watched,
                started, finished)
            VALUES (gen_random_uuid(), %(state)s, '', %(title)s, '{}', %(host)s, '', '', %(upload)s,
                %(source)s, %(external_id)s, %(repo)s, %(branch)s, %(commit)s, %(provenance)s,
                coalesce(%(at)s::timestamptz, now()), %(at_source)s, '', false, now(), now())
            ON CONFLICT (source, external_id, host_name, "commit") WHERE external_id IS NOT NULL
            DO UPDATE SET title = CASE
                WHEN position(%(suite)s in hud_run.title) > 0 THEN hud_run.title
                ELSE left(hud_run.title || ', ' || %(suite)s, 300) END
            RETURNING id, at
            """,
            {
                "state": State.SUCCEEDED,
                "title": title,
                "suite": suites[0],
                "host": key.host,
                "upload": upload_id,
                "source": key.source,
                "external_id": key.external_id,
                "repo": key.repo,
                "branch": key.branch,
                "commit": key.commit,
                "provenance": parameters.provenance,
                "at": key.at,
                "at_source": key.at_source,
            },
        )
        run_id, at = cursor.fetchone()
    return int(run_id), at


def _conflicts(result: Stored) -> list[dict[str, Any]]:
    reason = "another record of this upload is the same experiment and metric with another value"
    entries = []
    for item in result.conflicts:
        assert item.place is not None
        entry: dict[str, Any] = {"pointer": item.place.pointer, "line": item.place.line, "reason": reason}
        entries.append({name: value for name, value in entry.items() if value is not None})
    return entries
