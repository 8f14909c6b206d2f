"""Say what runs tell of a regression's cause: where eager got faster, the compiler lost nothing; a graph
that breaks says why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hud.judging.aggregates import moved_side
from hud.judging.graph_changes import note_changes
from hud.judging.regressions.states import Canaries
from hud.models import Compilation, Point, Regression
from runner.schema.compilations import Compiled, Note

# The eager and the compiled time that each speedup divides
_TIMES = {
    "speedup": ("eager_latency_ms", "compiled_latency_ms"),
    "device_speedup": ("eager_device_latency_ms", "device_latency_ms"),
}
_BREAKS = {"graph_breaks", "unique_graph_breaks"}
_WORDS = {"eager": "eager got faster, the compiled time did not move", "both": "eager moved too"}


def name_causes(followed: Sequence[Regression]) -> None:
    """Write the causes of regressed speedups and graph breaks: 1 statement for each kind, none without."""
    speedups = [one for one in followed if one.series.metric.name in _TIMES and one.change is not None]
    breaks = [one for one in followed if one.series.metric.name in _BREAKS]
    for one, cause in (*_moved_sides(speedups), *_reasons(breaks)):
        if one.canaries != Canaries.MOVED and cause != one.cause:
            one.cause = cause[:200]
            one.save(update_fields=["cause"])


def _moved_sides(speedups: Sequence[Regression]) -> Iterator[tuple[Regression, str]]:
    if not speedups:
        return
    rows = Point.objects.filter(
        series__experiment__in={one.series.experiment_id for one in speedups},
        series__metric__name__in={name for times in _TIMES.values() for name in times},
        run__in=_runs(speedups),
        value__gt=0,
    ).values_list("series__experiment", "series__metric__name", "run", "value")
    values: dict[tuple[int, str, int | None], float | None] = {
        (experiment, name, run): value for experiment, name, run, value in rows
    }
    for one in speedups:
        yield one, _WORDS.get(_side(one, values) or "", "")


def _reasons(breaks: Sequence[Regression]) -> Iterator[tuple[Regression, str]]:
    """Yield the reason that came most often since the last good run, where compilations tell it."""
    if not breaks:
        return
    experiments = {one.series.experiment_id for one in breaks}
    rows = Compilation.objects.filter(experiment__in=experiments, run__in=_runs(breaks), side=0)
    found: dict[tuple[int, int | None], list[Compiled]] = {}
    for experiment, run, notes in rows.values_list("experiment", "run", "graph_breaks"):
        compiled = Compiled(graph_breaks=tuple(Note(**note) for note in notes))
        found.setdefault((experiment, run), []).append(compiled)
    for one in breaks:
        base, head = (
            found.get((one.series.experiment_id, run), []) for run in (one.last_good_run_id, one.first_run_id)
        )
        new = [change for change in note_changes(base, head) if change.head > change.base]
        if new:
            yield one, f"{new[0].reason}, at {new[0].place}" if new[0].place else new[0].reason


def _runs(regressions: Sequence[Regression]) -> set[int]:
    ends = (run for one in regressions for run in (one.last_good_run_id, one.first_run_id))
    return {run for run in ends if run is not None}


def _side(one: Regression, values: dict[tuple[int, str, int | None], float | None]) -> str | None:
    """Return which of its times moved from the last good run to the first that moved; None if not known."""
    times = []
    for name in _TIMES[one.series.metric.name]:
        sides = [
            values.get((one.series.experiment_id, name, run))
            for run in (one.last_good_run_id, one.first_run_id)
        ]
        if sides[0] is None or sides[1] is None:
            return None
        times.append((sides[0], sides[1]))
    step = abs(math.log1p(max(one.change or 0.0, -0.999)))
    noise = step / one.factor / math.sqrt(2) if one.factor else 0.005  # that of one time
    return moved_side(*times, noise=max(noise, 0.005))
