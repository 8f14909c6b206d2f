"""Any series beside each other: those that the filters choose, their points by night, and their lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from hud.models import NEVER_RAN, STATUS_CODES, Metric, Regression, Stream
from hud.pages.backends_table import backend_place, suite_place
from hud.pages.explore import lines
from hud.pages.explore.filters import DIMENSIONS, ExploreFilters, SeriesRow
from hud.pages.explore.lines import Line, Slot, Style
from hud.pages.query_string import NAMED, OPTIONS, named
from hud.points import nights, streams
from hud.points import read as points
from hud.points.columns import key_of, place_of
from hud.points.kept import Kept
from hud.points.nights import MODEL_SUITES
from hud.runs.branches import stored_names
from hud.sql import by_id, fetch_columns, fetch_models, fetch_tuples, int_array
from hud.states.regressions import ACTIVE

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_LINES = 100  # of one chart
MOST_OFFERED = 300  # names of a dimension
_MOST_SERIES = 1000  # of means
_NEVER = [STATUS_CODES[name] for name in NEVER_RAN]
# Series s of the streams with their experiments e, by the names that the dimensions have
_SERIES = f"""hud_series s JOIN (
    SELECT id, suite, "case", "case" words, coalesce(nullif(mode, ''), 'none') mode,
        coalesce(nullif(concat_ws(', ', nullif(btrim({OPTIONS}, '{{}}'), ''),
            CASE WHEN dynamic THEN 'dynamic shapes' END), ''), 'none') options,
        coalesce(nullif(backend, ''), 'none') backend, coalesce(nullif(dtype, ''), 'none') dtype,
        coalesce(nullif(arch, ''), nullif(device, ''), 'none') arch
    FROM hud_experiment) e ON e.id = s.experiment_id AND s.stream_id = ANY(%(streams)s::int[])"""  # noqa: S608 — a constant  # nosec B608
_kept = Kept(16)  # of what is in streams, until something comes in


@dataclass
class ExplorePage:
    stream: Stream
    filters: ExploreFilters  # with what is shown
    metrics: dict[str, Metric]  # that the streams have, the most telling first
    backends: list[str]  # that the chosen metrics have
    offered: dict[str, Counter[str]] = field(default_factory=dict)  # names with their series
    has_more_cases: bool = False  # than it offers
    chosen: list[SeriesRow] = field(default_factory=list)  # that are drawn, or whose means are
    left_out: int = 0  # series beyond the most
    without_base: int = 0  # series without the value that others are relative to
    lines: list[Line] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)  # of the x axis
    complaints: list[str] = field(default_factory=list)

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
    """Return the page: 9 statements, 2 more where something has come in since this process asked; 1 more each
    for versions of torch, several points in a night, a backend that others are relative to and levels of
    another stream, 3 for each other stream and where nothing is chosen."""
    if not (filters.chosen.keys() - {"stream"} or filters.q):
        filters = _usual(filters, stream)
    others = [name for name in filters.stream if name != stream.name]
    known = [stream, *(Stream.objects.filter(name__in=others) if others else ())]
    names_of = {each.pk: each.name for each in known}
    version = tuple((streams.version_of(each), *streams.measured_by(each)) for each in known)
    metrics = _metrics(names_of, version, filters.suite)
    measured = tuple(name for name in filters.metric if name in metrics) or tuple(metrics)[:1]
    counted = _counted(names_of, version, [metrics[name] for name in measured], filters)
    by_dimension = [*zip(*(names for names, _count in counted), strict=True)] or [()] * len(DIMENSIONS)
    valid = {name: {*names} - {""} for name, names in zip(DIMENSIONS, by_dimension, strict=True)}
    page = ExplorePage(stream, filters, metrics, sorted(valid["backend"], key=backend_place))
    valid |= {"metric": set(metrics), "stream": {*names_of.values()}}
    page.complaints = [
        f"{name}: nothing was measured of {each!r}"
        for name, names in filters.chosen.items()
        for each in sorted(names - valid[name])
    ]
    shown: dict[str, Any] = {
        name: tuple(each for each in getattr(filters, name) if each in valid[name]) for name in valid
    }
    shown |= {"metric": measured, "stream": tuple(names_of.values())}
    page.filters = replace(filters, **shown)
    _choose(page, names_of, counted)
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


def _metrics(known: Mapping[int, str], version: Hashable, suites: Sequence[str]) -> dict[str, Metric]:
    """Return the metrics of streams by name, those of the suites first, the most telling first: 1 statement,
    1 more where something has come in since this process asked."""
    statement = f"SELECT DISTINCT s.metric_id, e.suite FROM {_SERIES}"  # noqa: S608 — a constant  # nosec B608
    read = partial(fetch_tuples, statement, {"streams": int_array(known)})
    pairs = _kept.get(("metrics", version), read)
    of_suites = {pk for pk, suite in pairs if suite in suites}
    metrics = list(by_id(Metric, [pk for pk, _suite in pairs]).values())
    suite = suites[0] if suites else ""
    metrics.sort(key=lambda metric: (metric.pk not in of_suites, points.metric_place(suite, metric)))
    # of what tells the same as the first, the best comes first, as in the tables of suites
    kinds = [(key_of(metric.name), metric.pk in of_suites) for metric in metrics]
    alike = [metric for metric, kind in zip(metrics, kinds, strict=True) if kind == kinds[0]]
    alike.sort(key=lambda metric: place_of(metric.name))
    return {metric.name: metric for metric in (*alike, *metrics)}


def _counted(
    known: Mapping[int, str], version: Hashable, metrics: Sequence[Metric], filters: ExploreFilters
) -> list[tuple[tuple[str, ...], int]]:
    """Return how many series of streams and metrics have the same names in each dimension, in the order of
    the chart: 1 statement where something has come in since this process counted. A case that is not chosen
    is ''; without the words of the filter it counts 0. Whether a series has a point is not asked, which
    would take most of the time."""
    titles = {metric.pk: metric.name for metric in metrics}
    about = {"streams": int_array(known), "metrics": int_array(titles), "case": list(filters.case)}
    read = partial(
        fetch_tuples,
        f"""
        SELECT s.metric_id, s.stream_id, count(*) FILTER (WHERE {NAMED if filters.q else "true"}), e.suite,
            CASE WHEN e."case" = ANY(%(case)s) THEN e."case" ELSE '' END, options, backend, arch, mode, dtype
        FROM {_SERIES} WHERE s.metric_id = ANY(%(metrics)s::int[]) GROUP BY 1, 2, 4, 5, 6, 7, 8, 9, 10
        """,  # noqa: S608 — constants, as below  # nosec B608
        {**about, **named(filters.q)},
    )
    rows = _kept.get(("series", version, tuple(titles), filters.case, filters.q), read)
    counted = [((*names, titles[metric], known[stream]), count) for metric, stream, count, *names in rows]
    return sorted(counted, key=lambda one: _place(one[0]))


def _place(names: tuple[str, ...]) -> tuple[Any, ...]:
    """Return where a series stands in the chart."""
    return names[7], names[:3], backend_place(names[3])


def _choose(
    page: ExplorePage, known: Mapping[int, str], counted: Sequence[tuple[tuple[str, ...], int]]
) -> None:
    """Choose the series, and count what each dimension offers beside the choices in the others: 2
    statements, which read what is shown."""
    filters = page.filters
    wanted = [(DIMENSIONS.index(name), names) for name, names in filters.chosen.items()]
    page.offered = {name: Counter(dict.fromkeys(getattr(filters, name), 0)) for name in DIMENSIONS}
    page.offered["metric"] = Counter(dict.fromkeys(page.metrics, 0))
    base = filters.relative.removeprefix("backend:") if filters.relative.startswith("backend:") else ""
    fitting = 0
    for names, count in counted:
        if not count:
            continue
        missed = [place for place, allowed in wanted if names[place] not in allowed]
        fitting += count if not missed and names[3] != base else 0
        for place in range(len(names)) if not missed else missed if len(missed) == 1 else ():
            page.offered[DIMENSIONS[place]][names[place]] += count
    # in the statements' text, as PostgreSQL plans them once for any parameters
    most = MOST_LINES if filters.line == "series" else _MOST_SERIES
    params = {
        **{name: list(names) for name, names in filters.chosen.items()},
        **named(filters.q),
        "metrics": int_array(sorted(page.metrics[name].pk for name in filters.metric)),
        "streams": int_array(known),
        "base": base,
        "backends": page.backends,
    }
    chosen = {name: f" AND e.{name} = ANY(%({name})s)" for name in DIMENSIONS[:7] if getattr(filters, name)}
    if filters.q:
        chosen["q"] = f" AND {NAMED}"
    of_cases = "".join(condition for name, condition in chosen.items() if name != "case")
    cases = fetch_tuples(
        f"""
        SELECT e."case", count(*) FROM {_SERIES}
        WHERE s.metric_id = ANY(%(metrics)s::int[]) {of_cases}
        GROUP BY e.suite, e."case" ORDER BY e.suite, e."case" LIMIT {MOST_OFFERED + 1}
        """,  # noqa: S608  # nosec B608
        params,
    )
    page.has_more_cases = len(cases) > MOST_OFFERED
    page.offered["case"] = Counter(dict.fromkeys(filters.case, 0))
    for name, count in cases[:MOST_OFFERED]:  # another suite may have more of a case
        page.offered["case"][name] += 0 if page.has_more_cases else count
    rows = fetch_tuples(
        f"""
        SELECT one.*, m.metric FROM unnest(%(metrics)s::int[]) m(metric) CROSS JOIN LATERAL (
            SELECT s.id series, e.id, e.suite, e."case", options, backend, arch, mode, dtype, s.stream_id
            FROM {_SERIES}
            WHERE s.metric_id = m.metric AND backend <> %(base)s {"".join(chosen.values())}
            ORDER BY e.suite, e."case", options, array_position(%(backends)s::text[], backend), s.id
            LIMIT {most}) one
        """,  # noqa: S608  # nosec B608
        params,
    )
    titles = {page.metrics[name].pk: name for name in filters.metric}
    series = [
        SeriesRow(pk, experiment, (*names, titles[metric], known[stream]))
        for pk, experiment, *names, stream, metric in rows
    ]
    page.chosen = sorted(series, key=lambda row: _place(row.names))[:most]
    page.left_out = max(fitting - len(page.chosen), 0)


def _draw(page: ExplorePage) -> None:
    """Read the points of the chosen series, and make lines of them."""
    own = [row.pk for row in page.chosen]
    kind, _colon, base = page.filters.relative.partition(":")
    partner_of = _partners(own, base) if kind == "backend" else {}
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


def _partners(series: Sequence[int], backend: str) -> dict[int, int]:
    """Return of each series that of the same case with a backend: 1 statement."""
    rows = fetch_tuples(
        """
        SELECT s.id, other.id FROM hud_series s JOIN hud_experiment own ON own.id = s.experiment_id
        JOIN hud_experiment e USING (suite, "case", knobs, mode, dtype, device, arch, dynamic)
        JOIN hud_series other ON (other.experiment_id, other.metric_id, other.stream_id) = (
            e.id, s.metric_id, s.stream_id)
        WHERE s.id = ANY(%(series)s::int[]) AND coalesce(nullif(e.backend, ''), 'none') = %(backend)s
        """,
        {"series": int_array(series), "backend": backend},
    )
    return dict(rows)


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
