"""The suites, and a suite's experiments with the latest value of its main metrics."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from django.http import Http404

from hud.hosts.registration import visible_accelerators
from hud.models import Accelerator, Experiment, Metric, Point, Stream
from hud.pages.query_string import MAX_PAGE, NAMED, OPTIONS, named, number, one_of, words
from hud.pages.suite import newest
from hud.pages.suite.newest import Newest, SuiteTotals
from hud.points import expectations, streams
from hud.points.columns import COLUMNS, SuiteColumn, columns_of, metric_names
from hud.points.kept import Kept
from hud.points.nights import NEVER
from hud.points.read import recent
from hud.points.targets import Targets
from hud.runs import matching
from hud.sql import by_id, fetch_tuples, from_epoch_us, int_array
from runner.schema.devices import is_named
from runner.suites import SUITES, command_that_adds

PAGE_ROWS = 100
_MOST_EXPERIMENTS = 5000
_BELOW = 0.95  # a speedup below is said in words: its level is no news, so that no verdict says it
SPEEDUPS = COLUMNS[0].metrics
SPARKLINE_POINTS = 24
CHOICES = ("mode", "dtype", "backend", "arch")
VERDICTS = ("regressed", "improved", "inconclusive", "failed", "new", "unchanged")
STATUSES = ("ok", "failed", "not_run")
TARGETS = ("met", "missed")
EXPECTATIONS = ("unexpected",)
_UNKNOWN = "arch unknown"


@dataclass(frozen=True)
class SuiteFilters:
    # words that must all occur in the case or its options; -word must not
    q: str = words(
        label="Case", type="search", data_key="/", placeholder="words of case or options, -excluded"
    )
    mode: str = words(40, label="Mode")
    dtype: str = words(40, label="Dtype")
    backend: str = words(100, label="Backend")
    arch: str = words(100, label="Arch")
    verdict: str = one_of(*VERDICTS, label="Verdict")
    status: str = one_of(*STATUSES, label="Status")
    target: str = one_of(*TARGETS, label="Target")
    expectation: str = one_of(*EXPECTATIONS, label="Expectation")
    sort: str = words(60, is_hidden=True)  # key of a column, with - the largest first
    page: int = number(MAX_PAGE, default=1)


class PlainCell(NamedTuple):
    """A point of which there is nothing to say but its number."""

    value: float
    metric: Metric
    series_id: int
    run_id: int
    time_us: int

    @property
    def order_time(self) -> datetime:
        return from_epoch_us(self.time_us)


@dataclass(slots=True)
class SuiteRow:
    experiment: Experiment
    words: list[str]  # one for each choice that varies
    cells: list[Point | PlainCell | None]  # one for each column
    marks: list[str]  # likewise: what tells a cell from the column's usual metric
    leading: Point | PlainCell | None  # the first cell with a number
    trend: list[float] = field(default_factory=list)  # values of the leading metric, oldest first

    @property
    def is_below_eager(self) -> bool:
        values = (cell.value for cell in self.cells if cell and cell.metric.name in SPEEDUPS)
        return next((value < _BELOW for value in values if value is not None), False)


@dataclass
class SuitePage:
    name: str
    title: str
    rows: list[SuiteRow] = field(default_factory=list)
    columns: list[SuiteColumn] = field(default_factory=list)
    hidden_metrics: int = 0  # shown on the experiment's own page
    total: int = 0
    totals: SuiteTotals | None = None  # over all that match, not of this page alone
    words: dict[str, list[str]] = field(default_factory=dict)  # of each choice; '' where not known
    found: Newest | None = None  # before the filters on verdict and status
    combinations: list[dict[str, Any]] = field(default_factory=list)  # of words and device, with their number
    places: set[str] = field(default_factory=set)  # arches, and words for those that are not known
    attached: list[tuple[str, str]] = field(default_factory=list)  # device and arch that offer the suite
    not_offered: str = ""  # why no attached host offers it

    @property
    def points(self) -> list[Point]:
        """Return the points of all cells, which in data are whole."""
        return [cell for row in self.rows for cell in row.cells if isinstance(cell, Point)]

    def counts(self, filters: SuiteFilters) -> dict[str, dict[str, int]]:
        """Return by filter how many experiments each choice would leave, the other filters kept, where what
        was read tells it: not of targets, and of case and environment only without a filter on words or
        results."""
        found = self.found.counts(filters.verdict, filters.status) if self.found else {}
        if filters.q or filters.verdict or filters.status or filters.target or filters.expectation:
            return found
        chosen = {name: getattr(filters, name) for name in CHOICES if getattr(filters, name)}
        for name in CHOICES:
            counts: Counter[str] = Counter()
            for combination in self.combinations:
                known = {**combination, "arch": place(combination["arch"], combination["device"])}
                if all(known[other] == word for other, word in chosen.items() if other != name):
                    counts[known[name]] += known["experiments"]
            found[name] = counts
        return found

    @property
    def choices(self) -> dict[str, list[str]]:
        """Return the filters' choices; where the arch is unknown, the kind of device."""
        found = {name: [word for word in self.words[name] if word] for name in CHOICES}
        found["arch"] = [arch for arch in found["arch"] if is_named(arch)]
        if len(self.places) > 1:
            found["arch"] += sorted(self.places - set(self.words["arch"]))
        return found

    @property
    def varying(self) -> list[str]:
        """Return the choices in which the suite's experiments differ: each gets a column."""
        return [name for name in CHOICES if len(self.places if name == "arch" else self.words[name]) > 1]

    @property
    def constant(self) -> list[str]:
        """Return the choices that all experiments of the suite share."""
        return [words[0] for words in self.words.values() if len(words) == 1 and words[0]]

    @property
    def absent(self) -> list[str]:
        """Return the arches of the shown rows that no attached host has."""
        there = {arch for _device, arch in self.attached}
        return sorted({row.experiment.arch for row in self.rows if row.experiment.arch} - there)


