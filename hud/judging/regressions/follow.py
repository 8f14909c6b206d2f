"""Open, follow and close regressions of series that were just judged, and say what runs tell of their causes:
where eager got faster, the compiler lost nothing; a graph that breaks says why."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from django.utils import timezone

from hud.judging.aggregates import moved_side
from hud.judging.kernels.attribution import note_changes
from hud.judging.levels import Level, Move, SeriesPoint
from hud.judging.regressions import canaries, known_failures, moves
from hud.judging.regressions.events import apply, close, record, set_state
from hud.judging.verdict import Rule, Verdict
from hud.models import Compilation, Point, Regression, RegressionEvent, Series
from hud.states.regressions import ACTIVE, AT_ONCE, Canaries, Event
from runner.schema.compilations import Compiled, Note

BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
# The eager and the compiled time that each speedup divides
_TIMES = {
    "speedup": ("eager_latency_ms", "compiled_latency_ms"),
    "device_speedup": ("eager_device_latency_ms", "device_latency_ms"),
}
_BREAKS = {"graph_breaks", "unique_graph_breaks"}
_WORDS = {"eager": "eager got faster, the compiled time did not move", "both": "eager moved too"}
State = Regression.State


@dataclass
class Judged:
    """A series in one class of environments, while it is judged."""

    series: Series
    class_key: str
    rule: Rule
    is_headline: bool = False
    level: Level = field(default_factory=Level)
    recent: list[float | None] = field(default_factory=list)  # values of its newest points, oldest first
    until: datetime = BEFORE_ALL  # the newest point that the level knows
    newest: SeriesPoint | None = None
    verdict: Verdict | None = None  # of the newest
    is_own: bool = True  # its own level gave that verdict, not its reference's
    reference: tuple[int, Level] | None = None  # a stream whose level judges it while it has none of its own

    @property
    def run_id(self) -> int:
        assert self.newest
        return self.newest.run_id


def settled(series_ids: Collection[int]) -> dict[tuple[int, str], list[datetime]]:
    """Return when a decision has ended the level of these series, by series and class."""
    by_class: dict[tuple[int, str], list[datetime]] = {}
    decided = RegressionEvent.objects.filter(regression__series__in=series_ids, level_since__isnull=False)
    names = ("regression__series", "regression__class_key", "level_since")
    for series_id, class_key, since in decided.values_list(*names):
        by_class.setdefault((series_id, class_key), []).append(since)
    return by_class


def update(judged: Sequence[Judged]) -> None:
    """Open, follow and close regressions of judged series, and check hosts: 2 statements if nothing moved."""
    followed = []
    series_ids = [state.series.pk for state in judged]
    found = Regression.objects.filter(series__in=series_ids).order_by("pk").select_for_update()
    in_order = sorted(found, key=lambda row: row.state in ACTIVE)  # the newest is the last, or the active one
    latest = {(row.series_id, row.class_key): row for row in in_order}
    known_reasons = known_failures.reasons(
        (state.series, state.until)
        for state in judged
        if (move := state.level.move) and move.worse and (move.failed or state.series.metric.kind == "status")
    )
    for state in judged:
        known = latest.get((state.series.pk, state.class_key))
        active = known if known and known.state in ACTIVE else None
        move = state.level.move
        if not state.is_headline:
            if active:  # device time has come to an experiment of call time
                close(active, run_id=state.run_id)
        elif move and move.worse and not move.back:
            if state.is_own:
                followed += _follow(state, move, known, known_reasons.get(state.series.pk, ""))
        elif active and active.kind in AT_ONCE and (not move or active.state == State.SUSPECT):
            close(active, run_id=state.run_id)  # its series is at its level again
    canary_runs = {state.run_id for state in judged if canaries.is_canary(state.series)}
    if followed or canary_runs:
        canaries.watch(followed, canary_runs)
        _name_causes(followed)


def _follow(judged: Judged, move: Move, known: Regression | None, reason: str) -> list[Regression]:
    """Open a regression for the move, or bring the one that is there up to date; return it, or nothing for a
    move that opens none. A failure with a `reason` is known."""
    if reason:
        if known and known.state in ACTIVE and known_failures.is_failure(known):
            known_failures.end(known, reason, run_id=judged.run_id)
        return []
    assert judged.verdict
    level, is_timing = judged.verdict.baseline, judged.series.metric.kind == "timing"
    kind = moves.kind_of(move, known, judged.recent, level, is_timing=is_timing)
    following = moves.follow(move, kind, known)
    if following is None:
        return []
    first_state, event = following
    regression = Regression(state=first_state) if first_state else known
    assert regression
    regression.kind = kind
    regression.series, regression.class_key = judged.series, judged.class_key
    before, superseded = regression.state, _size(regression)
    if event == Event.MOVED_AGAIN:
        set_state(regression, Event.MOVED_AGAIN)
        regression.opened = timezone.now()
        regression.repeat_run = regression.pairs_run = regression.concluded_run = None
        regression.undecided = False
    regression.since, regression.points, regression.steps = move.time, move.points, move.steps
    regression.first_run_id, regression.last_good_run_id = move.run_id, move.last_good_run
    regression.latest_run_id = judged.run_id
    regression.before, regression.after = judged.verdict.baseline, move.latest
    regression.change, regression.factor = judged.verdict.change, judged.verdict.factor
    regression.save()
    if first_state:
        record(regression, "", run_id=move.run_id)
    elif event == Event.MOVED_AGAIN:
        record(regression, before, event=event, run_id=move.run_id)
    elif event and superseded:
        note = f"{_size(regression)} supersedes {superseded}"
        record(regression, event=event, run_id=judged.run_id, note=note)
    if regression.state == State.SUSPECT and move.agreed_run:
        apply(regression, Event.AGREED, run_id=move.agreed_run)
    return [regression]


def _size(regression: Regression) -> str:
    if regression.change is not None:
        return f"{regression.change:+.1%}"
    return "" if regression.after is None else f"{regression.after:g}"


def _name_causes(followed: Sequence[Regression]) -> None:
    """Write the causes of regressed speedups and graph breaks: 1 statement for each kind, none without."""
    speedups = [row for row in followed if row.series.metric.name in _TIMES and row.change is not None]
    breaks = [row for row in followed if row.series.metric.name in _BREAKS]
    for regression, cause in (*_moved_sides(speedups), *_reasons(breaks)):
        if regression.canaries != Canaries.MOVED and cause != regression.cause:
            regression.cause = cause[:200]
            regression.save(update_fields=["cause"])


def _moved_sides(speedups: Sequence[Regression]) -> Iterator[tuple[Regression, str]]:
    rows = Point.objects.filter(
        series__experiment__in={speedup.series.experiment_id for speedup in speedups},
        series__metric__name__in={name for times in _TIMES.values() for name in times},
        run__in=[run for speedup in speedups for run in (speedup.last_good_run_id, speedup.first_run_id)],
        value__gt=0,
    ).values_list("series__experiment", "series__metric__name", "run", "value")
    values = {(experiment, name, run): value for experiment, name, run, value in rows}
    for speedup in speedups:
        ends = speedup.last_good_run_id or 0, speedup.first_run_id or 0
        eager, compiled = (
            [values.get((speedup.series.experiment_id, name, run)) or 0.0 for run in ends]
            for name in _TIMES[speedup.series.metric.name]
        )
        side = ""
        if all((*eager, *compiled)):
            step = abs(math.log1p(max(speedup.change or 0.0, -0.999)))
            noise = step / speedup.factor / math.sqrt(2) if speedup.factor else 0.005  # that of one time
            side = moved_side((eager[0], eager[1]), (compiled[0], compiled[1]), noise=max(noise, 0.005))
        yield speedup, _WORDS.get(side, "")


def _reasons(breaks: Sequence[Regression]) -> Iterator[tuple[Regression, str]]:
    """Yield the reason that came most often since the last good run, where compilations tell it."""
    experiments = {row.series.experiment_id for row in breaks}
    runs = [run for row in breaks for run in (row.last_good_run_id, row.first_run_id)]
    rows = Compilation.objects.filter(experiment__in=experiments, run__in=runs, side=0)
    found: dict[tuple[int, int | None], list[Compiled]] = {}
    for experiment, run, notes in rows.values_list("experiment", "run", "graph_breaks"):
        compiled = Compiled(graph_breaks=tuple(Note(**note) for note in notes))
        found.setdefault((experiment, run), []).append(compiled)
    for row in breaks:
        base, head = (
            found.get((row.series.experiment_id, run), []) for run in (row.last_good_run_id, row.first_run_id)
        )
        new = [change for change in note_changes(base, head) if change.head > change.base]
        if new:
            yield row, f"{new[0].reason}, at {new[0].place}" if new[0].place else new[0].reason
