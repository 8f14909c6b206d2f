"""The overview: the night's result in one sentence, the table of suites and backends, what needs a look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone

from hud.judging.overdue import Latest, overdue_suites
from hud.models import Experiment, Metric
from hud.pages import values
from hud.pages.compilers import query as compilers
from hud.points.nights import Night
from hud.pages.compilers.query import Comparison, Filters
from hud.pages.health import processes_standing_still
from hud.pages.hosts import query as hosts
from hud.pages.hosts.query import HostsInLine
from hud.pages.overview import look, tiles, trends
from hud.pages.overview.look import Look
from hud.pages.overview.tiles import Tile
from hud.pages.regressions import query as regressions
from hud.pages.regressions import tabs
from hud.pages.runs import query as runs
from hud.pages.runs.query import RunLine
from hud.sql import by_id, fetch_tuples
from hud.pages.suite.query import identity
from hud.points.targets import Targets
from hud.pages.values import MetricValue
from hud.runs.branches import branch_or_default, other_branch
from hud.templatetags.hud_tags import REASONS

ROWS = 20  # of what needs a look; the page says how many there are
BACKENDS = 5  # rows of the table; the compilers' page has all
LAST_RUNS = 24
_RECENT_RUNS = 10  # whose records' own targets count as current


@dataclass(frozen=True)
class Judged:
    """The headline series of an arch with their newest result in the night: they may open a regression."""

    series: int
    compared: int  # of them, that have earlier results in their class of environments
    undecided: int  # of those, with too few earlier results or on another card
    reason: str  # of most of the undecided
    improved: int  # experiments


@dataclass
class Overview:
    comparison: Comparison
    looks: list[Look]
    counts: dict[str, int]  # experiments that regressed, fail, improved, and miss a target
    suspects: int  # regressions that a second result has to confirm
    regressed: list[MetricValue]
    missed: list[MetricValue]  # the largest shortfall first
    met: int  # series that reach their target
    judged: Judged
    runs: list[RunLine]
    moved_runs: set[int]  # in which something regressed
    hosts: HostsInLine
    tiles: list[Tile]
    overdue: list[Latest]  # suites without results for too long
    standing_still: dict[str, str] = field(default_factory=dict)  # processes of the HUD
    trends: dict[str, Any] | None = None
    trend_suite: str = ""

    @property
    def night(self) -> Night | None:
        return self.comparison.head

    @property
    def unjudged(self) -> str:
        """Return why no regression could be found in the night, '' where one could."""
        found, branch = self.judged, self.comparison.branch
        if found.compared > found.undecided:
            return ""
        if found.compared:
            why = REASONS.get(found.reason, "")
            return f"none of {found.compared} series could be decided{why and f', mostly: {why}'}"
        if found.series and self.comparison.base:
            return "its series have no earlier results in their environment"
        if found.series:
            chosen = self.comparison.filters
            return f"no earlier night of {branch} with {chosen.arch}, {chosen.mode}, {chosen.dtype}"
        if other_branch(branch):
            return f"only {branch_or_default('')} has regressions"
        return f"no series of {self.comparison.filters.arch} has its newest result in it"

    @property
    def latest(self) -> RunLine | None:
        return self.runs[0] if self.runs else None

    @property
    def running(self) -> RunLine | None:
        return next((line for line in self.runs if line.active), None)

    @property
    def strip(self) -> list[tuple[RunLine, str]]:
        """Return the last runs, oldest first, with what to show of each."""
        return [(line, _look_of(line, self.moved_runs)) for line in reversed(self.runs)]

    def to_rows(self) -> list[dict[str, Any]]:
        lists = {"regressed": self.regressed, "misses target": self.missed}
        return [
            {"list": name, **identity(reading.experiment), **reading.to_row()}
            for name, readings in lists.items()
            for reading in readings
        ]


def _look_of(line: RunLine, moved: set[int]) -> str:
    if line.run.pk in moved:
        return "regressed"
    return "active" if line.active else "ok" if line.run.state == "succeeded" else "failed"


def read(
    filters: Filters, which: str = "", user: User | None = None, *, with_regressed: bool = False
) -> Overview:
    """Return the page, in 23 statements at most and 1 more for a night that this process has not read.
    `with_regressed`: with the newest values of what regressed, of which the page has the regressions."""
    comparison = compilers.read(filters)
    night = comparison.head
    targets = Targets.read()
    found = {series: about for series, *about in _candidates(targets) if with_regressed or not about[0]}
    experiments = by_id(Experiment, [experiment for _regressed, experiment, _metric in found.values()])
    metrics = by_id(Metric, [metric for _regressed, _experiment, metric in found.values()])
    readings = [
        value.show(experiments[experiment], metrics[metric], targets)
        for value in values.latest(found).values()
        for _regressed, experiment, metric in [found[value.series_id]]
    ]
    if filters.arch:
        readings = [one for one in readings if one.experiment.arch == filters.arch]
    missed = sorted((one for one in readings if one.met == "missed"), key=look.shortfall, reverse=True)
    causes = [cause for cause in regressions.waiting() if filters.arch in ("", cause.first.experiment.arch)]
    night_runs = set(night.runs) if night else set()
    judged, moved = _verdicts(night_runs, comparison.filters.arch)
    rows = look.rows(causes, missed, night_runs, moved)
    overdue = [one for one in overdue_suites(timezone.now()) if filters.arch in ("", one.arch)]
    counts = {
        **look.counts(causes),
        "improved": judged.improved,
        "judged": judged.compared,
        "undecided": judged.undecided,
        "missed": len({one.experiment.pk for one in missed}),
    }
    page = Overview(
        comparison=comparison,
        looks=look.chosen(rows, which, user),
        counts={**counts, **{name: len(look.chosen(rows, name, user)) for name in ("all", "new", "mine")}},
        suspects=tabs.counts(None)["suspects"],
        regressed=sorted(
            (one for one in readings if found[one.series_id][0]), key=lambda one: -abs(one.change or 0)
        ),
        missed=missed,
        met=sum(one.met == "met" for one in readings),
        judged=judged,
        runs=runs.latest(LAST_RUNS),
        moved_runs={
            line.regression.first_run_id
            for cause in causes
            for line in cause.lines
            if line.regression.first_run_id
        },
        hosts=hosts.in_one_line(),
        tiles=tiles.read(comparison.suites, comparison.filters.arch, readings, overdue),
        overdue=overdue,
        standing_still=processes_standing_still(),
    )
    regressions.add_recent([row.line for row in page.looks[:ROWS] if row.line])
    if comparison.table and comparison.table.suites:
        names = comparison.table.suites
        page.trend_suite = filters.trend if filters.trend in names else names[0]
        kept = comparison.table.charts
        if page.trend_suite not in kept:
            kept[page.trend_suite] = trends.read(comparison.table, comparison.results, page.trend_suite)
        page.trends = kept[page.trend_suite]
    return page


def _verdicts(night: set[int], arch: str) -> tuple[Judged, list[int]]:
    """Count what became of the night on this arch; with the states of what improved on any, the largest
    against its noise first."""
    ((*counts, states),) = fetch_tuples(
        """
        SELECT count(*) FILTER (WHERE e.arch = %(arch)s),
            count(*) FILTER (WHERE e.arch = %(arch)s AND st.verdict <> 'new'),
            count(*) FILTER (WHERE e.arch = %(arch)s AND st.verdict = 'inconclusive'),
            coalesce(mode() WITHIN GROUP (ORDER BY st.reason)
                FILTER (WHERE e.arch = %(arch)s AND st.verdict = 'inconclusive'), ''),
            count(DISTINCT e.id) FILTER (WHERE e.arch = %(arch)s AND st.verdict = 'improved'),
            array_agg(st.id ORDER BY abs(st.factor) DESC) FILTER (WHERE st.verdict = 'improved')
        FROM (
            SELECT id, series_id, factor, verdict, reason
            FROM hud_seriesstate WHERE run_id = ANY(%(runs)s) AND headline
        ) st
        JOIN hud_series s ON s.id = st.series_id
        JOIN hud_experiment e ON e.id = s.experiment_id
        """,
        {"runs": list(night), "arch": arch},
    )
    return Judged(*counts), states or []


def _candidates(targets: Targets) -> list[tuple[Any, ...]]:
    """Return the series with an open regression or maybe a target, with whether they regressed, and their
    experiment and metric.

    A record's own target counts while one of the latest runs has it: reading all measurements would grow
    with the history.
    """
    return fetch_tuples(
        f"""
        WITH regressed AS (
            SELECT series_id FROM hud_regression WHERE {tabs.IS_WAITING}
            ORDER BY since DESC LIMIT 500
        ), recent AS (
            SELECT id FROM hud_run WHERE state NOT IN ('queued', 'running')
            ORDER BY created DESC LIMIT %(recent)s
        ), aimed AS (
            SELECT s.id AS series_id FROM hud_series s JOIN hud_metric k ON k.id = s.metric_id
            WHERE k.name = ANY(%(names)s) OR k.id = ANY(%(metrics)s)
            UNION
            SELECT m.series_id FROM recent
            JOIN LATERAL (
                SELECT series_id, target_arch FROM hud_measurement
                WHERE run_id = recent.id AND target IS NOT NULL OFFSET 0
            ) m ON true
            JOIN hud_series s ON s.id = m.series_id
            JOIN hud_experiment e ON e.id = s.experiment_id
            WHERE coalesce(m.target_arch, e.arch) = e.arch
        )
        SELECT s.id, found.regressed, s.experiment_id, s.metric_id
        FROM (
            SELECT DISTINCT series_id, true regressed FROM regressed
            UNION ALL
            SELECT series_id, false FROM aimed WHERE series_id NOT IN (SELECT series_id FROM regressed)
        ) found JOIN hud_series s ON s.id = found.series_id
        """,  # noqa: S608 — a constant  # nosec B608
        {
            "names": sorted(targets.shipped_metrics()),
            "metrics": sorted(targets.operator_metrics()),
            "recent": _RECENT_RUNS,
            "waiting": list(tabs.WAITING),
        },
    )
