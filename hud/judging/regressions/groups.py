"""Stored regressions, grouped by their causes."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection

from hud.judging.regressions import causes
from hud.judging.regressions.causes import Group, Moved
from hud.judging.regressions.states import Canaries, RegressionKind
from hud.models import Regression


def groups(regressions: Sequence[Regression]) -> list[Group]:
    """Return the groups of these regressions, which have their experiments, metrics and latest runs: 1
    statement."""
    runs = {one.first_run_id for one in regressions} - {None}
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT t.run_id, count(DISTINCT s.experiment_id)
            FROM hud_seriesstate t JOIN hud_series s ON s.id = t.series_id
            WHERE t.run_id = ANY(%(runs)s::int[]) GROUP BY 1
            """,
            {"runs": list(runs)},
        )
        measured = dict(cursor.fetchall())
    return causes.group([_moved(one) for one in regressions], measured)


def _moved(one: Regression) -> Moved:
    experiment = one.series.experiment
    return Moved(
        key=one.pk,
        experiment=experiment.pk,
        family=(experiment.suite, experiment.backend, experiment.arch),
        run=one.first_run_id,
        last_good_run=one.last_good_run_id,
        change=one.change,
        factor=one.factor,
        worse_up=one.series.metric.direction == "down",
        failed=one.kind == RegressionKind.FAILURE,
        host=one.latest_run.host_name if one.canaries == Canaries.MOVED and one.latest_run else "",
        quiet_host=one.canaries == Canaries.QUIET,
    )
