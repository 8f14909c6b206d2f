"""Receive an upload: bytes → records → measurements → rows → receipt."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from django.conf import settings
from django.db import transaction

from hud.accounts import audit
from hud.accounts.keys import name_of, request_of
from hud.ingest.parse import RecordParser
from hud.ingest.receipt import Receipt
from hud.ingest.runs import Runs, keep_references
from hud.ingest.store import store
from hud.models import Aliases, ApiKey, IdempotencyKey, Measurement, Run, Stream, Upload
from hud.points.expectations import store_expectations
from hud.problems import Problem
from hud.runs.streams import check_open, for_upload
from hud.sql import fetch_tuples
from runner.formats import format_of, json_text, reasons
from runner.formats.errors import BadUpload, Fault, MalformedUpload, UploadTooLarge
from runner.formats.format import Format
from runner.formats.measurement import ParsedMeasurement
from runner.formats.parameters import Parameters

_MAX_FAULTS = 20
_PIECE = 5000  # measurements that are stored together; bounds the memory of a large upload
_PIECE_KERNELS = 50_000  # of their compilations
_OF_EVERY_RECORD = b'"benchmark_values"'  # of PyTorch's v3, the shape of large uploads; searched, not parsed
_TIME = re.compile(rb"[1-9]\d*\.\d{3}|0\.\d*[1-9]\d\d")  # or another number that comes once
_MAX_GROWING_LINES = 20_000
_SAME_AGAIN = (
    "the same results are stored already, and nothing says that these are of another run: give run_id,"
    " run_time or commit for points of their own"
)
_SUPERSEDED = "stored values were superseded; the audit keeps them"
_WOULD_BE = "stored values would be superseded"
_SHARED = "some of these results; they share series with others of which that is not known either"
_SHOWN_BESIDE = "expected results: they are shown only beside results that do not say it either"
_MAX_EARLIER = 5  # uploads of a growing file that are looked at
_OF_ONE_RUN = {"commit", "commit_date", "run_time", "run_id", "torch", "cuda", "driver", "provenance"}


class TooManyRecords(UploadTooLarge):
    """More records than one request may carry; an import job takes them (`hud.ingest.import_jobs`)."""


@dataclass(frozen=True)
class Content:
    """A body whose format is known, and the parameters that came with it."""

    body: bytes
    format: Format
    parameters: Parameters
    stream: Stream | None = None  # None: of a host's delivery, which goes to its run's

    @classmethod
    def of(cls, body: bytes, parameters: Parameters, stream: Stream | None = None) -> Content:
        """Detect the format. Raise BadUpload for none, UploadTooLarge over the limit."""
        body = _as_utf8(body)
        if len(body) > settings.HUD_MAX_BODY_BYTES:
            raise UploadTooLarge(f"the body is over {settings.HUD_MAX_BODY_BYTES} bytes")
        if not body.strip():
            raise MalformedUpload("the body is empty", [Fault("", "nothing to read", malformed=True)])
        return cls(body, format_of(parameters.format, body), parameters, stream)

    @cached_property
    def key(self) -> str:
        """Return the digest of content and parameters: equal ones are the same upload."""
        digest = _started_digest(self.format, self.parameters)
        digest.update(self._rows)
        return str(digest.hexdigest())

    @property
    def _rows(self) -> bytes:
        """Return the body with the line ends of Unix: editors and git change them, and no row."""
        body = self.body.replace(b"\r\n", b"\n") if b"\r" in self.body else self.body
        return body if body[-1:] == b"\n" != body[-2:-1] else body.rstrip(b"\n") + b"\n"

    def stored_lines(self) -> int:
        """Return how many lines of this file an earlier upload stored: tools append to some files, which are
        uploaded after each run, for other commits. Files without times have nothing to tell this by."""
        own = self.parameters
        may_grow = own.filename and self.format.grows(self.body) and _TIME.search(self.body)
        if not may_grow or self.body.count(b"\n") > _MAX_GROWING_LINES:
            return 0
        uploads = Upload.objects.filter(
            filename=own.filename, format=self.format.name, stream=self.stream
        ).order_by("-pk")
        digests = {
            key: _started_digest(self.format, Parameters(**parameters))
            for key, parameters in uploads.values_list("content_key", "parameters")[:_MAX_EARLIER]
            if _of_file(Parameters(**parameters)) == _of_file(own)
        }
        stored = 0
        lines = self._rows.splitlines(keepends=True) if digests else []
        for number, line in enumerate(lines[:-1], start=1):
            for key, digest in digests.items():
                digest.update(line)
                if digest.hexdigest() == key:
                    stored = number
        return stored

    @property
    def request_key(self) -> str:
        """Return the request's identity, for idempotency keys and import jobs: upload key and switches."""
        switches = "partial:" * self.parameters.is_partial + "dry_run:" * self.parameters.is_dry_run
        return (switches + self.key)[:64]

    def nothing_stored(self, receipt: Receipt) -> BadUpload:
        """Return why an upload that stored nothing is refused: what was recognised, and what is missing."""
        faults = [Fault(item["pointer"], item["reason"], item.get("line")) for item in receipt.skipped]
        entries = f"none of its {receipt.skipped_total} entries is a new measurement"
        words = f"nothing was stored: the body was read as {self.format.name}, and {entries}"
        if self.format.name == "v3" and all(fault.detail == reasons.NO_METRIC for fault in faults):
            value = json_text.first_value(self.body)
            keys = ", ".join([*value][:20] if isinstance(value, dict) else [])
            words = (
                "nothing was stored: this is JSON, but no v3 record, which has benchmark.name, model.name,"
                f" metric.name and metric.benchmark_values; keys seen: {keys[:500] or 'none'}"
            )
        return BadUpload(words, faults[:_MAX_FAULTS])

    def pieces(
        self, parser: RecordParser, max_records: int | None = None
    ) -> Iterator[list[ParsedMeasurement]]:
        """Yield measurements in pieces of bounded size. Raise BadUpload after the last record was looked at,
        TooManyRecords past `max_records`, UploadTooLarge past what an import job reads."""
        most, stored_lines = settings.HUD_MAX_IMPORT_RECORDS, self.stored_lines()
        for count, item in enumerate(self.format.items(self.body, self.parameters.filename), start=1):
            _check_count(count, max_records)
            if count > most:
                raise UploadTooLarge(f"more than {most} records, or entries that are none, in one upload")
            line = getattr(item, "line", None)
            parser.add(item, is_stored=line is not None and line <= stored_lines)
            if parser.faults and self.parameters.is_partial:
                parser.skip_faults()
            if len(parser.faults) >= _MAX_FAULTS:
                break
            full = len(parser.measurements) >= _PIECE or parser.kernels >= _PIECE_KERNELS
            if full and not parser.faults:
                yield parser.flush()
        last = parser.flush()
        if self.parameters.is_partial:
            parser.skip_faults()
        if faults := parser.faults[:_MAX_FAULTS]:
            malformed = any(fault.malformed for fault in faults)
            kind = MalformedUpload if malformed else BadUpload
            raise kind("parts of the upload are wrong; nothing was stored", faults)
        yield last


