"""Rules of judging, targets, streams and the audit log over the API."""

from dataclasses import fields
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Query, Router, Status
from ninja.schema import Schema
from pydantic import Field, create_model

from hud.accounts import audit, ci_tokens
from hud.accounts.access import address_of
from hud.accounts.keys import create_key, effective_scopes
from hud.accounts.limits import CI_KEYS, KEYS
from hud.api.auth import caller_key, who
from hud.api.cursors import IdCursor, cursor_to
from hud.api.experiments import stream_of
from hud.api.schemas import SHOWN, Error, Filter, Items, StrictBody, of_table
from hud.corrections import background
from hud.corrections.deletion import Deletion
from hud.corrections.streams import StreamChanges, change
from hud.judging.rules import write
from hud.models import ApiKey, Correction, Metric, Target, Threshold
from hud.models.streams import NAME_PATTERN
from hud.points import streams
from hud.points.nights import Subject
from hud.points.streams import StreamLine, measured_by, subjects
from hud.problems import Problem, row_of
from hud.runs.streams import of_new_key
from runner.formats.errors import Fault

router = Router(tags=["rules"])
_MOST = 1000  # of a kind
_KEPT = timedelta(days=30)  # keys of CI jobs after their end
_KINDS: dict[str, Any] = {"targets": Target, "metrics": Metric, "thresholds": Threshold}
Number = Annotated[float, Field(allow_inf_nan=False)]


class _Matched(StrictBody):
    """The names that a rule matches; an empty text matches anything."""

    id: int | None = Field(None, exclude=True, description="as `GET` has it; ignored")
    suite: str = Field("", max_length=60)
    case: str = Field("", max_length=200)
    backend: str = Field("", max_length=100)
    arch: str = Field("", max_length=100)
    note: str = Field("", max_length=300)


class TargetIn(_Matched):
    metric: str = Field(min_length=1, max_length=200)
    dtype: str = Field("", max_length=40)
    size: str = Field("", max_length=40, description="the case parameter D")
    value: Number | None = Field(None, description="in the metric's unit; this or `share`")
    share: Number | None = Field(None, description="of the arch's measured copy bandwidth")


class ThresholdIn(_Matched):
    metric: str = Field("", max_length=200)
    relative: Number | None = Field(None, description="smallest change that counts: 0.02 for 2 %")
    minimum: Number | None = Field(None, description="smallest change that counts, in the metric's unit")
    judged: bool | None = Field(
        None, description="false: no verdicts; true: opens regressions; null: by the metric's role"
    )


class MetricIn(StrictBody):
    """The meaning of a metric that the registry does not know."""

    id: int | None = Field(None, exclude=True, description="as `GET` has it; ignored")
    metric: str = Field(min_length=1, max_length=200)
    unit: str = Field("", max_length=40)
    direction: Literal["up", "down", "none"]


class RulesIn(StrictBody):
    targets: list[TargetIn] | None = Field(None, max_length=_MOST)
    thresholds: list[ThresholdIn] | None = Field(None, max_length=_MOST)
    metrics: list[MetricIn] | None = Field(None, max_length=_MOST)


class TargetOut(TargetIn):
    model_config = SHOWN
    id: int


class ThresholdOut(ThresholdIn):
    model_config = SHOWN
    id: int


class MetricOut(MetricIn):
    model_config = SHOWN
    id: int


class RulesOut(Schema):
    targets: list[TargetOut]
    thresholds: list[ThresholdOut]
    metrics: list[MetricOut]


@router.get("/rules", response=RulesOut)
def get_rules(request: HttpRequest) -> dict[str, Any]:
    """List targets, thresholds, and the metrics whose unit and direction an operator said."""
    return {name: write.COLUMNS[kind].rows(write.rules_of(kind)) for name, kind in _KINDS.items()}


@router.put("/rules", response=RulesOut)
def put_rules(request: HttpRequest, given: RulesIn) -> dict[str, Any]:
    """Replace rules, all or nothing. A list that is given becomes all rules of its kind, an empty one removes
    them; a list that is left out stays as it is. The same request again changes nothing. What a changed
    threshold or metric touches is judged again in the background."""
    with transaction.atomic():
        for name, kind in _KINDS.items():
            rows = getattr(given, name)
            try:
                if rows is not None:
                    rules = [write.rule_of(kind, row.model_dump()) for row in rows]
                    write.replace(kind, rules, who=who(request))
            except Problem as error:
                fault = Fault(f"/{name}{error.at}", error.detail)
                raise Problem(422, "a rule makes no sense; nothing was changed", errors=[fault]) from error
    return get_rules(request)


class StreamIn(StrictBody):
    """A change of a stream: a field that is left out stays, a null or empty `reference` is cleared."""

    name: str | None = Field(None, pattern=f"^{NAME_PATTERN}$")
    title: str | None = Field(None, max_length=200)
    reference: str | None = Field(None, max_length=60)
    front: bool | None = None
    archived: bool | None = None


class NightOut(Schema):
    night: str = Field(description="as the side of a comparison names it")
    time: datetime
    commit: str
    complete: bool


@of_table(streams.COLUMNS)
class StreamOut(Schema):
    aliases: list[str] = Field(description="its earlier names, and those of streams that were merged into it")
    newest_night: NightOut | None
    subjects: list[Subject]


@router.get("/streams", response=Items[StreamOut], tags=["streams"])
def get_streams(request: HttpRequest) -> dict[str, Any]:
    """List all streams, those with the newest results first, with their newest night and what it measured."""
    return {"items": [_out(line) for line in streams.read()]}


