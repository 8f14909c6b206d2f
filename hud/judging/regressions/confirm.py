"""Let hosts confirm or dismiss regressions: a silent repeat of each suspect, then a comparison in pairs.

A repeat is one more run of the same experiment on the host and card that measured it: it agrees with the
suspect or ends it, and is no part of the level. Pairs need two interpreters on that host, with both versions
of torch or the environment variables that differ. They are at equal choices of the autotuner; compile time,
caches and memory are compared in free pairs. All of it stays within `HUD_CONFIRM_MINUTES` a day, behind what
people wait for. Where no host can do it, the next night decides.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from hud.hosts.registration import visible_accelerators
from hud.judging.comparison import Comparison, MetricComparison, compare, kernels_of, planned_draws
from hud.judging.regressions.events import decide_by_pairs, leave_undecided, record
from hud.judging.regressions.groups import by_key
from hud.models import (
    Accelerator,
    Environment,
    Host,
    Measurement,
    Regression,
    Run,
    Series,
    SidePoint,
    State,
    Task,
)
from hud.runs.matching import OVERLAID, ResourceRequest
from hud.runs.requests import DEFAULT_INTERPRETER, RunOptions, request_rerun
from hud.runs.tasks import cancel
from hud.states.regressions import Canaries, RegressionKind, RegressionState
from runner.schema.compilations import draw_obstacle
from runner.schema.statistics import LEAST_PAIRS
from runner.schema.suite import BadRequest
from runner.schema.tasks import Replication

logger = logging.getLogger(__name__)
WHO = "judge"  # as requests name it
_UNDECIDED = (RegressionState.SUSPECT, RegressionState.OPEN, RegressionState.ACKNOWLEDGED)
_EXPIRE_HOURS = 24
_AT_ONCE = 2  # runs of ours that wait or run
_ESTIMATE_MINUTES = 5.0  # of a run that has not ended


def confirm() -> int:
    """Take the results of comparisons, then request what the budget permits; return how many runs."""
    _conclude()
    _expire()
    if settings.HUD_CONFIRM_MINUTES <= 0:
        return 0
    own = Run.objects.filter(request__requested_by=WHO)
    room = _AT_ONCE - own.filter(state__in=[State.QUEUED, State.RUNNING]).count()
    if room <= 0 or _spent_minutes(own) >= settings.HUD_CONFIRM_MINUTES:
        return 0
    requested, attached = 0, visible_accelerators()
    steps = [RegressionKind.STEP, RegressionKind.SMALL_STEP]
    suspects = _by_experiment(state=RegressionState.SUSPECT, repeat_run=None, kind=RegressionKind.STEP)
    to_compare = _by_experiment(state=RegressionState.OPEN, pairs_run=None, kind__in=steps)
    for regressions in (*suspects, *to_compare):
        if requested < room and (run := _request(regressions, attached)):
            requested += 1
            same = Regression.objects.filter(pk__in=[regression.pk for regression in regressions])
            same.update(**{"pairs_run" if run.is_ab else "repeat_run": run})
    return requested


def _spent_minutes(own: QuerySet[Run]) -> float:
    """Return the host minutes of our runs within a day; one that has not ended takes at least the usual."""
    now, minutes = timezone.now(), 0.0
    recent = own.filter(Q(created__gt=now - timedelta(days=1)) | Q(state__in=[State.QUEUED, State.RUNNING]))
    for started, finished in recent.values_list("started", "finished"):
        taken = ((finished or now) - (started or now)) / timedelta(minutes=1)
        minutes += taken if finished else max(taken, _ESTIMATE_MINUTES)
    return minutes


def _expire() -> None:
    """Cancel our runs that no host has worked on for a day, so that others get their turn, and say so in the
    regression's history. It is tried again once its host takes tasks."""
    since = timezone.now() - timedelta(hours=_EXPIRE_HOURS)
    own = Run.objects.filter(request__requested_by=WHO, state__in=[State.QUEUED, State.RUNNING])
    for run in own.filter(created__lt=since).exclude(tasks__state=Task.State.RUNNING):
        with transaction.atomic():
            cancel(run=run, who=WHO)
            note = f"no host took run {run.pk} within {_EXPIRE_HOURS} h"
            for name in ("repeat_run", "pairs_run"):
                waiting = Regression.objects.filter(**{name: run})
                for regression in waiting:
                    record(regression, event="expired", note=note, run_id=run.pk)
                waiting.update(**{name: None})