def _as_utf8(body: bytes) -> bytes:
    """Return the text without a byte order mark. PowerShell's `>` writes UTF-16."""
    if not body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" not in body[:64]:
        return body.removeprefix(codecs.BOM_UTF8)
    try:
        return body.decode("utf-16").encode()
    except UnicodeError as error:
        fault = Fault("", f"it begins like UTF-16, but {error}", malformed=True)
        raise MalformedUpload("the body is no text", [fault]) from error


def _started_digest(kind: Format, parameters: Parameters) -> Any:
    by_name = kind.said_by_name(parameters.filename)
    identity = {name: value for name, value in by_name.items() if value} | parameters.identity()
    return hashlib.sha256(json.dumps([kind.name, identity], sort_keys=True).encode() + b"\0")


def _of_file(parameters: Parameters) -> dict[str, str]:
    """Return the parameters that are the same for every upload of a growing file."""
    return {name: value for name, value in parameters.identity().items() if name not in _OF_ONE_RUN}


def _check_count(count: int, max_records: int | None) -> None:
    if max_records is not None and count > max_records:
        raise TooManyRecords(f"more than {max_records} records in one upload")


def ingest(
    body: bytes,
    parameters: Parameters,
    *,
    key: ApiKey | None = None,
    idempotency_key: str = "",
    max_records: int | None = None,
    on_progress: Callable[[int], None] = lambda _done: None,
    is_piece: bool = False,
    stream: Stream | None = None,
) -> Receipt:
    """Store an upload whole or not at all, or with `partial` its good part. Raise BadUpload with faults, also
    where nothing is stored and nothing was stored before, unless it `is_piece` of a larger file.

    The same content with the same parameters is the same upload: it stores nothing new. The same
    idempotency key gets the same receipt again; raise Problem where it cannot. Raise TooManyRecords
    past `max_records`; `on_progress` is told how many records have been taken in. Raise Problem 403 for a
    stream that the key may not write to, or an archived one. `stream` is that of an import job.
    """
    with transaction.atomic():
        keep_references()
        stream = check_open(stream) if stream else for_upload(parameters.stream, key)
        content = Content.of(body, parameters, stream)
        answer = None
        if key and idempotency_key:
            answer, is_new = answer_of(key, idempotency_key, content)
            if answer.receipt:
                return replace(Receipt.from_json(answer.receipt), replayed=True)
            if not is_new:
                raise TooManyRecords("it became an import job")
        upload, is_new = _upload_of(content, key)
        if not is_new:
            receipt = _receipt_of_duplicate(content, upload)
        else:
            if max_records is not None:  # refused before any record is read
                _check_count(content.body.count(_OF_EVERY_RECORD), max_records)
            receipt = _store(content, upload, key, max_records, on_progress)
            detail = {
                "filename": parameters.filename,
                "format": content.format.name,
                "stored": receipt.stored,
                "runs": len(receipt.run_ids),
            }
            audit.note(who=_who(key), action="upload", subject=f"upload {receipt.id}", detail=detail)
        if not (receipt.stored or receipt.duplicates or parameters.is_partial or is_piece):
            raise content.nothing_stored(receipt)
        if parameters.is_dry_run:
            transaction.set_rollback(True)
            receipt.id, receipt.run_ids, receipt.links = None, [], {}
            receipt.warnings.insert(0, "dry run: nothing was stored")
        elif answer:
            answer.receipt = receipt.to_json()
            answer.save(update_fields=["receipt"])
    return receipt


