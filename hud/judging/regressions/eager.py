"""Say which side of a speedup moved: where eager got faster, the compiler lost nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hud.judging.aggregates import moved_side
from hud.judging.regressions.states import Canaries
from hud.models import Measurement, Regression
from runner.schema.statistics import median

# The eager and the compiled time that each speedup divides
_TIMES = {
    "speedup": ("eager_latency_ms", "compiled_latency_ms"),
    "device_speedup": ("eager_device_latency_ms", "device_latency_ms"),
}
_WORDS = {"eager": "eager got faster, the compiled time did not move", "both": "eager moved too"}


def name_moved_sides(followed: Sequence[Regression]) -> None:
    """Write as the cause of regressed speedups that eager moved: 1 statement, none without a speedup."""
    speedups = [one for one in followed if one.series.metric.name in _TIMES and one.change is not None]
    if not speedups:
        return
    runs = {run for one in speedups for run in (one.last_good_run_id, one.first_run_id)}
    rows = Measurement.objects.filter(
        series__experiment__in={one.series.experiment_id for one in speedups},
        series__metric__name__in={name for times in _TIMES.values() for name in times},
        run__in=runs,
        value__gt=0,
    ).values_list("series__experiment", "series__metric__name", "run", "value")
    values: dict[tuple[int, str, int | None], list[float]] = {}
    for experiment, name, run, value in rows:
        assert value is not None
        values.setdefault((experiment, name, run), []).append(value)
    for one in speedups:
        cause = _WORDS.get(_side(one, values) or "", "")
        if one.canaries != Canaries.MOVED and cause != one.cause:
            one.cause = cause
            one.save(update_fields=["cause"])


def _side(one: Regression, values: dict[tuple[int, str, int | None], list[float]]) -> str | None:
    """Return which of its times moved from the last good run to the first that moved; None if not known."""
    times = []
    for name in _TIMES[one.series.metric.name]:
        sides = [
            values.get((one.series.experiment_id, name, run))
            for run in (one.last_good_run_id, one.first_run_id)
        ]
        if sides[0] is None or sides[1] is None:
            return None
        times.append((median(sides[0]), median(sides[1])))
    step = abs(math.log1p(max(one.change or 0.0, -0.999)))
    noise = step / one.factor / math.sqrt(2) if one.factor else 0.005  # that of one time
    return moved_side(*times, noise=max(noise, 0.005))
