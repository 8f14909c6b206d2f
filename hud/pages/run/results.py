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
    Environment,
    Experiment,
    Metric,
    Run,
)
from hud.sql import by_id, fetch, fetch_tuples
from hud.points.targets import Targets
from hud.pages.values import VALUE_COLUMNS, VERDICT_JOIN, MetricValue, main_metrics, over_processes
from runner.suites import SUITES

# What a point shows, in the order of the page
KINDS = ("regressed", "failed", "missed", "inconclusive", "improved", "not_run", "rest")
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

    show: str = ""  # one of KINDS
    q: str = ""  # words that must all occur in experiment or metric; -word must not
    sort: str = ""  # "" by importance; a column, with - the other way round
    page: int = 1


@dataclass(slots=True)
class Moved:
    """A regression that began in the run, or has its newest point in it."""

    id: int
    series_id: int
    state: str
    last_good_run: int | None  # with `base`, its commit, where both ends are kept
    base: str
    head: str  # commit of the first run that moved


@dataclass(slots=True)
class ResultValue(MetricValue):
    """A value with what it was judged against, and the regression that it belongs to."""

    baseline: float | None = None
    regression: Moved | None = None


@dataclass(frozen=True)
class Count:
    """How often a run shows something."""

    points: int
    experiments: int


@dataclass
class Results:
    """A page of a run's points. `values` are the measurements of these points, `rows` one value for each."""

    filters: ResultFilters
    size: int  # points on a page
    total: int = 0  # points that match
    counts: dict[str, Count] = field(default_factory=dict)  # of all points, by kind
    experiments: int = 0  # of the whole run
    worst: dict[str, Any] = field(default_factory=dict)  # the most certain change for the worse, or doubt
    values: list[ResultValue] = field(default_factory=list)
    rows: list[ResultValue] = field(default_factory=list)
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
        return all(value.verdict for value in self.rows)

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
        counted = Counter(value.warning for value in self.rows if value.warning)
        shared = [(text, count) for text, count in counted.most_common() if count >= _SHARED]
        return {text: (number, count) for number, (text, count) in enumerate(shared, 1)}

    @property
    def has_noise(self) -> bool:
        return any(value.factor is not None for value in self.rows)

    @property
    def has_targets(self) -> bool:
        return any(value.targets for value in self.rows)


@dataclass(slots=True)
class _Point:
    series_id: int | None  # None: the page has none
    experiment_id: int
    metric_id: int
    environment_id: int
    order_time: datetime
    total: int
    counts: dict[str, list[int]]
    experiments: int
    worst: dict[str, Any] | None


def read(run: Run, filters: ResultFilters, size: int) -> Results:
    """Return a page of the results, in a fixed number of statements."""
    targets = Targets.read()
    words = [word.strip('"') for word in filters.q.split()[:8]]
    points = fetch(
        _Point,
        _PAGE.format(
            points=_POINTS.format(words=_WORDS if words else "''"),
            order=_order(filters.sort),
            shown="(%(kinds)s::text[])[kind] = %(show)s" if filters.show else "true",
            named=_NAMED if words else "true",
        ),
        {
            "run": run.pk,
            "never": [STATUS_CODES[name] for name in NEVER_RAN],
            "missed": _missed(run, targets),
            "kinds": list(KINDS),
            "places": _places(),
            "show": filters.show,
            "with": [f"%{_escaped(word)}%" for word in words if not word.startswith("-")],
            "without": [f"%{_escaped(word[1:])}%" for word in words if word.startswith("-") and word[1:]],
            "limit": size,
            "offset": (filters.page - 1) * size,
        },
    )
    about = points[0]
    results = Results(
        filters,
        size,
        total=about.total,
        counts={kind: Count(*about.counts[kind]) for kind in KINDS if kind in about.counts},
        experiments=about.experiments,
        worst=about.worst or {},
    )
    if about.series_id is not None:
        _fill(run, results, points, targets)
    return results


