"""Canaries tell moves of a host from moves of the compiler: what a host measures without a compiler.

They are the measured ceilings and the eager times of three models. Where they moved on a host, the host is
the cause of what moved there that night, and nothing of it is called a regression of the compiler.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from django.db.models import F, Q

from hud.judging.regressions.events import record
from hud.models import VERDICT_CODES, Point, Regression, Run, Series
from hud.runs.branches import stored_names
from hud.states.regressions import ACTIVE, Canaries, Event, RegressionKind
from runner.schema.metrics import EAGER_TIMES
from runner.suites import CEILINGS

IS_CANARY = Q(experiment__suite=CEILINGS) | Q(metric__name__in=EAGER_TIMES)
_MODELS = 3
_MOST = 2  # of them that moved: one alone may be its own code
_NIGHT = timedelta(hours=24)  # ceilings are read once a day
_BYTES = {"B", "GB"}  # a host does not change how much memory is used


@dataclass(frozen=True)
class Canary:
    """A measurement without a compiler. `moved`: surely, in either direction."""

    name: str
    is_ceiling: bool
    moved: bool
    change: float | None = None  # relative
    noise: float = 0.0


def check(canaries: Sequence[Canary]) -> tuple[Canaries, Canary | None]:
    """Return whether the host moved, and the canary that says so: a ceiling did, or most of the three models
    with the quietest eager time. Without a ceiling and three models nothing is known."""
    in_order = sorted(canaries, key=lambda canary: (canary.noise, canary.name))
    models = [canary for canary in in_order if not canary.is_ceiling][:_MODELS]
    if len(models) < _MODELS and not any(canary.is_ceiling for canary in canaries):
        return Canaries.UNKNOWN, None
    moved = [canary for canary in canaries if canary.is_ceiling and canary.moved]
    moved_models = [model for model in models if model.moved]
    if not moved and len(moved_models) < _MOST:
        return Canaries.QUIET, None
    return Canaries.MOVED, max(moved or moved_models, key=lambda canary: abs(canary.change or 0.0))


def is_canary(series: Series) -> bool:
    return series.experiment.suite == CEILINGS or series.metric.name in EAGER_TIMES


def watch(followed: Iterable[Regression], canary_runs: Iterable[int]) -> None:
    """Check the hosts of these regressions and, where these runs measured canaries, of all active regressions
    of their hosts: by the night of each one's newest run."""
    wanted = Q(pk__in=[row.pk for row in followed])
    measured = Run.objects.filter(pk__in=set(canary_runs)).exclude(host_name="")
    if read := list(measured.values_list("host_name", "order_time")):
        hosts, times = zip(*read, strict=True)
        span = (min(times) - _NIGHT, max(times) + _NIGHT)
        wanted |= Q(latest_run__host_name__in=set(hosts), latest_run__order_time__range=span)
    active = Regression.objects.filter(wanted, state__in=ACTIVE, series__metric__kind="timing")
    related = ("latest_run", "series__experiment", "series__metric")
    of_night = cache(_of_night)
    for regression in active.exclude(kind=RegressionKind.FAILURE).select_related(*related):
        run = regression.latest_run
        if run is None or not run.host_name or regression.series.metric.unit in _BYTES:
            continue
        night = of_night(run.host_name, regression.series.experiment.device, run.order_time)
        _apply(regression, run, *check(night))


def _apply(regression: Regression, run: Run, word: Canaries, named: Canary | None) -> None:
    if word in {Canaries.UNKNOWN, regression.canaries}:
        return
    before, regression.canaries = regression.canaries, word
    regression.cause = ""
    if named:
        change = f" {named.change:+.1%}" if named.change is not None else ""
        regression.cause = f"Host {run.host_name}: {named.name}{change} without a compiler"[:200]
    regression.save(update_fields=["canaries", "cause"])
    if word == Canaries.MOVED:
        record(regression, event=Event.HOST_MOVED, note=regression.cause, run_id=run.pk)
    elif before == Canaries.MOVED:
        record(regression, event=Event.HOST_BACK, run_id=run.pk)


def _of_night(host: str, device: str, time: datetime) -> list[Canary]:
    """Return the canaries that a host measured within a day of this time, each nearest to it: 1 statement."""
    judged = Point.objects.filter(
        series__in=Series.objects.filter(IS_CANARY, experiment__device=device),
        series__states__class_key=F("environment__class_key"),
        series__states__order_time__gte=F("order_time"),
        series__states__points__gt=1,
        run__host_name=host,
        run__order_time__range=(time - _NIGHT, time + _NIGHT),
        run__branch__in=stored_names(),
        verdict_code__in=[VERDICT_CODES[word] for word in ("unchanged", "regressed", "improved")],
        value__isnull=False,
        rerun=False,
    ).select_related("series__experiment", "series__metric")
    nearest_last = sorted(judged, key=lambda point: (-abs(point.order_time - time), point.run_id))
    return [
        Canary(
            f"{point.series.experiment.case}, {point.series.metric.title}",
            point.series.experiment.suite == CEILINGS,
            point.verdict != "unchanged",
            point.change,
            1.0 if point.noise is None else point.noise,
        )
        for point in {point.series_id: point for point in nearest_last}.values()
    ]
