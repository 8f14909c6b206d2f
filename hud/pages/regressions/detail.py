"""One regression: its chart, kernels, environment, commits and pairs, and what a person can do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet

from hud.judging.bisect import work
from hud.judging.comparison import MetricComparison, compare
from hud.judging.kernels import changes
from hud.judging.kernels.changes import ComparedKernels
from hud.judging.kernels.table import CauseGroup, KernelBar, KernelTable
from hud.judging.regressions import commits
from hud.judging.regressions import read as regressions
from hud.judging.regressions.commits import Clues, RankedCommit
from hud.judging.regressions.groups import CauseLines, of_cause
from hud.models import Bisect, Environment, Regression, RegressionEvent, Series, State
from hud.pages.charts import multiples
from hud.pages.charts.choice import Choice
from hud.pages.charts.multiples import Multiples
from hud.points import read as points
from hud.points.facts import fact_name, flat
from hud.points.kernels import known_between
from hud.points.sides import BadSide
from hud.points.targets import Targets
from hud.runs.places import Builds, Rerun
from hud.states.bisect import BisectState
from hud.states.regressions import ACTIVE, BY_PEOPLE, Event, RegressionKind, RegressionState, possible

_MOST_KERNELS, _MOST_COMMITS, _MOST_CHARTS = 5, 12, 3
_CHOICE = Choice(points=60)  # of the chart
_SAME_FACTS = {"date"}  # of an environment, that change every night


@dataclass
class Kernels:
    """The kernels that changed most, with the group that says why, and what all others changed."""

    table: KernelTable
    sides: Sequence[str]  # of the page that compares all
    rows: list[tuple[KernelBar, CauseGroup]]

    @classmethod
    def of(cls, compared: ComparedKernels) -> "Kernels":
        table = KernelTable.of(compared.attribution)
        bars = [(bar, group) for group in table.groups for bar in group.rows if bar.change]
        bars.sort(key=lambda pair: -abs(pair[0].change_us))
        return cls(table, [str(compared.base.side), str(compared.head.side)], bars[:_MOST_KERNELS])

    @property
    def others(self) -> int:
        return len(self.table.attribution.changes) - len(self.rows)


@dataclass
class Detail:
    """One regression with what happened to it, what a person can do, and what tells of its cause."""

    regression: Regression
    cause: CauseLines
    events: list[RegressionEvent]
    actions: list[Event]
    environment: list[tuple[str, str, str]]  # facts that differ: name, before, after
    same_facts: int  # that do not
    bisect: Bisect | None  # the newest
    hindrance: str  # why another cannot start, '' if it can
    rerun: Rerun
    kernels: Kernels | None
    compiled: ComparedKernels | None  # with the phases of compile time, in place of kernels
    charts: Multiples | None
    pairs: list[MetricComparison] = field(default_factory=list)
    commits: list[RankedCommit] = field(default_factory=list)
    has_all: bool = False  # commits of its range

    choice: Choice = _CHOICE

    @property
    def waiting(self) -> int:
        """Return how many series of the cause a decision is about."""
        return sum(line.state in ACTIVE for line in self.cause.lines)

    @property
    def closing(self) -> list[Event]:
        """Return the possible events that need a reason."""
        return [event for event in self.actions if event in {Event.ACCEPT, Event.DISMISS}]

    @property
    def decision(self) -> RegressionEvent | None:
        """Return the last decision of a person."""
        return next((event for event in reversed(self.events) if event.event in BY_PEOPLE), None)

    @property
    def shown_commits(self) -> list[RankedCommit]:
        return self.commits[:_MOST_COMMITS]

    def to_json(self) -> dict[str, Any]:
        row = regressions.with_history(self.regression, self.events)
        environment = [dict(zip(("name", "base", "head"), fact, strict=True)) for fact in self.environment]
        table = commits.RANKED.rows(self.commits)
        return {**row, "environment": environment, "commits": table, "members": [
            line.pk for line in self.cause.lines
        ]}  # fmt: skip


def read(regression: Regression, causes: Sequence[CauseLines]) -> Detail:
    """Return the detail in 25 statements, and those of its kernels and pairs."""
    builds = Builds()
    bisect = Bisect.objects.filter(regression=regression).last()
    is_running = bisect is not None and bisect.state == BisectState.RUNNING
    cause = next((cause for cause in causes if regression in cause.lines), None)
    if cause is None:
        members = list((of_cause(regression) | _whole(regression)).select_related("series"))
        cause = regressions.grouped(regressions.complete(members))[0]
    compared = _compared(regression)
    is_compile_time = commits.area_of(regression.series.metric.name) == "compile"
    shown = Kernels.of(compared) if compared and not is_compile_time else None
    environment, names, same_facts = _differences(regression)
    clues = Clues.of(regression, shown.table.attribution if shown else None, names)
    ends = commits.ends(regression)
    line = commits.of_range(*ends) if ends else []
    states = [RegressionState(line.state) for line in cause.lines if line.state in ACTIVE]
    return Detail(
        regression,
        cause,
        list(regression.events.order_by("pk")),
        [event for event in possible(RegressionState(regression.state)) if _fits(event, states)],
        environment,
        same_facts,
        bisect,
        "it is running" if is_running else work.hindrance(regression, builds.accelerators),
        builds.of_regressions([regression])[regression.pk],
        shown,
        compared if is_compile_time else None,
        _charts(regression),
        _pairs(regression),
        [] if regression.kind == RegressionKind.DRIFT else commits.rank(line, clues),
        bool(ends and line and line[-1].parent.startswith(ends[0])),
    )


def _whole(regression: Regression) -> QuerySet[Regression]:
    """Return the regressions of a cause whatever their state: of its row, else those of its experiment that
    began in the same run."""
    if regression.cause_row_id:
        return Regression.objects.filter(cause_row=regression.cause_row_id)
    series = {
        f"series__{name}": getattr(regression.series, f"{name}_id") for name in ("experiment", "stream")
    }
    return Regression.objects.filter(**series, first_run=regression.first_run_id)


def _fits(event: Event, states: Sequence[RegressionState]) -> bool:
    """Return whether a person may decide so on a whole cause."""
    return event != Event.DISMISS or all(event in possible(state) for state in states)


def _compared(regression: Regression) -> ComparedKernels | None:
    """Return the comparison of the two runs' kernels, None where they are not known, and of a drift, which no
    two runs show."""
    if regression.kind == RegressionKind.DRIFT:
        return None
    runs = [regression.last_good_run_id, regression.first_run_id]
    if len(known_between([regression])) < len(set(runs)):
        return None
    base, head = (f"run:{run}/experiment:{regression.series.experiment_id}" for run in runs)
    try:
        return changes.read(base, head, regression.series.stream, with_code=False)
    except BadSide:
        return None


def _charts(regression: Regression) -> Multiples | None:
    """Return the charts of its metric and of others of its experiment that moved, None without points."""
    experiment, stream = regression.series.experiment, regression.series.stream
    series = list(Series.objects.filter(experiment=experiment, stream=stream).select_related("metric"))
    chosen = next(one for one in series if one.pk == regression.series_id)
    latest, targets = points.latest([one.pk for one in series]), Targets.read()
    points.shown(series, {experiment.pk: experiment}, latest, targets)
    if chosen.pk not in latest:
        return None
    about: dict[str, Any] = {"overlaid": [], "choice": _CHOICE, "targets": targets, "latest": latest}
    charts = multiples.read(experiment, chosen, {experiment.pk: series}, **about)
    first, *others = charts.rows
    charts.regressions.sort(key=lambda one: one.since != regression.since)  # its own line has a label first
    charts.rows = [first, *(row for row in others if row.regression)][:_MOST_CHARTS]
    return charts


def _pairs(regression: Regression) -> list[MetricComparison]:
    """Return the answer of the newest comparison in pairs on its metric, none before one has ended."""
    run = regression.concluded_run or regression.pairs_run
    if run is None or run.state != State.SUCCEEDED:
        return []
    return compare([run], series=regression.series_id, class_key=regression.class_key).metrics


def _differences(one: Regression) -> tuple[list[tuple[str, str, str]], list[str], int]:
    """Return the facts of the environment that differ from the last good run to the first that moved, as
    shown and by their names, and how many do not."""
    runs = [one.first_run_id, one.last_good_run_id]
    used = Environment.objects.filter(point__series=one.series_id, point__run__in=runs)
    facts: dict[int | None, Any] = {
        run: flat(about) for run, about in used.values_list("point__run", "facts")
    }
    before, after = facts.get(one.last_good_run_id), facts.get(one.first_run_id)
    if not before or not after:
        return [], [], 0
    names = sorted({*before, *after} - _SAME_FACTS)
    differing = [name for name in names if before.get(name) != after.get(name)]
    rows = [(fact_name(name), _text(before.get(name)), _text(after.get(name))) for name in differing]
    return rows, differing, len(names) - len(differing)


def _text(value: Any) -> str:
    text = "none" if value in (None, "", {}) else str(value)
    return text[:12] if commits.HASH.fullmatch(text) else text
