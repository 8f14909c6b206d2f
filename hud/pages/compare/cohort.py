"""The experiments of all sides, and which of them has which metric where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hud.models import Metric
from hud.pages.compare.points import Bools, Floats, Ints, Points
from hud.points.read import metric_place
from hud.sql import fetch_tuples, int_array
from runner.schema.metrics import role_of

Key = tuple[str, str, str, str, str]  # suite, backend, mode, dtype, arch or device


@dataclass(frozen=True)
class Cohort:
    """Experiments by number, from 0 on. A table of `at` has a row for each of them and a column for each
    metric: the index of the point on that side, -1 without one."""

    ids: Ints
    names: Ints  # place of each in the order of suite, case and knobs
    members: list[tuple[Key, Ints]]  # the experiments of each group, in the order of its key
    suites: list[str]  # also those that the filter leaves out
    columns: list[Metric]
    sides: list[Points]
    at: list[Ints]
    column_order: Ints  # of each experiment: the place of each metric, the suite's main ones first

    @property
    def arches(self) -> set[str]:
        return {key[4] for key, _experiments in self.members}

    def values(self, side: int) -> Floats:
        """Return the table of values, NaN without one."""
        found: Floats = np.append(self.sides[side].value, np.nan)[self.at[side]]
        return found

    def good(self, side: int) -> Bools:
        """Return which points have the status ok; without a point it is true."""
        good: Bools = np.append(self.sides[side].status, 0)[self.at[side]] == 0
        return good

    def has(self, side: int) -> Bools:
        """Return which experiments have any point on that side."""
        found: Bools = np.any(self.at[side] >= 0, axis=1)
        return found

    def headline(self, side: int, metric: str) -> Bools:
        """Return the table of what is judged between the baseline and this side: that metric, or if it is ''
        the headline metrics of each experiment."""
        both: Bools = (self.at[0] >= 0) & (self.at[side] >= 0)
        if metric:
            both &= np.array([one.name == metric for one in self.columns])
            return both
        if not both.any():
            return both
        present = (self.at[0] >= 0) | (self.at[side] >= 0)
        _packed, firsts, kinds = np.unique(
            np.packbits(present, axis=1), axis=0, return_index=True, return_inverse=True
        )
        roles = np.array([self._roles(present[first]) for first in firsts], bool)
        both &= roles.reshape(-1, len(self.columns))[kinds.ravel()]
        return both

    def _roles(self, present: Bools) -> list[bool]:
        names = {one.name for one, there in zip(self.columns, present, strict=True) if there}
        return [role_of(one.name, names) == "headline" for one in self.columns]


def read(sides: Sequence[Points], metrics: Mapping[int, Metric], subject: Mapping[str, str]) -> Cohort:
    """Return the experiments of these points; `subject` names their suite, mode, dtype and arch, ''
    for any: 1 statement."""
    wanted = np.unique(np.concatenate([points.experiment for points in sides]))
    rows = fetch_tuples(
        """
        SELECT suite, backend, mode, dtype, coalesce(nullif(arch, ''), device), array_agg(id),
            array_agg(place::int)
        FROM (
            SELECT *, row_number() OVER (
                ORDER BY suite COLLATE "C", "case" COLLATE "C", knobs::text COLLATE "C", id) place
            FROM hud_experiment WHERE id = ANY(%(ids)s::int[])) one
        GROUP BY 1, 2, 3, 4, 5
        """,
        {"ids": int_array(wanted.tolist())},
    )
    columns_of = (("mode", 2), ("dtype", 3), ("arch", 4))
    of_subject = [row for row in rows if all(subject[name] in ("", row[at]) for name, at in columns_of)]
    chosen = sorted(row for row in of_subject if subject["suite"] in ("", row[0]))
    ids = np.sort(np.array([pk for row in chosen for pk in row[5]], np.int64))
    names, columns = np.zeros(ids.size, np.int64), sorted(metrics.values(), key=lambda one: one.name)
    order = np.zeros((ids.size, len(columns)), np.int64)
    members = []
    in_suite: dict[str, Ints] = {}  # the place of each metric
    for *key, pks, places in chosen:
        own = np.searchsorted(ids, np.sort(pks))
        names[np.searchsorted(ids, pks)] = places
        if key[0] not in in_suite:
            by_place = sorted(range(len(columns)), key=lambda at: metric_place(key[0], columns[at]))
            in_suite[key[0]] = np.argsort(by_place)
        order[own] = in_suite[key[0]]
        members.append(((*key,), own))
    own_points = [
        one if len(chosen) == len(rows) else one.where(np.isin(one.experiment, ids)) for one in sides
    ]
    tables = [_table(points, ids, columns) for points in own_points]
    suites = sorted({row[0] for row in of_subject})
    return Cohort(ids, names, members, suites, columns, own_points, tables, order)


def _table(points: Points, ids: Ints, columns: Sequence[Metric]) -> Ints:
    pks = np.array([one.pk for one in columns])
    by_pk = np.argsort(pks)
    column = by_pk[np.searchsorted(pks, points.metric, sorter=by_pk)]
    table = np.full((ids.size, len(columns)), -1)
    table[np.searchsorted(ids, points.experiment), column] = np.arange(points.experiment.size)
    return table