def _upload_of(content: Content, key: ApiKey | None) -> tuple[Upload, bool]:
    """Return the row of an upload, and whether it is new. A concurrent twin waits here until the first one
    has committed."""
    parameters = content.parameters
    upload = Upload(content_key=content.key, stream=content.stream, key=key)
    insert = """
        INSERT INTO hud_upload (content_key, stream_id, key_id, filename, format, parameters, receipt)
        VALUES (%s, %s, %s, %s, %s, %s, '{}') ON CONFLICT DO NOTHING RETURNING id
        """
    columns = [upload.content_key, upload.stream_id, upload.key_id, parameters.filename, content.format.name]
    columns.append(json.dumps(parameters.given()))
    if rows := fetch_tuples(insert, columns):  # the ORM's savepoint costs a small upload a quarter more
        upload.pk = rows[0][0]
        return upload, True
    uploads = Upload.objects.select_for_update(no_key=True)
    same = uploads.filter(content_key=content.key, stream=content.stream).first()
    if same and not _is_outdated(same):
        return same, False
    if same:
        same.content_key = f"outdated {same.pk}"
        same.save(update_fields=["content_key"])
    return _upload_of(content, key)


def _is_outdated(upload: Upload) -> bool:
    """Return whether a run of this upload is deleted, or a later upload has brought values into it: whether
    its own are still stored is known only by storing them again. A run without a name would become a new
    one."""
    run_ids = upload.receipt.get("run_ids", [])
    names = Run.objects.filter(pk__in=run_ids).values_list("external_id", flat=True)
    return None not in names and (
        len(names) < len(run_ids)
        or Measurement.objects.filter(run__in=run_ids, upload_id__gt=upload.pk).exists()
    )


