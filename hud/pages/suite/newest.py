"""The newest result of every series of a suite, as much of it as sorting, filtering and totals need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hud.judging.aggregates import PassRate, pass_rate
from hud.models import NEVER_RAN, STATUS_NAMES, Experiment, Metric
from hud.pages.sql import fetch
from hud.pages.suite.columns import Column
from hud.pages.targets import Targets
from hud.runs.branches import stored_names
from runner.schema.statistics import geometric_mean

_MEANS = ("speedup", "compile", "warm", "compression")  # columns with a geometric mean


@dataclass(slots=True)
class Newest:
    series: int
    experiment: int
    metric: int
    value: float | None
    status: int
    code: str | None
    target: float | None
    target_arch: str | None
    verdict: str

    @property
    def failed(self) -> bool:
        """Return whether it ran and has no right result."""
        return STATUS_NAMES.get(self.status, "failed") not in {"ok", *NEVER_RAN}


def read(experiments: Sequence[int], metrics: Collection[int]) -> list[Newest]:
    """Return the newest result of each series of the default branch: 1 statement, two index look-ups each."""
    return fetch(
        Newest,
        """
        SELECT s.id series, s.experiment_id experiment, s.metric_id metric,
            coalesce(state.value, newest.value) "value", newest.status, newest.code, newest.target,
            newest.target_arch, coalesce(state.verdict, '') verdict
        FROM hud_series s
        JOIN LATERAL (
            SELECT m.run_id, m.value, m.status, m.code, m.target, m.target_arch FROM hud_measurement m
            JOIN hud_run r ON r.id = m.run_id AND r.base_interpreter = '' AND r.branch = ANY(%(branches)s)
            WHERE m.series_id = s.id ORDER BY m.order_time DESC, m.run_id DESC LIMIT 1
        ) newest ON true
        LEFT JOIN hud_seriesstate state ON state.series_id = s.id AND state.run_id = newest.run_id
        WHERE s.experiment_id = ANY(%(experiments)s) AND s.metric_id = ANY(%(metrics)s)
        """,
        {"experiments": list(experiments), "metrics": list(metrics), "branches": stored_names()},
    )


@dataclass(frozen=True)
class Wanted:
    """Filters on results; '' means any."""

    verdict: str = ""
    status: str = ""  # ok, failed or not_run
    target: str = ""  # met or missed

    def __bool__(self) -> bool:
        return bool(self.verdict or self.status or self.target)


def filtered(
    ids: Sequence[int],
    found: Mapping[int, Sequence[Newest]],
    wanted: Wanted,
    targets: Targets,
    metrics: Mapping[int, Metric],
) -> list[int]:
    """Return the experiments with the wanted results, in their order."""
    with_target = _by_target(found, wanted.target, targets, metrics) if wanted.target else set(ids)
    return [
        pk
        for pk in ids
        if pk in with_target
        and (not wanted.verdict or any(one.verdict == wanted.verdict for one in found.get(pk, ())))
        and (not wanted.status or wanted.status == status_of(found.get(pk, ())))
    ]


def status_of(results: Sequence[Newest]) -> str:
    """Return failed if any result failed, not_run if none has a value or code, else ok."""
    if any(one.failed for one in results):
        return "failed"
    return "ok" if any(one.value is not None or one.status == 0 for one in results) else "not_run"


def _by_target(
    found: Mapping[int, Sequence[Newest]], met: str, targets: Targets, metrics: Mapping[int, Metric]
) -> set[int]:
    """Return the experiments with a result that meets, or misses, the target of its own arch: 1 statement."""
    names, ids = targets.shipped_metrics(), targets.operator_metrics()
    candidates = [
        one
        for results in found.values()
        for one in results
        if one.target is not None or one.metric in ids or metrics[one.metric].name in names
    ]
    experiments = Experiment.objects.in_bulk({one.experiment for one in candidates})
    reached = set()
    for one in candidates:
        metric = metrics[one.metric]
        own = targets.own(experiments[one.experiment], metric, one.target, one.target_arch)
        if own and own.met_by(one.value, metric.direction) == met:
            reached.add(one.experiment)
    return reached


def sort_keys(
    found: Mapping[int, Sequence[Newest]], column: Column, metrics: Mapping[int, Metric]
) -> dict[int, float]:
    """Return the value of a column for each experiment that has one."""
    ranks = {name: rank for rank, name in enumerate(column.metrics)}
    keys = {}
    for pk, results in found.items():
        there = [
            (ranks[metrics[one.metric].name], one.value)
            for one in results
            if one.value is not None and metrics[one.metric].name in ranks
        ]
        if there:
            keys[pk] = min(there)[1]
    return keys


@dataclass(frozen=True)
class Totals:
    """The last row: pass rate over the experiments with results, and geometric means by column."""

    passed: PassRate
    means: dict[str, tuple[float, int]]  # by column: mean, and of how many


def totals(
    found: Mapping[int, Sequence[Newest]], columns: Sequence[Column], metrics: Mapping[int, Metric]
) -> Totals:
    passed = {str(pk): status_of(results) == "ok" for pk, results in found.items() if results}
    means = {}
    for column in columns:
        if column.key in _MEANS:
            values = [value for value in sort_keys(found, column, metrics).values() if value > 0]
            if values:
                means[column.key] = geometric_mean(values), len(values)
    return Totals(pass_rate(passed, passed), means)
