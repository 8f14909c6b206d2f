"""The A/B comparison of a run: a line for each experiment and metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hud.judging.pairs import PairVerdict, judge_pairs
from hud.models import STATUS_NAMES, Experiment, Metric, Run, Series
from hud.pages.suite.query import identity
from hud.points.read import metric_place
from hud.sql import fetch


@dataclass(slots=True)
class _Row:
    series_id: int
    repeat: int
    side: int
    value: float | None
    status_code: int


@dataclass(frozen=True)
class PairLine:
    """One metric of one experiment on both sides; the lists have an entry for each pair."""

    experiment: Experiment
    metric: Metric
    base: list[float | None]
    head: list[float | None]
    verdict: PairVerdict
    base_status: str  # the first that is not ok, else ok
    head_status: str

    @property
    def ratios(self) -> list[float | None]:
        return [b / a if a and b is not None else None for a, b in zip(self.base, self.head, strict=True)]

    @property
    def low(self) -> float | None:
        """Return the lower end of the change's 95 % interval, relative."""
        return _relative(self.verdict.change.low if self.verdict.change else None)

    @property
    def high(self) -> float | None:
        return _relative(self.verdict.change.high if self.verdict.change else None)

    @property
    def change(self) -> float | None:
        return self.verdict.change.change if self.verdict.change else None

    @property
    def p(self) -> float | None:
        return self.verdict.change.p if self.verdict.change else None

    def to_row(self) -> dict[str, Any]:
        return {
            **identity(self.experiment),
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "direction": self.metric.direction,
            "base": self.verdict.base,
            "new": self.verdict.head,
            "change": self.change,
            "low": self.low,
            "high": self.high,
            "p": self.p,
            "pairs": self.verdict.pairs,
            "verdict": self.verdict.word,
            "better": self.verdict.better,
            "base_status": self.base_status,
            "new_status": self.head_status,
            "base_values": self.base,
            "new_values": self.head,
        }


def read(run: Run) -> list[PairLine]:
    """Lines by experiment, and inside one as its suite is read: 2 statements."""
    rows = fetch(
        _Row,
        """
        SELECT series_id, repeat, side, value, status status_code FROM hud_measurement WHERE run_id = %(run)s
        ORDER BY series_id, repeat, side
        """,
        {"run": run.pk},
    )
    by_series: dict[int, list[_Row]] = {}
    for row in rows:
        by_series.setdefault(row.series_id, []).append(row)
    series = Series.objects.select_related("metric", "experiment").in_bulk(by_series)
    lines = [_line(series[pk], measured) for pk, measured in by_series.items()]
    return sorted(
        lines,
        key=lambda line: (
            line.experiment.case,
            line.experiment.title,
            line.experiment.dtype,
            metric_place(line.experiment.suite, line.metric),
        ),
    )


def _line(series: Series, rows: Sequence[_Row]) -> PairLine:
    values = {(row.repeat, row.side): row.value for row in rows}
    base, head = ([values.get((pair, side)) for pair in range(rows[-1].repeat + 1)] for side in (0, 1))
    metric = series.metric
    verdict = judge_pairs(base, head, direction=metric.direction, kind=metric.kind)  # type: ignore[arg-type]
    statuses = [[row.status_code for row in rows if row.side == side] for side in (0, 1)]
    said = [
        STATUS_NAMES.get(next(filter(None, codes), 0), "failed") if codes else "not_run" for codes in statuses
    ]
    return PairLine(series.experiment, metric, base, head, verdict, *said)


def _relative(log_ratio: float | None) -> float | None:
    """Return the ratio's change; None also where a few wild pairs leave the interval without an end."""
    return math.expm1(log_ratio) if log_ratio is not None and log_ratio < 700 else None
