"""Which of thousands of pairs of points may have moved, all at once, so that only these are judged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hud.judging.rules.thresholds import Thresholds, default_rule
from hud.judging.verdict import Rule, point_factors
from hud.models import Experiment
from hud.pages.compare.cohort import Cohort
from hud.pages.compare.points import Bools, Floats, Ints

_CERTAIN = 10.0  # times the noise: it could not be more certain


class Rules:
    """The rules of a cohort's series, with what operators say."""

    def __init__(self, thresholds: Thresholds, cohort: Cohort) -> None:
        """Read the experiments where an operator says anything: 1 statement."""
        self._columns, self._ids = cohort.columns, cohort.ids.tolist()
        self._default = [default_rule(metric) for metric in cohort.columns]
        self.relative = np.array([[rule.relative_floor for rule in self._default]])
        self.absolute = np.array([[rule.absolute_floor for rule in self._default]])
        self._own: dict[tuple[int, int], Rule] = {}
        names = {"", *(metric.name for metric in cohort.columns)}
        if not any(row.metric in names for row in thresholds.rows):
            return
        self.relative = np.repeat(self.relative, len(self._ids), axis=0)
        self.absolute = np.repeat(self.absolute, len(self._ids), axis=0)
        experiments = Experiment.objects.in_bulk(self._ids)
        for at, column in np.argwhere(cohort.at[0] >= 0).tolist():
            rule = thresholds.of(experiments[self._ids[at]], self._columns[column]).rule
            self._own[at, column] = rule
            self.relative[at, column], self.absolute[at, column] = rule.relative_floor, rule.absolute_floor

    def of(self, experiment: int, column: int) -> Rule:
        return self._own.get((experiment, column), self._default[column])


@dataclass(frozen=True)
class Pairs:
    """Pairs of points of the baseline and one candidate, an element for each pair. The pairs of an experiment
    follow each other, its main metric first."""

    experiment: Ints
    column: Ints
    noise: Floats  # of the series from point to point, the prior where unknown; NaN without numbers
    points: Ints  # over how many
    change: Floats  # NaN without one
    factor: Floats  # of a change in a timing, NaN otherwise
    score: Floats  # certainty × size of a change within the noise
    quiet: Bools  # within the noise, or the same status
    both_fail: Bools
    first: Ints  # of each experiment of the cohort: its first pair, -1 without one
    last: Ints  # and the one after its last
    shown: Ints  # the one to show if none moved: the first with numbers, unless the first fails on both sides


def screen(cohort: Cohort, side: int, metric: str, rules: Rules) -> Pairs:
    """Return the pairs of a candidate, as `judge` would see them; noise is that of the candidate's point."""
    experiment, column = np.nonzero(cohort.headline(side, metric))
    order = np.lexsort((cohort.column_order[experiment, column], experiment))
    experiment, column = experiment[order], column[order]
    kinds = np.array([one.kind for one in cohort.columns], str)[column]
    base, head = cohort.values(0)[experiment, column], cohort.values(side)[experiment, column]
    head_points, at = cohort.sides[side], cohort.at[side][experiment, column]
    noise, points = head_points.noise[at], head_points.level_points[at]
    by_status = (kinds == "status") | np.isnan(base) | np.isnan(head)
    size = np.abs(_steps(base, head))
    prior = np.array([rules.of(0, at).prior_noise for at in range(len(cohort.columns))])[column]
    noise = np.where(noise > 0, noise, prior)
    factor = point_factors(size, noise, points)
    rows = experiment if len(rules.relative) > 1 else 0
    same = np.abs(head - base) <= rules.absolute[rows, column]
    within = size <= np.log1p(rules.relative[rows, column])
    count = cohort.sides[0].count[cohort.at[0][experiment, column]]
    enough = (points >= 2) & (points * count >= _FEWEST)
    quiet = same | ((kinds == "timing") & (within | ((factor <= Rule.suspect_factor) & enough)))
    good = cohort.good(0)[experiment, column], cohort.good(side)[experiment, column]
    quiet[by_status] = (good[0] == good[1])[by_status]
    is_timing = ~by_status & (kinds == "timing")
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.where(by_status | (base == 0), np.nan, (head - base) / np.abs(base))
        certainty = np.where(kinds == "deterministic", 1.0, np.minimum(factor / _CERTAIN, 1.0))
        score = certainty * np.abs(np.log1p(change))
    both_fail = by_status & ~good[0] & ~good[1]
    first, last = np.full(cohort.ids.size, -1), np.full(cohort.ids.size, -1)
    starts = np.flatnonzero(np.diff(experiment, prepend=-1))
    first[experiment[starts]] = starts
    last[experiment[starts]] = np.append(starts[1:], experiment.size)[: starts.size]
    shown = first.copy()
    numbers = np.flatnonzero(is_timing & ~both_fail[first[experiment]])[::-1]
    shown[experiment[numbers]] = numbers  # the first of each experiment is written last
    return Pairs(
        experiment,
        column,
        np.where(by_status, np.nan, np.where(is_timing, noise, 0.0)),
        points,
        change,
        np.where(is_timing, factor, np.nan),
        np.where(np.isfinite(score), score, 0.0),
        quiet,
        both_fail,
        first,
        last,
        shown,
    )


_FEWEST = 5  # compilations, as `judge_points` has it


def _steps(base: Floats, head: Floats) -> Floats:
    """Return log ratios of positive values, else the differences relative to the larger magnitude."""
    scale = np.maximum(np.maximum(np.abs(base), np.abs(head)), np.finfo(float).tiny)
    positive = (base > 0) & (head > 0)
    logs = np.log(np.where(positive, head, 1.0)) - np.log(np.where(positive, base, 1.0))
    return np.where(positive, logs, head / scale - base / scale)
