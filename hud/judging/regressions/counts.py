"""How many causes and series wait for somebody: the numbers that every page, view and badge shows. And the
funnel of a stream by ISO week: how many points came, and what became of those that moved."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

from hud.judging.regressions.states import ACTIVE, RegressionState
from hud.models import Regression, Stream
from hud.sql import fetch, fetch_tuples

WEEKS = 26  # that the funnel shows

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

    def to_json(self) -> dict[str, int]:
        return {"causes": self.causes, "series": self.series}


def cause_key(one: Regression) -> int:
    """Return what regressions of one cause have in common: without a row of `Cause` their experiment."""
    return one.cause_row_id or -one.series.experiment_id


def count(scope: Scope) -> Counts:
    """Return how many causes and series wait for somebody, as what is muted does not: 1 statement."""
    joins = JOINS if scope.arch or scope.mode or scope.dtype else _SERIES
    ((causes, series, suspects),) = fetch_tuples(
        f"""
        SELECT count(DISTINCT coalesce(one.cause_id, -series.experiment_id))
                FILTER (WHERE one.state <> %(suspect)s),
            count(DISTINCT one.series_id) FILTER (WHERE one.state <> %(suspect)s),
            count(*) FILTER (WHERE one.state = %(suspect)s)
        FROM hud_regression one {joins}
        WHERE one.state = ANY(%(active)s) AND coalesce(one.muted_until <= now(), true) AND {scope.condition}
        """,  # noqa: S608 — constants  # nosec B608
        {**scope.params, "active": list(ACTIVE), "suspect": RegressionState.SUSPECT},
    )
    return Counts(causes, series, suspects)


@dataclass
class Week:
    """`start` is its Monday. `noise` are suspects that a second point did not show; `dismissed` are
    regressions that were listed and turned out to be none."""

    start: date
    points: int = 0
    suspects: int = 0
    repeats: int = 0
    noise: int = 0
    opened: int = 0
    confirmed: int = 0
    dismissed: int = 0
    resolved: int = 0
    accepted: int = 0
    real: int = 0  # confirmed, or accepted while open

    @property
    def name(self) -> str:
        return f"{self.start:%G-W%V}"

    @property
    def false_alarms(self) -> float | None:
        """Return the share of dismissed regressions among those that this week found to be real or not; None
        where there was none."""
        decided = self.real + self.dismissed
        return self.dismissed / decided if decided else None


def read_weeks(stream: Stream, now: datetime) -> list[Week]:
    """Return the weeks up to now, the newest first: 1 statement."""
    today = now.astimezone(timezone.utc).date()
    starts = [today - timedelta(days=today.weekday(), weeks=back) for back in range(WEEKS)]
    return fetch(
        Week,
        """
        SELECT start, points, suspects, repeats, noise, opened, confirmed, dismissed, resolved, accepted, real
        FROM (
            SELECT start, start::timestamp AT TIME ZONE 'UTC' AS began,
                (start + 7)::timestamp AT TIME ZONE 'UTC' AS ended FROM unnest(%(starts)s::date[]) AS start
        ) week, LATERAL (
            SELECT coalesce(sum(r.points), 0)::int AS points FROM hud_run r
            WHERE r.stream_id = %(stream)s AND r.created >= began AND r.created < ended
        ) runs, LATERAL (
            SELECT count(DISTINCT r.id) AS repeats
            FROM hud_regression g JOIN hud_run r ON r.id = g.repeat_run_id AND r.stream_id = %(stream)s
            WHERE r.created >= began AND r.created < ended
        ) repeated, LATERAL (
            SELECT count(*) FILTER (WHERE after = 'suspect') AS suspects,
                count(*) FILTER (WHERE after = 'dismissed' AND before = 'suspect') AS noise,
                count(*) FILTER (WHERE after = 'open' OR before = 'suspect'  -- pairs confirmed it at once
                    AND after IN ('confirmed', 'resolved', 'accepted')) AS opened,
                count(*) FILTER (WHERE after = 'confirmed') AS confirmed,
                count(*) FILTER (WHERE after = 'dismissed' AND before <> 'suspect') AS dismissed,
                count(*) FILTER (WHERE after = 'resolved') AS resolved,
                count(*) FILTER (WHERE after = 'accepted') AS accepted,
                count(*) FILTER (WHERE after = 'confirmed' OR before = 'open' AND after = 'accepted') AS real
            FROM hud_regressionevent e
            WHERE e.at >= began AND e.at < ended AND e.before <> e.after
                AND e.regression_id = ANY(ARRAY(
                    SELECT id FROM hud_regression g
                    WHERE (SELECT stream_id FROM hud_series WHERE id = g.series_id) = %(stream)s))
        ) changes
        ORDER BY start DESC
        """,
        {"starts": starts, "stream": stream.pk},
    )
