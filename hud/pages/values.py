"""The values that every page shows, with their spread, verdict and targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any, Self, TypeVar

from hud.models import (
    NEVER_RAN,
    STATUS_NAMES,
    Experiment,
    Metric,
    Series,
    compilation_key,
    words_are_reason,
)
from hud.pages.sql import fetch, int_array
from hud.pages.targets import AppliedTarget, Targets
from hud.runs.branches import stored_names
from runner.schema.statistics import median, spread
from runner.suites import SUITES

# Metrics that are read first in suites that the runner does not have, most telling first.
_MOST_NOTES = 3  # of as many processes of one run
_OTHER_SUITES = (
    "speedup",
    "accuracy",
    "abs_latency",
    "compilation_latency",
    "compression_ratio",
    "dynamo_peak_mem",
)
_REST = (
    "device_speedup",
    "same_choice_ratio",
    "device_latency_ms",
    "compiled_latency_ms",
    "cold_compile_s",
    "warm_compile_s",
)


@cache
def _places(suite: str) -> dict[str, int]:
    headline = SUITES[suite].headline_metrics if suite in SUITES else _OTHER_SUITES
    main = (*headline, *_REST)
    return {name: place for place, name in enumerate(main)}


def main_metrics(suite: str) -> list[str]:
    """Return the names of a suite's main metrics, the most telling first."""
    return list(_places(suite))


def metric_place(suite: str, metric: Metric) -> tuple[int, str]:
    """Return a sort key: the suite's main metrics first, then by name."""
    places = _places(suite)
    return places.get(metric.name, len(places)), metric.name


@dataclass(slots=True)
class MetricValue:
    """A measurement as the pages show it: the columns of a row, then what `show` adds to it.

    `median` is None where there is no number; then `status` or `code` says why.
    """

    series_id: int
    order_time: datetime
    run_id: int
    environment_id: int
    repeat: int
    side: int
    compilation: int | None  # number of the compilation in its run
    median: float | None
    spread: float | None  # relative, of the samples of one process
    n: int
    status_code: int
    target: float | None  # as its record says it
    target_arch: str | None
    code: str | None
    note: str | None  # a warning, or the reason of the status
    judged: str | None  # the judge's verdict; None: it had nothing to say
    change: float | None
    noise: float | None
    factor: float | None
    verdict_reason: str | None  # why it is inconclusive or new
    earlier: bool  # the series has measurements before it
    unjudged: bool  # the judge has yet to look at it
    is_ab: bool  # its run compares its own two sides, and is not judged
    upload_id: int | None  # the upload it came in; None: this hud's own runner
    experiment: Experiment = field(init=False)
    metric: Metric = field(init=False)
    targets: list[AppliedTarget] = field(init=False)
    processes: int = field(default=1, kw_only=True)  # fresh processes whose median this is

    def show(self, experiment: Experiment, metric: Metric, targets: Targets) -> Self:
        """Add whose value it is, and the targets that apply to it."""
        self.experiment, self.metric = experiment, metric
        self.targets = targets.of(experiment, metric, self.target, self.target_arch)
        return self

    @property
    def process(self) -> int:
        """The number that the API and the exports give of `repeat` and `side`."""
        return 2 * self.repeat + self.side if self.is_ab else self.repeat

    @property
    def status(self) -> str:
        return STATUS_NAMES.get(self.status_code, "failed")

    @property
    def reason(self) -> str | None:
        """Return why there is no number, or why its status is not ok."""
        return self.note if words_are_reason(self.status_code, self.median) else None

    @property
    def warning(self) -> str | None:
        """Return the warning that a reader needs beside the number."""
        return None if words_are_reason(self.status_code, self.median) else self.note

    @property
    def verdict(self) -> str:
        """Return the judge's verdict, or what its absence means; '' while it has not judged."""
        if self.median is None and self.status in NEVER_RAN:
            return "not_run"
        if self.judged or (self.status_code and self.median is None):
            return self.judged or "failed"
        if self.is_ab:
            return "in_pairs"
        if not self.earlier:
            return "new"
        if self.unjudged:
            return ""
        return "unchanged"

    @property
    def own_target(self) -> AppliedTarget | None:
        return next((target for target in self.targets if target.own), None)

    @property
    def met(self) -> str:
        own = self.own_target
        return own.met_by(self.median, self.metric.direction) if own else "none"

    def to_row(self) -> dict[str, Any]:
        """Return one flat line of the JSON and CSV views."""
        own = self.own_target
        met = own.met_by(self.median, self.metric.direction) if own else "none"
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "direction": self.metric.direction,
            "value": self.median,
            "spread": self.spread,
            "n": self.n,
            "status": self.status,
            "code": self.code,
            "reason": self.reason,
            "verdict": self.verdict,
            "change": self.change,
            "noise": self.noise,
            "verdict_reason": self.verdict_reason,
            "target": own.value if own else None,
            "target_name": own.name if own else None,
            "target_met": {"met": True, "missed": False}.get(met),
            "record_target": self.target,
            "record_target_arch": self.target_arch,
            "warning": self.warning,
            "time": self.order_time,
            "run": self.run_id,
            "process": self.process,
            "processes": self.processes,
        }


