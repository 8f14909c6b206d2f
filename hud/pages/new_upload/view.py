"""Upload a file: what is found in it and where it would go, in a transaction that is rolled back; then the
receipt of what was stored."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from hud.accounts.access import scopes_of
from hud.accounts.keys import create_key, with_owners
from hud.accounts.limits import UPLOAD_BYTES, UPLOADS
from hud.ingest import BadUpload, Receipt, TooManyRecords, import_jobs, inflate, ingest, is_compressed
from hud.ingest.receive import Content
from hud.models import OPERATORS_OWN, ApiKey, Import, Run
from hud.problems import Problem
from hud.runs.streams import named, of_new_key, slug
from hud.sql import fetch_named
from runner.formats import FORMATS
from runner.formats.errors import LARGER_FILES, Fault, UploadTooLarge
from runner.formats.parameters import DESCRIPTIONS, SWITCHES, Parameters

_KEY = "upload page"  # name of the key with which a person's uploads of this page are stored
_FIRST = ("stream", "branch", "commit", "arch", "host", "suite")
_NOT_ASKED = {"filename", "dry_run", "provenance"}
_MOST_ROWS = 300


@dataclass
class Outcome:
    """What became of a file, or would."""

    filename: str
    size_bytes: int
    is_stored: bool
    format: str = ""
    receipt: Receipt | None = None
    runs: tuple[Run, ...] = ()
    metrics: tuple[Any, ...] = ()  # by suite: title, unit, direction, measurements, cases
    job: Import | None = None
    problem: str = ""
    faults: tuple[Fault, ...] = ()


def new_upload(request: HttpRequest) -> HttpResponse:
    """Show the form, and of a file that was sent what would be stored, or with `do=store` what was."""
    outcome, status = None, 200
    if request.method == "POST":
        file = request.FILES.get("file")
        outcome = Outcome(
            getattr(file, "name", ""), getattr(file, "size", 0), request.POST.get("do") == "store"
        )
        try:
            _take(request, file, outcome)
        except BadUpload as error:
            outcome.problem, outcome.faults, status = error.detail, tuple(error.faults), 422
        except Problem as error:
            outcome.problem, outcome.faults, status = str(error), tuple(error.errors or ()), error.status
    asked = [name for name in DESCRIPTIONS if name not in _NOT_ASKED]
    asked.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    fields = [(name, DESCRIPTIONS[name], request.POST.get(name, ""), name in SWITCHES) for name in asked]
    context = {
        "outcome": outcome,
        "first": fields[: len(_FIRST)],
        "more": fields[len(_FIRST) :],
        "more_is_open": any(value for _name, _words, value, _switch in fields[len(_FIRST) :]),
        "formats": FORMATS,
        "most_bytes": settings.HUD_MAX_BODY_BYTES,
    }
    return render(request, "new_upload/new_upload.html", context, status=status)


def _take(request: HttpRequest, file: Any, outcome: Outcome) -> None:
    """Read the file, and store it where that was asked for. Raise BadUpload, Problem."""
    if file is None:
        raise BadUpload("choose a file")
    if outcome.size_bytes > settings.HUD_MAX_BODY_BYTES:
        raise UploadTooLarge(f"the file is over {settings.HUD_MAX_BODY_BYTES} bytes; {LARGER_FILES}")
    given = {name: request.POST[name] for name in DESCRIPTIONS if request.POST.get(name)}
    parameters = Parameters.parse({**given, "filename": outcome.filename, "dry_run": ""})
    user: Any = request.user
    is_operator, caller = "rules" in scopes_of(request), f"person {user.pk}"
    UPLOADS.check(caller)
    body = file.read()
    body = inflate(body) if is_compressed(body) else body
    if outcome.is_stored:
        UPLOAD_BYTES.check(caller, len(body))
    outcome.format = Content.of(body, parameters).format.name
    try:
        with transaction.atomic():
            key = _key_of(user, is_operator=is_operator)
            outcome.receipt = ingest(body, parameters, key=key, max_records=settings.HUD_MAX_RECORDS)
            _describe(outcome, outcome.receipt)
            transaction.set_rollback(not outcome.is_stored)
    except TooManyRecords:
        if not outcome.is_stored:
            raise
        with transaction.atomic():
            key = _key_of(user, is_operator=is_operator)
            outcome.job = import_jobs.submit(body, parameters, key=key)


def _describe(outcome: Outcome, receipt: Receipt) -> None:
    """Add the runs of a receipt, and their metrics: 2 statements."""
    outcome.runs = tuple(Run.objects.filter(pk__in=receipt.run_ids).select_related("stream"))
    rows = fetch_named(
        """
        SELECT e.suite, k.title, k.unit, k.direction, count(*) measurements, count(DISTINCT e."case") cases,
            string_agg(DISTINCT coalesce(nullif(e.arch, ''), e.device), ', ') arch
        FROM hud_measurement m JOIN hud_series s ON s.id = m.series_id
        JOIN hud_experiment e ON e.id = s.experiment_id JOIN hud_metric k ON k.id = s.metric_id
        WHERE m.run_id = ANY(%(runs)s) AND m.upload_id = %(upload)s
        GROUP BY 1, 2, 3, 4 ORDER BY 1, 5 DESC, 2 LIMIT %(most)s
        """,
        {"runs": receipt.run_ids, "upload": receipt.id, "most": _MOST_ROWS},
    )
    outcome.metrics = tuple(rows)


def _key_of(user: User, *, is_operator: bool) -> ApiKey:
    """Return the key of a person's uploads here, whose secret nobody has; made with the first one. Its stream
    is the person's own, with a number where another's has the name."""
    scopes = ["rules", "upload"] if is_operator else ["upload"]
    condition = """own.name = %(name)s AND own.owner_id = %(person)s AND own.revoked IS NULL
        AND own.scopes = %(scopes)s::varchar[]"""
    asked = {"name": _KEY, "person": user.pk, "scopes": scopes}
    if not (keys := with_owners(condition, **asked)):
        name = slug(user.get_username()) or "uploads"
        if not is_operator and (name in OPERATORS_OWN or named(name).exclude(owner=user).exists()):
            name = f"{name[:48]}-{user.pk}"
        stream = of_new_key(_KEY, name, scopes=scopes, owner=user, is_operator=is_operator)
        create_key(name=_KEY, scopes=scopes, who=user.get_username(), owner=user, stream=stream)
        keys = with_owners(condition, **asked)
    return keys[0]