def _fill(run: Run, results: Results, points: Sequence[_Point], targets: Targets) -> None:
    ids = list({point.series_id for point in points if point.series_id is not None})
    found = fetch(
        ResultValue,
        f"""
        SELECT {VALUE_COLUMNS}, coalesce(v.baseline, st.baseline) baseline
        FROM hud_measurement m JOIN hud_series s ON s.id = m.series_id
        {VERDICT_JOIN}
        LEFT JOIN hud_seriesstate st ON st.series_id = s.id AND st.run_id = m.run_id
            AND st.environment_id = m.environment_id AND st.order_time = m.order_time
        WHERE m.run_id = %(run)s AND m.series_id = ANY(%(series)s)
        ORDER BY m.repeat, m.side
        """,  # noqa: S608 — constants  # nosec B608
        {"run": run.pk, "series": ids},
    )
    experiments = by_id(Experiment, [point.experiment_id for point in points])
    metrics = by_id(Metric, [point.metric_id for point in points])
    moved = fetch(
        Moved,
        """
        SELECT one.id, one.series_id, one.state, good.id last_good_run, coalesce(good.commit, '') base,
            coalesce(first.commit, '') head
        FROM hud_regression one
        LEFT JOIN hud_run first ON first.id = one.first_run_id
        LEFT JOIN hud_run good ON good.id = one.last_good_run_id AND first.id IS NOT NULL
        WHERE (one.first_run_id = %(run)s OR one.latest_run_id = %(run)s) AND one.series_id = ANY(%(series)s)
        ORDER BY one.id
        """,
        {"run": run.pk, "series": ids},
    )
    regressions = {one.series_id: one for one in moved}
    by_point: dict[tuple[int, int, datetime], list[ResultValue]] = {}
    for one in found:
        by_point.setdefault((one.series_id, one.environment_id, one.order_time), []).append(one)
    for point in points:
        assert point.series_id is not None
        group = by_point[point.series_id, point.environment_id, point.order_time]
        rows = group if run.is_ab else [over_processes(group)]
        shown = experiments[point.experiment_id], metrics[point.metric_id], targets
        for value in group if run.is_ab or len(group) == 1 else (*group, *rows):
            value.show(*shown).regression = regressions.get(point.series_id)
        results.values += group
        results.rows += rows
    kept = by_id(Environment, [point.environment_id for point in points])
    results.environments = [kept[pk] for pk in sorted(kept)]


def _missed(run: Run, targets: Targets) -> list[int]:
    """Return the series that miss a target of their own device in this run: 1 statement."""
    rows = fetch_tuples(
        """
        SELECT s.id, sum(m.value) / count(*), max(m.target), max(m.target_arch), s.experiment_id, s.metric_id
        FROM (
            SELECT series_id, value, target, target_arch FROM hud_measurement
            WHERE run_id = %(run)s AND value IS NOT NULL AND (target IS NOT NULL OR series_id IN (
                SELECT one.id FROM hud_series one JOIN hud_metric k ON k.id = one.metric_id
                WHERE k.name = ANY(%(names)s) OR k.id = ANY(%(ids)s::int[]))) OFFSET 0
        ) m JOIN hud_series s ON s.id = m.series_id
        GROUP BY s.id
        """,
        {"run": run.pk, "names": list(targets.shipped_metrics()), "ids": list(targets.operator_metrics())},
    )
    if not rows:
        return []
    experiments = by_id(Experiment, [row[4] for row in rows])
    metrics = by_id(Metric, [row[5] for row in rows])
    missed = []
    for series_id, value, target, arch, experiment_id, metric_id in rows:
        metric = metrics[metric_id]
        own = targets.own(experiments[experiment_id], metric, target, arch)
        if own and own.met_by(value, metric.direction) == "missed":
            missed.append(series_id)
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
# Every point of a run with what it shows: the place in KINDS, as numbers sort and group faster than words
_POINTS = """
    SELECT point.series_id, point.environment_id, point.order_time, point.value, s.experiment_id, s.metric_id,
        e."case" COLLATE "C" "case", mt.name COLLATE "C" metric, v.change, abs(v.factor) factor,
        {words} words,
        coalesce((coalesce(%(places)s::jsonb->e.suite, %(places)s::jsonb->'')->>mt.name)::int, 99) place,
        array_position(%(kinds)s::text[], CASE WHEN v.verdict = 'regressed' THEN 'regressed'
            WHEN point.value IS NULL AND point.never THEN 'not_run'
            WHEN v.verdict = 'failed' OR point.value IS NULL AND point.bad THEN 'failed'
            WHEN point.series_id = ANY(%(missed)s::int[]) THEN 'missed'
            WHEN v.verdict IN ('inconclusive', 'improved') THEN v.verdict
            ELSE 'rest' END::text) kind
    FROM (
        SELECT series_id, environment_id, order_time, max(value) "value", max(status) > 0 bad,
            bool_and(status = ANY(%(never)s)) never
        FROM hud_measurement WHERE run_id = %(run)s GROUP BY 1, 2, 3
    ) point
    JOIN hud_series s ON s.id = point.series_id
    JOIN hud_experiment e ON e.id = s.experiment_id
    JOIN hud_metric mt ON mt.id = s.metric_id
    LEFT JOIN hud_verdict v ON v.run_id = %(run)s AND v.series_id = point.series_id
        AND v.environment_id = point.environment_id AND v.order_time = point.order_time
"""
_PAGE = """
    WITH known AS MATERIALIZED ({points}), matching AS (
        SELECT * FROM known WHERE {shown} AND {named}
    ), page AS (
        SELECT *, row_number() OVER () AS at
        FROM (SELECT * FROM matching ORDER BY {order} LIMIT %(limit)s OFFSET %(offset)s) sorted
    ), found AS MATERIALIZED (
        SELECT kind, experiment_id, count(*) points FROM known GROUP BY kind, experiment_id
    ), kinds AS (
        SELECT (%(kinds)s::text[])[kind] kind, sum(points) points, count(*) experiments
        FROM found GROUP BY found.kind
    )
    SELECT page.series_id, page.experiment_id, page.metric_id, page.environment_id, page.order_time,
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
