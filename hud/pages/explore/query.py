"""Any series beside each other: those that the filters choose, their points by night, and their lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hud.models import NEVER_RAN, STATUS_CODES, Metric, Regression, Stream
from hud.pages.backends_table import backend_place, suite_place
from hud.pages.explore import lines
from hud.pages.explore.filters import DIMENSIONS, ExploreFilters, SeriesRow
from hud.pages.explore.lines import Line, Slot, Style
from hud.pages.query_string import OPTIONS
from hud.points import nights, streams
from hud.points import read as points
from hud.points.columns import key_of, place_of
from hud.points.nights import MODEL_SUITES
from hud.runs.branches import stored_names
from hud.sql import fetch_columns, fetch_models, fetch_tuples, int_array
from hud.states.regressions import ACTIVE

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_LINES = 100  # of one chart
_MOST_SERIES = 1000  # of means
_NEVER = [STATUS_CODES[name] for name in NEVER_RAN]


@dataclass
class ExplorePage:
    stream: Stream
    filters: ExploreFilters  # with what is shown
    metrics: dict[str, Metric]  # that the streams have, the most telling first
    rows: list[SeriesRow] = field(default_factory=list)  # of the metrics and streams
    offered: dict[str, Counter[str]] = field(default_factory=dict)  # names with their series
    chosen: list[SeriesRow] = field(default_factory=list)  # that are drawn, or whose means are
    left_out: int = 0  # series beyond the most
    without_base: int = 0  # series without the value that others are relative to
    lines: list[Line] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)  # of the x axis
    complaints: list[str] = field(default_factory=list)

    @cached_property
    def backends(self) -> list[str]:
        return sorted({row.of("backend") for row in self.rows}, key=backend_place)

    @cached_property
    def styles(self) -> dict[str, Style]:
        by_backend = self.filters.colour == "backend"
        names = self.backends if by_backend else sorted({line.coloured_by for line in self.lines})
        return {"": (0, "solid")} | lines.styles(names, of_backends=by_backend)

    @property
    def narrowing(self) -> list[tuple[int, str]]:
        """Return how many names the chosen series have in each dimension with several, most first."""
        counts = ((len({row.of(name) for row in self.chosen}), name) for name in DIMENSIONS)
        return sorted(((count, name) for count, name in counts if count > 1), reverse=True)


def read(filters: ExploreFilters, stream: Stream) -> ExplorePage:
    """Return the page: 6 statements; 1 more each for several streams, versions of torch, several points in a
    night and levels of another stream, and 3 where nothing is chosen."""
    if not (filters.chosen.keys() - {"stream"} or filters.q):
        filters = _usual(filters, stream)
    others = [name for name in filters.stream if name != stream.name]
    known = [stream, *(Stream.objects.filter(name__in=others) if others else ())]
    metrics = _metrics(known, filters.suite)
    measured = tuple(name for name in filters.metric if name in metrics) or tuple(metrics)[:1]
    rows = _series(known, [metrics[name].pk for name in measured])
    by_dimension = [*zip(*(row.names for row in rows), strict=True)] or [()] * 7
    valid = {name: set(names) for name, names in zip(DIMENSIONS[:7], by_dimension, strict=False)}
    valid |= {"metric": set(metrics), "stream": {each.name for each in known}}
    page = ExplorePage(stream, filters, metrics, rows)
    page.complaints = [
        f"{name}: nothing was measured of {each!r}"
        for name, names in filters.chosen.items()
        for each in sorted(names - valid[name])
    ]
    shown: dict[str, Any] = {
        name: tuple(each for each in getattr(filters, name) if each in valid[name]) for name in valid
    }
    shown |= {"metric": measured, "stream": tuple(each.name for each in known)}
    page.filters = replace(filters, **shown)
    _choose(page)
    if page.chosen:
        _draw(page)
    return page


def _usual(filters: ExploreFilters, stream: Stream) -> ExploreFilters:
    """Choose for an address that names nothing: means of the backends in a suite of the default subject."""
    measured = streams.measured_by(stream)
    if not (subjects := streams.subjects(nights.read(stream), measured)):
        return filters
    suites = [suite for subject, suite in measured if subject == subjects[0]]
    suite = min(suites, key=lambda name: (name not in MODEL_SUITES, suite_place(name)))
    about: dict[str, Any] = {name: (getattr(subjects[0], name),) for name in ("arch", "mode", "dtype")}
    return replace(filters, suite=(suite,), line="mean", **about)


def _metrics(known: Sequence[Stream], suites: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics of streams by name, those of the suites first, the most telling first."""
    series = """EXISTS (SELECT FROM hud_series s JOIN hud_experiment e ON e.id = s.experiment_id
        WHERE s.metric_id = own.id AND s.stream_id = ANY(%(streams)s::int[]) AND {})"""
    params = {"streams": int_array(each.pk for each in known), "suites": list(suites)}
    computed = {"of_suites": series.format("e.suite = ANY(%(suites)s)")}
    metrics = fetch_models(Metric, f"WHERE {series.format('true')}", params, computed=computed)
    suite = suites[0] if suites else ""
    metrics.sort(key=lambda metric: (not vars(metric)["of_suites"], points.metric_place(suite, metric)))
    # of what tells the same as the first, the best comes first, as in the tables of suites
    alike = [metric for metric in metrics if _tell_the_same(metric, metrics[0])]
    alike.sort(key=lambda metric: place_of(metric.name))
    return {metric.name: metric for metric in (*alike, *metrics)}


def _tell_the_same(metric: Metric, other: Metric) -> bool:
    return key_of(metric.name) == key_of(other.name) and vars(metric)["of_suites"] == vars(other)["of_suites"]


