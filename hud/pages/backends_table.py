"""The table of suites and backends: pass rate, speedup, cold compile time and memory of two sides."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from hud.judging import aggregates
from hud.judging.aggregates import GeometricMean, PassRate
from hud.judging.rules.thresholds import prior_noise
from hud.points.nights import (
    COMPILE,
    FAILED,
    PASSES,
    PREFERRED,
    SPEEDUP,
    UNDECIDED,
    Block,
    Night,
    Results,
    Values,
)
from hud.tables.table import DataTable
from runner.schema.metrics import metric_info
from runner.schema.statistics import geometric_mean, median
from runner.schema.tables import rows
from runner.suites import SUITES

Tone = Literal["", "worse", "better"]
COLUMNS = tuple(PREFERRED)
TITLES = dict(zip(COLUMNS, ("Speedup", "Cold compile", "Memory"), strict=True))
BELOW = 0.95  # a speedup that is named, whatever it was before
TREND_NIGHTS = 28
EXPECTED_NIGHTS = 14  # whose cases are expected again
KNOWN_NIGHTS = 10  # from whose steps the noise of a mean is known
_LEAST = 0.002  # relative change of a mean that is worth a colour
_BEYOND = 2.0  # times the margin, which two nights of many are beyond by chance
# Backends in the order of rows, each with its colour's number in hud.css; others have none, and stand before
# the last two.
COLOURS = {row["backend"]: int(row["colour"]) for row in rows(__file__, "backends.csv")}
_PLACES = {backend: float(index) for index, backend in enumerate(COLOURS)}


@dataclass
class Cell:
    """A geometric mean over the cases of both sides; without a baseline over those of the candidate."""

    column: str
    metric: str  # of the runner, most cases of both sides have it
    base: float | None
    head: float | None
    mean: GeometricMean
    trend: list[float | None] = field(default_factory=list)  # by night, oldest first
    noise: float | None = None  # relative, of the mean from night to night
    tone: Tone = ""
    pale: float | None = None  # the mean of the candidate's values where none of them may decide

    @property
    def change(self) -> float | None:
        return None if self.mean.ratio is None else self.mean.ratio - 1

    @property
    def nights(self) -> int:
        return sum(value is not None for value in self.trend)

    @property
    def margin(self) -> float | None:
        """Return the noise of the change: of means from night to night where enough nights are known, else
        half of the 95 % interval over the cases."""
        low, high = self.mean.low, self.mean.high
        if self.nights >= KNOWN_NIGHTS and self.noise is not None:
            return 2 * math.sqrt(2) * self.noise
        return None if low is None or high is None else (high - low) / 2

    @property
    def noise_band(self) -> float:
        """Return the change that the noise of a mean explains, which an interval shows in grey."""
        return (2 * math.sqrt(2) if self.nights >= KNOWN_NIGHTS else 2.0) * (self.noise or 0.0)

    @property
    def few(self) -> bool:
        """Return whether too few cases are on both sides to call the mean changed."""
        return 0 < len(self.mean.matched) < aggregates.FEWEST_TO_CALL

    @property
    def below(self) -> bool:
        return self.column == SPEEDUP and self.head is not None and self.head < BELOW


@dataclass
class Entry:
    """A suite on a backend."""

    suite: str
    backend: str
    passes: PassRate
    new: tuple[str, ...]  # cases that failed, and passed in the baseline
    failed_before: int  # cases that failed, and in the baseline too
    failed: int  # cases that failed, and are not in the baseline
    known: int  # cases whose failure a person has declared; they are in none of the above
    cells: list[Cell]
    ran: bool = True  # anything in the candidate
    last: Night | None = None  # the newest night with results, where the candidate has none

    @property
    def key(self) -> str:
        return f"{self.suite}/{self.backend}"

    @property
    def failures(self) -> str:
        """Return how many failures there are that are not new, in words."""
        counts = {"failed": self.failed, "failed before": self.failed_before, "known": self.known}
        return ", ".join(f"{count} {words}" for words, count in counts.items() if count)


DATA = DataTable(  # of a cell, with its entry and the table
    """suite=entry.suite backend=entry.backend base head=table.head.side passed=entry.passes.passed
    expected=entry.passes.expected newly_failed failed_before=entry.failed_before
    known_failures=entry.known not_run undecided=entry.passes.undecided
    column=cell.column metric=cell.metric unit base_value=cell.base head_value=cell.head change=cell.change
    low high p=cell.mean.p night_noise=cell.noise verdict matched only_base only_head
    undecided_value=cell.pale""",
    base=lambda row: row.table.base and row.table.base.side,
    newly_failed=lambda row: len(row.entry.new),
    not_run=lambda row: len(row.entry.passes.missing),
    unit=lambda row: "s" if row.cell.column == COMPILE else "x",
    low=lambda row: None if row.cell.mean.low is None else row.cell.mean.low - 1,
    high=lambda row: None if row.cell.mean.high is None else row.cell.mean.high - 1,
    verdict=lambda row: "new" if row.cell.change is None else _VERDICTS[row.cell.tone],
    matched=lambda one: len(one.cell.mean.matched),
    only_base=lambda row: len(row.cell.mean.only_base),
    only_head=lambda row: len(row.cell.mean.only_head),
)
_VERDICTS: dict[Tone, str] = {"worse": "regressed", "better": "improved", "": "unchanged"}


@dataclass
class Table:
    base: Night | None
    head: Night
    suites: list[str]
    backends: list[str]
    entries: dict[Block, Entry]
    nights: list[Night]  # of the trends
    charts: dict[str, dict[str, Any] | None] = field(default_factory=dict)  # of the trends, by suite
    html: dict[tuple[Any, ...], str] = field(default_factory=dict)  # as pages show it

    @property
    def rows(self) -> list[tuple[str, int, list[Entry | None]]]:
        """Return each backend with the place of its colour and an entry for each suite."""
        return [
            (backend, colour(backend), [self.entries.get((suite, backend)) for suite in self.suites])
            for backend in self.backends
        ]

    @property
    def most_telling(self) -> Block:
        """Return the entry to look at first: of new failures, then of the largest change for the worse."""

        def worst(entry: Entry) -> tuple[int, float]:
            changes = [abs(cell.change or 0) for cell in entry.cells if cell.tone == "worse"]
            return len(entry.new), max(changes, default=0.0)

        return max(self.entries, key=lambda block: worst(self.entries[block]))

    @property
    def heads(self) -> list[tuple[str, int, int]]:
        """Return each suite with its expected cases and those of both sides, on its fullest backend."""
        missing = []
        for suite in self.suites:
            own = [entry for (name, _backend), entry in self.entries.items() if name == suite]
            matched = max(len(cell.mean.matched) for entry in own for cell in entry.cells)
            missing.append((suite, max(entry.passes.expected for entry in own), matched))
        return missing

    @cached_property
    def reach(self) -> float:
        """Return the end of the axis of all speedups' changes."""
        cells = (cell for entry in self.entries.values() for cell in entry.cells)
        return drawn_reach(cell.change or 0.0 for cell in cells if cell.column == SPEEDUP and not cell.few)

    @property
    def ran(self) -> int:
        return sum(entry.passes.expected - len(entry.passes.missing) for entry in self.entries.values())

    @property
    def expected(self) -> int:
        return sum(entry.passes.expected for entry in self.entries.values())

    @cached_property
    def data(self) -> list[dict[str, Any]]:
        return [
            DATA.row(SimpleNamespace(table=self, entry=entry, cell=cell))
            for entry in self.entries.values()
            for cell in entry.cells
        ]


