"""What a run found: its points by importance, sorted, filtered and cut to a page by the database."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property
from typing import Any

from hud.models import (
    NEVER_RAN,
    STATUS_CODES,
    VERDICTS,
    Environment,
    Experiment,
    Metric,
    Point,
    PointFields,
    Run,
    SidePoint,
    Stream,
)
from hud.pages.query_string import MAX_PAGE, number, one_of, words
from hud.points import expectations
from hud.points.read import main_metrics
from hud.points.targets import Targets
from hud.sql import attach, by_id, fetch, fetch_models, fetch_tuples, int_array
from runner.suites import SUITES

# What a point shows, in the order of the page
KINDS = (
    "regressed", "unexpected", "failed", "missed", "inconclusive", "improved", "not_run", "known", "rest",
)  # fmt: skip
_CHOICES = ("suite", "mode", "dtype", "backend", "arch")
_NAME = '"case", experiment_id'
_SORTS = {
    "": f"kind, factor DESC NULLS LAST, place, metric, {_NAME}",
    "experiment": f"{_NAME}, place, metric",
    "metric": f"place, metric, {_NAME}",
    "value": f"value NULLS LAST, {_NAME}, place, metric",
    "change": f"change NULLS LAST, {_NAME}, place, metric",
    "noise": f"factor NULLS LAST, {_NAME}, place, metric",
}
_SHARED = 3  # rows with the same warning, which is then said once
SORTS = tuple(_SORTS) + tuple(f"-{name}" for name in _SORTS if name)


@dataclass(frozen=True)
class ResultFilters:
    """The table's part of the query string."""

    show: str = one_of(*KINDS)
    q: str = words()  # words that must all occur in experiment or metric; -word must not
    sort: str = one_of(*filter(None, SORTS))  # "" by importance; a column, with - the other way round
    page: int = number(MAX_PAGE, default=1)


@dataclass(slots=True)
class Moved:
    """A regression that began in the run, or has its newest point in it."""

    id: int
    series_id: int
    state: str
    last_good_run: int | None  # with `base`, its commit, where both ends are kept
    base: str
    head: str  # commit of the first run that moved


@dataclass(frozen=True)
class Count:
    """How often a run shows something."""

    points: int
    experiments: int


@dataclass
class Results:
    """A page of a run's points; in an A/B run those of both sides."""

    filters: ResultFilters
    size: int  # points on a page
    total: int = 0  # points that match
    counts: dict[str, Count] = field(default_factory=dict)  # of all points, by kind
    experiments: int = 0  # of the whole run
    worst: dict[str, Any] = field(default_factory=dict)  # the most certain change for the worse, or doubt
    rows: list[PointFields] = field(default_factory=list)
    regressions: dict[int, Moved] = field(default_factory=dict)  # by series
    environments: list[Environment] = field(default_factory=list)

    @property
    def points(self) -> int:
        return sum(count.points for count in self.counts.values())

    @property
    def first(self) -> int:
        return (self.filters.page - 1) * self.size + 1

    @property
    def last(self) -> int:
        return min(self.first + self.size - 1, self.total)

    @property
    def next_page(self) -> int | None:
        return self.filters.page + 1 if self.last < self.total else None

    @property
    def previous_page(self) -> int | None:
        return self.filters.page - 1 if self.filters.page > 1 else None

    @property
    def judged(self) -> bool:
        return all(point.verdict for point in self.rows)

    @property
    def varying(self) -> list[str]:
        """Return in which of these the shown experiments differ."""
        return [name for name in _CHOICES if len({getattr(one.experiment, name) for one in self.rows}) > 1]

    @property
    def constant(self) -> list[str]:
        """Return what all shown experiments have in common."""
        shown = self.rows[0].experiment
        return [str(getattr(shown, name)) for name in _CHOICES if name not in self.varying]

    @cached_property
    def notes(self) -> dict[str, tuple[int, int]]:
        """Return the warnings that several of the shown rows share: the number of each, and how many rows."""
        counted = Counter(point.warning for point in self.rows if point.warning)
        shared = [(text, count) for text, count in counted.most_common() if count >= _SHARED]
        return {text: (number, count) for number, (text, count) in enumerate(shared, 1)}

    @property
    def has_noise(self) -> bool:
        return any(point.factor is not None for point in self.rows if isinstance(point, Point))

    @property
    def has_targets(self) -> bool:
        return any(point.targets for point in self.rows)


