"""The one door for results: bytes → format → observations → rows → receipt.

HTTP, the command line and the runner's delivery all come through `ingest` or `deliver`.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from hud.ingest.expected import keep
from hud.ingest.parse import Observation, Observer, skipped
from hud.ingest.resolve import Runs
from hud.ingest.store import Stored, store
from hud.models import ApiKey, IdempotencyKey, Run, Upload
from runner.formats import Format, format_of, said_by_name
from runner.formats.errors import BadUpload, Fault, MalformedUpload, OtherSuite, UploadTooLarge
from runner.formats.parameters import Parameters, switch

__all__ = [
    "BadUpload",
    "KeyInUse",
    "KeyMisused",
    "OtherSuite",
    "Receipt",
    "TooManyRecords",
    "_content_key",
    "deliver",
    "inflate",
    "ingest",
    "keep_key",
]

_MAX_FAULTS = 20
_PIECE = 5000  # observations that are stored together; bounds the memory of a large upload
_MAX_RATIO = 100  # inflated bytes for each byte on the wire
_OF_EVERY_RECORD = b'"metric"'  # of PyTorch's v3, the shape of large uploads; searched, not parsed
_MARK = b"\xef\xbb\xbf"  # with which some editors begin a text; it says nothing


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
    replayed: bool = False  # the answer to an earlier request with the same idempotency key

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "replayed"}

    def add(self, other: Receipt) -> None:
        """Takes in the receipt of another piece of the same file."""
        self.id = self.id or other.id
        self.run_ids = sorted({*self.run_ids, *other.run_ids})
        self.stored += other.stored
        self.duplicates += other.duplicates
        self.skipped += other.skipped
        self.warnings += [warning for warning in other.warnings if warning not in self.warnings]
        self.links = self.links or other.links


class TooManyRecords(UploadTooLarge):
    """More records than one request may carry; an import job takes them (`hud.ingest.import_jobs`)."""


class KeyInUse(Exception):
    """Another request with this idempotency key has not ended yet."""


class KeyMisused(ValueError):
    """The idempotency key belongs to an upload with other content."""


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


def ingest(
    body: bytes,
    parameters: Parameters,
    *,
    key: ApiKey | None = None,
    idempotency_key: str = "",
    max_records: int | None = None,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> Receipt:
    """Stores an upload whole or not at all, or with `partial` its good part. Raises BadUpload with faults.

    The same content with the same parameters is the same upload: it stores nothing new. The same
    idempotency key gets the same receipt again; raises KeyInUse or KeyMisused. Raises TooManyRecords
    past `max_records`; `on_progress` is told how many records have been taken in.
    """
    body = body.removeprefix(_MARK)
    name, file_format = _format(body, parameters)
    content_key = _content_key(body, name, parameters)
    with transaction.atomic():
        if key and idempotency_key:
            known = _answered(key, idempotency_key, request_key(content_key, parameters))
            if known:
                return known
        upload_id = _claim_upload(content_key, name, parameters, key)
        if upload_id is None:
            receipt = _receipt_again(content_key, file_format, body, parameters)
        else:
            if max_records is not None and _plainly_more(file_format, body, parameters, max_records):
                raise TooManyRecords(f"more than {max_records} records in one upload")
            observer = Observer(parameters)
            pieces = _pieces(file_format, body, observer, max_records)
            receipt = _stored(pieces, observer, upload_id, on_progress)
        if switch(parameters.dry_run):
            transaction.set_rollback(True)
            receipt.id, receipt.run_ids, receipt.links = None, [], {}
            receipt.warnings.insert(0, "dry run: nothing was stored")
        elif key and idempotency_key:
            IdempotencyKey.objects.create(
                key=key,
                text=idempotency_key,
                content_key=request_key(content_key, parameters),
                receipt=receipt.to_json(),
            )
    return receipt


def _stored(
    pieces: Iterator[list[Observation]],
    observer: Observer,
    upload_id: int,
    on_progress: Callable[[int], None],
) -> Receipt:
    receipt, done = Receipt(id=upload_id), 0
    runs = Runs(observer.parameters, upload_id)
    for observations in pieces:
        runs.meet(observations)
        _add(receipt, store(observations, run_ids=runs.places, closed=runs.own, upload_id=upload_id))
        done += len(observations)
        on_progress(done)
    changed, known = keep(observer.expected, upload_id)
    receipt.stored += changed
    receipt.duplicates += known
    receipt.run_ids = runs.ids
    receipt.skipped = sorted(
        [*observer.skipped, *receipt.skipped], key=lambda item: (item.get("line", 0), item["pointer"])
    )
    receipt.warnings += observer.warnings
    if observer.unsaid:
        receipt.warnings.append(_unsaid_warning(observer.unsaid))
    if receipt.run_ids:
        receipt.links = {"runs": f"/runs/{receipt.run_ids[0]}/"}
    Upload.objects.filter(pk=upload_id).update(receipt=receipt.to_json())
    return receipt


def deliver(body: bytes, run: Run, *, suite: str, process: int) -> Receipt:
    """Stores what a task of `run` measured, in the caller's transaction. Raises BadUpload, and OtherSuite
    for results that are not of its `suite`. Cases may be others than the task's: one task of operators
    measures many.

    A later attempt of a task replaces what an earlier one delivered. Of a run in pairs, each record says
    its side.
    """
    parameters = Parameters(format="v3", source="runner")
    _name, file_format = _format(body, parameters)
    observer = Observer(parameters)
    receipt = Receipt(run_ids=[run.pk])
    for observations in _pieces(file_format, body, observer, settings.HUD_MAX_RECORDS):
        _refuse_others(observations, suite)
        for item in observations:
            item.process = 2 * process + item.process % 2 if run.in_pairs else process
        run_ids = {item.run: (run.pk, run.at) for item in observations}
        _add(receipt, store(observations, run_ids=run_ids, replace=True))
    receipt.skipped += observer.skipped
    return receipt


def _refuse_others(observations: list[Observation], suite: str) -> None:
    faults = [
        Fault(item.pointer, f"a result of the suite {item.identity[0]}", item.line)
        for item in observations
        if item.identity[0] != suite
    ]
    if faults:
        raise OtherSuite(f"the task is one of the suite {suite}; nothing was stored", faults[:_MAX_FAULTS])


def _format(body: bytes, parameters: Parameters) -> tuple[str, Format]:
    if len(body) > settings.HUD_MAX_BODY_BYTES:
        raise UploadTooLarge(f"the body is over {settings.HUD_MAX_BODY_BYTES} bytes")
    if not body.strip():
        raise MalformedUpload("the body is empty", [Fault("", "nothing to read", malformed=True)])
    return format_of(parameters.format, body, parameters.filename)


def _pieces(
    file_format: Format, body: bytes, observer: Observer, max_records: int | None
) -> Iterator[list[Observation]]:
    """Observations in pieces of bounded size. Raises BadUpload after the last record has been looked at."""
    partial = switch(observer.parameters.partial)
    for count, placed in enumerate(file_format.read(body, observer.parameters.filename), start=1):
        if max_records is not None and count > max_records:
            raise TooManyRecords(f"more than {max_records} records in one upload")
        observer.take(placed)
        if observer.faults and partial:
            observer.skip_faults()
        if len(observer.faults) >= _MAX_FAULTS:
            break
        if len(observer.observations) >= _PIECE and not observer.faults:
            yield observer.hand_over()
    if observer.faults:
        malformed = any(fault.malformed for fault in observer.faults)
        kind = MalformedUpload if malformed else BadUpload
        raise kind("parts of the upload are wrong; nothing was stored", observer.faults)
    yield observer.hand_over()


def _plainly_more(file_format: Format, body: bytes, parameters: Parameters, most: int) -> bool:
    """Whether it holds more records, said before any is stored. False where that is not plain: `_pieces`
    counts anew. Raises BadUpload as reading does."""
    if body.count(_OF_EVERY_RECORD) <= most:
        return False
    return sum(1 for _ in islice(file_format.read(body, parameters.filename), most + 1)) > most


def _unsaid_warning(names: set[str]) -> str:
    listed = sorted(names)
    example = "&".join(f"{name}=…" for name in listed)
    return (
        f"nothing says the {', '.join(listed)} of some of these results; they share series with others of "
        f"which that is not known either. Give it with the upload: ?{example}"
    )


def _add(receipt: Receipt, result: Stored) -> None:
    receipt.stored += result.stored
    receipt.duplicates += result.duplicates
    for item, reason in result.conflicts:
        receipt.skipped.append(skipped(item, reason))
    if result.refined:
        receipt.warnings.append(f"{result.refined} stored values were replaced by more precise ones")


def content_key_of(body: bytes, parameters: Parameters) -> str:
    """What the same content with the same parameters has in common; raises BadUpload for no known format."""
    body = body.removeprefix(_MARK)
    return _content_key(body, _format(body, parameters)[0], parameters)


def request_key(content_key: str, parameters: Parameters) -> str:
    """What an idempotency key stands for: the upload, and whether only its good part or nothing is stored."""
    switches = [name for name in ("partial", "dry_run") if switch(getattr(parameters, name))]
    return ":".join([*switches, content_key])[:64]


def keep_key(key: ApiKey, text: str, content_key: str) -> None:
    """In a transaction: this idempotency key is an import job's, whose own row has its answer. Raises
    KeyInUse or KeyMisused."""
    try:
        known = _answered(key, text, content_key) is not None
    except TooManyRecords:
        known = True
    if not known:
        IdempotencyKey.objects.create(key=key, text=text, content_key=content_key, receipt={})


def _answered(key: ApiKey, text: str, content_key: str) -> Receipt | None:
    """The receipt this idempotency key got before. Holds the key until the transaction ends. Raises
    TooManyRecords where it stands for an import job."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, %s))", [text, key.pk])
        if not cursor.fetchone()[0]:
            raise KeyInUse("a request with this Idempotency-Key is still running; ask again")
    known = IdempotencyKey.objects.filter(key=key, text=text).first()
    if known is None:
        return None
    if known.content_key != content_key:
        raise KeyMisused("this Idempotency-Key was used for another upload")
    if not known.receipt:
        raise TooManyRecords("it became an import job")
    return Receipt(**known.receipt, replayed=True)


def _content_key(body: bytes, name: str, parameters: Parameters) -> str:
    said = {**said_by_name(name, parameters.filename), **parameters.identity()}
    digest = hashlib.sha256(json.dumps([name, said], sort_keys=True).encode())
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


def _receipt_again(content_key: str, file_format: Format, body: bytes, parameters: Parameters) -> Receipt:
    """The receipt of the content that is stored already. Raises BadUpload where only its good part is, and
    that was not what is asked for now."""
    upload = Upload.objects.get(content_key=content_key)
    if switch(upload.parameters.get("partial", "")) and not switch(parameters.partial):
        for _ in _pieces(file_format, body, Observer(parameters), None):
            pass  # nothing to store; it is read for its faults
    receipt = Receipt(**upload.receipt)
    receipt.duplicates += receipt.stored
    receipt.stored = 0
    return receipt
