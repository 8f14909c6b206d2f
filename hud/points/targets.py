"""The target that applies to a number, and whether it is met.

Precedence: an operator's row, then a fraction of the arch's measured ceiling, then the record's own target
for this arch. A record's target for another arch is shown and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from hud.models import Experiment, Metric, Target
from hud.sql import by_id, fetch_models, fetch_tuples
from runner.schema.devices import is_named
from runner.schema.suite import TargetFraction
from runner.suites import CEILINGS, SUITES

Met = Literal["met", "missed", "none"]
FRACTIONS: dict[str, list[TargetFraction]] = {}  # by metric
for _suite in SUITES.values():
    for _fraction in _suite.target_fractions:
        FRACTIONS.setdefault(_fraction.metric, []).append(_fraction)
CEILING_READINGS = 7
# SQL of the target that a point's record says for the arch of its series s, NaN without one
RECORDED = """CASE WHEN target IS NULL THEN 'NaN' WHEN target_arch IS NULL OR target_arch =
    (SELECT arch FROM hud_experiment e WHERE e.id = s.experiment_id) THEN target ELSE 'NaN' END"""


@dataclass(frozen=True, slots=True)
class AppliedTarget:
    """A target for one experiment and metric. Only one of this arch, `own`, is judged."""

    value: float
    brief: str  # "H200 target 2342 GB/s"
    own: bool
    how: str = ""  # "0.55 of the measured copy 4258"

    @property
    def name(self) -> str:
        """Return ``H200 target 2342 GB/s (0.55 of the measured copy 4258)``."""
        return f"{self.brief} ({self.how})" if self.how else self.brief

    def met_by(self, value: float | None, direction: str) -> Met:
        if value is None or direction == "none":
            return "none"
        reached = value >= self.value if direction == "up" else value <= self.value
        return "met" if reached else "missed"

    def verdict(self, value: float | None, direction: str, *, brief: bool = False) -> str:
        """Return ``H200 target 950: met``, of another arch ``above A100-40GB target 950``; the name alone
        where there is nothing to judge."""
        met = self.met_by(value, direction)
        name = self.brief if brief else self.name
        if self.own:
            return name if met == "none" else f"{name}: {met}"
        return f"{'above' if value >= self.value else 'below'} {name}" if value is not None else name


class Targets:
    """Every target that may apply: 1 statement, and 1 more where a fraction of a ceiling does."""

    def __init__(self, rows: Iterable[Target]) -> None:
        self.rows = list(rows)
        self.by_metric: dict[int, list[Target]] = {}
        for row in self.rows:
            self.by_metric.setdefault(row.metric_id, []).append(row)

    @classmethod
    def read(cls) -> Targets:
        return cls(fetch_models(Target, "ORDER BY id", {}))

    @cached_property
    def _copy_gbps(self) -> dict[str, float]:
        """Return each arch's measured copy bandwidth: the median of the latest seven readings. Those of hosts
        and samples count, not what somebody uploads to a stream of their own."""
        shared = """experiment."case" = 'copy' AND series.stream_id IN (
            SELECT id FROM hud_stream WHERE owner_id IS NULL AND key_id IS NULL)"""
        return {arch: copy_gbps for arch, _case, _dtype, copy_gbps in ceilings_of(shared, "true")}

    def aims_at(self, metric: Metric) -> bool:
        """Return whether a shipped fraction or an operator's row may apply to a metric."""
        return metric.name in FRACTIONS or metric.pk in self.by_metric

    def own(
        self, experiment: Experiment, metric: Metric, value: float | None = None, arch: str | None = None
    ) -> AppliedTarget | None:
        """Return the target for this experiment's arch; `value` and `arch` are the record's, if any."""
        row = self._row(experiment, metric)
        if row is not None and row.value is not None:
            return _own(row.value, experiment, metric, row.note)
        if row:
            fraction = row.fraction
        else:
            names = ("", experiment.dtype), ("", size_of(experiment))
            alike = (row for row in FRACTIONS.get(metric.name, ()) if row.case == experiment.case)
            fitting = (row.fraction for row in alike if row.dtype in names[0] and row.size in names[1])
            fraction = next(fitting, None)
        if fraction and (copy := self._copy_gbps.get(experiment.arch)):
            how = f"{number(fraction)} of the measured copy {number(copy)}"
            return _own(fraction * copy, experiment, metric, how)
        if value is not None and arch in (None, experiment.arch):
            return _own(value, experiment, metric)
        return None

    def met(
        self,
        experiments: Sequence[int],
        metrics: Sequence[Metric],
        values: Iterable[float],
        recorded: Iterable[float],
    ) -> list[Met]:
        """Return of each value whether it meets the target of its arch. NaN is no value, and no target in its
        record: 1 statement."""
        known, met = by_id(Experiment, experiments), list[Met]()
        for pk, metric, value, target in zip(experiments, metrics, values, recorded, strict=True):
            own = self.own(known[pk], metric, None if math.isnan(target) else target)
            met.append("none" if own is None or math.isnan(value) else own.met_by(value, metric.direction))
        return met

    def of(
        self, experiment: Experiment, metric: Metric, value: float | None, arch: str | None
    ) -> list[AppliedTarget]:
        """Return the targets to show: this arch's own first, then the record's for another arch."""
        if value is None and not self.aims_at(metric):
            return []  # as for most cells of a table
        own = self.own(experiment, metric, value, arch)
        shown = [own] if own else []
        if value is not None and arch not in (None, experiment.arch):
            shown.append(AppliedTarget(value, f"{arch_name(arch or '')} target {number(value)}", own=False))
        return shown

    def _row(self, experiment: Experiment, metric: Metric) -> Target | None:
        """Return the operator's most specific row; an empty field matches any value."""
        rows = self.by_metric.get(metric.pk)
        if rows is None:
            return None
        names = ("suite", "case", "backend", "arch", "dtype")
        own = {**{name: getattr(experiment, name) for name in names}, "size": size_of(experiment)}
        fitting = [row for row in rows if all(getattr(row, name) in ("", own[name]) for name in own)]
        return max(fitting, key=lambda row: sum(bool(getattr(row, name)) for name in own), default=None)


