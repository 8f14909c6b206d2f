"""What every page shows of a measurement: its value, how sure it is, its verdict and its targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from hud.models import NEVER_RAN, STATUS_NAMES, Experiment, Metric, Series, words_are_reason
from hud.queries.sql import fetch
from hud.queries.targets import AppliedTarget, Targets
from runner.summary import median

# Of each suite, the metrics that a person reads first, most telling first. Other suites show what they have.
MAIN_METRICS = {
    "micro": (
        "memory_bandwidth(GB/s)",
        "device_bandwidth_gbps",
        "call_bandwidth_gbps",
        "share_of_ceiling",
        "flops_utilization_of_peak",
        "device_latency_ms",
        "compiled_latency_ms",
        "flops_utilization",
    ),
    "ceilings": ("device_bandwidth_gbps", "matmul_tflops"),
    "gpt_fast": ("token_per_sec", "memory_bandwidth(GB/s)", "compilation_time(s)"),
    "cache": ("Cold compile time (s)", "Warm compile time (s)", "Speedup (%)"),
    "xla": (
        "verification_code",
        "per_iter_time",
        "trace_per_iter_time",
        "xla_CompileTime_time_s",
        "xla_ExecuteTime_time_s",
        "total_time",
    ),
    "operators": ("50th", "20th", "80th", "device_speedup", "abs", "elapsed"),
}
_DYNAMO = (
    "speedup",
    "accuracy",
    "abs_latency",
    "compilation_latency",
    "compression_ratio",
    "dynamo_peak_mem",
)
_MOST_WORDS = 3  # of as many processes of one run
_REST = ("device_speedup", "device_latency_ms", "compiled_latency_ms", "cold_compile_s", "warm_compile_s")


def reading_order(suite: str, metrics: Iterable[Metric]) -> list[Metric]:
    """These metrics as the suite reads them: its main ones first, then by name."""
    main = (*MAIN_METRICS.get(suite, _DYNAMO), *_REST)
    place = {name: index for index, name in enumerate(main)}
    return sorted(metrics, key=lambda metric: (place.get(metric.name, len(main)), metric.name))


@dataclass(slots=True)
class Value:
    """One measurement. `median` is None where there is no number; then `status` or `code` says why."""

    series_id: int
    at: datetime
    run_id: int
    environment_id: int
    process: int  # which of the run's repeated fresh processes
    median: float | None
    spread: float | None  # relative, of the samples of one process
    n: int
    status_code: int
    target: float | None  # as its record says it
    target_arch: str | None
    code: str | None
    words: str | None  # a warning, or the reason of the status
    said: str | None  # the judge's verdict; None: it had nothing to say
    change: float | None
    noise: float | None
    factor: float | None
    earlier: int  # how many measurements of the series stand before it, counted up to 1
    touched: datetime | None  # the judge has not looked at the series from there on
    in_pairs: bool  # its run compares its own two sides, and is not judged
    upload_id: int | None  # the upload it came in; None: this hud's own runner
    processes: int  # fresh processes whose median this is

    @property
    def status(self) -> str:
        return STATUS_NAMES.get(self.status_code, "failed")

    @property
    def reason(self) -> str | None:
        """Why there is no number, or why its status is not ok."""
        return self.words if words_are_reason(self.status_code, self.median) else None

    @property
    def warning(self) -> str | None:
        """What to know of the number."""
        return None if words_are_reason(self.status_code, self.median) else self.words

    @property
    def verdict(self) -> str:
        """The judge's word; where it has no row, what follows from that. '' while it has not looked."""
        if self.median is None and self.status in NEVER_RAN:
            return "not_run"
        if self.said or (self.status_code and self.median is None):
            return self.said or "failed"
        if self.in_pairs:
            return "in_pairs"
        if not self.earlier:
            return "new"
        if self.touched is not None and self.touched <= self.at:
            return ""
        return "unchanged"


# Columns of `Value` for measurement m of series s, judged by v.
VALUE_COLUMNS = """
    s.id, m.at, m.run_id, m.environment_id, m.process,
    m.median, m.spread, m.n, m.status, m.target, m.target_arch,
    m.code, m.warning, v.verdict, v.change, v.noise, v.factor,
    (SELECT count(*) FROM (
        SELECT 1 FROM hud_measurement earlier
        WHERE earlier.series_id = s.id AND (earlier.at, earlier.run_id) < (m.at, m.run_id) LIMIT 1) one),
    CASE WHEN m.run_id IN (SELECT run_id FROM hud_touchedrun) THEN m.at ELSE s.touched_at END,
    m.run_id IN (SELECT id FROM hud_run WHERE base_environment <> ''),
    m.upload_id, 1
"""
VERDICT_JOIN = """
    LEFT JOIN hud_verdict v
        ON v.run_id = m.run_id AND v.series_id = m.series_id AND v.environment_id = m.environment_id
"""