@dataclass(slots=True)
class _Place:
    """Which point stands in a row of the page, and what the whole run has."""

    series_id: int | None  # None: the page has none
    experiment_id: int
    metric_id: int
    environment_id: int
    order_time: datetime
    side: int
    total: int
    counts: dict[str, list[int]]
    experiments: int
    worst: dict[str, Any] | None


def read(run: Run, filters: ResultFilters, size: int) -> Results:
    """Return a page of the results, in a fixed number of statements."""
    targets = Targets.read()
    words = [word.strip('"') for word in filters.q.split()[:8]]
    columns = _OF_SIDES if run.is_ab else _OF_SERIES
    marked = dict.fromkeys(_missed(run, columns, targets), "missed") | _listed(run)
    marks = zip(*((*key, kind) for key, kind in marked.items()), strict=True) if marked else [()] * 5
    places = fetch(
        _Place,
        _PAGE.format(
            points=_POINTS.format(words=_WORDS if words else "''", columns=columns),
            order=_order(filters.sort),
            shown="(%(kinds)s::text[])[kind] = %(show)s" if filters.show else "true",
            named=_NAMED if words else "true",
        ),
        {
            "run": run.pk,
            "never": [STATUS_CODES[name] for name in NEVER_RAN],
            "failing": [code for name, code in STATUS_CODES.items() if name != "ok"],
            "verdicts": list(VERDICTS),
            **{f"marked_{name}": list(each) for name, each in zip((*_KEY, "kind"), marks, strict=True)},
            "kinds": list(KINDS),
            "places": _places(),
            "show": filters.show,
            "with": [f"%{_escaped(word)}%" for word in words if not word.startswith("-")],
            "without": [f"%{_escaped(word[1:])}%" for word in words if word.startswith("-") and word[1:]],
            "limit": size,
            "offset": (filters.page - 1) * size,
        },
    )
    about = places[0]
    results = Results(
        filters,
        size,
        total=about.total,
        counts={kind: Count(*about.counts[kind]) for kind in KINDS if kind in about.counts},
        experiments=about.experiments,
        worst=about.worst or {},
    )
    if about.series_id is not None:
        _fill(run, results, places, targets)
    return results


def _fill(run: Run, results: Results, places: Sequence[_Place], targets: Targets) -> None:
    params = {"run": run.pk, "series": int_array({place.series_id for place in places if place.series_id})}
    wanted = "WHERE run_id = %(run)s AND series_id = ANY(%(series)s::int[])"
    experiments = by_id(Experiment, [place.experiment_id for place in places])
    metrics = by_id(Metric, [place.metric_id for place in places])
    points: dict[tuple[int | None, int, datetime, int], PointFields] = {}
    if run.is_ab:
        for side in fetch_models(SidePoint, wanted, params):
            points[side.series_id, side.environment_id, side.order_time, side.side] = side
    else:
        judged = fetch_models(Point, wanted, params)
        attach(judged, "level_stream", by_id(Stream, [point.level_stream_id for point in judged]))
        points.update(((one.series_id, one.environment_id, one.order_time, 0), one) for one in judged)
    results.rows = [
        points[place.series_id, place.environment_id, place.order_time, place.side].show(
            experiments[place.experiment_id], metrics[place.metric_id], targets
        )
        for place in places
    ]
    expectations.add(run.stream_id, results.rows)
    moved = fetch(
        Moved,
        """
        SELECT one.id, one.series_id, one.state, good.id last_good_run, coalesce(good.commit, '') base,
            coalesce(first.commit, '') head
        FROM hud_regression one
        LEFT JOIN hud_run first ON first.id = one.first_run_id
        LEFT JOIN hud_run good ON good.id = one.last_good_run_id AND first.id IS NOT NULL
        WHERE (one.first_run_id = %(run)s OR one.latest_run_id = %(run)s)
            AND one.series_id = ANY(%(series)s::int[])
        ORDER BY one.id
        """,
        params,
    )
    results.regressions = {one.series_id: one for one in moved}
    environments = by_id(Environment, [place.environment_id for place in places])
    results.environments = [environments[pk] for pk in sorted(environments)]


