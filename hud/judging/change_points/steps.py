"""Candidate steps of a series, and which of them are real.

Candidates split it into stretches of equal level: least absolute deviations with a price for each jump,
solved exactly over a grid of levels by Viterbi (Storath, Weinmann, Unser 2017), O(n · levels). Of a longer
series overlapping blocks are solved side by side, since a night costs numpy's calls rather than its sums.

Those are real that a likelihood ratio bears out against noise that may itself wander. A step and a slow walk
look alike to any test that assumes independent nights. Here both compete: the series is explained by steps
plus noise whose spectrum is one of a grid (white, autocorrelated, random walk, mixtures), and a step is taken
only if steps with their best noise beat no step with its best noise. A cosine transform makes these noises
independent by frequency (Whittle's likelihood), so that one table of weighted products answers for every set
of steps.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LEVELS = 80
_CAP = 3.0  # standard deviations; a value further away costs no more, so that no outlier pays for two jumps
_MODES_CAP = 5.0  # where two modes are looked for: a night of the other one costs two switches
_PRICE = 4.0  # of a jump, in standard deviations
_SWITCH = 1.2  # of a change between two modes, which are frequent where there are any
_BLOCK, _MARGIN = 300, 50
# What the log likelihood, doubled, must gain
_ONE = 10.0  # by a step
_TWO = 20.0  # by two at once, such as a bump
_WANDERING = 8.0  # more where noise that wanders explains the rest better by as much
_SHARE = 0.05  # of what wandering noise alone explains of the series
_SHORT = 14.0  # more where a level lasts less than `BRIEF` nights: a few values of a long tail can be that
BRIEF = 7
# Share of variance that lasts, and how much of that is left on the next night
_MEMORIES = [(1.0, left) for left in (0.2, 0.35, 0.5, 0.65, 0.8, 0.9)]
_MEMORIES += [(share, left) for share in (0.3, 0.6) for left in (0.7, 0.85, 0.95)]
# Variance of a random walk from night to night, over that of a night's own noise
_WALKS = (0.0005, 0.0015, 0.005, 0.015, 0.05, 0.15, 0.5, 2.0)
_REACH = 7  # nights by which a candidate may be off


def blocks(n: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield start and stop of each overlapping block, all equally long, and of where its answer counts."""
    if n <= _BLOCK + _MARGIN:
        yield 0, n, 0, n
        return
    inner = _BLOCK - 2 * _MARGIN
    for low in range(0, n - _MARGIN, inner):
        high = low + inner if low + inner < n - _MARGIN else n
        start = min(max(low - _MARGIN, 0), n - _BLOCK)
        yield start, start + _BLOCK, low, high


def jumps(values: Array, deviation: float) -> list[int]:
    """Return the indices where the best piecewise constant fit changes its level."""
    is_jump, _modes = _fit(values, (0.0,), deviation, _CAP)
    return np.flatnonzero(is_jump).tolist()


def slow_nights(values: Array, gap: float, deviation: float) -> NDArray[np.bool_]:
    """Return which values belong to the upper of two modes `gap` apart, around a level that may jump."""
    _jumps, modes = _fit(values, (0.0, gap), deviation, _MODES_CAP)
    return np.asarray(modes == 1)


