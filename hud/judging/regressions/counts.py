"""How many causes and series wait for somebody: the numbers that every page, view and badge shows."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from hud.judging.regressions.states import ACTIVE, RegressionState
from hud.models import Regression, Stream
from hud.sql import fetch_tuples

# By their keys, as regressions are few: a join of all series takes twice the time.
_SERIES = "CROSS JOIN LATERAL (SELECT * FROM hud_series WHERE id = one.series_id OFFSET 0) series"
JOINS = f"""{_SERIES}
    CROSS JOIN LATERAL (SELECT * FROM hud_experiment WHERE id = series.experiment_id OFFSET 0) e
"""  # noqa: S608 — constants  # nosec B608
_CONDITIONS = {
    "stream": "series.stream_id = %(stream)s",
    "arch": "e.arch = %(arch)s",
    "mode": "e.mode = %(mode)s",
    "dtype": "e.dtype = %(dtype)s",
    "base": "one.since > %(base)s",
    "head": "one.since <= %(head)s",
}


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

    @property
    def condition(self) -> str:
        """Return SQL, of a row `one` of hud_regression with `JOINS`."""
        return " AND ".join(["true", *(_CONDITIONS[name] for name, value in self.params.items() if value)])

    @property
    def params(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in _CONDITIONS}
        return {**given, "stream": self.stream.pk if self.stream else None}


@dataclass(frozen=True)
class Counts:
    causes: int = 0
    series: int = 0
    suspects: int = 0  # that wait for a second result, not yet for somebody
    older: int = 0  # causes of what began before the baseline, which are in none of the others

    def to_json(self) -> dict[str, int]:
        return {"causes": self.causes, "series": self.series}


def cause_key(one: Regression) -> int:
    """Return what regressions of one cause have in common: without a row of `Cause` their experiment."""
    return one.cause_row_id or -one.series.experiment_id


def count(scope: Scope) -> Counts:
    """Return how many causes and series wait for somebody, as what is muted does not: 1 statement."""
    joins = JOINS if scope.arch or scope.mode or scope.dtype else _SERIES
    is_new = _CONDITIONS["base"] if scope.base else "true"
    ((causes, series, suspects, older),) = fetch_tuples(
        f"""
        SELECT count(DISTINCT coalesce(one.cause_id, -series.experiment_id))
                FILTER (WHERE one.state <> %(suspect)s AND {is_new}),
            count(DISTINCT one.series_id) FILTER (WHERE one.state <> %(suspect)s AND {is_new}),
            count(*) FILTER (WHERE one.state = %(suspect)s AND {is_new}),
            count(DISTINCT coalesce(one.cause_id, -series.experiment_id))
                FILTER (WHERE one.state <> %(suspect)s AND NOT {is_new})
        FROM hud_regression one {joins}
        WHERE one.state = ANY(%(active)s) AND coalesce(one.muted_until <= now(), true)
            AND {replace(scope, base=None).condition}
        """,  # noqa: S608 — constants  # nosec B608
        {**scope.params, "active": list(ACTIVE), "suspect": RegressionState.SUSPECT},
    )
    return Counts(causes, series, suspects, older)