def _store(
    content: Content,
    upload: Upload,
    key: ApiKey | None,
    max_records: int | None,
    on_progress: Callable[[int], None],
) -> Receipt:
    receipt, done = Receipt(id=upload.pk), 0
    superseded: list[dict[str, Any]] = []
    parser = RecordParser(content.parameters, Aliases.read(), receipt=receipt)
    runs = Runs(content.parameters, upload, key)
    for measurements in content.pieces(parser, max_records):
        runs.resolve(measurements, parser.partial)
        superseded += store(measurements, receipt, runs, replace=content.parameters.is_replace)
        done += len(measurements)
        on_progress(done)
    receipt.expectations = store_expectations(parser.expected, upload)
    receipt.stored += len(parser.expected)
    receipt.skipped.sort(key=lambda entry: (entry.get("line", 0), entry["pointer"]))
    if superseded:
        words = _WOULD_BE if content.parameters.is_dry_run else _SUPERSEDED
        receipt.warnings.append(f"{len(superseded)} {words}")
        detail = {"values": superseded}
        audit.note(who=_who(key), action="upload.replace", subject=f"upload {upload.pk}", detail=detail)
    if content.parameters.is_replace and not runs.known:
        receipt.warnings.append(
            "nothing was replaced: no stored run has this run_id (without one each upload is a new run), "
            "source, host and commit"
        )
    receipt.warnings += _unsaid(parser.unsaid, _SHARED) + parser.meanings.warnings()
    lists = [subject for subject in receipt.expectations if subject["unsaid"]]
    of_lists = f"{sum(subject['count'] for subject in lists)} {_SHOWN_BESIDE}"
    receipt.warnings += _unsaid({name for subject in lists for name in subject["unsaid"]}, of_lists)
    receipt.metrics = parser.meanings.to_json()
    elsewhere = {run.stream.name for run in runs.by_key.values() if run.stream_id != upload.stream_id}
    if elsewhere:
        names = ", ".join(sorted(elsewhere))
        receipt.warnings.append(f"results that the stream {names} has already were not stored again")
    receipt.links = {"stream": f"/?stream={upload.stream.name}"}
    receipt.name_runs(runs.ids)
    upload.receipt = receipt.to_json()
    upload.save(update_fields=["receipt"])
    return receipt


def _unsaid(names: Collection[str], of_what: str) -> list[str]:
    """Return a warning about the parameters that were to be given with the upload, if there are any."""
    example = "&".join(f"{name}=…" for name in sorted(names))
    text = f"nothing says the {', '.join(sorted(names))} of {of_what}. Give it with the upload: ?{example}"
    return [text] if names else []


def _who(key: ApiKey | None) -> str:
    return name_of(key) if key else "command line"


def answer_of(key: ApiKey, text: str, content: Content) -> tuple[IdempotencyKey, bool]:
    """Return the row of an idempotency key, as `request_of` does; an import job's, whose own row has its
    answer, stays empty. Raise Problem 422 also where it was used for another stream."""
    row, is_new = request_of(key, text, content.request_key)
    if Upload.objects.filter(pk=row.receipt.get("id", 0)).exclude(stream=content.stream).exists():
        raise Problem(422, "this Idempotency-Key was used for another stream")
    return row, is_new


def _receipt_of_duplicate(content: Content, upload: Upload) -> Receipt:
    """Return the receipt of the content that is stored already. Raise BadUpload where only its good part is,
    and that was not what is asked for now."""
    if Parameters(**upload.parameters).is_partial and not content.parameters.is_partial:
        for _ in content.pieces(RecordParser(content.parameters)):
            pass  # nothing to store; it is read for its faults
    receipt = Receipt.from_json(upload.receipt)
    receipt.duplicates += receipt.stored
    receipt.stored = 0
    receipt.warnings = [words for words in receipt.warnings if not words.endswith(_SUPERSEDED)]
    receipt.metrics = [metric | {"new": False} for metric in receipt.metrics]
    unnamed = {"external_id": None, "commit": "", "order_time_source": "upload"}
    if Run.objects.filter(upload=upload, **unnamed).exists():
        receipt.warnings.append(_SAME_AGAIN)
    return receipt