def _by_experiment(**wanted: Any) -> list[list[Regression]]:
    """Return regressions by experiment and stream, the newest first."""
    related = ("series__experiment", "series__stream", "first_run", "last_good_run")
    suspects = Regression.objects.filter(**wanted).select_related(*related).order_by("-since", "pk")
    in_order = suspects.exclude(canaries=Canaries.MOVED)[:200]  # its host would repeat its own move
    return by_key(in_order, lambda row: (row.series.experiment_id, row.series.stream_id, row.class_key))


def _request(regressions: Sequence[Regression], attached: Sequence[Accelerator]) -> Run | None:
    """Request a repeat of a suspect, or pairs for an open regression; None where no host can do it."""
    first = regressions[0]
    accelerator = accelerator_of(first, attached)
    if accelerator is None:
        return None
    interpreter, base = first.first_run.interpreter if first.first_run else "", ""
    if first.state == RegressionState.OPEN:
        runs = (first.last_good_run, first.first_run)
        base, interpreter = (interpreter_of(first, run, accelerator.host) or "" for run in runs)
        if not base or not interpreter or base == interpreter:
            return None
    series = [each.series for each in regressions]
    try:
        return rerun_on(accelerator, series, who=WHO, interpreter=interpreter, base=base)
    except BadRequest as error:
        logger.info("%s is not repeated: %s", first, error)
        return None


def rerun_on(
    accelerator: Accelerator, series: Sequence[Series], *, who: str, interpreter: str, base: str, **more: Any
) -> Run:
    """Request a run of the experiment of these series on one accelerator, behind what people wait for: one
    repeat, or with a base interpreter as many draws or pairs as an answer needs. Raise BadRequest."""
    names = {"interpreter": interpreter, "base_interpreter": base}
    labels = {"accelerator": accelerator.name}
    resources = ResourceRequest(accelerator.device, accelerator.host, labels=labels, **names)
    if not base:
        replication = Replication(repeats=1)
    elif draws := planned_draws(series):
        replication = Replication(draws=draws)
    else:
        replication = Replication(repeats=LEAST_PAIRS, caches="fresh")
    options = RunOptions(resources, who, replication, run_class="night", stream=series[0].stream, **more)
    return request_rerun(series[0].experiment, options)


def accelerator_of(regression: Regression, attached: Sequence[Accelerator]) -> Accelerator | None:
    """Return the accelerator that measured the regression, while it takes tasks. An upload only names a host,
    and must not make it work."""
    if regression.first_run is None or regression.first_run.upload_id:
        return None
    used = Environment.objects.filter(point__series=regression.series_id, point__run=regression.first_run)
    uuid = (used.values_list("facts", flat=True).first() or {}).get("gpu_uuid", "")
    where = regression.first_run.host_name, regression.series.experiment.device
    for item in attached:
        takes_none = item.hindrance or item.host.drained or item.host.paused_until
        if (item.host.name, item.device) == where and uuid in ("", item.uuid) and not takes_none:
            return item
    return None


def interpreter_of(regression: Regression, run: Run | None, host: Host) -> str | None:
    """Return the run's own interpreter if it still has the torch that measured, else another one with it."""
    torch = torch_of(regression, run)
    same = [
        name
        for name, facts in host.facts.get("pythons", {}).items()
        if torch == (facts.get("torch", ""), facts.get("torch_git", ""))
    ]
    return _name(run) if _name(run) in same else next(iter(same), None)


def _name(run: Run | None) -> str:
    """Return the name of a run's interpreter, '' if another host's may bear it."""
    return "" if run is None or run.upload_id else run.interpreter or DEFAULT_INTERPRETER


def torch_of(regression: Regression, run: Run | None) -> tuple[str, str] | None:
    """Return version and commit of the torch with which a run measured the regression's series."""
    used = Environment.objects.filter(point__series=regression.series_id, point__run=run)
    return used.values_list("torch", "torch_git").first() if run else None


