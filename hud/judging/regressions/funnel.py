"""The funnel of a stream by ISO week: how many points came, and what became of those that moved."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone

from hud.models import Stream
from hud.sql import fetch

WEEKS = 26  # that are shown


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


def read(stream: Stream, now: datetime) -> list[Week]:
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
