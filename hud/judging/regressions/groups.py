"""Stored regressions, grouped by their causes."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import Count

from hud.judging.regressions import causes
from hud.judging.regressions.causes import Group, Moved
from hud.judging.regressions.states import Canaries, RegressionKind
from hud.models import Regression, SeriesState


def groups(regressions: Sequence[Regression]) -> list[Group]:
    """Return the groups of these regressions, which have their experiments, metrics and latest runs: 1
    statement."""
    runs = {one.first_run_id for one in regressions} - {None}
    counted = dict(
        SeriesState.objects.filter(run__in=runs)
        .values("run")
        .annotate(n=Count("series__experiment", distinct=True))
        .values_list("run", "n")
    )
    return causes.group([_moved(one) for one in regressions], counted)


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
