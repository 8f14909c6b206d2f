"""Judge two points of a series against each other, and name what else may have moved them."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hud.judging.verdict import Rule, judge_points
from hud.models import Metric
from hud.pages.compare.points import Point

_Z_95 = 1.96
_CERTAIN = 10.0  # times the noise: it could not be more certain
# Reasons beside those of `hud.judging.verdict`, each a difference that may be the cause of the move.
OTHER_CLASS, OTHER_CARD, OTHER_HOST, OTHER_DRAW = "other_class", "other_card", "other_host", "other_draw"
WORDS = {
    OTHER_CLASS: "other environment",
    OTHER_CARD: "other card",
    OTHER_HOST: "other host",
    OTHER_DRAW: "other choices of the autotuner",
    "few_compilations": "too few compilations",
    "suspect": "near the noise",
    "no_direction": "no better or worse",
    "new_pass": "passes again",
    "both_fail": "fails on both sides",
}


@dataclass(frozen=True)
class Place:
    """Where a point was measured."""

    class_key: str
    card: str  # '' where nothing says it
    host: str


@dataclass(frozen=True)
class Judged:
    """A metric of an experiment on one side against the baseline."""

    metric: Metric
    base: Point
    head: Point
    verdict: str
    reason: str = ""
    change: float | None = None
    noise: float | None = None
    factor: float | None = None

    @property
    def moved(self) -> bool:
        return self.verdict in {"regressed", "improved", "failed"}

    @property
    def undecided(self) -> bool:
        return self.verdict == "inconclusive"

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
        if self.verdict == "failed" or self.reason == "new_pass":
            return math.inf
        if self.change is None or self.change <= -1:
            return 1.0 if self.moved else 0.0
        certainty = min((self.factor if self.factor is not None else _CERTAIN) / _CERTAIN, 1.0)
        return certainty * abs(math.log1p(self.change))

    def to_row(self) -> dict[str, Any]:
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "direction": self.metric.direction,
            "base": self.base.value,
            "head": self.head.value,
            "base_n": self.base.compilations,
            "head_n": self.head.compilations,
            "base_status": self.base.status,
            "head_status": self.head.status,
            "change": self.change,
            "margin": self.margin,
            "noise": self.noise,
            "factor": self.factor,
            "verdict": self.verdict,
            "reason": self.reason,
            "base_run": self.base.run_id,
            "head_run": self.head.run_id,
        }


def judge(
    metric: Metric,
    rule: Rule,
    ends: tuple[Point, Point],
    places: tuple[Place, Place],
    *,
    noise: float | None,
    points: int,
) -> Judged:
    """Return the verdict on two points; `noise` is that of the series, known from so many points. A change is
    inconclusive if another card, host or environment or the autotuner's draw may have caused it."""
    base, head = ends
    if metric.kind == "status" or base.value is None or head.value is None:
        return _by_status(metric, base, head)
    found = judge_points(base.values, head.values, rule, noise=noise, points=points)
    word, reason = str(found.verdict), str(found.reason)
    if found.verdict == "unchanged":
        reason = ""
    elif other := _other_place(metric, places, head.cards or ()):
        word, reason = "inconclusive", other
    elif metric.kind == "timing" and word != "inconclusive" and _is_other_draw(base, head):
        word, reason = "inconclusive", OTHER_DRAW
    return Judged(metric, base, head, word, reason, found.change, found.noise, found.factor)


def _is_other_draw(base: Point, head: Point) -> bool:
    """Return whether variants of both points are known and none is on both: then the autotuner's draw may be
    the cause of a change."""
    before, after = ({variant for variant in point.variants if variant} for point in (base, head))
    return bool(before and after) and not before & after


def _by_status(metric: Metric, base: Point, head: Point) -> Judged:
    if base.good and not head.good:
        return Judged(metric, base, head, "failed")
    if head.good and not base.good:
        return Judged(metric, base, head, "improved", "new_pass")
    return Judged(metric, base, head, "unchanged", "" if base.good else "both_fail")


def _other_place(metric: Metric, places: tuple[Place, Place], cards_of_level: Collection[str]) -> str:
    """Return the first difference of the places that may move this metric, '' without one. Cards that both
    belong to the series' level are part of its noise, with their hosts."""
    base, head = places
    if base.class_key != head.class_key:
        return OTHER_CLASS
    if metric.kind != "timing":
        return ""
    cards = {base.card, head.card}
    if "" not in cards and (len(cards) == 1 or cards <= set(cards_of_level)):
        return ""
    if "" not in cards:
        return OTHER_CARD
    return OTHER_HOST if base.host != head.host and base.host and head.host else ""
