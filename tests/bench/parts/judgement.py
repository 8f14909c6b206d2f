"""The judgement on series with known truth: what is missed, what is falsely flagged, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from hud.judging.change_points import change_points
from hud.judging.verdict import Rule, judge
from tests.bench.figures import Figure, median_of
from tests.judging.change_points.truth import KINDS, Score, all_kinds, grouped, listed_nights, series

SEED = 20_000
EACH = 30  # series of each kind and signal; three times as many quiet ones
GROUPS = (("steps", 0.02, 0.05), ("steps", 0.03, 0.02), ("steps", 0.05, 0.02), ("mixture", 0.0, 0.05))
QUIET = ("quiet", "renamed", "new label", "a fifth unknown")


def judgement() -> Iterator[Figure]:
    yield from _change_points()
    yield from _in_variants()
    yield from _verdicts()
    yield from _persistence()
    for nights, limit, repetitions in ((200, 5.0, 20), (5000, 100.0, 3)):
        costs = []
        for kind in KINDS:
            for seed in range(repetitions):
                values = series(kind, "two steps", SEED + seed, nights).values
                start = time.process_time()
                change_points(values)
                costs.append((time.process_time() - start) * 1000)
        yield median_of("judge", f"change points of {nights} values, CPU", costs, "ms", limit)


def _change_points() -> Iterator[Figure]:
    total = Score()
    kinds = {kind: Score() for kind in KINDS}
    for one in all_kinds(EACH, SEED):
        found = change_points(one.values)
        for score in (total, kinds[one.kind]):
            score.add(one.truth, found, len(one.values))
    yield _percent("change points: flags that are false, all kinds", 1 - total.precision, 0.05)
    yield _percent("change points: steps that are missed, all kinds", 1 - total.recall, 0.05)
    for kind, score in kinds.items():
        yield _percent(f"{kind}: flags that are false", 1 - score.precision)
        yield _percent(f"{kind}: steps that are missed", 1 - score.recall)
        what = f"{kind}: false flags in 1,000 quiet points"
        yield Figure("judge", what, score.per_1000, "", 0.5)


def _in_variants() -> Iterator[Figure]:
    for what, size, limit in GROUPS:
        score = Score()
        for seed in range(4 * EACH):
            one = grouped(what, size, SEED + seed)
            found = change_points(one.values, groups=one.groups)
            score.add(one.truth, found, len(one.values), tolerance=10 if what == "mixture" else 3)
        named = f"in variants: steps of {size:.0%} missed" if size else "changes of the mixture missed"
        yield _percent(named, 1 - score.recall, limit)
    for what in QUIET:
        score = Score()
        for seed in range(4 * EACH):
            one = grouped(what, 0.0, SEED + seed)
            score.add((), change_points(one.values, groups=one.groups), len(one.values))
        yield Figure("judge", f"variants, {what}: false flags in 1,000 points", score.per_1000, "", 0.5)


def _verdicts() -> Iterator[Figure]:
    """60 nights of 1 % noise, then one more, and a silent repeat for suspects."""
    chance = np.random.default_rng(SEED)
    rule, count = Rule(), 8000
    suspects = flags = first = second = 0
    start = time.process_time()
    for _ in range(count):
        history = (10 * np.exp(chance.normal(0, 0.01, 60))).tolist()
        noise = np.exp(chance.normal(0, 0.01, 2))
        found = judge(history, [10 * noise[0]], rule)
        suspects += found.suspect
        if found.suspect:
            found = judge(history, (10 * noise).tolist(), rule)
        flags += found.verdict in {"regressed", "improved"}
        first += judge(history, [10.7 * noise[0]], rule).verdict == "regressed"
        seen = judge(history, [10.5 * noise[0]], rule)
        if seen.suspect:
            seen = judge(history, (10.5 * noise).tolist(), rule)
        second += seen.verdict == "regressed"
    cost = (time.process_time() - start) * 1000 / count / 3
    yield Figure("judge", "suspects among 4,000 quiet series a night", suspects / count * 4000, "", 60)
    yield Figure("judge", "flags among 4,000 quiet series a night", flags / count * 4000, "", 2)
    yield _percent("7 % missed at the first point", 1 - first / count, 0.05)
    yield _percent("5 % missed after one silent repeat", 1 - second / count, 0.05)
    yield Figure("judge", "a verdict, CPU", cost, "ms", 1.0)


def _persistence() -> Iterator[Figure]:
    """A step of 5 % and more in 300 nights: listed from its second night on, until it is closed."""
    for size in (0.05, 0.07, 0.1, 0.2):
        late = lost = 0
        for seed in range(EACH):
            nights = listed_nights(size, SEED + seed)
            first = next((night for night, listed in enumerate(nights) if listed), len(nights))
            late += first > 2
            lost += nights[first:].count(False)
        yield _percent(f"steps of {size:.0%} not listed after three nights", late / EACH)
        yield Figure("judge", f"steps of {size:.0%}: nights off the list while they last", lost, "", 0)


def _percent(what: str, share: float, limit: float | None = None) -> Figure:
    return Figure("judge", what, 100 * share, "%", None if limit is None else 100 * limit)
