"""The suites, and a suite's experiments with the latest value of its main metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Count, Exists, OuterRef, Q, TextField, Window
from django.db.models.functions import Cast, Length

from hud.models import Experiment, Measurement, Metric, Series
from hud.pages import values
from hud.pages.sql import fetch_tuples
from hud.pages.targets import Targets
from hud.pages.values import MetricValue
from hud.runs.matching import not_offered
from runner.suites import SUITES

PAGE_ROWS = 100
MAX_COLUMNS = 6
SPARKLINE_POINTS = 24
CHOICES = ("mode", "dtype", "backend", "arch")
_UNKNOWN = "arch unknown"
# the shorter knobs first: D=1024 stands before D=16384
_ORDER = ("case", "arch", "device", "dtype", "mode", "backend", Length("knobs_text"), "knobs_text", "dynamic")


@dataclass(frozen=True)
class Filters:
    """The table's filters in the URL; '' means any."""

    mode: str = ""
    dtype: str = ""
    backend: str = ""
    arch: str = ""
    q: str = ""  # words that must all occur in the case; -word must not
    page: int = 1


@dataclass(slots=True)
class Row:
    experiment: Experiment
    words: list[str]  # one for each choice that varies
    cells: list[MetricValue | None]  # one for each column
    leading: MetricValue | None  # the first cell with a number
    trend: list[float] = field(default_factory=list)  # medians of the leading metric, oldest first

    def to_rows(self) -> list[dict[str, Any]]:
        return [{**identity(self.experiment), **cell.to_row()} for cell in self.cells if cell]


@dataclass
class SuitePage:
    name: str
    title: str
    rows: list[Row] = field(default_factory=list)
    columns: list[Metric] = field(default_factory=list)
    hidden_columns: int = 0  # further metrics, shown on the experiment's own page
    total: int = 0
    words: dict[str, list[str]] = field(default_factory=dict)  # of each choice; '' where not known
    places: set[str] = field(default_factory=set)  # arches, and words for those that are not known

    @property
    def choices(self) -> dict[str, list[str]]:
        """Return the filters' choices; where the arch is unknown, the kind of device."""
        found = {name: [word for word in self.words[name] if word] for name in CHOICES}
        if len(self.places) > 1:
            found["arch"] += sorted(self.places - set(found["arch"]))
        return found

    @property
    def varying(self) -> list[str]:
        """Return the choices in which the suite's experiments differ: each gets a column."""
        return [name for name in CHOICES if len(self.places if name == "arch" else self.words[name]) > 1]

    @property
    def constant(self) -> list[str]:
        """Return the choices that all experiments of the suite share."""
        return [words[0] for words in self.words.values() if len(words) == 1 and words[0]]


def identity(experiment: Experiment) -> dict[str, Any]:
    """Return the fields by which the API identifies an experiment."""
    names = ("suite", "case", "knobs", "mode", "dtype", "backend", "device", "arch", "dynamic")
    return {"experiment": experiment.pk, **{name: getattr(experiment, name) for name in names}}


def read(name: str, filters: Filters) -> SuitePage | None:
    """Return the page, in 8 statements; None for a suite without data that the runner does not have."""
    combinations = list(Experiment.objects.filter(suite=name).values(*CHOICES, "device").distinct())
    if not combinations and name not in SUITES:
        return None
    page = SuitePage(name, SUITES[name].title if name in SUITES else "")
    page.words = {choice: sorted({one[choice] for one in combinations}) for choice in CHOICES}
    page.places = {place(one["arch"], one["device"]) for one in combinations}
    experiments = _experiments(name, filters)
    page.total = experiments[0].total if experiments else 0  # type: ignore[attr-defined]
    by_id = {experiment.pk: experiment for experiment in experiments}
    series = list(Series.objects.filter(experiment__in=by_id).values_list("pk", "experiment_id", "metric_id"))
    metrics = Metric.objects.in_bulk({metric_id for _pk, _experiment_id, metric_id in series})
    ordered = sorted(metrics.values(), key=lambda metric: values.metric_place(name, metric))
    page.columns, page.hidden_columns = ordered[:MAX_COLUMNS], max(0, len(ordered) - MAX_COLUMNS)
    shown = {metric.pk for metric in page.columns}
    series = [one for one in series if one[2] in shown]
    latest = values.latest(pk for pk, _experiment_id, _metric_id in series)
    targets = Targets.read()
    readings: dict[int, dict[int, MetricValue]] = {}
    for pk, experiment_id, metric_id in series:
        if pk in latest:
            value = latest[pk].show(by_id[experiment_id], metrics[metric_id], targets)
            readings.setdefault(experiment_id, {})[metric_id] = value
    for one in experiments:
        known = {**vars(one), "arch": place(one.arch, one.device)}
        words = [known[choice] for choice in page.varying]
        cells = [readings.get(one.pk, {}).get(metric.pk) for metric in page.columns]
        leading = next((cell for cell in cells if cell and cell.median is not None), None)
        page.rows.append(Row(one, words, cells, leading))
    trends = _trends(row.leading.series_id for row in page.rows if row.leading)
    for row in page.rows:
        row.trend = trends.get(row.leading.series_id, []) if row.leading else []
    return page


