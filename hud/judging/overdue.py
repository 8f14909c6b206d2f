"""Suites without results: what had results in the last two weeks, and has none for a day and a half."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection

LATE = timedelta(hours=36)
GIVEN_UP = timedelta(days=14)  # with the latest result this old, nobody expects another


@dataclass(frozen=True)
class Latest:
    """The latest result of a suite on an arch, in a followed branch."""

    suite: str
    branch: str
    arch: str
    since: datetime

    def to_row(self) -> dict[str, Any]:
        return asdict(self)


def overdue(latest: Iterable[Latest], now: datetime) -> list[Latest]:
    """Return those that are late, the longest first."""
    late = [one for one in latest if LATE < now - one.since <= GIVEN_UP]
    return sorted(late, key=lambda one: (one.since, one.suite, one.arch))


def overdue_suites(now: datetime) -> list[Latest]:
    """Return what is overdue: 1 statement over the states of series, no history."""
    return overdue(latest_results()[0], now)


def latest_results(night: Collection[int] = ()) -> tuple[list[Latest], Counter[str]]:
    """Return the latest result of each suite and arch on the default branch, whose series have states; and of
    each arch how many of these have their newest point in the runs `night`. Where every series of a suite has
    a single point, it was uploaded once, and nobody waits for more.

    The time is that of the measurement: of a run of ours its end, of an upload what it says. Where it says a
    commit's alone, it is the time of the upload, unless the commit is so old that this is a backfill.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT e.suite, e.arch, max(
                CASE WHEN r.finished IS NOT NULL AND r.upload_id IS NULL THEN r.finished
                    WHEN r.order_time_source = 'commit'
                        AND r.created - p.newest < %(given_up_s)s * interval '1 s' THEN r.created
                    ELSE p.newest END),
                bool_or(p.several), coalesce(sum(p.series) FILTER (WHERE r.id = ANY(%(night)s)), 0)::int
            FROM (
                SELECT t.experiment_id, s.run_id, max(s.order_time) AS newest,
                    bool_or(s.several) AS several, count(*) AS series
                FROM (SELECT series_id, run_id, order_time, cardinality(recent) > 1 AS several
                    FROM hud_seriesstate OFFSET 0) s
                JOIN hud_series t ON t.id = s.series_id
                GROUP BY t.experiment_id, s.run_id
            ) p
            JOIN hud_experiment e ON e.id = p.experiment_id
            JOIN hud_run r ON r.id = p.run_id
            GROUP BY e.suite, e.arch
            """,
            {"given_up_s": GIVEN_UP.total_seconds(), "night": list(night)},
        )
        rows = cursor.fetchall()
    latest, judged = [], Counter[str]()
    for suite, arch, since, several, in_night in rows:
        judged[arch] += in_night
        if several:
            latest.append(Latest(suite, str(settings.HUD_DEFAULT_BRANCH), arch, since))
    return latest, judged
