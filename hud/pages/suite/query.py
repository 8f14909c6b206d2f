"""A suite's table: its experiments, each with the latest value of the suite's main metrics."""

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


@dataclass(frozen=True)
class Filters:
    """State of the table as the URL says it; '' means any."""

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
    trend: list[float]  # medians of the leading metric, oldest first
    leading: MetricValue | None

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
        """What can be chosen; where the arch is not known, the kind of device."""
        found = {name: [word for word in self.words[name] if word] for name in CHOICES}
        if len(self.places) > 1:
            found["arch"] += sorted(self.places - set(found["arch"]))
        return found

    @property
    def varying(self) -> list[str]:
        """Choices that need a column, because the suite's experiments differ in them."""
        return [name for name in CHOICES if len(self.places if name == "arch" else self.words[name]) > 1]

    @property
    def constant(self) -> list[str]:
        """What all experiments of the suite have in common, said once."""
        return [words[0] for words in self.words.values() if len(words) == 1 and words[0]]


def identity(experiment: Experiment) -> dict[str, Any]:
    """An experiment as the API names it."""
    names = ("suite", "case", "knobs", "mode", "dtype", "backend", "device", "arch", "dynamic")
    return {"experiment": experiment.pk, **{name: getattr(experiment, name) for name in names}}


def suite_title(name: str) -> str:
    return SUITES[name].title if name in SUITES else ""


def read(name: str, filters: Filters) -> SuitePage | None:
    """The page in 8 statements; None where neither data nor the catalogue know the suite."""
    combinations = _combinations(name)
    if not combinations and name not in SUITES:
        return None
    page = SuitePage(name, suite_title(name))
    page.words = {choice: sorted({one[choice] for one in combinations}) for choice in CHOICES}
    page.places = {place(one["arch"], one["device"]) for one in combinations}
    experiments = list(_experiments(name, filters))
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
    page.rows = [_row(one, page, readings.get(one.pk, {})) for one in experiments]
    trends = _trends(row.leading.series_id for row in page.rows if row.leading)
    for row in page.rows:
        row.trend = trends.get(row.leading.series_id, []) if row.leading else []
    return page


def _combinations(name: str) -> list[dict[str, str]]:
    """What the suite's experiments say of each choice, and of the kind of device."""
    return list(Experiment.objects.filter(suite=name).values(*CHOICES, "device").distinct())


def place(arch: str, device: str) -> str:
    """The arch, or what is known instead: cells of a matrix differ in the kind of device where none of it is
    there to tell the arch."""
    return arch or (f"{device}, {_UNKNOWN}" if device else _UNKNOWN)


def _at(asked: str) -> Q:
    """The condition for an arch, or for one of the words that `place` has instead."""
    if not asked:
        return Q()
    device = "" if asked == _UNKNOWN else asked.removesuffix(f", {_UNKNOWN}")
    return Q(arch=asked) | (Q(arch="", device=device) if device != asked else Q())


def matching(text: str) -> Q:
    """Every word occurs in the case; a word after a minus does not."""
    condition = Q()
    for word in text.split()[:8]:
        if word.startswith("-") and len(word) > 1:
            condition &= ~Q(case__icontains=word[1:])
        else:
            condition &= Q(case__icontains=word)
    return condition


def _experiments(name: str, filters: Filters) -> list[Experiment]:
    wanted = {choice: getattr(filters, choice) for choice in CHOICES if getattr(filters, choice)}
    somewhere = _at(wanted.pop("arch", ""))
    first = (filters.page - 1) * PAGE_ROWS
    measured = Measurement.objects.filter(series__experiment=OuterRef("pk"), value__isnull=False)
    by_value = [Exists(measured).desc()] if name in SUITES and SUITES[name].matrix else []
    found = (
        Experiment.objects.filter(matching(filters.q), somewhere, suite=name, **wanted)
        .alias(knobs_text=Cast("knobs", TextField()))
        .annotate(total=Window(Count("pk")))
        # the shorter text first: D=1024 stands before D=16384
        .order_by(
            *by_value,
            "case",
            "arch",
            "device",
            "dtype",
            "mode",
            "backend",
            Length("knobs_text"),
            "knobs_text",
            "dynamic",
        )
    )
    return list(found[first : first + PAGE_ROWS])


def _row(experiment: Experiment, page: SuitePage, readings: dict[int, MetricValue]) -> Row:
    words = [
        place(experiment.arch, experiment.device) if name == "arch" else getattr(experiment, name)
        for name in page.varying
    ]
    cells = [readings.get(metric.pk) for metric in page.columns]
    leading = next((cell for cell in cells if cell and cell.median is not None), None)
    return Row(experiment, words, cells, trend=[], leading=leading)


def _trends(series_ids: Iterable[int]) -> dict[int, list[float]]:
    trends = fetch_tuples(
        """
        SELECT s.id, ARRAY(
            SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY value) FROM (
                SELECT at, run_id, value FROM hud_measurement
                WHERE series_id = s.id AND value IS NOT NULL
                ORDER BY at DESC, run_id DESC FETCH FIRST %(points)s ROWS WITH TIES
            ) process GROUP BY at, run_id ORDER BY at DESC, run_id DESC)
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
    runnable: bool  # the catalogue holds it: an attached host can run it
    not_offered: str = ""  # why none of those that are attached does


def read_all() -> list[SuiteLine]:
    """Every suite with data or in the catalogue, in 2 statements."""
    found = (
        Experiment.objects.values("suite")
        .annotate(
            experiments=Count("pk"),
            cases=Count("case", distinct=True),
            arches=ArrayAgg("arch", distinct=True, filter=~Q(arch=""), default=[]),
        )
        .order_by("suite")
    )
    lines = [
        SuiteLine(
            one["suite"],
            suite_title(one["suite"]),
            one["experiments"],
            one["cases"],
            one["arches"],
            one["suite"] in SUITES,
        )
        for one in found
    ]
    known = {line.name for line in lines}
    lines += [
        SuiteLine(suite.name, suite.title, 0, 0, [], runnable=True)
        for suite in SUITES.values()
        if suite.name not in known
    ]
    missing = not_offered(SUITES)
    for line in lines:
        line.not_offered = missing.get(line.name, "")
    return lines
