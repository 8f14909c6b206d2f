"""The ingestion API, `POST /api/v1/results`, and its import jobs."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.shortcuts import get_object_or_404
from ninja import Router, Schema, Status

from hud.accounts.limits import UPLOAD_BYTES, UPLOADS
from hud.api.auth import caller_key
from hud.api.schemas import RECORD, Error, of_table, parameter, raw_body
from hud.ingest import BadUpload, TooManyRecords, import_jobs, inflate, ingest, is_compressed
from hud.models import Import
from hud.models.streams import NAME_PATTERN
from hud.problems import Problem
from hud.tables.table import DataTable
from runner.formats import FORMATS
from runner.formats.errors import LARGER_FILES, MalformedUpload, UploadTooLarge
from runner.formats.parameters import DESCRIPTIONS, SCHEMAS, Parameters

router = Router(tags=["results"])
_ENCODINGS = ("gzip", "zstd")  # detected also without a Content-Encoding
_CONTENT: dict[str, Any] = {  # for people: the format is detected from the content
    "application/json": {"type": "array", "items": RECORD},
    "application/x-ndjson": RECORD,
    "text/csv": {"type": "string"},
}

_IMPORT = DataTable[Import](
    "id:str state:str done_records:int receipt problem:dict[str,Any]|None links:dict[str,str]",
    id=lambda job: str(job.uid),
    links=lambda job: {"self": f"/api/v1/imports/{job.uid}"},
)
_NAMES: dict[str, Any] = {  # of formats and streams
    "format": {"enum": list(FORMATS)},
    "stream": {"pattern": f"^{NAME_PATTERN}$"},
}


class SkippedOut(Schema):
    pointer: str
    reason: str
    kind: str = ""  # absent in receipts of older versions
    line: int | None = None


class ReceiptOut(Schema):
    id: int | None
    run_ids: list[int]
    stored: int
    duplicates: int
    skipped: list[SkippedOut]
    skipped_total: int
    skipped_kinds: dict[str, int] = {}
    expectations: list[dict[str, Any]] = []
    warnings: list[str]
    metrics: list[dict[str, Any]] = []
    links: dict[str, str]


@of_table(_IMPORT)
class ImportOut(Schema):
    receipt: ReceiptOut | None


def body_of(request: HttpRequest, most: int | None = None) -> bytes:
    """Return the body, inflated, of at most so many bytes. Raise Problem 411, 413, 415 or 400."""
    most = settings.HUD_MAX_BODY_BYTES if most is None else min(most, settings.HUD_MAX_BODY_BYTES)
    body = bytes_of(request, most)
    encoding = request.headers.get("Content-Encoding", "").lower()
    if encoding not in {"identity", "", *_ENCODINGS}:
        detail = f"Content-Encoding {encoding[:40]!r} is not known here; {', '.join(_ENCODINGS)} are"
        raise Problem(415, detail)
    return inflate(body, most) if encoding in _ENCODINGS or is_compressed(body) else body


def bytes_of(request: HttpRequest, most: int) -> bytes:
    """Return the body as it is. Raise Problem 411, 413 or 400."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if not length.isdecimal():
        # under WSGI a chunked body reads as empty, which would be a false success
        raise Problem(411, "say Content-Length; a chunked body cannot be read here")
    if int(length) > most:
        raise Problem(413, f"the body is over {most} bytes; {LARGER_FILES}")
    try:
        body: bytes = request.read()
    except UnreadablePostError as error:
        raise Problem(400, "the body was cut off on its way") from error
    if len(body) != int(length):
        raise Problem(400, "the body is shorter than its Content-Length says: it was cut off on its way")
    return body


def refusal(error: BadUpload) -> Problem:
    status = 413 if isinstance(error, UploadTooLarge) else 400 if isinstance(error, MalformedUpload) else 422
    detail = f"{error.detail}; {LARGER_FILES}" if status == 413 else error.detail
    return Problem(status, detail, errors=error.faults)


@router.post(
    "/results",
    response={200: ReceiptOut, 201: ReceiptOut, 202: ImportOut, 409: Error},
    openapi_extra=raw_body(
        "PyTorch v3 benchmark records (a JSON list, an object, JSON lines, lines of lists), or a file of"
        " another tool, detected from the content or given as `format`:"
        f" {', '.join(FORMATS)}. Also gzip and zstd. At most {settings.HUD_MAX_BODY_BYTES} bytes inflated;"
        f" over {settings.HUD_MAX_RECORDS} records it becomes an import job (202).",
        _CONTENT,
    )
    | {
        "parameters": [
            *(
                parameter("query", name, text, **_NAMES.get(name, SCHEMAS[name]))
                for name, text in DESCRIPTIONS.items()
            ),
            parameter("header", "Idempotency-Key", "the same request gets the same answer", maxLength=200),
            parameter("header", "Content-Encoding", enum=["identity", *_ENCODINGS]),
        ]
    },
)
def post_results(request: HttpRequest, response: HttpResponse) -> Status[dict[str, Any]]:
    """Store an upload completely or not at all. Uploads are idempotent."""
    key = caller_key(request)
    idempotency_key = request.headers.get("Idempotency-Key", "")
    UPLOADS.check(key.pk)
    twice = [name for name, values in request.GET.lists() if len(values) > 1]
    if twice:
        raise Problem(422, f"the parameter {twice[0][:60]!r} is said twice")
    try:
        parameters = Parameters.parse({name: str(value) for name, value in request.GET.items()})
        body = body_of(request)
        UPLOAD_BYTES.check(key.pk, len(body))
        receipt = ingest(
            body,
            parameters,
            key=key,
            idempotency_key=idempotency_key,
            # a dry run keeps nothing, so there could be no job
            max_records=None if parameters.is_dry_run else settings.HUD_MAX_RECORDS,
        )
    except TooManyRecords:
        job = import_jobs.submit(body, parameters, key=key, idempotency_key=idempotency_key)
        response["Location"] = f"/api/v1/imports/{job.uid}"
        response["Retry-After"] = "2"
        return Status(202, _IMPORT.row(job))
    response["Idempotent-Replayed"] = "true" if receipt.replayed else "false"
    made = receipt.stored and not parameters.is_dry_run
    return Status(201 if made else 200, receipt.to_json())


@router.get("/imports/{uuid:uid}", response=ImportOut)
def get_import(request: HttpRequest, uid: UUID) -> dict[str, Any]:
    """Get the progress of an import job; at its end the receipt or the problem."""
    return _IMPORT.row(get_object_or_404(Import, uid=uid))
