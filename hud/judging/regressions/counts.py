"""How many causes and series wait for somebody: the numbers that every page, view and badge shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from django.db.models import Count, F, IntegerField, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from hud.judging.regressions.states import TOLD
from hud.models import Regression, Stream


@dataclass(frozen=True)
class Scope:
    """The regressions that a page is about: of a stream and a subject, that began after the baseline and not
    after the candidate; '' and None mean any."""

    stream: Stream | None
    arch: str = ""
    mode: str = ""
    dtype: str = ""
    base: datetime | None = None
    head: datetime | None = None

    def condition(self) -> Q:
        wanted = {
            "series__stream": self.stream,
            **{f"series__experiment__{name}": getattr(self, name) for name in ("arch", "mode", "dtype")},
            "since__gt": self.base,
            "since__lte": self.head,
        }
        return Q(**{name: value for name, value in wanted.items() if value not in ("", None)})


@dataclass(frozen=True)
class Counts:
    causes: int = 0
    series: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def is_waiting() -> Q:
    """Return the condition of what waits for somebody: a suspect does not yet, nor what is muted."""
    return Q(state__in=TOLD) & ~Q(muted_until__gt=timezone.now())


def cause_key(one: Regression) -> int:
    """Return what regressions of one cause have in common: without a row of `Cause` their experiment."""
    return one.cause_row_id or -one.series.experiment_id


_CAUSE_KEY = Coalesce(F("cause_row_id"), -F("series__experiment_id"), output_field=IntegerField())


def count(scope: Scope) -> Counts:
    """Return how many causes and series wait for somebody: 1 statement."""
    waiting = Regression.objects.filter(scope.condition() & is_waiting())
    counted = waiting.aggregate(
        causes=Count(_CAUSE_KEY, distinct=True), series=Count("series_id", distinct=True)
    )
    return Counts(**counted)