V = TypeVar("V", bound=MetricValue)

_HAS_EARLIER = """EXISTS (
        SELECT FROM hud_measurement earlier WHERE earlier.series_id = s.id
            AND (earlier.order_time, earlier.run_id) < (m.order_time, m.run_id))"""


def _columns(earlier: str) -> str:
    return f"""
    s.id series_id, m.order_time, m.run_id, m.environment_id, m.repeat, m.side,
    m.compilation, m.value median, m.spread, m.n, m.status status_code, m.target, m.target_arch,
    m.code, m.note, v.verdict judged, v.change, v.noise, v.factor, v.reason verdict_reason,
    {earlier} earlier,
    m.run_id IN (SELECT run_id FROM hud_unjudgedrun)
        OR coalesce(s.touched_at <= m.order_time, false) unjudged,
    m.run_id IN (SELECT id FROM hud_run WHERE base_interpreter <> '') is_ab, m.upload_id
    """  # noqa: S608 — constants of this file  # nosec B608


# Columns of `MetricValue` for measurement m of series s, judged by v
VALUE_COLUMNS = _columns(_HAS_EARLIER)
# OFFSET 0: one look-up in the index for each row. The planner takes the parts of a key for independent,
# expects a single row, and would read the whole table for every one of hundreds.
VERDICT_JOIN = """
    LEFT JOIN LATERAL (
        SELECT * FROM hud_verdict judged
        WHERE judged.run_id = m.run_id AND judged.series_id = m.series_id
            AND judged.environment_id = m.environment_id AND judged.order_time = m.order_time OFFSET 0
    ) v ON true
"""


def latest(series_ids: Iterable[int], branch: str = "") -> dict[int, MetricValue]:
    """Return the value of each series in its newest run of a branch, by default the default one, over all its
    processes.

    One statement, three index look-ups a series. A/B runs and runs of other branches try something out:
    they count only where there are no others.
    """
    values = fetch(
        MetricValue,
        f"""
        SELECT {VALUE_COLUMNS}
        FROM hud_series s
        JOIN LATERAL (
            (SELECT run_id, environment_id, hud_measurement.order_time, 1 place FROM hud_measurement
            JOIN hud_run r ON r.id = run_id AND r.base_interpreter = '' AND r.branch = ANY(%(branches)s)
            WHERE series_id = s.id
            ORDER BY hud_measurement.order_time DESC, run_id DESC, repeat DESC, side DESC LIMIT 1)
            UNION ALL
            (SELECT run_id, environment_id, order_time, 2 FROM hud_measurement WHERE series_id = s.id
            ORDER BY order_time DESC, run_id DESC, repeat DESC, side DESC LIMIT 1)
            ORDER BY place LIMIT 1
        ) newest ON true
        JOIN LATERAL (
            SELECT * FROM hud_measurement
            WHERE run_id = newest.run_id AND series_id = s.id
                AND environment_id = newest.environment_id AND order_time = newest.order_time OFFSET 0
        ) m ON true
        {VERDICT_JOIN}
        WHERE s.id = ANY(%(series)s)
        ORDER BY s.id, m.repeat, m.side
        """,  # noqa: S608 — constants of this file  # nosec B608
        {"series": list(series_ids), "branches": stored_names(branch)},
    )
    return {value.series_id: value for value in by_run(values)}


