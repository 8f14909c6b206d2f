"""Judge points of two sides against each other: all pairs at once, then what may have moved one by one, with
what else may be the cause."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from hud.judging.compare.points import SUSPECT, Cohort, ComparedPoint, Places, PointPlace
from hud.judging.compare.sides import ComparedSide
from hud.judging.regressions.read import Scope, series_of
from hud.judging.verdict import Rule, judge_points, point_factors
from hud.models import VERDICT_CODES, VERDICTS, Experiment, Metric, Regression
from hud.points.expectations import FAILING, Expectations, knows_any
from hud.runs.places import Rerun
from hud.sql import Bools, Floats, Ints, by_id
from hud.tables.table import DataTable
from runner.schema.metrics import role_of
from runner.schema.records import QUALITIES, worst_quality
from runner.schema.tables import rows

_UNCHANGED, _IMPROVED, _REGRESSED = (VERDICT_CODES[word] for word in ("unchanged", "improved", "regressed"))
_DECIDED = (_UNCHANGED, _IMPROVED, _REGRESSED, SUSPECT)
_Z_95 = 1.96
_CERTAIN = 10.0  # times the noise: it could not be more certain
# Reasons beside those of `hud.judging.verdict`, each a difference that may be the cause of the move.
OTHER_CLASS, OTHER_CARD, OTHER_HOST, OTHER_DRAW = "other_class", "other_card", "other_host", "other_draw"
OTHER_PLACES = frozenset({"arch", "host"})  # across which a comparison is of places
KNOWN_FAILURE = "known_failure"
_ROWS = [row.values() for row in rows(__file__, "reasons.csv")]
_BREAKS = "graph_breaks"
REASONS = {**QUALITIES, **{reason: words for reason, words, _compared in _ROWS if words}}  # of verdicts
WORDS = {**QUALITIES, **{reason: words for reason, _of_verdict, words in _ROWS if words}}
COLUMNS = DataTable("""
    metric=metric.name unit=metric.unit direction=metric.direction base=base.value head=head.value
    base_n=base.compilations head_n=head.compilations base_status=base.status head_status=head.status
    change margin noise factor verdict reason base_run=base.run_id head_run=head.run_id
""")


@dataclass(slots=True)
class JudgedCell:
    """A metric of an experiment on one side against the baseline."""

    metric: Metric
    base: ComparedPoint
    head: ComparedPoint
    verdict: str
    reason: str = ""
    change: float | None = None
    noise: float | None = None
    factor: float | None = None

    @property
    def moved(self) -> bool:
        return self.verdict in {"regressed", "improved", "failed"} and not self.is_apart

    @property
    def undecided(self) -> bool:
        return self.verdict == "inconclusive"

    @property
    def changed(self) -> bool:
        return self.verdict != "unchanged"

    @property
    def is_apart(self) -> bool:
        """Return whether it fails and is no news: as in the baseline, or as is known."""
        return self.reason in {"both_fail", KNOWN_FAILURE}

    @property
    def why(self) -> str:
        return WORDS.get(self.reason, "")

    @property
    def margin(self) -> float | None:
        """Return half the change's 95 % interval, by the noise from point to point."""
        if self.noise is None or self.change is None or self.metric.kind != "timing":
            return None
        return _Z_95 * math.sqrt(2) * self.noise * (1 + self.change)

    @property
    def score(self) -> float:
        """Return certainty × size in log space; failures lead."""
        if self.is_apart:
            return 0.0
        if self.verdict == "failed" or self.reason == "new_pass":
            return math.inf
        if self.change is None or self.change <= -1:
            return 1.0 if self.moved else 0.0
        certainty = min((self.factor if self.factor is not None else _CERTAIN) / _CERTAIN, 1.0)
        return certainty * abs(math.log1p(self.change))