def _listed(run: Run) -> dict[tuple[Any, ...], str]:
    """Return by key the points that a list does not expect, and the failures that are known, each with its
    kind: at most 6 statements."""
    kinds: dict[tuple[Any, ...], str] = {}
    for point in [] if run.is_ab else expectations.of_runs(run.stream_id, [run.pk]):
        unexpected = point.expectation in expectations.UNEXPECTED
        if unexpected or point.known_failure:
            key = point.series_id, point.environment_id, point.order_time, 0
            kinds[key] = "unexpected" if unexpected else "known"
    return kinds


def _missed(run: Run, columns: str, targets: Targets) -> list[tuple[Any, ...]]:
    """Return the keys of the points that miss a target of their own device: 1 statement."""
    rows = fetch_tuples(
        f"""
        SELECT p.series_id, p.environment_id, p.order_time, p.side, p.value, p.target, p.target_arch,
            s.experiment_id, s.metric_id
        FROM ({columns}) p JOIN hud_series s ON s.id = p.series_id JOIN hud_metric k ON k.id = s.metric_id
        WHERE p.value IS NOT NULL
            AND (p.target IS NOT NULL OR k.name = ANY(%(names)s) OR k.id = ANY(%(ids)s::int[]))
        """,  # noqa: S608 — a constant of this module  # nosec B608
        {"run": run.pk, "names": list(targets.shipped_metrics()), "ids": list(targets.operator_metrics())},
    )
    if not rows:
        return []
    experiments = by_id(Experiment, [row[-2] for row in rows])
    metrics = by_id(Metric, [row[-1] for row in rows])
    missed = []
    for *key, value, target, arch, experiment_id, metric_id in rows:
        metric = metrics[metric_id]
        own = targets.own(experiments[experiment_id], metric, target, arch)
        if own and own.met_by(value, metric.direction) == "missed":
            missed.append(tuple(key))
    return missed


def _order(sort: str) -> str:
    """Return the ORDER BY of a column; with - its first part is turned round."""
    if not sort.startswith("-"):
        return _SORTS[sort]
    first, *rest = _SORTS[sort[1:]].split(", ")
    return ", ".join([f"{first.removesuffix(' NULLS LAST')} DESC NULLS LAST", *rest])


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


@cache
def _places() -> str:
    """Return the places of main metrics as JSON: suite → metric → place; '' stands for all other suites."""
    suites = ("", *SUITES)
    return json.dumps({suite: {name: at for at, name in enumerate(main_metrics(suite))} for suite in suites})


_WORDS = r"""concat_ws(' ', e.suite, e."case", replace(e.knobs::text, '\\', '\'), e.mode, e.dtype, e.backend,
    e.arch, mt.name, mt.title)"""  # of a point, in which those of the filter are looked for
_NAMED = "words ILIKE ALL(%(with)s::text[]) AND NOT words ILIKE ANY(%(without)s::text[])"
_KEY = ("series_id", "environment_id", "order_time", "side")
_SHARED_COLUMNS = "series_id, environment_id, order_time, value, status, target, target_arch"
_OF_SERIES = f"""SELECT {_SHARED_COLUMNS}, 0 AS side, verdict, change, factor
    FROM hud_point WHERE run_id = %(run)s"""  # noqa: S608 — constants, as below  # nosec B608