def read(stream: Stream, name: str, filters: SuiteFilters, data_format: str = "") -> SuitePage:
    """Return a suite's page in a stream, for CSV all rows at once, in 9 statements, 1 more with a filter on
    targets, 6 with one on expectations. Raise Http404 for a suite without data that no runner has."""
    experiments = _experiments(stream, name, filters.q)
    if not experiments and name not in SUITES and not Experiment.objects.filter(suite=name).exists():
        raise Http404(f"no suite is called {name!r}")
    page = SuitePage(name, SUITES[name].title if name in SUITES else "")
    counted = Counter(row[2:] for row in experiments)
    page.combinations = [
        dict(zip((*CHOICES, "device", "experiments"), (*alike, count), strict=True))
        for alike, count in counted.items()
    ]
    page.words = {choice: sorted({row[choice] for row in page.combinations}) for choice in CHOICES}
    page.places = {place(combination["arch"], combination["device"]) for combination in page.combinations}
    measured = """SELECT DISTINCT metric_id FROM hud_series
        WHERE experiment_id = ANY(%(experiments)s::int[]) AND stream_id = %(stream)s"""
    params = {"experiments": int_array(pk for pk, *_about in experiments), "stream": stream.pk}
    version = "metrics", name, streams.version_of(stream)
    metrics = by_id(
        Metric, [pk for (pk,) in _of_suites.get(version, partial(fetch_tuples, measured, params))]
    )
    page.columns, page.hidden_metrics = columns_of(name, list(metrics.values()))
    shown = {pk for pk, metric in metrics.items() if metric.name in metric_names(page.columns)}
    targets = Targets.read()
    found = newest.read(stream, _matching(experiments, filters), metrics, shown)
    found = found.sorted_by(np.all(np.isnan(found.value), axis=1))
    if filters.target:
        found = found.with_target(filters.target, targets)
    if filters.expectation:
        found = found.unexpected(stream)
    page.found = found
    found = found.with_results(filters.verdict, filters.status)
    sort = filters.sort.removeprefix("-")
    if column := next((column for column in page.columns if column.key == sort), None):
        keys = found.of_column(column)
        found = found.sorted_by(keys if sort == filters.sort else -keys)
    page.columns = [column for column in page.columns if (found.series[:, found.places(column)] > 0).any()]
    page.total = found.ids.size
    page.totals = found.totals(page.columns)
    start = (filters.page - 1) * PAGE_ROWS
    rows = slice(start, start + PAGE_ROWS) if data_format != "csv" else slice(None)
    page.rows = _rows(stream, page, found.where(rows), targets, as_data=bool(data_format))
    return page


_of_suites = Kept(64, list[Any])


def _experiments(stream: Stream, name: str, q: str) -> list[tuple[Any, ...]]:
    """Return the stream's experiments of a suite in the usual order: id, whether all words of `q` occur, the
    choices and the device; 1 statement."""
    return fetch_tuples(
        f"""
        SELECT id, {NAMED if q else "true"}, {", ".join(CHOICES)}, device FROM (
            SELECT *, concat_ws(' ', "case", {OPTIONS}, mode, dtype, backend, arch) words
            FROM hud_experiment e WHERE suite = %(suite)s
                AND EXISTS (SELECT FROM hud_series WHERE experiment_id = e.id AND stream_id = %(stream)s)
        ) one
        ORDER BY "case", arch, device, dtype, mode, backend,
            length(knobs::text), knobs::text, dynamic  -- D=1024 stands before D=16384
        """,  # noqa: S608 — names of our own  # nosec B608
        {**named(q), "suite": name, "stream": stream.pk},
    )


