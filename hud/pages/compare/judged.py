"""Judge two points of a series against each other, and name what else may have moved them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hud.judging.verdict import Rule, judge_points, point_factor
from hud.models import Metric
from hud.pages.attributes import attributes
from hud.pages.compare.environment import Places
from hud.pages.compare.points import ComparedPoint
from hud.sql import fetch_tuples, int_array

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


@dataclass(slots=True)
class Judged:
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
        return self.verdict in {"regressed", "improved", "failed"}

    @property
    def changed(self) -> bool:
        return self.verdict != "unchanged"

    @property
    def both_fail(self) -> bool:
        return self.reason == "both_fail"

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
        base, head = self.base, self.head
        return {
            "metric": self.metric.name,
            **attributes(self.metric, "unit direction"),
            "base": base.value,
            "head": head.value,
            "base_n": len(base.numbers),
            "head_n": len(head.numbers),
            "base_status": base.status,
            "head_status": head.status,
            **attributes(self, "change margin noise factor verdict reason"),
            "base_run": base.run_id,
            "head_run": head.run_id,
        }


def judge(metric: Metric, rule: Rule, base: ComparedPoint, head: ComparedPoint) -> Judged:
    """Return the verdict on two points by their numbers, else by their status. The noise is that of the
    candidate's series."""
    if metric.kind == "status" or base.value is None or head.value is None:
        if base.good == head.good:
            return Judged(metric, base, head, "unchanged", "" if base.good else "both_fail")
        return Judged(metric, base, head, *(("failed", "") if base.good else ("improved", "new_pass")))
    if (
        metric.kind == "timing" and base.value > 0 and head.value > 0
    ):  # most are quiet: at a tenth of the cost
        step = math.log(head.value / base.value)
        if abs(step) <= math.log1p(rule.relative_floor):
            noise = head.noise or rule.prior_noise
            factor = point_factor(step, noise, head.level_points or 0)
            return Judged(metric, base, head, "unchanged", "", head.value / base.value - 1, noise, factor)
    found = judge_points(
        base.numbers, head.numbers, rule, noise=head.noise or None, points=head.level_points or 0
    )
    reason = "" if found.verdict == "unchanged" else found.reason
    return Judged(metric, base, head, found.verdict, reason, found.change, found.noise, found.factor)


def add_doubts(judged: Iterable[Judged], places: Places) -> None:
    """Make changes inconclusive that another card, host or environment or the autotuner's draw may have
    caused: 1 statement."""
    changed = [
        one
        for one in judged
        if one.changed and one.metric.kind != "status" and None not in (one.base.value, one.head.value)
    ]
    rows = fetch_tuples(
        """
        SELECT series_id, class_key, ARRAY(SELECT jsonb_array_elements_text(level->'cards'))
        FROM hud_seriesstate WHERE series_id = ANY(%(series)s::int[])
        """,
        {"series": int_array({one.head.series_id for one in changed})},
    )
    cards = {(series, class_key): set(names) for series, class_key, names in rows}
    for one in changed:
        of_level = cards.get((one.head.series_id, places.of(one.head).class_key), set())
        if other := _other_place(one, places, of_level):
            one.verdict, one.reason = "inconclusive", other
        elif one.metric.kind == "timing" and not one.undecided and _is_other_draw(one):
            one.verdict, one.reason = "inconclusive", OTHER_DRAW


def _is_other_draw(judged: Judged) -> bool:
    """Return whether variants of both points are known and none is on both."""
    before, after = (set(filter(None, point.variants or ())) for point in (judged.base, judged.head))
    return bool(before and after) and not before & after


def _other_place(judged: Judged, places: Places, cards_of_level: set[str]) -> str:
    """Return the first difference of the places that may move this metric, '' without one. Cards that both
    belong to the series' level are part of its noise, with their hosts."""
    base, head = places.of(judged.base), places.of(judged.head)
    if base.class_key != head.class_key:
        return OTHER_CLASS
    if judged.metric.kind != "timing":
        return ""
    cards = {base.card, head.card}
    if "" in cards:
        return OTHER_HOST if base.host != head.host and base.host and head.host else ""
    return "" if len(cards) == 1 or cards <= cards_of_level else OTHER_CARD