def _conclude() -> None:
    """Apply the results of comparisons in pairs in the order of their ends, ours, people's and uploaded ones,
    to the regressions of what they measured, if they compare the same two sides."""
    related = ("series__metric", "first_run", "last_good_run", "concluded_run")
    waiting = list(Regression.objects.filter(state__in=_UNDECIDED).select_related(*related))
    if not waiting:
        return
    points = SidePoint.objects.filter(series__in=[row.series_id for row in waiting])
    measured = set(points.values_list("series_id", "run_id"))
    # one interpreter on both sides says how quiet the host is, and nothing of the code
    # other code than was measured
    overlaid = Q(interpreter__regex=OVERLAID) | Q(base_interpreter__regex=OVERLAID)
    ended = Run.objects.exclude(overlaid | Q(base_interpreter__in=["", F("interpreter")])).filter(
        Q(upload__isnull=False) | Q(request__candidate_options={}),
        state=State.SUCCEEDED,
        pk__in={run for _series, run in measured},
    )
    runs = list(ended.select_related("request").order_by("finished", "pk"))
    for row in waiting:
        done = row.concluded_run
        for run in runs:
            is_later = run.order_time > row.since if run.upload_id else run.created > row.opened
            if not is_later or (row.series_id, run.pk) not in measured:
                continue
            if done and run.finished and done.finished and (run.finished, run.pk) <= (done.finished, done.pk):
                continue
            Regression.objects.filter(pk=row.pk).update(concluded_run=run)
            try:
                _apply_pairs(row, run)
            except (ArithmeticError, ValueError):  # one that cannot be judged must not stop all others
                logger.exception("the pairs of %s are not judged", row)


def _apply_pairs(regression: Regression, run: Run) -> None:
    """Judge the regression's own metric by the comparison of a run."""
    torches = torches_of(regression, [run.pk])
    wanted = [regression.last_good_run, regression.first_run]
    if torches != [{torch_of(regression, end)} for end in wanted]:
        return  # it compares something else
    names = list(map(_name, wanted))
    if run.upload_id:  # it tells of what was uploaded of the same host
        if not all(end and end.upload_id and end.host_name == run.host_name for end in wanted):
            return
        names = [end.interpreter for end in wanted if end]
    if torches[0] == torches[1] and [run.base_interpreter, run.interpreter] != names:
        return  # one torch in two interpreters: only these two differ as the regression does
    comparison = compare([run], series=regression.series_id, class_key=regression.class_key)
    for answer in comparison.metrics:
        if answer.word == "confirmed" and answer.better is False:
            decide_by_pairs(regression=regression, confirmed=True, run_id=run.pk, cause=answer.cause)
        elif answer.better or answer.word == "dismissed":
            reason = obstacle(regression, answer, comparison)
            if not reason:
                decide_by_pairs(regression=regression, confirmed=False, run_id=run.pk)
                continue
            code = "faster" if answer.better else "no change"
            note = f"code: {code}; cannot tell of the choices: {reason}"
            leave_undecided(regression=regression, note=note, run_id=run.pk)
        elif answer.word == "inconclusive":
            leave_undecided(regression=regression, note="", run_id=run.pk)


def obstacle(row: Regression, answer: MetricComparison, comparison: Comparison) -> str:
    """Return why a comparison whose code is no slower does not dismiss the regression, or ''."""
    experiment = row.series.experiment
    sides = comparison.kernels.get(experiment.pk)
    if answer.code is None or sides is None:
        return answer.obstacle
    if sides.found.code.word != "dismissed":
        return "the time of the kernels is not known to be unchanged"
    of_runs = [kernels_of(experiment.pk, run) for run in {row.first_run_id, row.latest_run_id} - {None}]
    if not all(of_runs):
        return "the choices of the suspect are unknown"
    drawn = kernels_of(experiment.pk, row.last_good_run_id)
    suspects = [kernels for of_run in of_runs for kernels in of_run]
    return draw_obstacle(sides.base, sides.head, experiment.device, suspects, drawn)


def torches_of(regression: Regression, runs: Iterable[int | None]) -> list[set[tuple[str, str]]]:
    """Return the torch of each side of A/B runs that measured the regression's series."""
    rows = Measurement.objects.filter(
        series=regression.series_id, run__in=runs, environment__class_key=regression.class_key
    ).values_list("side", "environment__torch", "environment__torch_git")
    torches: list[set[tuple[str, str]]] = [set(), set()]
    for side, torch, git in rows.distinct():
        torches[side].add((torch, git))
    return torches