def latest(series_ids: Iterable[int]) -> dict[int, Value]:
    """The value of each series in its newest run, over all its processes: one statement, three index look-ups
    a series. A run in pairs tries something out: it counts only where there is no other."""
    values = fetch(
        Value,
        f"""
        SELECT {VALUE_COLUMNS}
        FROM hud_series s
        JOIN LATERAL (
            (SELECT run_id, environment_id, 1 place FROM hud_measurement
            WHERE series_id = s.id
                AND run_id NOT IN (SELECT id FROM hud_run WHERE base_environment <> '')
            ORDER BY at DESC, run_id DESC, process DESC LIMIT 1)
            UNION ALL
            (SELECT run_id, environment_id, 2 FROM hud_measurement WHERE series_id = s.id
            ORDER BY at DESC, run_id DESC, process DESC LIMIT 1)
            ORDER BY place LIMIT 1
        ) newest ON true
        JOIN hud_measurement m ON m.run_id = newest.run_id AND m.series_id = s.id
            AND m.environment_id = newest.environment_id
        {VERDICT_JOIN}
        WHERE s.id = ANY(%(series)s)
        ORDER BY s.id, m.process
        """,  # noqa: S608 — constants of this file
        {"series": list(series_ids)},
    )
    return {value.series_id: value for value in by_run(values)}


def by_run(values: Iterable[Value]) -> list[Value]:
    """One value for each run and environment of a series; those of one run stand together in `values`.

    As the judge takes them: the median over the fresh processes that gave a number.
    """
    groups = groupby(values, key=lambda value: (value.series_id, value.run_id, value.environment_id))
    return [_over_processes(list(group)) for _place, group in groups]


def _over_processes(values: list[Value]) -> Value:
    if len(values) == 1:
        return values[0]
    there = [value for value in values if value.median is not None]
    spreads = [value.spread for value in values if value.spread is not None]
    warnings = [value.words for value in values]
    if 0 < len(there) < len(values):
        warnings.insert(0, f"{len(values) - len(there)} of {len(values)} processes gave no number")
    return replace(
        (there or values)[0],
        process=0,
        processes=len(values),
        median=median([value.median for value in there if value.median is not None]) if there else None,
        spread=median(spreads) if spreads else None,
        n=sum(value.n for value in values),
        words=_joined(list(dict.fromkeys(filter(None, warnings)))),
    )


def _joined(words: list[str]) -> str | None:
    """Each process has numbers of its own to tell; a reader needs those of a few."""
    more = [f"and {len(words) - _MOST_WORDS} more like these"] if len(words) > _MOST_WORDS else []
    return "; ".join([*words[:_MOST_WORDS], *more]) or None


@dataclass(slots=True)
class Reading:
    """A value with what it is a value of: enough for a table's cell, a badge or a line of JSON."""

    experiment: Experiment
    metric: Metric
    value: Value
    targets: list[AppliedTarget] = field(default_factory=list)

    @property
    def own_target(self) -> AppliedTarget | None:
        return next((target for target in self.targets if target.own), None)

    @property
    def met(self) -> str:
        own = self.own_target
        return own.met_by(self.value.median, self.metric.direction) if own else "none"

    def to_row(self) -> dict[str, Any]:
        """One flat line of the .json and .csv twins."""
        own, value = self.own_target, self.value
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "direction": self.metric.direction,
            "value": value.median,
            "spread": value.spread,
            "n": value.n,
            "status": value.status,
            "code": value.code,
            "reason": value.reason,
            "verdict": value.verdict,
            "change": value.change,
            "noise": value.noise,
            "target": own.value if own else None,
            "target_name": own.name if own else None,
            "target_met": {"met": True, "missed": False}.get(self.met),
            "record_target": value.target,
            "record_target_arch": value.target_arch,
            "warning": value.warning,
            "time": value.at,
            "run": value.run_id,
            "process": value.process,
            "processes": value.processes,
        }


def read_with_targets(
    series: Iterable[Series], experiments: dict[int, Experiment], values: dict[int, Value], targets: Targets
) -> list[Reading]:
    """Readings of those series that have a measurement. `series` come with their metric."""
    return [
        reading(experiments[one.experiment_id], one.metric, values[one.pk], targets)
        for one in series
        if one.pk in values
    ]


def reading(experiment: Experiment, metric: Metric, value: Value, targets: Targets) -> Reading:
    return Reading(experiment, metric, value, targets.of(experiment, metric, value.target, value.target_arch))
