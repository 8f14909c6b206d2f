"""Stored regressions, grouped by their causes, and the rows of `Cause` that keep the groups of each night."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connection, transaction
from django.db.models import Q
from django.db.models.query import QuerySet
from django.utils import timezone

from hud.judging.regressions import causes
from hud.judging.regressions.causes import Group, Moved
from hud.judging.regressions.states import TOLD, Canaries, RegressionKind
from hud.models import Cause, Regression, Run, Stream
from hud.points import nights
from hud.points.nights import Night

_LONGEST_TITLE = 200


def groups(regressions: Sequence[Regression]) -> list[Group]:
    """Return the groups of these regressions, which have their experiments, metrics and latest runs: 1
    statement."""
    return causes.group([moved(one) for one in regressions], experiments_of_runs(regressions))


def experiments_of_runs(regressions: Sequence[Regression]) -> dict[int, int]:
    """Return how many experiments each run measured in which one of these first moved: 1 statement."""
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
        return dict(cursor.fetchall())


def moved(one: Regression) -> Moved:
    experiment = one.series.experiment
    return Moved(
        key=one.pk,
        experiment=experiment.pk,
        family=(experiment.suite, experiment.backend, experiment.arch),
        case=(experiment.suite, experiment.title, experiment.arch),
        run=one.first_run_id,
        last_good_run=one.last_good_run_id,
        change=one.change,
        factor=one.factor,
        worse_up=one.series.metric.direction == "down",
        failed=one.kind == RegressionKind.FAILURE or one.change is None,
        host=one.latest_run.host_name if one.canaries == Canaries.MOVED and one.latest_run else "",
        quiet_host=one.canaries == Canaries.QUIET,
    )


def words(group: Group, members: Sequence[Regression]) -> str:
    """Return what a group has in common, '' for one experiment."""
    first = members[0]
    experiment = first.series.experiment
    host = first.first_run.host_name if first.first_run else ""
    if group.why == "host" and first.canaries == Canaries.MOVED:
        return first.cause
    if group.why == "host":
        moved_alike = f"Most of what run {first.first_run_id} measured moved alike: look at the host"
        return f"{moved_alike} {host}" if host else moved_alike
    if group.why == "backend":
        cases = len({one.series.experiment_id for one in members})
        return f"{cases} cases of {experiment.suite} on {experiment.backend} moved between the same two runs"
    if group.why == "case":
        backends = dict.fromkeys(one.series.experiment.backend for one in members)
        return f"{experiment.title} fails on {', '.join(backends)}"
    return ""


def of_cause(one: Regression) -> QuerySet[Regression]:
    """Return the regressions of this one's cause that somebody may decide on, and itself."""
    same = Q(cause_row=one.cause_row_id)
    if one.cause_row_id is None:
        same &= Q(series__experiment=one.series.experiment_id, series__stream=one.series.stream_id)
    return Regression.objects.filter(Q(pk=one.pk) | same & Q(state__in=TOLD))


def make_causes() -> int:
    """Put the regressions of complete nights that have no cause into one; return how many. Nothing may wait
    to be judged."""
    now = timezone.now()
    waiting: dict[int, set[int]] = {}  # first runs by stream
    pending = Regression.objects.filter(state__in=TOLD, cause_row=None, first_run__isnull=False)
    for stream_id, run_id in pending.values_list("series__stream", "first_run").distinct():
        waiting.setdefault(stream_id, set()).add(run_id)
    return sum(
        _make_causes_of(stream, night)
        for stream in Stream.objects.filter(pk__in=waiting)
        for night in nights.read(stream)
        if night.is_default(now) and not waiting[stream.pk].isdisjoint(night.runs)
    )


def _make_causes_of(stream: Stream, night: Night) -> int:
    """Group the regressions that began in a night. A group joins the oldest cause that one of them has; other
    causes of the group are merged into that one. What began again keeps the cause of its earlier night."""
    with transaction.atomic():
        Stream.objects.select_for_update(no_key=True).get(pk=stream.pk)
        began = Run.objects.filter(pk__in=night.runs).earliest("order_time").order_time
        members = _members(stream, night).filter(
            Q(cause_row=None) | Q(cause_row__night__range=(began, night.time))
        )
        by_id = {one.pk: one for one in members.order_by("pk")}
        without = sum(one.cause_row_id is None for one in by_id.values())
        for group in sorted(groups(list(by_id.values())), key=lambda group: len(group.keys)):
            own = [by_id[key] for key in group.keys]
            experiment = own[0].series.experiment
            named = ", ".join((experiment.title, experiment.suite, experiment.backend))
            title = (words(group, own) or named)[:_LONGEST_TITLE]
            known = {one.cause_row_id for one in own if one.cause_row_id}
            if not known:
                known.add(Cause.objects.create(stream=stream, night=began, title=title).pk)
            kept, *others = sorted(known)
            Cause.objects.filter(pk=kept).update(title=title)
            _merge(others, kept)
            for one in by_id.values():
                if one in own or one.cause_row_id in others:
                    one.cause_row_id = kept
            Regression.objects.filter(pk__in=group.keys).update(cause_row=kept)
    return without


def _members(stream: Stream, night: Night) -> QuerySet[Regression]:
    """Return the regressions that began in a night and are news. Known failures have none that is active."""
    related = ("series__experiment", "series__metric", "first_run", "latest_run")
    began = Regression.objects.filter(series__stream=stream, first_run__in=night.runs, state__in=TOLD)
    return began.select_related(*related)


def _merge(others: Sequence[int], kept: int) -> None:
    Regression.objects.filter(cause_row__in=others).update(cause_row=kept)
    Cause.objects.filter(Q(pk__in=others) | Q(merged_into__in=others)).update(merged_into=kept)
