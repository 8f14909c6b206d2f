"""The overview: the night's result in one sentence, the table of suites and backends, what needs a look."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from hud.hosts.registration import state_of
from hud.judging.backlog import LATE, overdue_suites
from hud.judging.compare.judged import REASONS
from hud.judging.regressions import read as regressions
from hud.models import Experiment, Host, Metric, OverdueSuite, Point, Regression, Series, State, Stream
from hud.pages import backends as compilers
from hud.pages import data, query_string, streams
from hud.pages.backends import WINDOWS, BackendComparison, BackendFilters, table_html
from hud.pages.backends_table import TITLES, Entry, Table, colour, passing
from hud.pages.health import processes_standing_still
from hud.pages.overview import judged as judged_night
from hud.pages.overview import look, tiles
from hud.pages.overview.look import LookRow
from hud.pages.overview.tiles import Tile
from hud.points import expectations, nights
from hud.points import read as points
from hud.points.nights import Night, Results
from hud.points.targets import FRACTIONS, Targets
from hud.problems import Problem
from hud.runs import lines as runs
from hud.runs.branches import branch_or_default, other_branch
from hud.runs.lines import RunLine
from hud.sql import by_id, fetch_models, fetch_tuples, int_array
from hud.states.regressions import TOLD
from runner.schema.records import quality_words

ROWS = 20  # of what needs a look; the page says how many there are
BACKENDS = 5  # rows of the table; the compilers' page has all
LAST_RUNS = 24
_MOST_IMPROVED = 10  # series that are shown
_FEWEST_IN_CHART = 3  # nights

HEADER = ("list", *points.OF_EXPERIMENT.names)


@dataclass
class Overview:
    comparison: BackendComparison
    looks: list[LookRow]
    listed: dict[str, int]  # rows of what needs a look: all, new, mine
    regressed: list[Point]
    missed: list[Point]  # the largest shortfall first
    met: int  # series that reach their target
    judged: judged_night.JudgedNight
    improved: int  # experiments, since the baseline
    elsewhere: list[tuple[str, int]]  # other archs with causes of their own
    runs: list[RunLine]
    moved_runs: set[int]  # in which something regressed
    known_runs: set[int]  # that failed, in nothing that is news
    hosts: dict[str, Any]
    tiles: list[Tile]
    overdue: list[OverdueSuite]  # suites without results for too long
    standing_still: dict[str, str] = field(default_factory=dict)  # processes of the HUD
    progress: list[tuple[str, int, int]] = field(default_factory=list)  # of suites in the night that grows
    trends: dict[str, Any] | None = None
    trend_suite: str = ""

    @property
    def results(self) -> dict[str, int]:
        """Return what became of the night's series, how many experiments improved or miss a target, and how
        many rows are listed."""
        return {
            "judged": self.judged.compared,
            "undecided": self.judged.undecided,
            "improved": self.improved,
            "missed": len({point.experiment.pk for point in self.missed}),
            **self.listed,
        }

    @property
    def so_far(self) -> dict[str, Any] | None:
        """Return how many tasks of the night that grows have ended, None where none grows."""
        if not self.comparison.growing:
            return None
        return {
            "night": self.comparison.growing.side,
            "ended": sum(ended for _suite, ended, _planned in self.progress),
            "planned": sum(planned for _suite, _ended, planned in self.progress),
        }

    @property
    def unjudged(self) -> str:
        """Return why no regression could be found in the night, '' where one could."""
        found, branch = self.judged, self.comparison.branch
        if found.compared:
            why = REASONS.get(found.reason, "")
            none = f"none of {found.compared} series could be decided{why and f', mostly: {why}'}"
            return none if found.compared == found.undecided else ""
        if found.series:
            subject = self.comparison.filters.subject.values()
            if self.comparison.base:
                return "its series have no earlier results in their environment"
            none = f"no earlier night of {branch} with {', '.join(subject)}"
            return none if all(subject) else self.comparison.nothing_measured
        if other_branch(branch):
            return f"only {branch_or_default('')} has regressions"
        if not found.pale:
            return f"no series of {self.comparison.filters.arch or 'any arch'} has its newest result in it"
        return f"{found.pale} of {found.values} values may not decide, mostly: {quality_words(found.quality)}"

    @property
    def current_run(self) -> RunLine | None:
        """Return the run that goes on, else the last one."""
        return next((line for line in self.runs if line.active), next(iter(self.runs), None))

    @property
    def strip(self) -> list[tuple[RunLine, str]]:
        """Return the last runs, oldest first, with what to show of each."""
        quiet = {line.run.pk for line in self.runs if line.run.state == "succeeded"} | self.known_runs

        def look(line: RunLine) -> str:
            if line.run.pk in self.moved_runs:
                return "regressed"
            return "active" if line.active else "ok" if line.run.pk in quiet else "failed"

        return [(line, look(line)) for line in reversed(self.runs)]

    def to_rows(self) -> list[dict[str, Any]]:
        lists = (("regressed", self.regressed), ("misses target", self.missed))
        return [{"list": name, **points.OF_EXPERIMENT.row(point)} for name, found in lists for point in found]


def read(
    filters: BackendFilters,
    stream: Stream,
    which: str = "",
    user: User | None = None,
    *,
    with_regressed: bool = False,
) -> Overview:
    """Return the page, in 18 statements at most, 6 more where a run failed, 1 more for nights that this
    process has not read and 1 where a night grows. `with_regressed`: with the newest points of what
    regressed, of which the page has the regressions."""
    comparison = compilers.read(filters, stream)
    arch = comparison.filters.arch
    night_runs = comparison.head.runs if comparison.head else ()
    targets = Targets.read()
    judged, better = judged_night.read(comparison)
    causes = regressions.waiting(comparison.scope)
    regressed = {line.series_id for cause in causes for line in cause.lines}
    shown_regressed = regressed if with_regressed else set()
    series = _series(targets, stream, {*judged.aimed, *shown_regressed, *better})
    until = comparison.head.time if filters.head and comparison.head else None
    newest = points.latest({row.pk for row in series} - regressed | shown_regressed, until=until)
    shown_better = {pk: cell.run_id for pk, cell in list(better.items())[:_MOST_IMPROVED]}
    improved = points.of_runs([*shown_better], [*shown_better.values()])
    experiments = by_id(Experiment, [row.experiment_id for row in series])
    shown = [
        point
        for point in points.shown(series, experiments, newest, targets)
        if point.experiment.arch == arch or not arch
    ]
    missed = [point for point in shown if point.met == "missed"]
    missed.sort(key=lambda point: point.shortfall, reverse=True)
    for pk, point in improved.items():
        if point.verdict != "improved":  # that is its level by now
            cell = better[pk]
            point.level, point.change, point.factor = cell.before, cell.change, cell.factor
    best = {point.series_id: point for point in points.shown(series, experiments, improved, targets)}
    rows = look.rows(causes, missed, night_runs, [best[pk] for pk in shown_better])
    overdue = _overdue(comparison)
    last_runs = runs.latest(stream, LAST_RUNS)
    failed = [line.run.pk for line in last_runs if line.run.state == State.FAILED]
    stated = expectations.of_runs(stream.pk, failed) if failed else []
    failures = [point for point in stated if point.status_code in expectations.FAILING]
    page = Overview(
        comparison=comparison,
        looks=look.chosen(rows, which, user),
        listed={name: len(look.chosen(rows, name, user)) for name in ("all", "new", "mine")},
        regressed=sorted(
            (point for point in shown if point.series_id in regressed),
            key=lambda point: (-abs(point.change or 0), point.series_id),
        ),
        missed=missed,
        met=sum(point.met == "met" for point in shown),
        judged=judged,
        elsewhere=regressions.elsewhere(comparison.scope) if arch else [],
        improved=len({row.experiment_id for row in series if row.pk in better}),
        runs=last_runs,
        moved_runs=_moved(last_runs),
        known_runs={failure.run_id for failure in failures}
        - {failure.run_id for failure in failures if not failure.known_failure},
        hosts=_hosts(),
        tiles=tiles.read(comparison, shown, overdue, until),
        overdue=overdue,
        standing_still=processes_standing_still(),
    )
    if comparison.growing:
        page.progress = nights.progress(comparison.growing)
    regressions.add_recent([row.regression for row in page.looks[:ROWS] if row.regression])
    if comparison.table and comparison.table.suites:
        names = comparison.table.suites
        page.trend_suite = filters.trend if filters.trend in names else names[0]
        charts = comparison.table.charts
        if page.trend_suite not in charts:
            charts[page.trend_suite] = _trends(comparison.table, comparison.results, page.trend_suite)
        page.trends = charts[page.trend_suite]
    return page


def _moved(lines: Sequence[RunLine]) -> set[int]:
    """Return the runs in which something regressed, on any arch: 1 statement."""
    began = Regression.objects.filter(first_run__in=[line.run.pk for line in lines], state__in=TOLD)
    return set(began.exclude(muted_until__gt=timezone.now()).values_list("first_run", flat=True))


def _hosts() -> dict[str, Any]:
    """Count all hosts by `states`, and tasks `running` and `waiting`: 2 statements."""
    now, columns = timezone.now(), ("last_beat", "paused_until", "drained", "detached_at")
    hosts = Host.objects.filter(detached_at=None).order_by("pk").only(*columns)
    active = "SELECT state, count(*) FROM hud_task WHERE state IN ('running', 'queued') GROUP BY 1"
    tasks = dict(fetch_tuples(active, {}))
    states = Counter(state_of(host, now) for host in hosts)
    return {"states": dict(states), "running": tasks.get("running", 0), "waiting": tasks.get("queued", 0)}


def _overdue(comparison: BackendComparison) -> list[OverdueSuite]:
    """Return the overdue suites of the arch: 1 statement, none where a night of today has all suites."""
    now, arch, night = timezone.now(), comparison.filters.arch, comparison.head
    is_recent = night is not None and now - night.time <= LATE and not other_branch(comparison.branch)
    fresh = {suite for suite, _backend in comparison.results.get(night, ())} if night and is_recent else set()
    if fresh.issuperset(comparison.suites):
        return []
    return [suite for suite in overdue_suites(now, comparison.stream) if arch in ("", suite.arch)]


def _series(targets: Targets, stream: Stream, more: Collection[int]) -> list[Series]:
    """Return the series of a stream that may have a target, and `more`, with their metrics: 1 statement."""
    rows = """
        SELECT * FROM hud_series WHERE id = ANY(%(more)s::int[])
        UNION SELECT s.* FROM hud_series s JOIN hud_metric k ON k.id = s.metric_id
        WHERE s.stream_id = %(stream)s AND (k.name = ANY(%(names)s) OR k.id = ANY(%(metrics)s))
    """
    params = {
        "stream": stream.pk,
        "more": int_array(more),
        "names": list(FRACTIONS),
        "metrics": list(targets.by_metric),
    }
    join = "JOIN hud_metric metric ON metric.id = own.metric_id"
    return fetch_models(Series, join, params, rows=rows, metric=Metric)


def _trends(table: Table, results: Mapping[Night, Results], suite: str) -> dict[str, Any] | None:
    """Return the charts of a suite as `trends.js` draws them, with a line for each backend; None with too few
    nights."""
    entries = [entry for (name, _backend), entry in table.entries.items() if name == suite]
    if len(table.nights) < _FEWEST_IN_CHART or not entries:
        return None
    base = table.nights.index(table.base) if table.base in table.nights else 0
    passed = {
        block[1]: [
            sum(passing(results[night][block]).values()) if block in results[night] else None
            for night in table.nights
        ]
        for block in table.entries
        if block[0] == suite
    }
    charts = [
        _chart(title, "%", {entry.backend: _relative(entry, name, base) for entry in entries})
        for name, title in TITLES.items()
    ]
    charts.insert(1, _chart("Passing", "", passed))
    return {
        "x": [night.title for night in table.nights],
        "commits": [night.short_commit for night in table.nights],
        "base": base,
        "charts": [chart for chart in charts if any(any(line["y"]) for line in chart["lines"])],
    }


def _chart(title: str, unit: str, lines: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    shown = [{"name": backend, "colour": colour(backend), "y": line} for backend, line in lines.items()]
    return {"title": title, "unit": unit, "lines": shown}


def _relative(entry: Entry, column: str, base: int) -> list[float | None]:
    """Return the change against the baseline in per cent, so that backends far apart share a scale."""
    trend = next(cell.trend for cell in entry.cells if cell.column == column)
    first = trend[base] or next((value for value in trend if value), None)
    return [None if value is None or not first else round((value / first - 1) * 100, 3) for value in trend]


def overview(request: HttpRequest, data_format: str = "") -> HttpResponse:
    stream = streams.of_request(request)
    filters, complaints = query_string.read(BackendFilters, request.GET, data_format)
    which = request.GET.get("look", "")
    user = request.user if isinstance(request.user, User) else None
    page = read(filters, stream, which, user, with_regressed=bool(data_format))
    comparison = page.comparison
    if data_format and comparison.complaints:
        return Problem(400, "; ".join(comparison.complaints)).response()
    if data_format:
        return data.answer(
            data_format,
            "overview",
            page.to_rows(),
            HEADER,
            **comparison.to_json(),
            so_far=page.so_far,
            results=page.results,
            unjudged=page.unjudged,
            table=comparison.to_rows(),
            runs=runs.COLUMNS.rows(page.runs),
        )
    shown = page.looks[: None if request.GET.get("rows") == "all" else ROWS]
    look.complete(shown)
    context = {
        "page": page,
        "comparison": comparison,
        "table": comparison.table,
        "backends": BACKENDS,
        "shown_looks": shown,
        "filters": comparison.filters,
        "query_of_counts": comparison.of_sides,
        "table_html": table_html(comparison, backends=BACKENDS),
        "windows": WINDOWS,
        "look": which if which in {"new", "mine"} else "",
        "complaints": complaints + comparison.complaints,
    }
    response = render(request, "overview/overview.html", context)
    streams.keep_choice(request, response)
    return response
