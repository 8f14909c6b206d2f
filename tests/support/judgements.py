"""What the judge says of points."""

from __future__ import annotations

from django.db.models import QuerySet

from hud.models import VERDICT_CODES, VERDICTS, Point

_SILENT = [VERDICT_CODES["unchanged"], VERDICT_CODES["not_run"]]


def telling_points() -> QuerySet[Point]:
    """Return the points whose verdict says something, oldest first: neither unchanged nor a series' first."""
    told = Point.objects.exclude(verdict_code__in=_SILENT).exclude(verdict_code=None)
    first = VERDICT_CODES["new"]
    return told.exclude(verdict_code=first, verdict_reason=None).order_by("order_time", "run")


def verdicts() -> list[str]:
    """Return those verdicts, oldest first."""
    return [
        VERDICTS[code] for code in telling_points().values_list("verdict_code", flat=True) if code is not None
    ]