def judge(
    metric: Metric,
    rule: Rule,
    ends: tuple[ComparedPoint, ComparedPoint],
    places: tuple[PointPlace, PointPlace],
    *,
    noise: float | None,
    points: int,
    across: Collection[str] = (),
    of_judge: int = -1,
    factor: float | None = None,
) -> JudgedCell:
    """Return the verdict on two points, `of_judge` with its factor where there is one; `noise` is that of the
    series, known from so many points. Else a change is inconclusive if another card, host or environment or
    the autotuner's draw may have caused it, unless what the comparison is `across` brings these."""
    base, head = ends
    if metric.kind == "status" or base.value is None or head.value is None:
        changed = {(True, False): ("failed", ""), (False, True): ("improved", "new_pass")}
        same = "unchanged", "" if base.good else "both_fail"
        return JudgedCell(metric, base, head, *changed.get((base.good, head.good), same))
    if quality := worst_quality((base.quality, head.quality)):
        change = head.value / base.value - 1 if base.value else None
        return JudgedCell(metric, base, head, "inconclusive", quality, change)
    verdict = judge_points(base.values, head.values, rule, noise=noise, points=points)
    word, reason = str(verdict.verdict), str(verdict.reason)
    if of_judge >= 0:
        word, reason = ("inconclusive", "suspect") if of_judge == SUSPECT else (VERDICTS[of_judge], "")
        return JudgedCell(metric, base, head, word, reason, verdict.change, verdict.noise, factor)
    if verdict.verdict == "unchanged":
        reason = ""
    elif not OTHER_PLACES.isdisjoint(across):
        pass
    elif other := _other_place(metric, places, head.cards or ()):
        word, reason = "inconclusive", other
    elif metric.kind == "timing" and word != "inconclusive" and not across:
        before, after = ({variant for variant in point.variants if variant} for point in ends)
        if before and after and not before & after:  # known on both sides, and none is on both
            word, reason = "inconclusive", OTHER_DRAW
    return JudgedCell(metric, base, head, word, reason, verdict.change, verdict.noise, verdict.factor)


def _other_place(metric: Metric, places: tuple[PointPlace, PointPlace], level_cards: Collection[str]) -> str:
    """Return the first difference of the places that may move this metric, '' without one. Cards that both
    belong to the series' level are part of its noise, with their hosts."""
    base, head = places
    if base.class_key != head.class_key:
        return OTHER_CLASS
    if metric.kind != "timing":
        return ""
    cards = {base.card, head.card}
    if "" not in cards and (len(cards) == 1 or cards <= set(level_cards)):
        return ""
    if "" not in cards:
        return OTHER_CARD
    return OTHER_HOST if base.host != head.host and base.host and head.host else ""


