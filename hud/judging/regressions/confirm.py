"""Let hosts confirm or dismiss regressions: a silent repeat of each suspect, then a comparison in pairs.

A repeat is one more run of the same experiment on the host and card that measured it: it agrees with the
suspect or ends it, and is no part of the level. Pairs need two interpreters on that host, with both versions
of torch or the environment variables that differ; they compile both sides afresh in turn. All of it stays
within `HUD_CONFIRM_MINUTES` a day, behind what people wait for. Where no host can do it, the next night
decides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from hud.judging.pairs import PairVerdict, judge_pairs
from hud.judging.regressions.decide import decide_by_pairs
from hud.judging.regressions.events import record
from hud.judging.regressions.states import Canaries, RegressionKind, RegressionState
from hud.models import (
    Accelerator,
    Environment,
    Host,
    Measurement,
    Metric,
    Regression,
    Run,
    Series,
    State,
    Task,
)
from hud.runs import matching
from hud.runs.matching import ResourceRequest
from hud.runs.requests import DEFAULT_INTERPRETER, InvalidRunRequest, RunOptions, request_rerun
from hud.runs.tasks import cancel
from runner.schema.statistics import LEAST_PAIRS

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
    if room <= 0 or _spent_minutes() >= settings.HUD_CONFIRM_MINUTES:
        return 0
    requested = 0
    suspects = Q(state=RegressionState.SUSPECT, repeat_run=None, kind=RegressionKind.STEP)
    steps = Q(kind__in=[RegressionKind.STEP, RegressionKind.SMALL_STEP])
    to_compare = Q(state=RegressionState.OPEN, pairs_run=None) & steps
    for regressions in (*_by_experiment(suspects), *_by_experiment(to_compare)):
        if requested < room and (run := _request(regressions)):
            requested += 1
            is_repeat = not run.base_interpreter
            Regression.objects.filter(pk__in=[one.pk for one in regressions]).update(
                **{"repeat_run" if is_repeat else "pairs_run": run}
            )
    return requested


def _spent_minutes() -> float:
    """Return the minutes of hosts that our runs have taken within a day; one that has not ended takes at
    least what is usual."""
    now = timezone.now()
    runs = Run.objects.filter(request__requested_by=WHO).filter(
        Q(created__gt=now - timedelta(days=1)) | Q(state__in=[State.QUEUED, State.RUNNING])
    )
    minutes = 0.0
    for started, finished in runs.values_list("started", "finished"):
        taken = ((finished or now) - started).total_seconds() / 60 if started else 0.0
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
            for name in ("repeat_run", "pairs_run"):
                for one in Regression.objects.filter(**{name: run}):
                    note = f"no host took run {run.pk} within {_EXPIRE_HOURS} h"
                    record(one, one.state, one.state, event="expired", note=note, run_id=run.pk)
                Regression.objects.filter(**{name: run}).update(**{name: None})


def _by_experiment(wanted: Q) -> list[list[Regression]]:
    """Return regressions by experiment and stream, the newest first."""
    wanted &= ~Q(canaries=Canaries.MOVED)  # its host would repeat its own move
    found: dict[tuple[int, int, str], list[Regression]] = {}
    related = ("series__experiment", "series__stream", "first_run", "last_good_run")
    for one in Regression.objects.filter(wanted).select_related(*related).order_by("-since", "pk")[:200]:
        found.setdefault((one.series.experiment_id, one.series.stream.pk, one.class_key), []).append(one)
    return list(found.values())


def _request(regressions: Sequence[Regression]) -> Run | None:
    """Request a repeat of a suspect, or pairs for an open regression; None where no host can do it."""
    one = regressions[0]
    accelerator = accelerator_of(one)
    if accelerator is None:
        return None
    interpreter, base = one.first_run.interpreter if one.first_run else "", ""
    if one.state == RegressionState.OPEN:
        runs = (one.last_good_run, one.first_run)
        base, interpreter = (interpreter_of(one, run, accelerator.host) or "" for run in runs)
        if not base or not interpreter or base == interpreter:
            return None
    try:
        return rerun_on(accelerator, one.series, who=WHO, interpreter=interpreter, base=base)
    except InvalidRunRequest as error:
        logger.info("%s is not repeated: %s", one, error)
        return None


def rerun_on(accelerator: Accelerator, series: Series, *, who: str, interpreter: str, base: str) -> Run:
    """Request a run of a series' experiment on one accelerator, behind what people wait for: one repeat, or
    with a base interpreter as many pairs as a verdict needs. Raise InvalidRunRequest."""
    resources = ResourceRequest(
        accelerator.device,
        accelerator.host,
        labels={"accelerator": accelerator.name},
        interpreter=interpreter,
        base_interpreter=base,
    )
    repeats = LEAST_PAIRS if base else 1
    options = RunOptions(
        resources, who, repeats=repeats, caches="fresh", interactive=False, stream=series.stream
    )
    return request_rerun(series.experiment, options)


def accelerator_of(one: Regression, attached: Sequence[Accelerator] | None = None) -> Accelerator | None:
    """Return the accelerator that measured the regression, while it takes tasks. An upload only names a host,
    and must not make it work. `attached` are all that are, where they are read already."""
    if one.first_run is None or one.first_run.upload_id:
        return None
    environment = _environment(one, one.first_run)
    uuid = environment.facts.get("gpu_uuid", "") if environment else ""
    there = [
        item
        for item in (matching.attached() if attached is None else attached)
        if item.host.name == one.first_run.host_name
        and not (item.unavailable_reason or item.host.drained or item.host.paused_until)
    ]
    device = one.series.experiment.device
    return next((item for item in there if item.device == device and (not uuid or item.uuid == uuid)), None)


def interpreter_of(one: Regression, run: Run | None, host: Host) -> str | None:
    """Return the run's own interpreter if it still has the torch that measured, else another one with it."""
    torch, pythons = torch_of(one, run), host.facts.get("pythons")
    if run is None or torch is None or not isinstance(pythons, dict):
        return None
    same = [
        name
        for name, facts in pythons.items()
        if isinstance(facts, dict)  # a host says what it likes
        and torch == (str(facts.get("torch", "")), str(facts.get("torch_git", "")))
    ]
    own = _name(run)
    return own if own in same else same[0] if same else None


