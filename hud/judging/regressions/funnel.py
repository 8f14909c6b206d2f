"""The funnel of a stream by ISO week: how many points came, and what became of those that moved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone

from hud.judging.regressions.states import RegressionState
from hud.models import Stream
from hud.sql import fetch_tuples

WEEKS = 26  # that are shown
_S = RegressionState


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
        year, week, _day = self.start.isocalendar()
        return f"{year}-W{week:02}"

    @property
    def false_alarms(self) -> float | None:
        """Return the share of dismissed regressions among those that this week found to be real or not; None
        where there was none."""
        decided = self.real + self.dismissed
        return self.dismissed / decided if decided else None


def read(stream: Stream, now: datetime) -> list[Week]:
    """Return the weeks up to now, the newest first: 1 statement."""
    monday = (now.astimezone(timezone.utc) - timedelta(days=now.astimezone(timezone.utc).weekday())).date()
    first = monday - timedelta(weeks=WEEKS - 1)
    rows = fetch_tuples(
        """
        SELECT date_trunc('week', r.created AT TIME ZONE 'UTC')::date, 'points', '', sum(r.points)::int
        FROM hud_run r
        WHERE r.stream_id = %(stream)s AND r.created >= %(first)s::timestamp AT TIME ZONE 'UTC' GROUP BY 1
        UNION ALL
        SELECT date_trunc('week', e.at AT TIME ZONE 'UTC')::date, e.before, e.after, count(*)
        FROM hud_regressionevent e
        WHERE e.at >= %(first)s::timestamp AT TIME ZONE 'UTC' AND e.before <> e.after
            AND e.regression_id = ANY(ARRAY(
                SELECT id FROM hud_regression g
                WHERE (SELECT stream_id FROM hud_series WHERE id = g.series_id) = %(stream)s))
        GROUP BY 1, 2, 3
        UNION ALL
        SELECT date_trunc('week', r.created AT TIME ZONE 'UTC')::date, 'repeats', '', count(DISTINCT r.id)
        FROM hud_regression g JOIN hud_run r ON r.id = g.repeat_run_id AND r.stream_id = %(stream)s
        WHERE r.created >= %(first)s::timestamp AT TIME ZONE 'UTC' GROUP BY 1
        """,
        {"first": first, "stream": stream.pk},
    )
    return _weeks(monday, rows)


def _weeks(monday: date, rows: Iterable[tuple[date, str, str, int]]) -> list[Week]:
    starts = (monday - timedelta(weeks=back) for back in range(WEEKS))
    found = {start: Week(start) for start in starts}
    for start, before, after, count in rows:
        week = found.get(start)
        if week is None:  # a clock that runs ahead
            continue
        if before in {"points", "repeats"}:
            setattr(week, before, count)
        elif after == _S.SUSPECT:
            week.suspects += count
        elif after == _S.DISMISSED and before == _S.SUSPECT:
            week.noise += count
        elif after == _S.OPEN:
            week.opened += count
        elif after in {_S.CONFIRMED, _S.DISMISSED, _S.RESOLVED, _S.ACCEPTED}:
            week.opened += count * (before == _S.SUSPECT)  # pairs confirmed it at once
            week.real += count * (after == _S.CONFIRMED or (before, after) == (_S.OPEN, _S.ACCEPTED))
            setattr(week, after, getattr(week, after) + count)
    return list(found.values())
