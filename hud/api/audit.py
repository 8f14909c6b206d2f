"""The audit log over the API, for admins."""

from datetime import date, datetime
from typing import Any

from django.http import HttpRequest
from ninja import Query, Router
from ninja.schema import Schema
from pydantic import Field

from hud.api.schemas import Filter, Items
from hud.pages.audit import query

router = Router(tags=["audit"])


class _AuditQuery(Filter):
    who: str = Field("", max_length=150)
    action: str = Field("", max_length=60)
    subject: str = Field("", max_length=200)
    since: date | None = Field(None, alias="from")
    until: date | None = Field(None, alias="to")
    cursor: int | None = Field(None, ge=1, le=2**31 - 1)
    limit: int = Field(query.PAGE_ROWS, ge=1, le=query.MOST_ROWS)


class AuditRowOut(Schema):
    id: int
    at: datetime
    who: str
    action: str
    subject: str
    address: str
    detail: dict[str, Any]


class AuditOut(Items[AuditRowOut]):
    next: str | None


@router.get("/audit", response=AuditOut)
def get_audit(request: HttpRequest, given: Query[_AuditQuery]) -> dict[str, Any]:
    """List who did what, newest first: logins, keys, uploads, deletions, rules, runs, hosts. `action` is
    `key.revoke`, or `key` for all of keys; `from` and `to` are days, both included. `next` is the cursor of
    the next page."""
    filters = given.model_dump(exclude={"cursor", "limit"})
    rows, next_before = query.read(query.Filters(**filters, before=given.cursor), given.limit)
    following = None if next_before is None else str(next_before)
    return {"items": query.ROWS.rows(rows), "next": following}
