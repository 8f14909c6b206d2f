"""The newest result of every series of a suite, as tables: as much as sorting, filtering and totals need.

A suite has thousands of series, of which a page shows some, so that only these become objects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hud.judging.aggregates import PassRate, pass_rate
from hud.models import NEVER_RAN, STATUS_NAMES, VERDICT_CODES, VERDICTS, Metric, Point, Stream
from hud.points import expectations
from hud.points import read as points
from hud.points.columns import SuiteColumn
from hud.points.targets import RECORDED, Targets
from hud.runs.branches import stored_names
from hud.sql import Bools, Floats, Ints, fetch_columns, int_array
from runner.schema.statistics import geometric_mean

_T = TypeVar("_T", bound=np.generic)

_MEANS = ("speedup", "compile", "warm", "compression")  # columns with a geometric mean
# by status code; the last, -1, is that of no result
_FAILED = np.array([name not in {"ok", *NEVER_RAN} for name in STATUS_NAMES.values()] + [False])
_VERDICTS = ("regressed", "failed", "inconclusive", "improved")  # before the others
_WORTH_A_BADGE = [VERDICT_CODES[word] for word in ("improved", "regressed", "inconclusive")]


@dataclass(frozen=True)
class SuiteTotals:
    """The last row: pass rate over the experiments with results, and geometric means by column."""

    passed: PassRate
    means: dict[str, tuple[float, int]]  # by column: mean, and of how many


@dataclass(frozen=True)
class Newest:
    """Tables with a row for each of `ids` and a column for each of `metrics`. Results are those of the
    default branch that are no reruns; `series` is also there where others alone have one."""

    ids: Ints
    metrics: list[Metric]
    series: Ints  # 0 without one
    run: Ints  # 0 without a result
    value: Floats  # NaN without one
    status: Ints  # -1 without a result
    verdict: Ints  # -1 without one
    undecided: Ints  # 1 where the value may not decide
    has_words: Ints  # 1 where the point has a code, a note, a target or a reason why it may not decide
    spread: Floats
    target: Floats  # of the record for the arch
    time_us: Ints  # since 2000

    @property
    def failed(self) -> Bools:
        """Return which experiments have a result that is not right."""
        found: Bools = np.any(_FAILED[self.status], axis=1)
        return found

    def by_verdict(self) -> dict[str, Bools]:
        """Return the experiments of each verdict, each under the first that one of its metrics has."""
        left, found = np.ones(self.ids.size, bool), {}
        for word in dict.fromkeys((*_VERDICTS, *VERDICTS)):
            found[word] = left & (self.verdict == VERDICT_CODES[word]).any(axis=1)
            left &= ~found[word]
        return found

    def by_status(self) -> dict[str, Bools]:
        failed = self.failed
        is_ok = ~failed & (~np.isnan(self.value) | (self.status == 0)).any(axis=1)
        return {"failed": failed, "ok": is_ok, "not_run": ~failed & ~is_ok}

    def counts(self, verdict: str, status: str) -> dict[str, dict[str, int]]:
        """Return by filter on results how many experiments each choice would leave, the other one kept."""
        verdicts, statuses = self.by_verdict(), self.by_status()
        with_verdict, with_status = verdicts.get(verdict, True), statuses.get(status, True)
        return {
            "verdict": {word: int((rows & with_status).sum()) for word, rows in verdicts.items()},
            "status": {word: int((rows & with_verdict).sum()) for word, rows in statuses.items()},
        }

    def where(self, rows: Bools | Ints | slice) -> Newest:
        tables = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "metrics"}
        return replace(self, **{name: table[rows] for name, table in tables.items()})

    def with_results(self, verdict: str, status: str) -> Newest:
        """Return the experiments with a verdict and a status: ok, failed or not_run; '' means any."""
        of_verdict = self.where(self.by_verdict()[verdict]) if verdict else self
        return of_verdict.where(of_verdict.by_status()[status]) if status else of_verdict

    def unexpected(self, stream: Stream) -> Newest:
        """Return the experiments with a result that a list does not expect: 6 statements."""
        newest = set(zip(self.series[self.run > 0].tolist(), self.run[self.run > 0].tolist(), strict=True))
        listed = expectations.of_runs(stream.pk, {run for _series, run in newest})
        unexpected = [
            point.experiment.pk
            for point in listed
            if point.expectation in expectations.UNEXPECTED and (point.series_id, point.run_id) in newest
        ]
        return self.where(np.isin(self.ids, unexpected))

    def sorted_by(self, keys: Floats | Bools) -> Newest:
        """Return the experiments by these keys, those with NaN last."""
        return self.where(np.argsort(keys, kind="stable"))

    def of_column(self, column: SuiteColumn, *, deciding: bool = False) -> Floats:
        """Return the value of the best metric that has one, NaN without, and if `deciding` where it may not
        decide."""
        found, decides = np.full(self.ids.size, np.nan), np.ones(self.ids.size, bool)
        for index in self.places(column):
            decides &= ~(np.isnan(found) & (self.undecided[:, index] > 0))
            found = np.where(np.isnan(found), self.value[:, index], found)
        return np.where(decides, found, np.nan) if deciding else found

    def shown(self, columns: Sequence[SuiteColumn]) -> Ints:
        """Return the place of the metric to show in each column: the best with a number, else the best with a
        status, else the best at all; -1 without any."""
        shown = np.full((self.ids.size, len(columns)), -1)
        for at, column in enumerate(columns):
            for there in (~np.isnan(self.value), self.status >= 0, self.series > 0):
                for index in self.places(column):
                    shown[(shown[:, at] < 0) & there[:, index], at] = index
        return shown

    def of_shown(self, table: NDArray[_T], shown: Ints) -> NDArray[_T]:
        """Return the elements of a table in these places."""
        return np.take_along_axis(table, np.maximum(shown, 0), axis=1)

    def are_plain(self, shown: Ints, targets: Targets) -> Bools:
        """Return of which points in these places a cell says nothing but the number."""
        aimed = np.array([targets.aims_at(metric) for metric in self.metrics], bool)
        most_spread = np.array([2 * one.floor if one.kind == "timing" else np.inf for one in self.metrics])
        loud = (self.status != 0) | np.isnan(self.value) | (self.has_words > 0) | aimed
        loud |= np.isin(self.verdict, _WORTH_A_BADGE) | (self.spread > most_spread)
        plain: Bools = (shown >= 0) & (self.of_shown(self.run, shown) > 0) & ~self.of_shown(loud, shown)
        return plain

    def points(self, shown: Ints) -> dict[int, Point]:
        """Return the points of the metrics in these places by series: 1 statement, 1 more where reruns or
        other branches alone have one."""
        rows, columns = np.nonzero(shown >= 0)
        at = rows, shown[rows, columns]
        series, run = self.series[at], self.run[at]
        own = run > 0
        found = points.of_runs(series[own].tolist(), run[own].tolist())
        if not own.all():
            found |= points.latest(series[~own].tolist())
        return found

    def totals(self, columns: Sequence[SuiteColumn]) -> SuiteTotals:
        there = np.any(self.status >= 0, axis=1)
        passed = dict(zip(map(str, self.ids[there].tolist()), (~self.failed[there]).tolist(), strict=True))
        means = {}
        for column in columns:
            if column.key in _MEANS:
                values = self.of_column(column, deciding=True)
                values = values[values > 0]
                if values.size:
                    means[column.key] = geometric_mean(values.tolist()), values.size
        undecided = int((self.undecided[there] > 0).any(axis=1).sum())
        return SuiteTotals(pass_rate(passed, passed, undecided), means)

    def places(self, column: SuiteColumn) -> list[int]:
        """Return where the metrics of a column are, the best first."""
        places = {metric.name: at for at, metric in enumerate(self.metrics)}
        return [places[name] for name in column.metrics if name in places]

    def with_target(self, met: str, targets: Targets) -> Newest:
        """Return the experiments with a result that meets, or misses, the target of their arch: 1
        statement."""
        aimed = np.array([targets.aims_at(metric) for metric in self.metrics], bool)
        at = np.nonzero((self.status >= 0) & (aimed | ~np.isnan(self.target)))
        ids, metrics = self.ids[at[0]].tolist(), [self.metrics[column] for column in at[1].tolist()]
        reached = np.array(targets.met(ids, metrics, self.value[at], self.target[at])) == met
        return self.where(np.unique(at[0][reached]))


def read(stream: Stream, ids: Sequence[int], metrics: Mapping[int, Metric], shown: Collection[int]) -> Newest:
    """Return the newest point of each series of these experiments and metrics in a stream: 1 statement, one
    look-up in an index for each."""
    nothing = {"run_id": "0", "value": "'NaN'", "status": "-1::int2", "verdict": "-1::int2"}
    nothing |= {"undecided": "0", "has_words": "0", "spread": "'NaN'", "target": "'NaN'"}
    nothing |= {"order_time": "'epoch'"}
    newest = [f"coalesce({name}, {none})" for name, none in nothing.items()]
    experiment, metric, series, *found = fetch_columns(
        ["s.experiment_id", "s.metric_id", "s.id", *newest],
        f"""
        hud_series s
        LEFT JOIN LATERAL (
            SELECT run_id, value, status, verdict, spread, order_time, {RECORDED} target,
                (quality IS NOT NULL)::int undecided,
                (num_nonnulls(code, note, target, quality) > 0)::int has_words
            FROM hud_point
            WHERE series_id = s.id AND NOT rerun AND branch = ANY(%(branches)s)
            ORDER BY order_time DESC, run_id DESC, environment_id DESC LIMIT 1
        ) newest ON true
        WHERE s.experiment_id = ANY(%(experiments)s::int[]) AND s.metric_id = ANY(%(metrics)s)
            AND s.stream_id = %(stream)s
        """,  # noqa: S608 — a constant  # nosec B608
        {
            "experiments": int_array(ids),
            "metrics": list(shown),
            "branches": stored_names(),
            "stream": stream.pk,
        },
    )
    kept = [metrics[pk] for pk in shown]
    rows, columns = np.array(ids, np.int64), np.array([metric.pk for metric in kept], np.int64)
    at = _place_of(rows, experiment), _place_of(columns, metric)
    size = rows.size, columns.size
    tables = [np.full(size, nothing) for nothing in (0, 0, np.nan, -1, -1, 0, 0, np.nan, np.nan, 0)]
    for table, column in zip(tables, (series, *found), strict=True):
        table[at] = column
    return Newest(rows, kept, *tables)


def _place_of(keys: Ints, wanted: Ints) -> Ints:
    order = np.argsort(keys)
    place: Ints = order[np.searchsorted(keys, wanted, sorter=order)] if wanted.size else wanted
    return place
