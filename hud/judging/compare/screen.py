"""Screen a comparison: the points of two sides against each other, all at once as tables, so that `judge`
sees only what may have moved."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from hud.judging.compare.judged import JudgedCell
from hud.judging.compare.points import SUSPECT, Cohort, Places
from hud.judging.regressions.read import Scope, series_of
from hud.judging.verdict import Rule, point_factors
from hud.models import VERDICT_CODES, Experiment
from hud.points.expectations import FAILING, Expectations, knows_any
from hud.sql import Bools, Floats, Ints, by_id
from runner.schema.metrics import role_of

_UNCHANGED, _IMPROVED, _REGRESSED = (VERDICT_CODES[word] for word in ("unchanged", "improved", "regressed"))
_DECIDED = (_UNCHANGED, _IMPROVED, _REGRESSED, SUSPECT)
_FEWEST = 5  # compilations, as `judge_points` has it


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
    among those that are present, or of a direction of its own."""
    names = [metric.name for metric in cohort.metrics]
    if metric:
        return np.broadcast_to([name == metric for name in names], present.shape)
    sets = {row.tobytes(): set(compress(names, row)) for row in present}
    own_way = {metric.name for metric in cohort.metrics if metric.has_own_direction}
    headline = {
        key: [name in own_way or role_of(name, own) == "headline" for name in names]
        for key, own in sets.items()
    }
    return np.array([headline[row.tobytes()] for row in present], bool).reshape(present.shape)