def _series(known: Sequence[Stream], metrics: Sequence[int]) -> list[SeriesRow]:
    """Return the series of streams and metrics, in the order of the chart: 1 statement. Whether each has a
    point is not asked, which would take most of the time."""
    rows = fetch_tuples(
        f"""
        SELECT s.id, e.id, e.suite, e."case",
            concat_ws(', ', nullif(btrim({OPTIONS}, '{{}}'), ''),
                CASE WHEN e.dynamic THEN 'dynamic shapes' END),
            e.backend, coalesce(nullif(e.arch, ''), e.device), e.mode, e.dtype, m.name, t.name
        FROM hud_series s JOIN hud_experiment e ON e.id = s.experiment_id
        JOIN hud_metric m ON m.id = s.metric_id JOIN hud_stream t ON t.id = s.stream_id
        WHERE s.metric_id = ANY(%(metrics)s::int[]) AND s.stream_id = ANY(%(streams)s::int[])
        ORDER BY s.id
        """,  # noqa: S608 — a constant  # nosec B608
        {"metrics": int_array(metrics), "streams": int_array(each.pk for each in known)},
    )
    series = [SeriesRow(row[0], row[1], tuple(name or "none" for name in row[2:])) for row in rows]
    places = {name: backend_place(name) for name in {row.names[3] for row in series}}
    return sorted(series, key=lambda row: (row.names[7], row.names[:3], places[row.names[3]]))


def _choose(page: ExplorePage) -> None:
    """Choose the series, and count what each dimension offers beside the choices in the others."""
    wanted = [(DIMENSIONS.index(name), names) for name, names in page.filters.chosen.items()]
    parts = [(part.lstrip("-"), part.startswith("-")) for part in page.filters.q.lower().split()]
    page.offered = {name: Counter(dict.fromkeys(getattr(page.filters, name), 0)) for name in DIMENSIONS}
    page.offered["metric"] = Counter(dict.fromkeys(page.metrics, 0))
    fitting = []
    for row in page.rows:
        names = row.names
        if any((part in names[1].lower()) == excluded for part, excluded in parts):
            continue
        missed = [place for place, allowed in wanted if names[place] not in allowed]
        if not missed:
            fitting.append(row)
        for place in range(len(names)) if not missed else missed if len(missed) == 1 else ():
            page.offered[DIMENSIONS[place]][names[place]] += 1
    kind, _colon, base = page.filters.relative.partition(":")
    fitting = [row for row in fitting if kind != "backend" or row.of("backend") != base]
    most = MOST_LINES if page.filters.line == "series" else _MOST_SERIES
    page.chosen, page.left_out = fitting[:most], max(len(fitting) - most, 0)


def _draw(page: ExplorePage) -> None:
    """Read the points of the chosen series, and make lines of them."""
    kind, _colon, base = page.filters.relative.partition(":")
    bases = {row.partner: row.pk for row in page.rows if kind == "backend" and row.of("backend") == base}
    partner_of = {row.pk: bases[row.partner] for row in page.chosen if row.partner in bases}
    own = [row.pk for row in page.chosen]
    frame = _points([*own, *set(partner_of.values())], int(page.filters.nights))
    if frame.empty:
        return
    frame, page.slots = lines.at_slots(frame, page.filters.x)
    if (shown := lines.shown(frame, page.slots, page.filters.relative, partner_of)) is None:
        page.complaints.append(f"relative: nothing was measured of {page.filters.relative!r}")
        page.filters, shown = replace(page.filters, relative=""), frame["value"]
    frame = frame.assign(shown=shown)
    if page.filters.relative:
        frame = frame[frame.groupby("series")["shown"].transform("count") > 0]
        page.without_base = len(own) - len(set(own) & set(frame["series"]))
    page.lines = lines.lines_of(frame, page.chosen, page.filters)
    _add_points(page)


def _points(series: Sequence[int], most: int) -> DataFrame:
    """Return the newest points of each series on the default branch, without reruns: 1 statement."""
    import pandas as pd  # noqa: PLC0415  # 50 MB of memory that no other page needs

    columns = ("series", "run", "environment", "time", "value", "decides")
    arrays = fetch_columns(
        ["id", "run_id", "environment_id", "order_time", "coalesce(value, 'NaN')", "decides"],
        """(SELECT s.id, p.* FROM unnest(%(series)s::int[]) s(id) CROSS JOIN LATERAL (
            SELECT run_id, environment_id, order_time, value, (quality IS NULL)::int decides
            FROM hud_point WHERE series_id = s.id AND NOT rerun AND branch = ANY(%(branches)s)
                AND status <> ALL(%(never)s)
            ORDER BY order_time DESC, run_id DESC, environment_id DESC LIMIT %(most)s) p) newest""",
        {"series": int_array(series), "branches": stored_names(), "never": _NEVER, "most": most},
    )
    return pd.DataFrame(dict(zip(columns, arrays, strict=True)))


def _add_points(page: ExplorePage) -> None:
    """Add to the lines of one series their newest points, and the regressions that wait for somebody: 2
    statements, 1 more for levels of another stream."""
    by_series = {line.row.pk: line for line in page.lines if line.row}
    runs = [int(line.runs[-1]) for line in by_series.values()]
    for pk, point in points.of_runs(list(by_series), runs).items():
        by_series[pk].point = point
    active = "WHERE series_id = ANY(%(series)s::int[]) AND state = ANY(%(active)s) ORDER BY since DESC"
    params = {"series": int_array(by_series), "active": list(ACTIVE)}
    for regression in fetch_models(Regression, active, params):
        by_series[regression.series_id].regression = regression