_OF_SIDES = f"""SELECT {_SHARED_COLUMNS}, side, NULL::int2 AS verdict, NULL::real AS change,
    NULL::real AS factor FROM hud_sidepoint WHERE run_id = %(run)s"""  # noqa: S608  # nosec B608
# Every point of a run with what it shows: the place in KINDS, as numbers sort and group faster than words
_POINTS = """
    SELECT p.series_id, p.environment_id, p.order_time, p.side, p.value, s.experiment_id, s.metric_id,
        e."case" COLLATE "C" "case", mt.name COLLATE "C" metric, p.change, abs(p.factor) factor,
        {words} words,
        coalesce((coalesce(%(places)s::jsonb->e.suite, %(places)s::jsonb->'')->>mt.name)::int, 99) place,
        array_position(%(kinds)s::text[], CASE WHEN marked.kind = 'known' THEN 'known'
            WHEN p.word = 'regressed' THEN 'regressed'
            WHEN marked.kind = 'unexpected' THEN 'unexpected'
            WHEN p.value IS NULL AND p.status = ANY(%(never)s) THEN 'not_run'
            WHEN p.word = 'failed' OR p.value IS NULL AND p.status = ANY(%(failing)s) THEN 'failed'
            WHEN marked.kind = 'missed' THEN 'missed'
            WHEN p.word IN ('inconclusive', 'improved') THEN p.word
            ELSE 'rest' END::text) kind
    FROM (SELECT *, (%(verdicts)s::text[])[verdict + 1] word FROM ({columns}) stored) p
    JOIN hud_series s ON s.id = p.series_id
    JOIN hud_experiment e ON e.id = s.experiment_id
    JOIN hud_metric mt ON mt.id = s.metric_id
    LEFT JOIN unnest(%(marked_series_id)s::int[], %(marked_environment_id)s::int[],
        %(marked_order_time)s::timestamptz[], %(marked_side)s::int[], %(marked_kind)s::text[])
        AS marked(series_id, environment_id, order_time, side, kind) ON marked.series_id = p.series_id
        AND marked.environment_id = p.environment_id AND marked.order_time = p.order_time
        AND marked.side = p.side
"""
_PAGE = """
    WITH known AS MATERIALIZED ({points}), matching AS (
        SELECT * FROM known WHERE {shown} AND {named}
    ), page AS (
        SELECT *, row_number() OVER () AS at
        FROM (
            SELECT * FROM matching ORDER BY {order}, order_time, side LIMIT %(limit)s OFFSET %(offset)s
        ) sorted
    ), found AS MATERIALIZED (
        SELECT kind, experiment_id, count(*) points FROM known GROUP BY kind, experiment_id
    ), kinds AS (
        SELECT (%(kinds)s::text[])[kind] kind, sum(points) points, count(*) experiments
        FROM found GROUP BY found.kind
    )
    SELECT page.series_id, page.experiment_id, page.metric_id, page.environment_id, page.order_time,
        page.side,
        (SELECT count(*) FROM matching) total,
        (SELECT coalesce(json_object_agg(kind, json_build_array(points, experiments)), '{{}}') FROM kinds)
            counts,
        (SELECT count(DISTINCT experiment_id) FROM found) experiments,
        (SELECT json_build_object('case', "case", 'change', change, 'experiment', experiment_id,
                'metric', (SELECT title FROM hud_metric WHERE id = metric_id),
                'kind', (%(kinds)s::text[])[kind])
            FROM known WHERE (%(kinds)s::text[])[kind] IN ('regressed', 'inconclusive')
                AND change IS NOT NULL
            ORDER BY kind, factor DESC NULLS LAST LIMIT 1) worst
    FROM (SELECT 1) one LEFT JOIN page ON true ORDER BY page.at
"""
