"""Compare up to four sides: what moved, what may have another cause, what is within the noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from hud.judging.regressions.counts import Counts as Waiting
from hud.judging.regressions.counts import Scope, count
from hud.models import Experiment, Metric, Stream
from hud.pages.attributes import attributes
from hud.pages.compare import groups as groups_of
from hud.pages.compare import points as points_of
from hud.pages.compare import rows as rows_of
from hud.pages.compare.environment import Fact, Places, differences
from hud.pages.compare.groups import COMPRESSION, Formulas, Group, Totals
from hud.pages.compare.rows import Points, Row, add_regressions
from hud.pages.compare.sides import MOST_SIDES, Side, resolve
from hud.points.read import metric_place
from hud.points.sides import BadSide
from hud.sql import fetch_models, int_array
from runner.schema.metrics import METRICS, role_of

COMPARED = sorted(name for name in METRICS if role_of(name, ()) == "headline")
VERDICTS = ("regressed", "improved", "failed", "inconclusive", "unchanged")


@dataclass(frozen=True)
class Filters:
    """What to show, beside the sides; '' means any."""

    metric: str = ""  # else of each experiment the most telling
    suite: str = ""
    verdict: str = ""
    formulas: Formulas = ""
    arch: str = ""
    mode: str = ""
    dtype: str = ""

    @property
    def subject(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("arch", "mode", "dtype")}


@dataclass
class Counts:
    """The experiments of one candidate by what became of them."""

    verdicts: Counter[str]
    reasons: Counter[str]  # of the inconclusive ones
    matched: int
    only_base: int
    only_head: int

    def to_json(self) -> dict[str, Any]:
        verdicts = {name: self.verdicts.get(name, 0) for name in VERDICTS}
        return {
            **attributes(self, "matched only_base only_head"),
            **verdicts,
            "reasons": dict(self.reasons),
        }


@dataclass
class ComparePage:
    """A comparison. Sections have the most certain and largest changes first."""

    stream: Stream  # in which dates, branches and commits are looked up
    sides: list[Side]
    filters: Filters
    movers: list[Row]
    undecided: list[Row]  # moved, but something else may be the cause
    quiet: list[Row]  # within the noise
    apart: list[Row]  # on one side only, or failing on both
    counts: list[Counts]  # for each candidate
    totals: list[Totals]  # likewise
    groups: list[list[Group]]  # likewise
    facts: list[Fact]  # of the environments
    metrics: list[Metric]  # that may be chosen
    suites: list[str]
    waiting: Waiting  # regressions between the baseline and the first candidate
    places: Places

    @property
    def heads(self) -> list[Side]:
        return self.sides[1:]

    @property
    def different(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.differs]

    @property
    def shown(self) -> list[Row]:
        return [*self.movers, *self.undecided, *self.quiet, *self.apart]

    def changes(self, head: int) -> list[tuple[str, float]]:
        """Return verdict and change for a candidate, where there is a change."""
        cells = [cell for row in (*self.movers, *self.undecided, *self.quiet) if (cell := row.cells[head])]
        return [(cell.verdict, cell.change) for cell in cells if cell.change is not None]

    @cached_property
    def reach(self) -> float:
        """Return the largest change to draw for any candidate, at least 2 %, at most 100 %."""
        changes = [abs(change) for head in range(len(self.heads)) for _verdict, change in self.changes(head)]
        return min(max([0.02, *changes]), 1.0)

    def to_rows(self) -> list[dict[str, Any]]:
        add_regressions(self.shown)
        return [line for row in self.shown for line in row.to_rows(self.heads)]

    def to_json(self) -> dict[str, Any]:
        heads = [
            {
                **side.to_json(),
                **counts.to_json(),
                "totals": totals.to_json(),
                "aggregates": [group.to_json() for group in groups],
            }
            for side, counts, totals, groups in zip(
                self.heads, self.counts, self.totals, self.groups, strict=True
            )
        ]
        return {
            "stream": self.stream.name,
            "base": self.sides[0].to_json(),
            "head": self.heads[0].to_json(),
            "counts": {**self.counts[0].to_json(), **self.waiting.to_json()},
            "totals": heads[0]["totals"],
            "aggregates": heads[0]["aggregates"],
            "heads": heads,
            "environment": [fact.to_json() for fact in self.different],
        }


def read(base: str, heads: Sequence[str], filters: Filters, stream: Stream) -> ComparePage:
    """Return the comparison: 8 statements and two for each side, three for a night. Raise BadSide."""
    if len(heads) >= MOST_SIDES:
        raise BadSide(f"at most {MOST_SIDES} sides can be compared", 400)
    sides = [
        resolve(text, stream, filters.subject, is_base=place == 0)
        for place, text in enumerate([base, *heads])
    ]
    times = [side.newest.order_time for side in sides[:2]]
    names = [*COMPARED, COMPRESSION, filters.metric]
    metrics = {one.pk: one for one in fetch_models(Metric, "WHERE name = ANY(%(names)s)", {"names": names})}
    if filters.metric and filters.metric not in {metric.name for metric in metrics.values()}:
        raise BadSide(f"no metric is called {filters.metric[:80]!r}")
    points = [points_of.read(side, metrics) for side in sides]
    by_experiment: list[dict[int, Points]] = [{} for _side in sides]
    for own, of_side in zip(by_experiment, points, strict=True):
        for point in of_side:
            own.setdefault(point.experiment_id, {})[metrics[point.metric_id].name] = point
    experiments = fetch_models(
        Experiment,
        """WHERE id = ANY(%(ids)s::int[])
        ORDER BY suite COLLATE "C", "case" COLLATE "C", knobs::text COLLATE "C", id""",
        {"ids": int_array({pk for own in by_experiment for pk in own})},
    )
    subject = filters.subject
    of_subject = [
        one
        for one in experiments
        if subject["arch"] in ("", one.arch or one.device)
        and subject["mode"] in ("", one.mode)
        and subject["dtype"] in ("", one.dtype)
    ]
    suites = sorted({one.suite for one in of_subject})
    orders = {suite: sorted(metrics.values(), key=partial(metric_place, suite)) for suite in suites}
    chosen = [one for one in of_subject if filters.suite in ("", one.suite)]
    places = Places.read(sides, (point for of_side in points for point in of_side))
    rows = rows_of.read(chosen, by_experiment, orders, filters.metric, places)
    several = len({row.arch for row in rows}) > 1
    groups = [groups_of.read(rows, side, orders, places, filters.formulas) for side in range(1, len(sides))]
    sections: list[list[Row]] = [[], [], [], []]
    for row in sorted(rows, key=lambda row: -row.best.score if row.best else 0.0):
        row.with_arch = several
        verdicts = {"", *(cell.verdict for cell in row.cells if cell)}
        if (row.best or row.alone) and filters.verdict in verdicts:
            sections[row.section].append(row)
    movers, undecided, quiet, apart = sections
    there = {name for row in rows for of_side in row.points for name in of_side}
    return ComparePage(
        stream,
        sides,
        filters,
        movers,
        undecided,
        quiet,
        apart,
        [_counts(rows, place, groups[place]) for place in range(len(heads))],
        [groups_of.totals(of_head, orders) for of_head in groups],
        groups,
        differences(points, places),
        sorted((one for one in metrics.values() if one.name in there), key=partial(metric_place, "")),
        suites,
        count(Scope(stream, **filters.subject, base=times[0], head=times[1])),
        places,
    )


def _counts(rows: Sequence[Row], place: int, groups: Sequence[Group]) -> Counts:
    cells = [cell for row in rows if (cell := row.cells[place])]
    return Counts(
        Counter(cell.verdict for cell in cells if not cell.both_fail),
        Counter(cell.reason for cell in cells if cell.undecided),
        *(sum(group.counts[name] for group in groups) for name in ("matched", "only_base", "only_head")),
    )