def _own(value: float, experiment: Experiment, metric: Metric, how: str = "") -> AppliedTarget:
    unit = f" {metric.unit}" if metric.unit not in ("", "ratio", "count") else ""
    text = f"{number(value * 100)} %" if metric.unit == "ratio" else f"{number(value)}{unit}"
    brief = f"{arch_name(experiment.arch)} target {text}".strip()
    return AppliedTarget(value, brief, own=True, how=how)


def size_of(experiment: Experiment) -> str:
    """Return the knob D as text, or ''."""
    return str(experiment.knobs.get("D", ""))


def arch_name(key: str) -> str:
    """Return an arch key as people write it: ``h200`` → ``H200``; a CPU's is unchanged."""
    return key.upper() if is_named(key) and not key.startswith("cpu") else key


def number(value: float) -> str:
    """Format a target briefly: 950, 0.8, 2342."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def ceilings_of(
    of_series: str, of_points: str = "NOT rerun", **params: Any
) -> list[tuple[str, str, str, float]]:
    """Return arch, case, dtype ('' but of matrix products) and value of each measured ceiling: the median of
    the newest readings of the series and points that two conditions choose."""
    return fetch_tuples(
        f"""
        SELECT experiment.arch, experiment."case",
            CASE WHEN experiment."case" = 'matmul' THEN experiment.dtype ELSE '' END,
            percentile_cont(0.5) WITHIN GROUP (ORDER BY reading.value)
        FROM hud_experiment experiment
        JOIN hud_series series ON series.experiment_id = experiment.id AND {of_series}
        JOIN hud_metric metric ON metric.id = series.metric_id
            AND metric.name IN ('device_bandwidth_gbps', 'matmul_tflops')
        JOIN LATERAL (
            SELECT value FROM hud_point
            WHERE series_id = series.id AND value IS NOT NULL AND status = 0 AND {of_points}
            ORDER BY order_time DESC, run_id DESC LIMIT %(readings)s
        ) reading ON true
        WHERE experiment.suite = %(ceilings)s GROUP BY 1, 2, 3
        """,  # noqa: S608 — conditions of ours  # nosec B608
        {**params, "readings": CEILING_READINGS, "ceilings": CEILINGS},
    )