def _fit(
    values: Array, shifts: Sequence[float], deviation: float, cap: float
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return for each night of the best fit whether the level jumps there, and which of one or two modes it
    belongs to, that are these shifts above the level."""
    parts = list(blocks(len(values)))
    tiled = np.stack([values[start:stop] for start, stop, _low, _high in parts])
    ranks = np.linspace(0, tiled.shape[1] - 1, _LEVELS).round().astype(int)
    levels = np.sort(tiled, axis=1)[:, ranks]  # those that a block may have: of its own values
    apart = [np.abs((tiled - shift)[:, :, None] - levels[:, None, :]) for shift in shifts]
    costs = np.minimum(np.stack(apart, axis=1) / deviation, cap)  # of being there
    reached, floors = _solve(costs)
    is_jump, modes = np.zeros(len(values), dtype=bool), np.zeros(len(values), dtype=np.int64)
    for (start, _stop, low, high), totals, floor in zip(parts, reached, floors, strict=True):
        mode, level = divmod(int(totals[-1].argmin()), levels.shape[1])
        own_jumps, own_modes = np.zeros(len(totals), dtype=bool), np.zeros(len(totals), dtype=np.int64)
        for night in range(len(totals) - 1, 0, -1):
            own_modes[night], before = mode, totals[night - 1]
            stay = before[mode, level]
            switch = before[1 - mode, level] + _SWITCH if len(shifts) > 1 else stay
            if floor[night] < min(stay, switch):
                own_jumps[night] = True
                mode, level = divmod(int(before.argmin()), levels.shape[1])
            elif switch < stay:
                mode = 1 - mode
        own_modes[0] = mode
        counts = slice(low - start, high - start)
        is_jump[low:high], modes[low:high] = own_jumps[counts], own_modes[counts]
    return is_jump, modes


def _solve(costs: Array) -> tuple[Array, Array]:
    """Return what it costs at least to reach each night, mode and level of a block, and to come there by a
    jump. `costs` are by block, mode, night and level."""
    by_night = np.ascontiguousarray(costs.transpose(2, 0, 1, 3))
    floors = np.zeros(by_night.shape[:2])
    for night in range(1, len(by_night)):  # each becomes what it costs at least to reach it
        before = by_night[night - 1]
        floors[night] = before.min(axis=(1, 2)) + _PRICE
        stay = np.minimum(before, before[:, ::-1] + _SWITCH) if before.shape[1] > 1 else before
        by_night[night] += np.minimum(stay, floors[night][:, None, None])
    return by_night.swapaxes(0, 1), floors.T


def steps(values: Array, candidates: Sequence[int], least: float) -> list[int]:
    """Return the real ones of the candidate steps. `least` is the standard deviation below which noise is
    none, such as a clock's resolution."""
    jumping: list[int] = []
    for start, stop, low, high in blocks(len(values)):
        inside = [candidate - start for candidate in candidates if start + 2 <= candidate < stop - 1]
        if inside:
            places = _select(values[start:stop], inside, least)
            jumping += [start + index for index in places if low <= start + index < high]
    return sorted(set(jumping))


@lru_cache(maxsize=16)
def _transform(n: int) -> tuple[Array, Array]:
    """Return the orthonormal cosine transform of n values without the constant, and that of all steps."""
    frequencies = np.arange(1, n)[:, None]
    matrix = np.sqrt(2 / n) * np.cos(np.pi * frequencies * (np.arange(n) + 0.5) / n)
    return matrix, np.ascontiguousarray(np.cumsum(matrix[:, ::-1], axis=1)[:, ::-1])


@lru_cache(maxsize=16)
def _weights(n: int) -> tuple[Array, Array, Array]:
    """Return 1 ÷ spectrum by noise and frequency, the log determinants, and the weight of each step alone."""
    cosine = np.cos(np.pi * np.arange(1, n) / n)
    rows = [np.ones(n - 1)]
    rows += [
        1 - share + share * (1 - left**2) / (1 - 2 * left * cosine + left**2) for share, left in _MEMORIES
    ]
    rows += [1 + ratio / (2 - 2 * cosine) for ratio in _WALKS]
    spectra = np.array(rows)
    return 1 / spectra, np.log(spectra).sum(axis=1), (1 / spectra) @ _transform(n)[1] ** 2


class _Table:
    """Weighted products of the series (column 0) and of steps, one table for each noise. `take` removes from
    every column what a step explains."""

    def __init__(self, values: Array, places: Sequence[int], least: float) -> None:
        n = len(values)
        matrix, all_steps = _transform(n)
        weights, self.determinants, _own = _weights(n)
        columns = np.concatenate([(matrix @ values)[:, None], all_steps[:, list(places)]], axis=1)
        self.products: Array = (columns.T[None] * weights[:, None, :]) @ columns
        self.nights, self.least = n - 1, n * least**2

    def fits(self, left: Array) -> Array:
        """Return the doubled log likelihood by noise (axis 0) from what is left unexplained."""
        scores = -self.nights * np.log(np.maximum(left, self.least))
        return np.asarray(scores - self.determinants.reshape(-1, *[1] * (left.ndim - 1)))

    def take(self, column: int) -> None:
        row = self.products[:, column, :].copy()
        self.products -= row[:, :, None] * (row / row[:, column, None])[:, None, :]
        self.products[:, :, column] = 0.0
        self.products[:, column, :] = 0.0
        self.products[:, column, column] = 1.0

    def scores(self, taken: Sequence[int]) -> tuple[float, float]:
        """Return the doubled log likelihood of an untouched table with these steps together, with the best
        noise and with white noise."""
        left = self.products[:, 0, 0]
        if taken:
            columns = [index + 1 for index in taken]
            cross = self.products[:, 0, columns]
            own = self.products[:, columns][:, :, columns]
            left = left - np.einsum("gi,gi->g", cross, np.linalg.solve(own, cross[:, :, None])[:, :, 0])
        likelihoods = self.fits(left)
        return float(likelihoods.max()), float(likelihoods[0])


def _select(values: Array, candidates: Sequence[int], least: float) -> list[int]:
    """Return the real ones: steps and pairs of steps are taken while they gain enough, then left out again if
    later ones made them superfluous."""
    places = np.array(_snapped(values, candidates, least))
    table = _Table(values, places.tolist(), least)
    whole = table.products.copy()
    first, second = np.triu_indices(len(places), 1)
    price = _ONE + _SHORT * (np.minimum(places, len(values) - places) < BRIEF)
    price_of_two = _TWO + _SHORT * (places[second] - places[first] < BRIEF)
    taken: list[int] = []
    while len(taken) < len(places):
        rest = table.products[:, :1, 0]
        now = table.fits(rest[:, 0]).max()
        own, cross = np.einsum("gii->gi", table.products)[:, 1:], table.products[:, 0, 1:]
        gain = table.fits(rest - cross**2 / np.maximum(own, 1e-12)).max(axis=0) - now - price
        gain[taken] = -np.inf
        best = [int(gain.argmax())]
        most = float(gain[best[0]])
        if len(first):
            a, b, c, d = own[:, first], own[:, second], cross[:, first], cross[:, second]
            between = table.products[:, first + 1, second + 1]
            determinant = np.maximum(a * b - between**2, 1e-9 * a * b)
            explained = (b * c**2 - 2 * between * c * d + a * d**2) / determinant
            gain = table.fits(rest - explained).max(axis=0) - now - price_of_two
            gain[np.isin(first, taken) | np.isin(second, taken)] = -np.inf
            pair = int(gain.argmax())
            if float(gain[pair]) > most:
                best, most = [int(first[pair]), int(second[pair])], float(gain[pair])
        if most <= 0:
            break
        for index in best:
            table.take(index + 1)
        taken += best
    table.products = whole
    return [int(places[index]) for index in _needed(table, sorted(taken), places)]


def _snapped(values: Array, candidates: Sequence[int], least: float) -> list[int]:
    """Return the candidates, and beside each the place near it that alone explains most."""
    n = len(values)
    matrix, _steps = _transform(n)
    weights, determinants, own = _weights(n)
    transformed = matrix @ values
    # what steps at 1, 2, … share with the weighted series: its inverse transform, summed up from the end
    turned = weights * transformed * np.exp(0.5j * np.pi * np.arange(1, n) / n)
    spectrum = np.concatenate([np.zeros((len(weights), 1)), turned, np.zeros((len(weights), 1))], axis=1)
    back = np.sqrt(2 * n) * np.fft.irfft(spectrum, 2 * n, axis=1)[:, :n]
    cross = np.cumsum(back[:, :0:-1], axis=1)[:, ::-1]
    total = weights @ transformed**2
    left = np.maximum(total[:, None] - cross**2 / own[:, 1:], n * least**2)
    gain = (-(n - 1) * np.log(left) - determinants[:, None]).max(axis=0)  # of a step at 1, 2, …
    places = set(candidates)
    for candidate in candidates:
        low = max(candidate - _REACH, 1)
        places.add(low + int(gain[low - 1 : candidate + _REACH].argmax()))
    return sorted(places)


def _needed(table: _Table, taken: list[int], places: np.ndarray) -> list[int]:
    """Return the steps whose removal would cost at least what a step must gain."""
    noise, plain = table.scores([])
    while taken:
        edges = np.array([0, *places[taken], table.nights + 1])
        brief = np.diff(edges) < BRIEF
        whole, white = table.scores(taken)
        price = _ONE + min(max(whole - white, _SHARE * (noise - plain)), _WANDERING)
        losses = [whole - table.scores([other for other in taken if other != index])[0] for index in taken]
        losses = [loss - _SHORT * (brief[i] or brief[i + 1]) for i, loss in enumerate(losses)]
        weakest = int(np.argmin(losses))
        if losses[weakest] >= price:
            break
        del taken[weakest]
    return taken