def place(arch: str, device: str) -> str:
    """Return the arch, or the kind of device where the arch is unknown."""
    return arch or (f"{device}, {_UNKNOWN}" if device else _UNKNOWN)


def _at(asked: str) -> Q:
    """Return the condition for an arch, or for one of the texts that `place` returns instead."""
    device = "" if asked == _UNKNOWN else asked.removesuffix(f", {_UNKNOWN}")
    return Q(arch=asked) | (Q(arch="", device=device) if device != asked else Q())


def _experiments(name: str, filters: Filters) -> list[Experiment]:
    wanted = {choice: getattr(filters, choice) for choice in CHOICES if getattr(filters, choice)}
    condition = _at(wanted.pop("arch")) if "arch" in wanted else Q()
    for word in filters.q.split()[:8]:
        excluded = word.startswith("-") and len(word) > 1
        condition &= ~Q(case__icontains=word[1:]) if excluded else Q(case__icontains=word)
    first = (filters.page - 1) * PAGE_ROWS
    measured = Measurement.objects.filter(series__experiment=OuterRef("pk"), value__isnull=False)
    by_value = [Exists(measured).desc()] if name in SUITES and SUITES[name].matrix else []
    found = (
        Experiment.objects.filter(condition, suite=name, **wanted)
        .alias(knobs_text=Cast("knobs", TextField()))
        .annotate(total=Window(Count("pk")))
        .order_by(*by_value, *_ORDER)
    )
    return list(found[first : first + PAGE_ROWS])


def _trends(series_ids: Iterable[int]) -> dict[int, list[float]]:
    trends = fetch_tuples(
        """
        SELECT s.id, ARRAY(
            SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY value) FROM (
                SELECT order_time, run_id, value FROM hud_measurement
                WHERE series_id = s.id AND value IS NOT NULL
                ORDER BY order_time DESC, run_id DESC FETCH FIRST %(points)s ROWS WITH TIES
            ) process GROUP BY order_time, run_id ORDER BY order_time DESC, run_id DESC)
        FROM unnest(%(series)s::int[]) AS s(id)
        """,
        {"series": list(series_ids), "points": SPARKLINE_POINTS},
    )
    return {series_id: medians[::-1] for series_id, medians in trends}


@dataclass(slots=True)
class SuiteLine:
    name: str
    title: str
    experiments: int
    cases: int
    arches: list[str]
    runnable: bool  # the runner has it
    not_offered: str  # why no attached host offers it


def read_all() -> list[SuiteLine]:
    """Return every suite with data, then the runner's others, in 2 statements."""
    counted = (
        Experiment.objects.values("suite")
        .annotate(
            experiments=Count("pk"),
            cases=Count("case", distinct=True),
            arches=ArrayAgg("arch", distinct=True, filter=~Q(arch=""), default=[]),
        )
        .order_by("suite")
    )
    found = {one["suite"]: (one["experiments"], one["cases"], one["arches"]) for one in counted}
    missing = not_offered(SUITES)
    return [
        SuiteLine(
            name,
            SUITES[name].title if name in SUITES else "",
            *found.get(name, (0, 0, [])),
            runnable=name in SUITES,
            not_offered=missing.get(name, ""),
        )
        for name in {**found, **SUITES}
    ]