def of_runs(
    series: Sequence[int], runs: Sequence[int], has_earlier: Sequence[bool]
) -> dict[int, MetricValue]:
    """Return the newest value of each series in its run, over all its processes: 1 statement, one look-up in
    an index for each. Where `has_earlier` is not known to be true, one more look-up tells."""
    values = fetch(
        MetricValue,
        f"""
        WITH verdicts AS MATERIALIZED (SELECT * FROM hud_verdict WHERE run_id = ANY(%(distinct)s::int[]))
        SELECT {_columns(f"coalesce(m.has_earlier, {_HAS_EARLIER})")}
        FROM (
            SELECT m.*, p.has_earlier
            FROM unnest(%(series)s::int[], %(runs)s::int[], %(earlier)s::bool[])
                AS p(series_id, run_id, has_earlier)
            JOIN LATERAL (
                SELECT * FROM hud_measurement WHERE run_id = p.run_id AND series_id = p.series_id OFFSET 0
            ) m ON true OFFSET 0
        ) m
        JOIN hud_series s ON s.id = m.series_id
        LEFT JOIN verdicts v ON v.run_id = m.run_id AND v.series_id = m.series_id
            AND v.environment_id = m.environment_id AND v.order_time = m.order_time
        ORDER BY s.id, m.order_time, m.environment_id, m.repeat, m.side
        """,  # noqa: S608 — constants of this file  # nosec B608
        {
            "series": int_array(series),
            "runs": int_array(runs),
            "earlier": f"{{{','.join('t' if one else 'NULL' for one in has_earlier)}}}",
            "distinct": list(set(runs)),
        },
    )
    return {value.series_id: value for value in by_run(values)}


def by_run(values: Iterable[V]) -> list[V]:
    """Return one value for each run, environment and time of a series, as the judge takes them: the median
    over the fresh processes that gave a number. Those of one point stand together in `values`."""
    groups = groupby(
        values, key=lambda value: (value.series_id, value.run_id, value.environment_id, value.order_time)
    )
    return [over_processes(list(group)) for _place, group in groups]


def over_processes(values: list[V]) -> V:
    """Return the value of a point: the median over its compilations, each the median of its processes. Its
    spread is theirs, since that of one process's samples hides it."""
    if len(values) == 1:
        return values[0]
    there = [value for value in values if value.median is not None]
    spreads = [value.spread for value in values if value.spread is not None]
    middles = [middle for _key, middle in compilation_medians(there)]
    notes = [value.note for value in values]
    if 0 < len(there) < len(values):
        notes.insert(0, f"{len(values) - len(there)} of {len(values)} processes gave no number")
    return replace(
        (there or values)[0],
        repeat=0,
        side=0,
        processes=len(values),
        median=median(middles) if there else None,
        spread=spread(middles) if len(middles) > 1 else median(spreads) if spreads else None,
        n=sum(value.n for value in values),
        note=_joined(list(dict.fromkeys(filter(None, notes)))),
    )


def compilation_medians(values: Iterable[MetricValue]) -> list[tuple[int, float]]:
    """Return each compilation's `compilation_key` with the median of its processes that gave a number."""
    found: dict[int, list[float]] = {}
    for value in values:
        if value.median is not None:
            found.setdefault(compilation_key(value.compilation, value.repeat), []).append(value.median)
    return [(key, median(medians)) for key, medians in found.items()]


def _joined(notes: list[str]) -> str | None:
    """Join the notes of the first few processes; each has its own numbers."""
    more = [f"and {len(notes) - _MOST_NOTES} more like these"] if len(notes) > _MOST_NOTES else []
    return "; ".join([*notes[:_MOST_NOTES], *more]) or None


def shown(
    series: Iterable[Series],
    experiments: dict[int, Experiment],
    values: dict[int, MetricValue],
    targets: Targets,
) -> list[MetricValue]:
    """Return the values of those series that have one. `series` come with their metric."""
    return [
        values[one.pk].show(experiments[one.experiment_id], one.metric, targets)
        for one in series
        if one.pk in values
    ]
