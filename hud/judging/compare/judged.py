"""Judge two points against each other, with what else may be the cause, and the rows of a comparison."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.judging.compare.points import SUSPECT, ComparedPoint, PointPlace
from hud.judging.compare.sides import ComparedSide
from hud.judging.verdict import Rule, judge_points
from hud.models import VERDICTS, Experiment, Metric, Regression
from hud.runs.places import Rerun
from hud.tables.table import DataTable
from runner.schema.records import QUALITIES, worst_quality
from runner.schema.tables import rows

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