def drawn_reach(changes: Iterable[float]) -> float:
    """Return the end of the axis that intervals of changes share: between 2 and 100 %."""
    return min(1.0, max([0.02, *(1.25 * abs(change) for change in changes)]))


def colour(backend: str) -> int:
    """Return the number of the backend's colour in hud.css, 0 for one without."""
    return COLOURS.get(backend, 0)


def backend_place(backend: str) -> tuple[float, str]:
    return _PLACES.get(backend, _PLACES["aot_eager"] - 0.5), backend


def build(
    base: Night | None,
    head: Night,
    nights: Sequence[Night],
    by_night: Mapping[Night, Results],
    known: Collection[int],
) -> Table:
    """Return the table of two sides. `nights` are those of the trends, oldest first; `known` are the
    experiments whose failures a person has declared."""
    blocks = {block for results in by_night.values() for block in results}
    recent = [by_night[night] for night in nights[-EXPECTED_NIGHTS:]]
    before = by_night[base] if base else {}
    entries: dict[Block, Entry] = {}
    for block in sorted(blocks, key=lambda block: (block[0], backend_place(block[1]))):
        entry = _entry(block, before, by_night[head], recent, known)
        metrics = {name for own in by_night.values() for name, found in own.get(block, {}).items() if found}
        if not entry.passes.expected or metrics.isdisjoint(PREFERRED[SPEEDUP]):
            continue  # reference runs, and what nobody has measured lately
        values = [by_night[night].get(block, {}) for night in nights]
        for cell in entry.cells:
            cell.trend = _trend(cell, [value.get(cell.metric, {}) for value in values])
            cell.noise = _noise(cell)
        if not entry.ran:
            entry.last = next((night for night in reversed(nights) if by_night[night].get(block, {})), None)
        entries[block] = entry
    _tint([cell for entry in entries.values() for cell in entry.cells])
    suites = sorted({suite for suite, _backend in entries}, key=suite_place)
    backends = sorted({backend for _suite, backend in entries}, key=backend_place)
    return Table(base, head, suites, backends, entries, list(nights))


