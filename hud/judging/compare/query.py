"""Compare up to four sides: what moved, what may have another cause, what is within the noise."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any

from hud.judging.compare import groups as groups_of
from hud.judging.compare import rows as rows_of
from hud.judging.compare.groups import COMPRESSION, CohortGroup, Formulas, Totals
from hud.judging.compare.judged import COLUMNS, known_failures
from hud.judging.compare.points import Cohort, Fact, Places, Points, differences
from hud.judging.compare.rows import ComparedRow, add_regressions
from hud.judging.compare.sides import MOST_SIDES, SIDE, ComparedSide, resolve
from hud.judging.regressions.read import Counts as Waiting
from hud.judging.regressions.read import Scope, count
from hud.models import Experiment, Metric, Stream
from hud.points.read import metric_place
from hud.points.sides import BadSide
from hud.sql import by_id, fetch_models
from hud.tables.table import IDENTITY
from runner.schema.metrics import METRICS, role_of

COMPARED = sorted(name for name in METRICS if role_of(name, ()) == "headline")
VERDICTS = ("regressed", "improved", "failed", "inconclusive", "unchanged")
HEADER = (*IDENTITY.names, "side", "stream", *COLUMNS.names)


@dataclass(frozen=True)
class Filters:
    """The results to compare; '' means any."""

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
class Candidate:
    """A side against the baseline: its experiments by what became of them, and the numbers over all of them
    and of each suite and backend."""

    side: ComparedSide
    verdicts: Counter[str]
    reasons: Counter[str]  # of the inconclusive ones
    totals: Totals
    groups: list[CohortGroup]

    @property
    def telling(self) -> int:
        """Return how many groups moved."""
        return sum(one.is_telling for one in self.groups)

    def counts_json(self) -> dict[str, Any]:
        counts = {name: self.totals.counts[name] for name in ("matched", "only_base", "only_head")}
        verdicts = {name: self.verdicts[name] for name in VERDICTS}
        return {**counts, **verdicts, "reasons": dict(self.reasons)}

    def to_json(self) -> dict[str, Any]:
        aggregates = [group.to_json() for group in self.groups]
        totals = {"totals": self.totals.to_json(), "aggregates": aggregates}
        return {**SIDE.row(self.side), **self.counts_json(), **totals}


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


@dataclass
class ComparePage:
    stream: Stream  # in which dates, branches and commits are looked up
    base: ComparedSide
    candidates: list[Candidate]
    filters: Filters
    rows: Sections
    facts: list[Fact]  # of the environments
    metrics: list[Metric]  # that may be chosen
    suites: list[str]
    waiting: Waiting  # regressions between the baseline and the first candidate
    places: Places

    @property
    def heads(self) -> list[ComparedSide]:
        return [one.side for one in self.candidates]

    @property
    def sides(self) -> list[ComparedSide]:
        return [self.base, *self.heads]

    @property
    def different(self) -> list[Fact]:
        return [fact for fact in self.facts if fact.differs]

    def changes(self, head: int) -> list[tuple[str, float]]:
        """Return verdict and change for a candidate, where there is a change."""
        cells = [cell for row in self.rows.compared if (cell := row.cells[head])]
        return [(cell.verdict, cell.change) for cell in cells if cell.change is not None]

    @cached_property
    def reach(self) -> float:
        """Return the largest change to draw for any candidate, at least 2 %, at most 100 %."""
        changes = [abs(change) for head in range(len(self.heads)) for _verdict, change in self.changes(head)]
        return min(max([0.02, *changes]), 1.0)

    def to_rows(self) -> list[dict[str, Any]]:
        rows = self.rows.every
        add_regressions(rows)
        about = {pk: IDENTITY.row(one) for pk, one in by_id(Experiment, [row.pk for row in rows]).items()}
        return [line for row in rows for line in row.to_rows(self.heads, about[row.pk])]

    def to_json(self) -> dict[str, Any]:
        heads = [one.to_json() for one in self.candidates]
        return {
            "stream": self.stream.name,
            "base": SIDE.row(self.base),
            "head": SIDE.row(self.heads[0]),
            "counts": {**self.candidates[0].counts_json(), **self.waiting.to_json()},
            "totals": heads[0]["totals"],
            "aggregates": heads[0]["aggregates"],
            "heads": heads,
            "environment": [fact.to_json() for fact in self.different],
        }


def read(base: str, heads: Sequence[str], filters: Filters, stream: Stream) -> ComparePage:
    """Return the comparison: 9 statements and two for each side, more for a night or failures. Raise
    BadSide."""
    if len(heads) >= MOST_SIDES:
        raise BadSide(f"at most {MOST_SIDES} sides can be compared", 400)
    sides = [
        resolve(text, stream, filters.subject, is_base=place == 0)
        for place, text in enumerate([base, *heads])
    ]
    times = [side.newest.order_time for side in sides[:2]]
    names = [*COMPARED, COMPRESSION, filters.metric]
    metrics = fetch_models(Metric, "WHERE name = ANY(%(names)s)", {"names": names})
    if filters.metric and filters.metric not in {metric.name for metric in metrics}:
        raise BadSide(f"no metric is called {filters.metric[:80]!r}")
    points = [Points.read(side, [metric.pk for metric in metrics]) for side in sides]
    cohort = Cohort.read(points, metrics, {**filters.subject, "suite": filters.suite})
    places = Places.read(points)
    known = [known_failures(cohort, place, places) for place in range(1, len(sides))]
    rows = rows_of.read(cohort, places, filters.metric, known)
    several = len({key.arch for key, _experiments in cohort.members}) > 1
    sections: list[list[ComparedRow]] = [[], [], [], []]
    for row in rows:
        row.with_arch = several
        if not filters.verdict or filters.verdict in {cell.verdict for cell in row.cells if cell}:
            sections[row.section].append(row)
    movers, undecided, quiet = (sorted(section, key=lambda row: -row.score) for section in sections[:3])
    there = [any(table.there[:, at].any() for table in cohort.sides) for at in range(len(cohort.metrics))]
    candidates = []
    for place, side in enumerate(sides[1:], start=1):
        groups = groups_of.read(cohort, place, places, filters.formulas, known[place - 1])
        cells = [cell for row in rows if (cell := row.cells[place - 1])]
        verdicts = Counter(cell.verdict for cell in cells if not cell.is_apart)
        reasons = Counter(cell.reason for cell in cells if cell.undecided)
        candidates.append(Candidate(side, verdicts, reasons, groups_of.totals(cohort, place, groups), groups))
    return ComparePage(
        stream,
        sides[0],
        candidates,
        filters,
        Sections(movers, undecided, quiet, sections[3]),
        differences(points, places),
        sorted(compress(cohort.metrics, there), key=lambda one: metric_place("", one)),
        cohort.suites,
        count(Scope(stream, **filters.subject, base=times[0], head=times[1])),
        places,
    )