def _matching(experiments: Sequence[tuple[Any, ...]], filters: SuiteFilters) -> list[int]:
    """Return those that match the filters on their identity."""
    chosen = [getattr(filters, name) for name in CHOICES]
    return [
        pk
        for pk, has_words, *choices, arch, device in experiments
        if has_words
        and all(word in ("", own) for word, own in zip(chosen, (*choices, place(arch, device)), strict=True))
    ][:_MOST_EXPERIMENTS]


def _rows(
    stream: Stream, page: SuitePage, found: Newest, targets: Targets, *, as_data: bool
) -> list[SuiteRow]:
    """Return the rows of these experiments, for the data views with whole points: 3 statements, 3 more where
    the stream has lists or known failures."""
    experiments = by_id(Experiment, found.ids.tolist())
    places = found.shown(page.columns)
    is_plain = found.are_plain(places, targets)
    is_expected = expectations.knows_any(stream.pk)
    if as_data or is_expected:
        is_plain[:] = False
    latest = found.points(np.where(is_plain, -1, places))
    tables = found.value, found.series, found.run, found.time_us
    numbers = (found.of_shown(table, places).tolist() for table in tables)
    rows, points = [], []
    for pk, *row in zip(found.ids.tolist(), places.tolist(), is_plain.tolist(), *numbers, strict=True):
        experiment = experiments.get(pk)
        if experiment is None:
            continue  # deleted meanwhile
        cells: list[Point | PlainCell | None] = []
        for at, plain, value, series, run, time_us in zip(*row, strict=True):
            if plain:
                cells.append(PlainCell(value, found.metrics[at], series, run, time_us))
            elif at >= 0 and series in latest:
                points.append(latest[series].show(experiment, found.metrics[at], targets))
                cells.append(points[-1])
            else:
                cells.append(None)
        known = {**vars(experiment), "arch": place(experiment.arch, experiment.device)}
        marks = [
            column.metrics.get(cell.metric.name, "") if cell else ""
            for column, cell in zip(page.columns, cells, strict=True)
        ]
        leading = next((cell for cell in cells if cell and cell.value is not None), None)
        rows.append(SuiteRow(experiment, [known[choice] for choice in page.varying], cells, marks, leading))
    if is_expected:
        expectations.add(stream.pk, points)
    return rows


def place(arch: str, device: str) -> str:
    """Return the arch, or the kind of device where the arch is unknown."""
    return arch or (f"{device}, {_UNKNOWN}" if device else _UNKNOWN)


def trends(rows: Sequence[SuiteRow]) -> None:
    """Add the newest values of each row's first metric: 1 statement."""
    ids = [row.leading.series_id if row.leading else 0 for row in rows]
    for row, values in zip(rows, recent(ids, SPARKLINE_POINTS), strict=True):
        row.trend = values


def _packages(suite: str, accelerators: Sequence[Accelerator]) -> list[dict[str, Any]]:
    """Return each package besides torch that cells of a suite need: which cells, the interpreters that have
    it, and the command that adds it to a host."""
    found = []
    for package, cells in SUITES[suite].packages_by_cell.items():
        having = {
            f"{item.host.name} ({python})"
            for item in accelerators
            for python, facts in (item.host.facts.get("pythons") or {}).items()
            if package in facts.get("modules", ())
        }
        command = command_that_adds(package)
        found.append({"package": package, "cells": cells, "interpreters": sorted(having), "command": command})
    return found


def read_all(stream: Stream) -> list[dict[str, Any]]:
    """Return every suite with data in a stream, then the runner's others: whether it is runnable here, and
    why no attached host offers it. 2 statements."""
    read = partial(
        fetch_tuples,
        """
        SELECT suite, count(*), count(DISTINCT "case"),
            coalesce(array_agg(DISTINCT arch) FILTER (WHERE arch <> ''), '{}')
        FROM hud_experiment e
        WHERE EXISTS (SELECT FROM hud_series s WHERE experiment_id = e.id AND stream_id = %(stream)s
            AND EXISTS (SELECT FROM hud_point WHERE series_id = s.id AND status <> ALL(%(never)s)))
        GROUP BY suite ORDER BY suite
        """,
        {"stream": stream.pk, "never": NEVER},
    )
    rows = _of_suites.get(("suites", streams.version_of(stream)), read)
    found = {name: (experiments, cases, arches) for name, experiments, cases, arches in rows}
    accelerators, counted = visible_accelerators(), ("experiments", "cases", "arches")
    missing = matching.reasons_of(SUITES, accelerators)
    return [
        {
            "name": name,
            "title": SUITES[name].title if name in SUITES else "",
            **dict(zip(counted, found.get(name, (0, 0, [])), strict=True)),
            "runnable": name in SUITES,
            "not_offered": missing.get(name, ""),
            "packages": _packages(name, accelerators) if name in SUITES else [],
        }
        for name in {**found, **SUITES}
    ]
