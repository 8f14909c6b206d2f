"""Canaries tell moves of a host from moves of the compiler: what a host measures without a compiler.

They are the measured ceilings and the eager times of three models. Where they moved on a host, the host is
the cause of what moved there that night, and nothing of it is called a regression of the compiler.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from django.db.models import Q

from hud.judging.regressions.events import record
from hud.judging.regressions.states import ACTIVE, Canaries, Event, RegressionKind
from hud.models import VERDICT_CODES, Regression, Run, Series
from hud.runs.branches import stored_names
from hud.sql import fetch
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
    in_order = sorted(canaries, key=lambda one: (one.noise, one.name))
    models = [one for one in in_order if not one.is_ceiling][:_MODELS]
    if len(models) < _MODELS and not any(one.is_ceiling for one in canaries):
        return Canaries.UNKNOWN, None
    moved = [one for one in canaries if one.is_ceiling and one.moved]
    moved_models = [one for one in models if one.moved]
    if not moved and len(moved_models) < _MOST:
        return Canaries.QUIET, None
    return Canaries.MOVED, max(moved or moved_models, key=lambda one: abs(one.change or 0.0))


def is_canary(series: Series) -> bool:
    return series.experiment.suite == CEILINGS or series.metric.name in EAGER_TIMES


def watch(followed: Iterable[Regression], canary_runs: Iterable[int]) -> None:
    """Check the hosts of these regressions and, where these runs measured canaries, of all active regressions
    of their hosts: by the night of each one's newest run."""
    wanted = Q(pk__in=[one.pk for one in followed])
    measured = Run.objects.filter(pk__in=set(canary_runs)).exclude(host_name="")
    if read := list(measured.values_list("host_name", "order_time")):
        hosts, times = zip(*read, strict=True)
        span = (min(times) - _NIGHT, max(times) + _NIGHT)
        wanted |= Q(latest_run__host_name__in=set(hosts), latest_run__order_time__range=span)
    active = Regression.objects.filter(wanted, state__in=ACTIVE, series__metric__kind="timing")
    related = ("latest_run", "series__experiment", "series__metric")
    of_night = cache(_of_night)
    for one in active.exclude(kind=RegressionKind.FAILURE).select_related(*related):
        run = one.latest_run
        if run is None or not run.host_name or one.series.metric.unit in _BYTES:
            continue
        night = of_night(run.host_name, one.series.experiment.device, run.order_time)
        _apply(one, run, *check(night))


def _apply(one: Regression, run: Run, word: Canaries, named: Canary | None) -> None:
    if word in {Canaries.UNKNOWN, one.canaries}:
        return
    before, one.canaries = one.canaries, word
    one.cause = ""
    if named:
        change = f" {named.change:+.1%}" if named.change is not None else ""
        one.cause = f"Host {run.host_name}: {named.name}{change} without a compiler"[:200]
    one.save(update_fields=["canaries", "cause"])
    if word == Canaries.MOVED:
        record(one, event=Event.HOST_MOVED, note=one.cause, run_id=run.pk)
    elif before == Canaries.MOVED:
        record(one, event=Event.HOST_BACK, run_id=run.pk)


def _of_night(host: str, device: str, time: datetime) -> list[Canary]:
    """Return the canaries that a host measured within a day of this time, each nearest to it: 1 statement."""
    return fetch(
        Canary,
        """
        SELECT DISTINCT ON (w.id) e."case" || ', ' || k.title AS name, e.suite = %(ceilings)s AS is_ceiling,
            m.verdict <> %(unchanged)s AS moved, m.change, coalesce(m.noise, 1) AS noise
        FROM hud_run r JOIN hud_point m ON m.run_id = r.id AND m.value IS NOT NULL AND NOT m.rerun
        JOIN hud_series w ON w.id = m.series_id
        JOIN hud_metric k ON k.id = w.metric_id
        JOIN hud_experiment e ON e.id = w.experiment_id AND e.device = %(device)s
        JOIN hud_environment n ON n.id = m.environment_id
        JOIN hud_seriesstate s ON s.series_id = w.id AND s.class_key = n.class_key
        WHERE r.host_name = %(host)s AND r.order_time BETWEEN %(time)s - %(night)s AND %(time)s + %(night)s
            AND r.branch = ANY(%(branches)s) AND m.verdict = ANY(%(verdicts)s)
            AND (e.suite = %(ceilings)s OR k.name = ANY(%(eager)s))
            AND s.order_time >= m.order_time AND s.points > 1
        ORDER BY w.id, abs(extract(epoch FROM m.order_time - %(time)s)), m.run_id DESC
        """,
        {
            "ceilings": CEILINGS,
            "eager": list(EAGER_TIMES),
            "device": device,
            "host": host,
            "branches": stored_names(),
            "unchanged": VERDICT_CODES["unchanged"],
            "verdicts": [VERDICT_CODES[word] for word in ("unchanged", "regressed", "improved")],
            "night": _NIGHT,
            "time": time,
        },
    )