def suite_place(name: str) -> tuple[int, str]:
    return (list(SUITES).index(name) if name in SUITES else len(SUITES)), name


def passing(values: Values) -> dict[str, bool]:
    """Return for each case whose accuracy was checked or whose speedup was measured whether it passed: no
    process of any of its metrics failed."""
    failed = {experiment for name in values if name.startswith(FAILED) for experiment in values[name]}
    measured = {experiment for name in (PASSES, *PREFERRED[SPEEDUP]) for experiment in values.get(name, {})}
    return {str(experiment): experiment not in failed for experiment in measured}


def undecided(values: Values) -> set[int]:
    """Return the experiments with a speedup of which none may decide."""
    by_metric = [values.get(metric, {}) for metric in PREFERRED[SPEEDUP]]
    measured = {pk for each in by_metric for pk, value in each.items() if value is not None}
    return {pk for pk in measured if all(math.isnan(each.get(pk) or math.nan) for each in by_metric)}


def _entry(
    block: Block, before: Results, after: Results, recent: Iterable[Results], known: Collection[int]
) -> Entry:
    old, new = before.get(block, {}), after.get(block, {})
    passed_before, passed = passing(old), passing(new)
    expected = set(passed_before).union(*(passing(night.get(block, {})) for night in recent))
    rate = aggregates.pass_rate(passed, expected, len(undecided(new)))
    failing = {case for case, ok in passed.items() if not ok}
    news = failing.difference(map(str, known))
    fresh = tuple(sorted(case for case in news if passed_before.get(case)))
    again = len(news & passed_before.keys()) - len(fresh)
    first = len(news - passed_before.keys())
    cells = [_cell(column, old, new) for column in COLUMNS]
    return Entry(*block, rate, fresh, again, first, len(failing - news), cells, ran=bool(passed))


def _cell(column: str, old: Values, new: Values) -> Cell:
    """Compare by the metric that most cases of both sides have, device time before call time."""
    there = {
        metric: (numbers(old.get(metric, {})), numbers(new.get(metric, {}))) for metric in PREFERRED[column]
    }
    metric = max(
        there, key=lambda name: (len(there[name][0].keys() & there[name][1].keys()), len(there[name][1]))
    )
    left, right = there[metric]
    mean = aggregates.compare_means(left, right)
    alone = [value for value in right.values() if value > 0]
    head = mean.head if mean.head is not None else geometric_mean(alone) if alone else None
    cell = Cell(column, metric, mean.base, head, mean)
    for name in PREFERRED[column]:
        pale = [value for value in new.get(UNDECIDED + name, {}).values() if value and value > 0]
        if head is None and cell.pale is None and pale:
            cell.metric, cell.pale = name, geometric_mean(pale)
    return cell


def numbers(values: Mapping[int, float | None]) -> dict[str, float]:
    """Return the values that decide by experiment."""
    return {str(pk): value for pk, value in values.items() if value is not None and not math.isnan(value)}


