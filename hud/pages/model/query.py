"""A model, a case of a suite, in all its experiments of a stream: their newest points and their trend."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from hud.models import Experiment, Metric, Point, Regression, Series, Stream
from hud.pages.backends_table import backend_place, colour
from hud.points import expectations
from hud.points import read as points
from hud.points.columns import SuiteColumn, columns_of, metric_names
from hud.points.targets import Targets
from hud.sql import fetch_models, int_array
from hud.states.regressions import ACTIVE, TOLD
from hud.tables.formatting import json_text

_TREND = 28  # points
TONES = {"regressed": "worse", "improved": "better"}


@dataclass
class Combination:
    """An experiment with its newest points, by metric."""

    setup: tuple[str, str]  # the backend, and the options in which the model's experiments differ
    place: tuple[str, str]  # the arch, and mode and type
    points: dict[str, Point] = field(default_factory=dict)
    trend: list[float] = field(default_factory=list)  # in the chosen column, oldest first
    regression: Regression | None = None  # likewise, an active one
    tone: str = ""  # likewise worse or better, of the newest value
    moved: int = 0  # how many of its newest values are

    def __str__(self) -> str:
        return ", ".join(filter(None, (*self.place, *self.setup)))


Cell: TypeAlias = tuple[Combination, Point]


@dataclass
class ModelPage:
    columns: list[SuiteColumn]
    combinations: list[Combination]  # by backend and options
    chosen: SuiteColumn | None = None
    regressions: dict[int, Regression] = field(default_factory=dict)  # active ones, by series

    def cells(self, column: SuiteColumn) -> list[Cell]:
        cells = ((combination, column.cell(combination.points)) for combination in self.combinations)
        return [(combination, point) for combination, point in cells if point]

    @cached_property
    def shown(self) -> list[Cell]:
        return self.cells(self.chosen) if self.chosen else []

    @cached_property
    def places(self) -> list[tuple[str, str]]:
        """Return the columns of the grid, those of the arch with most combinations first."""
        counts = Counter(row.place[0] for row, _point in self.shown)
        return sorted({row.place for row, _point in self.shown}, key=lambda place: (-counts[place[0]], place))

    def grid(self) -> list[tuple[str, str, int, list[tuple[tuple[str, str], Cell | None]]]]:
        """Return a row for each backend with its options: these, its colour, and a cell for each place."""
        cells = {(row.setup, row.place): (row, point) for row, point in self.shown}
        return [
            (*setup, colour(setup[0]), [(place, cells.get((setup, place))) for place in self.places])
            for setup in dict.fromkeys(row.setup for row, _point in self.shown)
        ]

    def tone(self, point: Point) -> str:
        """Return worse of a point whose regression waits for somebody, else what its verdict says."""
        regression = self.regressions.get(point.series_id)
        return "worse" if regression and regression.state in TOLD else TONES.get(point.verdict, "")

    def with_tone(self, tone: str) -> list[Cell]:
        """Return the shown points with a tone, the largest change first."""
        moved = [cell for cell in self.shown if cell[0].tone == tone]
        return sorted(moved, key=lambda cell: -abs(cell[1].change or 0.0))

    def worst(self) -> list[tuple[SuiteColumn, Cell, list[float]]]:
        """Return of each column, of its most frequent metric, the worst point that may decide, and how far
        each is from it, up to 180."""
        lines = []
        for column in self.columns:
            able = [
                cell
                for cell in self.cells(column)
                if cell[1].value is not None and not (cell[1].quality or cell[1].rerun)
            ]
            names = [point.metric.name for _one, point in able if point.metric.direction != "none"]
            same = [cell for cell in able if names and cell[1].metric.name == max(names, key=names.count)]
            signs = [1 if point.metric.direction == "up" else -1 for _one, point in same]
            values = [sign * (point.value or 0.0) for sign, (_one, point) in zip(signs, same, strict=True)]
            if len(set(values)) > 1:
                worst, best = min(values), max(values)
                distances = [round(180 * (value - worst) / (best - worst), 1) for value in values]
                lines.append((column, same[values.index(worst)], distances))
        return lines


def read(stream: Stream, experiments: Sequence[Experiment], metric: str) -> ModelPage:
    """Return a case, of which these are all experiments, in a stream; `metric` or the key of a column chooses
    one: 6 statements, 1 more for levels of another stream and for measured ceilings, 2 where lists or people
    say what to expect."""
    known = {experiment.pk: experiment for experiment in experiments}
    series = fetch_models(
        Series,
        """JOIN hud_metric metric ON metric.id = own.metric_id
        WHERE own.experiment_id = ANY(%(experiments)s::int[]) AND own.stream_id = %(stream)s""",
        {"experiments": int_array(known), "stream": stream.pk},
        metric=Metric,
    )
    columns, _hidden = columns_of(experiments[0].suite, list({row.metric for row in series}))
    series = [row for row in series if row.metric.name in metric_names(columns)]
    newest = points.shown(series, known, points.latest([row.pk for row in series]), Targets.read())
    expectations.add(stream.pk, newest)
    combinations = _combinations([known[pk] for pk in {point.experiment.pk for point in newest}])
    for point in newest:
        combinations[point.experiment.pk].points[point.metric.name] = point
    page = ModelPage(columns, list(combinations.values()))
    page.columns = [column for column in columns if page.cells(column)]
    asked = [column for column in page.columns if metric in (column.key, *column.metrics)]
    page.chosen = next(iter([*asked, *page.columns]), None)
    params = {"series": int_array(point.series_id for point in newest), "active": list(ACTIVE)}
    active = "WHERE series_id = ANY(%(series)s::int[]) AND state = ANY(%(active)s) ORDER BY since DESC"
    page.regressions = {found.series_id: found for found in fetch_models(Regression, active, params)}
    trends = points.recent([point.series_id for _row, point in page.shown], _TREND)
    for (row, point), values in zip(page.shown, trends, strict=True):
        row.regression = page.regressions.get(point.series_id)
        row.trend, row.tone = values, page.tone(point)
        row.moved = min(row.regression.points if row.regression else 1, len(values)) if row.tone else 0
    return page


def _combinations(experiments: Sequence[Experiment]) -> dict[int, Combination]:
    """Return them by experiment, in the order of rows."""
    names = sorted({name for experiment in experiments for name in experiment.knobs})
    varying = [name for name in names if len({json_text(each.knobs.get(name)) for each in experiments}) > 1]
    combinations = {}
    for row in experiments:
        options = [f"{name}={json_text(row.knobs[name])}" for name in varying if name in row.knobs]
        setup = row.backend or "backend unknown", ", ".join([*options, *["dynamic shapes"] * row.dynamic])
        arch = row.arch or f"{row.device} arch unknown".strip()
        combinations[row.pk] = Combination(setup, (arch, ", ".join(filter(None, (row.mode, row.dtype)))))
    rows = {
        pk: (backend_place(row.setup[0]), len(row.setup[1]), row.setup[1], row.place)
        for pk, row in combinations.items()
    }
    return {pk: combinations[pk] for pk in sorted(combinations, key=rows.__getitem__)}