def _name(run: Run | None) -> str:
    """Return the name of a run's interpreter, '' if another host's may bear it."""
    return "" if run is None or run.upload_id else run.interpreter or DEFAULT_INTERPRETER


def torch_of(one: Regression, run: Run | None) -> tuple[str, str] | None:
    environment = _environment(one, run) if run else None
    return (environment.torch, environment.torch_git) if environment else None


def _environment(one: Regression, run: Run) -> Environment | None:
    return Environment.objects.filter(point__series=one.series_id, point__run=run).first()


def _conclude() -> None:
    """Apply the results of comparisons in pairs in the order of their ends: ours, and those that people
    requested for an experiment with an open regression, if they compare the same two versions of torch."""
    related = ("series__metric", "first_run", "last_good_run", "concluded_run")
    waiting = list(Regression.objects.filter(state__in=_UNDECIDED).select_related(*related))
    if not waiting:
        return
    # one interpreter on both sides says how quiet the host is, and nothing of the code
    ended = Run.objects.exclude(base_interpreter__in=["", F("interpreter")]).filter(
        state=State.SUCCEEDED,
        created__gt=min(one.opened for one in waiting),
        request__candidate_options={},
        request__experiment__series__regressions__in=waiting,
    )
    runs: dict[int, list[Run]] = {}
    for run in ended.select_related("request").distinct().order_by("finished", "pk"):
        runs.setdefault(run.request.experiment_id or 0, []).append(run)
    for one in waiting:
        for run in runs.get(one.series.experiment_id, []):
            if run.created <= one.opened or (one.concluded_run and _end(run) <= _end(one.concluded_run)):
                continue
            Regression.objects.filter(pk=one.pk).update(concluded_run=run)
            try:
                _apply_pairs(one, run.pk)
            except (ArithmeticError, ValueError):  # one that cannot be judged must not stop all others
                logger.exception("the pairs of %s are not judged", one)


def _end(run: Run) -> tuple[datetime, int]:
    assert run.finished
    return run.finished, run.pk


def _apply_pairs(one: Regression, run_id: int) -> None:
    """Judge the regression's own metric by the pairs of a run."""
    rows = Measurement.objects.filter(series=one.series_id, run=run_id)
    pairs, torches = read_pairs(rows.filter(environment__class_key=one.class_key))
    wanted = [one.last_good_run, one.first_run]
    if torches != [{torch_of(one, run)} for run in wanted]:
        return  # it compares something else
    run = Run.objects.get(pk=run_id)
    if torches[0] == torches[1] and [run.base_interpreter, run.interpreter] != list(map(_name, wanted)):
        return  # one torch in two interpreters: only these two differ as the regression does
    verdict = judge_metric(one.series.metric, pairs)
    if verdict.word == "confirmed" and verdict.better is False:
        decide_by_pairs(regression=one, confirmed=True, run_id=run_id)
    elif verdict.word == "dismissed" or verdict.better:
        decide_by_pairs(regression=one, confirmed=False, run_id=run_id)


def read_pairs(
    rows: QuerySet[Measurement],
) -> tuple[list[list[float | None]], list[set[tuple[str, str]]]]:
    """Return the values of a comparison's free pairs, each of base and head, and the torch of each side. A value
    that may not decide is none."""
    sides: tuple[dict[int, float | None], dict[int, float | None]] = ({}, {})
    torches: list[set[tuple[str, str]]] = [set(), set()]
    for row in rows.filter(draw=None).select_related("environment"):
        sides[row.side][row.repeat] = None if row.quality else row.value
        torches[row.side].add((row.environment.torch, row.environment.torch_git))
    return [[sides[0][pair], sides[1][pair]] for pair in sorted(sides[0].keys() & sides[1].keys())], torches


def judge_metric(metric: Metric, pairs: Sequence[Sequence[float | None]]) -> PairVerdict:
    """Judge the pairs of a metric's values, each (base, head)."""
    return judge_pairs(
        [base for base, _head in pairs],
        [head for _base, head in pairs],
        direction=metric.direction,  # type: ignore[arg-type]  # the registry's words are the rule's
        kind=metric.kind,  # type: ignore[arg-type]
    )