@router.put("/streams/{name}", response={200: StreamOut, 409: Error}, tags=["streams"])
def put_stream(request: HttpRequest, name: str, given: StreamIn) -> dict[str, Any]:
    """Change a stream. Its old name goes on as an alias. The front stream cannot be archived."""
    settings = given.model_dump()
    if "reference" in given.model_fields_set:
        settings["reference"] = given.reference or ""
    changed = change(stream_of(name), StreamChanges(**settings), who=who(request))
    return next(_out(line) for line in streams.read() if line.stream == changed)


def _out(line: StreamLine) -> dict[str, Any]:
    night = line.night
    return {
        **streams.COLUMNS.row(line),
        "newest_night": night
        and {"night": night.side, "time": night.time, "commit": night.commit, "complete": night.complete},
        "subjects": subjects(line.nights, measured_by(line.stream)),
    }


class _AuditQuery(Filter):
    who: str = Field("", max_length=150)
    action: str = Field("", max_length=60)
    subject: str = Field("", max_length=200)
    since: date | None = Field(None, alias="from")
    until: date | None = Field(None, alias="to")
    cursor: IdCursor = ""
    limit: int = Field(100, ge=1, le=1000)


@of_table(audit.COLUMNS)
class AuditRowOut(Schema):
    """One entry of the audit log."""


class AuditOut(Items[AuditRowOut]):
    next: str | None


@router.get("/audit", response=AuditOut, tags=["audit"])
def get_audit(request: HttpRequest, given: Query[_AuditQuery]) -> dict[str, Any]:
    """List who did what, newest first: logins, keys, uploads, deletions, rules, runs, hosts. `action` is
    `key.revoke`, or `key` for all of keys; `from` and `to` are days, both included. `next` is the cursor of
    the next page."""
    rows, next_before = audit.read(given.model_dump() | {"before": given.cursor}, given.limit)
    return {"items": audit.COLUMNS.rows(rows), "next": next_before and cursor_to(next_before)}


class GithubTokenIn(StrictBody):
    token: str = Field(min_length=1, max_length=10_000, description="GitHub's, for the HUD as its audience")


class GithubKeyOut(Schema):
    key: str
    scopes: list[str]
    expires: datetime


@router.post("/keys/github", response={201: GithubKeyOut, (401, 403, 503): Error}, tags=["keys"])
def post_github_key(request: HttpRequest, given: GithubTokenIn) -> Status[dict[str, Any]]:
    """Exchange the identity token of a job of GitHub for a key of an hour, with the scopes that
    `HUD_GITHUB_REPOSITORIES` gives its repository."""
    address = address_of(request)
    KEYS.check(address)
    repository = ci_tokens.repository_of(given.token)
    scopes = ci_tokens.scopes_for(repository)
    KEYS.take(address, -1)
    CI_KEYS.check(repository)
    name, now = f"github {repository}", timezone.now()
    with transaction.atomic():
        ended = now - _KEPT
        ApiKey.objects.filter(name__startswith="github ", owner=None, host=None, expires__lt=ended).delete()
        key, secret = create_key(
            name=name,
            scopes=scopes,
            who=name,
            expires=now + ci_tokens.LIFETIME,
            stream=of_new_key(name, "", scopes=scopes, owner=None, is_operator=True),
        )
    return Status(201, {"key": secret, "scopes": key.scopes, "expires": key.expires})


_COUNTS: dict[str, Any] = {field.name: (int, ...) for field in fields(Deletion)}
DeletionOut = create_model(
    "DeletionOut",
    __base__=Schema,
    __doc__="Counts of what was deleted, or with `dry_run` of what would be.",
    verdicts=(int, Field(alias="points", description="the old name of `points`, which have them")),
    **_COUNTS,
)


@of_table(background.COLUMNS)
class CorrectionOut(Schema):
    """A deletion, renaming or merge in the background: `done_rows` of about `rows` points, experiments or
    series."""


DELETED: dict[Any, Any] = {200: DeletionOut, 202: CorrectionOut, 409: Error}


def deletion_answer(response: HttpResponse, done: Deletion | Correction) -> Status[dict[str, Any]]:
    """Return the counts of a deletion, or where its progress is told."""
    if isinstance(done, Deletion):
        return Status(200, done.to_json())
    row = background.COLUMNS.row(done)
    response["Location"] = row["links"]["self"]
    return Status(202, row)


@router.get("/corrections/{int:correction_id}", response=CorrectionOut, tags=["runs"])
def get_correction(request: HttpRequest, correction_id: int) -> dict[str, Any]:
    """Get the progress of a correction in the background."""
    return background.COLUMNS.row(row_of(Correction, correction_id))


@router.delete("/corrections/{int:correction_id}", response={200: CorrectionOut, 409: Error}, tags=["runs"])
def cancel_correction(request: HttpRequest, correction_id: int) -> dict[str, Any]:
    """Cancel a correction that has changed nothing yet; one that has goes on (409). Scopes as for asking for
    it."""
    row, key = row_of(Correction, correction_id), caller_key(request)
    scopes = effective_scopes(key)
    if not background.may_cancel(row, scopes=scopes, owner_id=key.owner_id, key_id=key.pk):
        raise Problem(403, "a correction is cancelled with the scopes that asking for it takes")
    return background.COLUMNS.row(background.cancel(row, who=who(request)))
