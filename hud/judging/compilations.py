"""Metrics of compilations that only their history tells, computed once their run is complete.

`same_choice_ratio` of each compilation, `kernel_variants` and `autotune_regret` of a run. They are rows
beside those that were measured, and judged like them.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Q, QuerySet

from hud.judging.choices import AT_LEAST, Drawn, autotune_regret, same_choice_ratios
from hud.judging.rules.write import metric_of
from hud.models import ACTIVE, Compilation, DetailedMeasurement, Kernel, Run, Series
from hud.points import write as points
from hud.runs.branches import stored_names

logger = logging.getLogger(__name__)
_HISTORY = 500  # compilations: 5 months of 3 a night
_REGRET_HISTORY = 100
_METRICS = ("same_choice_ratio", "kernel_variants", "autotune_regret")


def process_pending(limit: int = 50) -> int:
    """Compute the metrics of up to `limit` experiments with new compilations; return how many."""
    new = Compilation.objects.filter(uncounted=True).exclude(run__state__in=ACTIVE)
    places = ("order_time", "run_id", "experiment_id", "environment_id")
    pending = list(new.order_by(*places).values_list(*places).distinct()[:limit])
    for _time, run_id, experiment_id, environment_id in pending:
        rows = Compilation.objects.filter(
            run_id=run_id,
            experiment_id=experiment_id,
            environment_id=environment_id,
            draw=None,
            impossible=False,
        )
        try:
            with transaction.atomic():
                _count(rows)
        except (OperationalError, InterfaceError):
            raise
        except Exception:  # one that cannot be computed must not stop all others
            logger.exception("compilations of experiment %s in run %s", experiment_id, run_id)
            rows.update(uncounted=False)
    return len(pending)


def _count(compilations: QuerySet[Compilation]) -> None:
    """Write the metrics of an experiment's compilations in one run and environment."""
    rows = list(compilations.order_by("side", "repeat").select_for_update())  # whoever deletes the run waits
    if not rows:
        return
    first, run = rows[0], Run.objects.get(pk=rows[0].run_id)
    earlier = _earlier(first)
    drawn = _drawn([*earlier, *rows])
    history, own = drawn[: len(earlier)], drawn[len(earlier) :]

    def measured(row: Compilation, value: float, **more: Any) -> DetailedMeasurement:
        point = {"order_time": row.order_time, "run_id": row.run_id, "environment_id": row.environment_id}
        return DetailedMeasurement(value=value, side=row.side, upload_id=row.upload_id, **point, **more)

    metrics = {}
    ratios = zip(rows, same_choice_ratios(history, own), strict=True)
    if known := [(row, ratio) for row, ratio in ratios if ratio is not None]:
        metrics["same_choice_ratio"] = [
            measured(row, ratio, repeat=row.repeat, compilation=row.number) for row, ratio in known
        ]
    variants = {row.variant for row in rows if row.variant}
    if not run.is_ab and len(rows) > 1 and variants:
        metrics["kernel_variants"] = [measured(first, len(variants))]
    if not run.is_ab and (regret := autotune_regret([*history, *own][-_REGRET_HISTORY:])):
        note = AT_LEAST if regret.at_least else None
        of_compilations = {"spread": regret.spread, "n": regret.compilations}
        metrics["autotune_regret"] = [measured(first, regret.value, note=note, **of_compilations)]
    _write(first, metrics)
    compilations.update(uncounted=False)


def _earlier(row: Compilation) -> list[Compilation]:
    """Return what a new compilation is compared with, oldest first: of the default branch and its class."""
    before = Q(order_time__lt=row.order_time) | Q(order_time=row.order_time, run_id__lt=row.run_id)
    earlier = Compilation.objects.filter(
        before,
        experiment_id=row.experiment_id,
        impossible=False,
        environment__class_key=row.environment.class_key,
        run__base_interpreter="",
        run__branch__in=stored_names(),
        run__stream=row.run.stream_id,
    ).only("run", "experiment", "environment", "repeat", "side", "kernels", "times_us")
    return list(earlier.order_by("-order_time", "-run", "-repeat")[:_HISTORY])[::-1]


def _drawn(rows: Sequence[Compilation]) -> list[Drawn]:
    """Return slot, choice and time of each kernel that has a time."""
    kernels = Kernel.objects.only("slot", "choice").in_bulk({pk for row in rows for pk in row.kernels})
    timed = [zip(row.kernels, row.times_us, strict=True) for row in rows]
    return [
        [(kernels[pk].slot, kernels[pk].choice, time_us) for pk, time_us in row if time_us is not None]
        for row in timed
    ]


def _write(first: Compilation, metrics: Mapping[str, Sequence[DetailedMeasurement]]) -> None:
    """Replace the computed measurements of these compilations, and have the judge look at their series."""
    own: dict[str, Any] = {"experiment_id": first.experiment_id, "stream_id": first.run.stream_id}
    series = list(Series.objects.filter(metric__name__in=_METRICS, **own))
    points.unfold((first.run_id, row.pk) for row in series)
    old = DetailedMeasurement.objects.filter(series__in=series, run=first.run_id)
    old.filter(environment=first.environment_id).delete()
    touched = [Series.objects.get_or_create(metric=metric_of(name), **own)[0] for name in metrics]
    for of_metric, measurements in zip(touched, metrics.values(), strict=True):
        for measurement in measurements:
            measurement.series = of_metric
        DetailedMeasurement.objects.bulk_create(measurements)
    points.make((first.run_id, row.pk) for row in (*series, *touched))
    points.touch_series([row.pk for row in touched], first.order_time, first.order_time)