def _trend(cell: Cell, by_night: Sequence[Mapping[int, float | None]]) -> list[float | None]:
    """Return the mean of each night over the cases of both sides. A case that is missing in one night leaves
    the mean where it was: each case counts by its distance from its own level."""
    cases = [int(case) for case in cell.mean.matched or cell.mean.only_head]
    values = np.array([[night.get(case) for case in cases] for night in by_night], float)
    logs = np.log(values, where=values > 0, out=np.full(values.shape, np.nan))
    logs = logs[:, ~np.isnan(logs).all(axis=0)]
    levels = np.nanmean(logs, axis=0) if logs.size else np.zeros(0)
    steps = ((night - levels)[~np.isnan(night)] for night in logs)
    return [math.exp(levels.mean() + step.mean()) if step.size else None for step in steps]


def _noise(cell: Cell) -> float:
    """Return the noise of the mean from night to night; with few nights the one assumed for a value."""
    there = [value for value in cell.trend if value is not None]
    steps = [abs(math.log(after / before)) for before, after in pairwise(there)]
    if len(there) < KNOWN_NIGHTS:
        return prior_noise(metric_info(PREFERRED[cell.column][0]).floor)
    return median(steps) / (0.6745 * math.sqrt(2))


def _tint(cells: Sequence[Cell]) -> None:
    """Colour what moved. With many nights, a change far beyond the noise of the mean; with few, one whose
    interval over the cases excludes none, which stands beside all others of the table (false discoveries),
    and which is beyond twice the assumed noise, as the cases of one night share their host's."""
    known = [
        cell for cell in cells if cell.mean.p is not None and cell.nights < KNOWN_NIGHTS and not cell.few
    ]
    stand = aggregates.discoveries([cell.mean.p for cell in known if cell.mean.p is not None])
    stands = {id(cell) for cell, is_known in zip(known, stand, strict=True) if is_known}
    for cell in cells:
        ratio, low, high = cell.mean.ratio, cell.mean.low, cell.mean.high
        if ratio is None or low is None or high is None or cell.margin is None or cell.few:
            continue
        if cell.nights >= KNOWN_NIGHTS:
            moved = abs(ratio - 1) > max(_BEYOND * cell.margin, _LEAST)
        else:
            moved = (
                id(cell) in stands and not low <= 1 <= high and abs(math.log(ratio)) > 2 * (cell.noise or 0)
            )
        if moved:
            cell.tone = "worse" if (ratio > 1) == (cell.column == COMPILE) else "better"


def use_hud_formulas(table: Table, by_night: Mapping[Night, Results]) -> None:
    """Replace the numbers by those of PyTorch's HUD: each side over its own rows, with no interval."""
    for block, entry in table.entries.items():
        base = by_night[table.base].get(block, {}) if table.base else {}
        head = by_night[table.head].get(block, {})
        old, rows = _hud_speedups(base), _hud_speedups(head)
        entry.passes = PassRate(sum(speedup != 0 for speedup in rows), len(rows), ())
        entry.new, entry.failed = (), len(rows) - entry.passes.passed
        entry.failed_before = entry.known = 0
        for cell in entry.cells:
            if cell.column == SPEEDUP:
                cell.base, cell.head = (aggregates.hud_geometric_mean(side) or None for side in (old, rows))
            else:
                cell.base, cell.head = (_mean(values, PREFERRED[cell.column]) for values in (base, head))
            ratio = cell.head / cell.base if cell.head and cell.base else None
            cell.mean = GeometricMean(cell.base, cell.head, ratio)
            cell.tone = ""


def _hud_speedups(values: Values) -> list[float]:
    """Return the speedup of each case as PyTorch's HUD reads it: 0 where it is absent, or the case fails."""
    passed = passing(values)
    speedups = next((numbers(values[name]) for name in reversed(PREFERRED[SPEEDUP]) if values.get(name)), {})
    return [speedups.get(case, 0.0) if ok else 0.0 for case, ok in sorted(passed.items())]


def _mean(values: Values, metrics: Collection[str]) -> float | None:
    of_metric = next((numbers(values[name]) for name in metrics if values.get(name)), {})
    return math.fsum(of_metric.values()) / len(of_metric) if of_metric else None