@dataclass(slots=True)
class ComparedRow:
    """An experiment on all sides. `cells` has the most telling metric for each candidate, None where a side
    lacks it, `best` the most telling of them; without any, `alone` has the point of the side that has one.
    `add_regressions` and `complete` add the rest."""

    pk: int  # the baseline's, where the sides have several
    cells: list[JudgedCell | None]
    own: list[int]  # of each candidate
    best: JudgedCell | None = None
    moved: dict[int, list[JudgedCell]] = field(default_factory=dict)  # of each candidate, all that did
    alone: tuple[int, Metric, ComparedPoint] | None = None  # its side
    facts: str = ""
    with_arch: bool = False  # rows of several arches are shown
    regression: Regression | None = None
    experiment: Experiment = field(init=False)
    stream: str = ""  # of the candidate, for links
    code: tuple[str, str] | None = None  # sides of the page that compares kernels
    rerun: Rerun | None = None  # of what moved, in pairs where a host can

    @property
    def about(self) -> str:
        """Return what tells experiments of one title apart."""
        experiment = self.experiment
        mode = "" if experiment.mode == "inference" else experiment.mode
        arch = (experiment.arch or experiment.device) if self.with_arch else ""
        return " · ".join(filter(None, (experiment.suite, experiment.backend, experiment.dtype, mode, arch)))

    @property
    def also(self) -> list[str]:
        """Return the titles of further metrics that moved."""
        return list(dict.fromkeys(cell.metric.title for own in self.moved.values() for cell in own[1:]))

    def words(self, index: int) -> set[str]:
        """Return the verdicts on a candidate: of all that moved, else of what is shown."""
        cells = self.moved.get(index) or [cell for cell in (self.cells[index],) if cell]
        return {cell.verdict for cell in cells if not cell.is_apart}

    @property
    def of_best(self) -> int:
        """Return the candidate's experiment of `best`."""
        return next(own for own, cell in zip(self.own, self.cells, strict=True) if cell is self.best)

    @property
    def only(self) -> str:
        return "" if self.alone is None else "head" if self.alone[0] else "base"

    @property
    def score(self) -> float:
        return self.best.score if self.best else 0.0

    @property
    def section(self) -> int:
        """Return 0 for a mover, 1 undecided, 2 within the noise, 3 not compared."""
        if self.best is None or self.best.is_apart:
            return 3
        return 0 if self.best.moved else 1 if self.best.undecided else 2

    def choose(self, of_heads: Sequence[Sequence[JudgedCell]]) -> None:
        """Choose the cells from the pairs of each candidate, of which the one to show if none moved is
        first."""
        for index, pairs in enumerate(of_heads):
            moved, unsure = (
                sorted((pair for pair in pairs if getattr(pair, kind)), key=lambda pair: -pair.score)
                for kind in ("moved", "undecided")
            )
            leading = [pair for pair in pairs[:1] if pair.undecided]
            known = [pair for pair in pairs if pair.reason == KNOWN_FAILURE]
            self.cells[index] = next(iter([*moved, *leading, *unsure, *known, *pairs]), None)
            self.moved[index] = moved
        self.choose_best()
        for head in of_heads[0]:
            ends = head.base.value, head.head.value  # None where it failed
            is_further = head.metric.name == _BREAKS and head is not self.best
            if is_further and ends[0] != ends[1] and None not in ends:
                self.facts = f"graph breaks {ends[0]:.0f} → {ends[1]:.0f}"

    def choose_best(self) -> None:
        there = [cell for cell in self.cells if cell]
        if len(there) > 1:
            there.sort(key=lambda cell: (cell.moved, cell.undecided, cell.score), reverse=True)
        self.best = there[0] if there else None

    def to_rows(self, heads: Sequence[ComparedSide], about: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return a row for each candidate; `about` identifies the experiment."""
        state = {"regression": self.regression.pk, "state": self.regression.state} if self.regression else {}
        if self.rerun:
            state |= {"pairs": self.rerun.pairs, "hindrance": self.rerun.hindrance}
        if self.alone:
            _side, metric, point = self.alone
            value = {"metric": metric.name, "unit": metric.unit, self.only: point.value, "reason": point.note}
            verdict = "not_run" if self.only == "base" else "new"
            return [{**about, **value, "verdict": verdict, "only": self.only, **state}]
        return [
            {**about, "side": side.text, "stream": side.stream, **COLUMNS.row(cell), **state}
            | {"head_id": own}
            for side, cell, own in zip(heads, self.cells, self.own, strict=True)
            if cell
        ]


@dataclass
class Sections:
    """The rows of a comparison, those with the most certain and largest changes first."""

    movers: list[ComparedRow]
    undecided: list[ComparedRow]  # moved, but something else may be the cause
    quiet: list[ComparedRow]  # within the noise
    apart: list[ComparedRow]  # on one side only, or failing on both

    @property
    def compared(self) -> list[ComparedRow]:
        return [*self.movers, *self.undecided, *self.quiet]

    @property
    def every(self) -> list[ComparedRow]:
        return [*self.compared, *self.apart]


def known_failures(cohort: Cohort, side: int, places: Places) -> Bools:
    """Return which experiments fail on a side, not in the baseline, as lists or people say they do: 3
    statements, 1 where nothing is known in its stream, none without failures."""
    base, head = cohort.sides[0], cohort.sides[side]
    known, stream_id = np.zeros(cohort.ids.size, bool), head.side.newest.stream_id
    fails = base.there & base.good & np.isin(head.table.status, FAILING)
    lines = np.flatnonzero(fails.any(axis=1))
    if not lines.size or not knows_any(stream_id):
        return known
    own = [head.own.get(pk, pk) for pk in cohort.ids[lines].tolist()]
    experiments = by_id(Experiment, own)
    expectations = Expectations(stream_id, experiments.values())
    for line, pk, run in zip(lines.tolist(), own, head.table.run[lines].max(axis=1).tolist(), strict=True):
        known[line] = bool(expectations.known_failure(experiments[pk], places.runs[run].order_time))
    return known


_FEWEST = 5  # compilations, as `judge_points` has it


@dataclass(frozen=True)
class Pairs:
    """The points of the baseline and one candidate as `judge` would see them: tables of the cohort."""

    compared: Bools  # points on both sides of a metric that decides
    quiet: Bools  # within the noise, or the same status
    change: Floats  # NaN without one
    noise: Floats  # of the series from point to point, the prior where unknown; NaN without numbers
    points: Ints  # over how many it is known
    factor: Floats  # of a change in a timing, NaN otherwise
    of_judge: Ints  # the code of what the level says of the step, -1 where only the two numbers tell
    shown: Ints  # of each experiment: the column to show if none moved, -1 without one

    def cells(self, cohort: Cohort, side: int) -> list[JudgedCell | None]:
        """Return what each experiment shows if nothing moved."""
        rows = np.flatnonzero(self.shown >= 0)
        columns = self.shown[rows]
        base, head = (cohort.sides[at].points(rows, columns) for at in (0, side))
        changes, noises, factors = (
            [None if math.isnan(value) else value for value in table[rows, columns].tolist()]
            for table in (self.change, self.noise, self.factor)
        )
        cells: list[JudgedCell | None] = [None] * len(self.shown)
        for row, column, before, after, *numbers in zip(
            rows.tolist(), columns.tolist(), base, head, changes, noises, factors, strict=True
        ):
            reason = "" if numbers[1] is not None or before.good or after.good else "both_fail"
            cells[row] = JudgedCell(cohort.metrics[column], before, after, "unchanged", reason, *numbers)
        return cells


def screen(cohort: Cohort, side: int, metric: str) -> Pairs:
    """Return the pairs of the baseline and a side by that metric, or if it is '' by the headline metrics of
    each experiment: 1 statement. The noise is the one that is known from more points of the series, else that
    of the candidate's point."""
    sides = cohort.sides[0], cohort.sides[side]
    (base, base_good, base_there), (head, head_good, head_there) = (
        (points.table, points.good, points.there) for points in sides
    )
    kinds = np.array([metric.kind for metric in cohort.metrics], str)
    floors = np.array(
        [
            [(rule.relative_floor, rule.absolute_floor, rule.prior_noise) for rule in row]
            for row in cohort.rules
        ]
    ).reshape(-1, len(kinds), 3)
    undecided = base.undecided | head.undecided
    by_status = (kinds == "status") | np.isnan(base.value) | np.isnan(head.value)
    is_timing = ~by_status & (kinds == "timing")
    scale = np.maximum(np.maximum(np.abs(base.value), np.abs(head.value)), np.finfo(float).tiny)
    positive = (base.value > 0) & (head.value > 0)
    logs = [np.log(np.where(positive, end.value, 1.0)) for end in (base, head)]
    size = np.abs(np.where(positive, logs[1] - logs[0], head.value / scale - base.value / scale))
    of_base = (base.series == head.series) & (base.level_points > head.level_points) & (base.noise > 0)
    points = np.where(of_base, base.level_points, head.level_points)
    known = np.where(of_base, base.noise, head.noise)
    noise = np.where(known > 0, known, floors[..., 2])
    factor = point_factors(size, noise, points)
    enough = (points >= 2) & (points * base.count >= _FEWEST)
    within = (size <= np.log1p(floors[..., 0])) | ((factor <= Rule.suspect_factor) & enough)
    quiet = (np.abs(head.value - base.value) <= floors[..., 1]) | ((kinds == "timing") & within)
    of_judge = np.full(base.shape, -1)
    before, after = (points.side.newest for points in sides)
    if before.order_time < after.order_time:
        is_better_up = np.array([metric.direction == "up" for metric in cohort.metrics])
        waiting = series_of(Scope(after.stream, base=before.order_time, head=after.order_time))
        said = _of_judge(base, head, np.log1p(floors[..., 0]), is_better_up, waiting)
        of_judge = np.where(is_timing & ~undecided, said, -1)
    quiet = np.where(of_judge < 0, quiet, of_judge == _UNCHANGED)
    # how far a point is from its own level says nothing of the step to another one
    is_step = (head.verdict == _UNCHANGED) & (of_judge != _UNCHANGED)
    factor = np.where((of_judge < 0) | is_step | np.isnan(head.factor), factor, head.factor)
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.where(by_status | (base.value == 0), np.nan, head.value - base.value) / np.abs(base.value)
    compared = _decides(cohort, base_there | head_there, metric) & base_there & head_there
    first = np.where(compared, cohort.order, len(kinds)).argmin(axis=1)
    timed = np.where(compared & is_timing, cohort.order, len(kinds)).argmin(axis=1)
    rows = np.arange(cohort.ids.size)
    both_fail = (by_status & ~base_good & ~head_good)[rows, first]
    shown = np.where(is_timing[rows, timed] & compared[rows, timed] & ~both_fail, timed, first)
    return Pairs(
        compared,
        np.where(by_status, base_good == head_good, quiet & ~undecided),
        change,
        np.where(by_status, np.nan, np.where(is_timing, noise, 0.0)),
        points,
        np.where(is_timing, factor, np.nan),
        of_judge,
        np.where(compared.any(axis=1), shown, -1),
    )


def _of_judge(base: Any, head: Any, floor: Floats, is_better_up: Bools, waiting: Collection[int]) -> Ints:
    """Return what the judge says of the step between two points of a series: regressed of a `waiting` one,
    what it said of the later point if the earlier one is at the same level, the step between two levels, or
    the way back to the level; else -1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.log(head.level / base.level)
    near, far = np.abs(step) <= floor, np.abs(step) > floor  # neither without levels
    same, was_at, is_at = base.series == head.series, base.verdict == _UNCHANGED, head.verdict == _UNCHANGED
    said = np.where(was_at & near & np.isin(head.verdict, _DECIDED), head.verdict, -1)
    said = np.where(was_at & far & is_at, np.where((step > 0) == is_better_up, _IMPROVED, _REGRESSED), said)
    said = np.where((base.verdict == _REGRESSED) & near & is_at, _IMPROVED, said)
    return np.where(same, np.where(np.isin(head.series, [*waiting]), _REGRESSED, said), -1)


def _decides(cohort: Cohort, present: Bools, metric: str) -> Bools:
    """Return whether each metric of each experiment is the given one, or if that is '' a headline metric
    among those that are present."""
    names = [metric.name for metric in cohort.metrics]
    if metric:
        return np.broadcast_to([name == metric for name in names], present.shape)
    sets = {row.tobytes(): set(compress(names, row)) for row in present}
    headline = {key: [role_of(name, own) == "headline" for name in names] for key, own in sets.items()}
    return np.array([headline[row.tobytes()] for row in present], bool).reshape(present.shape)
