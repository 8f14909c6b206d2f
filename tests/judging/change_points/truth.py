"""Series with known change points: the noise of eight kinds of benchmark histories, steps and bumps.

Every series comes from a seed, so that a score can be reproduced. `make bench PART=judgement` scores all
kinds; the tests take a few hundred series of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import numpy as np
from numpy.typing import NDArray

from hud.judging.levels import Level, SeriesPoint, advance
from hud.judging.verdict import Rule

Array = NDArray[np.float64]
NIGHTS = 200
_FIRST = datetime(2024, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Labelled:
    """A series with the indices at which its true level changes, and the variant of each value if known."""

    kind: str
    signal: str
    values: list[float | None]
    truth: tuple[int, ...]
    size: float = 0.0
    groups: list[str | None] | None = field(default=None)


def _gaussian(chance: np.random.Generator, n: int) -> Array:
    return chance.normal(0, 0.01, n)


def _ar1(chance: np.random.Generator, n: int) -> Array:
    """Return AR(1) noise of 1 % around the level."""
    phi = chance.uniform(0.3, 0.8)
    noise = np.empty(n)
    noise[0] = chance.normal(0, 0.01)
    for place, shock in enumerate(chance.normal(0, 0.01 * np.sqrt(1 - phi**2), n - 1), start=1):
        noise[place] = phi * noise[place - 1] + shock
    return noise


def _outliers(chance: np.random.Generator, n: int) -> Array:
    hit = chance.random(n) < chance.uniform(0.01, 0.05)
    sign = chance.choice([1, 1, -1]) if chance.random() < 0.7 else chance.choice([-1, 1], n)
    return np.asarray(_gaussian(chance, n) + hit * sign * chance.uniform(0.05, 0.3, n))


def _two_modes(chance: np.random.Generator, n: int) -> Array:
    """Return modes 2 to 10 % apart, drawn for each night or kept for a few."""
    stay = chance.choice([0.0, 0.0, 0.5, 0.8])
    share, slow = chance.uniform(0.2, 0.5), np.zeros(n, dtype=bool)
    slow[0] = chance.random() < share
    for night in range(1, n):
        slow[night] = slow[night - 1] if chance.random() < stay else chance.random() < share
    return np.asarray(chance.normal(0, chance.uniform(0.003, 0.01), n) + slow * chance.uniform(0.02, 0.1))


def _log_normal(chance: np.random.Generator, n: int) -> Array:
    """Return noise with a long tail to one side."""
    if chance.random() < 0.5:
        return chance.normal(0, chance.uniform(0.005, 0.03), n)
    shape = chance.uniform(0.4, 1.0)
    draw = chance.lognormal(0, shape, n)
    return np.asarray(chance.choice([1, 1, -1]) * (draw - 1) * 0.01)


def _random_walk(chance: np.random.Generator, n: int) -> Array:
    return np.cumsum(chance.normal(0, chance.uniform(0.0005, 0.003), n)) + chance.normal(
        0, chance.uniform(0.005, 0.01), n
    )


def _quantised(chance: np.random.Generator, n: int) -> Array:
    return chance.normal(0, chance.uniform(0.003, 0.01), n)


def _heavy_tails(chance: np.random.Generator, n: int) -> Array:
    return chance.standard_t(chance.choice([2, 3]), n) * chance.uniform(0.005, 0.01)


KINDS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "gaussian": _gaussian,
    "ar1": _ar1,
    "outliers": _outliers,
    "two modes": _two_modes,
    "log-normal": _log_normal,
    "random walk": _random_walk,
    "quantised": _quantised,
    "heavy tails": _heavy_tails,
}
SIGNALS = ("none", "step", "two steps", "bump")


def _levels(chance: np.random.Generator, signal: str, n: int) -> tuple[Array, tuple[int, ...], float]:
    level, size = np.zeros(n), 0.0
    if signal == "none":
        return level, (), size
    size = float(chance.choice([0.02, 0.03, 0.05, 0.1]))
    sign = float(chance.choice([-1, 1]))
    if signal == "step":
        places: tuple[int, ...] = (int(chance.integers(n // 10, n - n // 10)),)
        level[places[0] :] = sign * size
    elif signal == "two steps":
        first = int(chance.integers(n // 10, n // 2))
        places = (first, int(chance.integers(first + n // 8, n - n // 10)))
        level[places[0] :] = sign * size
        level[places[1] :] += float(chance.choice([-1, 1])) * size
    else:
        size = max(size, 0.05)
        length = int(chance.integers(8, 26))
        first = int(chance.integers(n // 10, n - n // 10 - length))
        places = (first, first + length)
        level[first : first + length] = sign * size
    return level, places, size


def series(kind: str, signal: str, seed: int, n: int = NIGHTS) -> Labelled:
    """Return one series of a kind of noise with a signal."""
    chance = np.random.default_rng([seed, list(KINDS).index(kind), SIGNALS.index(signal)])
    level, truth, size = _levels(chance, signal, n)
    values = 10 ** chance.uniform(-3, 4) * np.exp(level + KINDS[kind](chance, n))
    if kind == "quantised":
        quantum = float(np.median(values)) * chance.uniform(0.005, 0.02)
        values = np.round(values / quantum) * quantum
    return Labelled(kind, signal, values.tolist(), truth, size)


GROUPED = ("steps", "mixture", "renamed", "new label", "a fifth unknown", "quiet")


def grouped(what: str, size: float, seed: int, n: int = NIGHTS) -> Labelled:
    """Return a series of three to eight variants up to 40 % apart with 0.3 % noise."""
    chance = np.random.default_rng([seed, GROUPED.index(what), int(size * 1000)])
    count = int(chance.integers(3, 9))
    offsets = np.log1p(chance.uniform(0, 0.4, count))
    shares = np.full(count, 1 / count) if chance.random() < 0.5 else chance.dirichlet(np.full(count, 2.0))
    place = int(chance.integers(n // 5, n - n // 5))
    drawn = chance.choice(count, n, p=shares)
    level, truth = np.zeros(n), ()  # type: tuple[Array, tuple[int, ...]]
    if what == "mixture":
        slow = int(np.argmax(offsets))
        after = np.where(np.arange(count) == slow, 0.6, 0.4 / (count - 1))
        before = np.where(np.arange(count) == slow, 0.1, 0.9 / (count - 1))
        drawn = np.where(
            np.arange(n) < place, chance.choice(count, n, p=before), chance.choice(count, n, p=after)
        )
        truth = (place,)
    if size and what != "mixture":
        level[place:] = float(chance.choice([-1, 1])) * size
        truth = (place,)
    values = np.exp(offsets[drawn] + level + chance.normal(0, 0.003, n))
    labels: list[str | None] = [f"v{variant}" for variant in drawn]
    if what == "renamed":
        labels = [f"{label}{'b' if night >= place else 'a'}" for night, label in enumerate(labels)]
    if what == "new label":
        labels = [f"night{night}" for night in range(n)]
    if what == "a fifth unknown":
        labels = [None if chance.random() < 0.2 else label for label in labels]
    return Labelled(what, f"step {size:g}" if size else "none", values.tolist(), truth, size, labels)


@dataclass
class Score:
    """Hits, misses and false flags; flags within 3 points of each other count once."""

    hits: int = 0
    missed: int = 0
    false: int = 0
    quiet_false: int = 0
    quiet_points: int = 0

    def add(self, truth: Sequence[int], found: Sequence[int], points: int, tolerance: int = 3) -> None:
        left = list(found)
        for place in truth:
            near = [index for index in left if abs(index - place) <= tolerance]
            if near:
                left.remove(min(near, key=lambda index: abs(index - place)))
                self.hits += 1
            else:
                self.missed += 1
        self.false += len(left)
        if not truth:
            self.quiet_false += len(left)
            self.quiet_points += points

    @property
    def precision(self) -> float:
        return self.hits / max(self.hits + self.false, 1)

    @property
    def recall(self) -> float:
        return self.hits / max(self.hits + self.missed, 1)

    @property
    def per_1000(self) -> float:
        return 1000 * self.quiet_false / max(self.quiet_points, 1)


def all_kinds(each: int, seed: int) -> Iterator[Labelled]:
    """Yield `each` series of every kind and signal; quiet ones as often as the others together."""
    for kind in KINDS:
        for signal in SIGNALS:
            for number in range(each * (3 if signal == "none" else 1)):
                yield series(kind, signal, seed + number)


def listed_nights(size: float, seed: int, *, before: int = 60, nights: int = 300) -> list[bool]:
    """Return for each night after a step of this size whether the levels still show it for the worse."""
    chance = np.random.default_rng(seed)
    values = 10 * np.exp(chance.normal(0, 0.01, before + nights))
    values[before:] *= 1 + size
    level, rule, found = Level(), Rule(), []
    for night, value in enumerate(values.tolist()):
        advance(level, SeriesPoint(night, 1, _FIRST + timedelta(days=night), (value,)), rule)
        move = level.move
        found.append(bool(move and move.worse and (move.certain or move.points > 1)))
    return found[before:]
