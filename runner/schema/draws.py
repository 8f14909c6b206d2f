"""An A/B comparison at equal choices: the code's answer from draws of the autotuner (measuring rule 18).

A round compiles both sides afresh, which gives two draws of the autotuner, and times both sides at each of
them. The draw is the unit of the test. Draws of both sides count alike: those of one side alone are the best
for its own code, and would call a change slower that costs nothing.

A free process draws its own choices of the autotuner; a pinned one is given those of a draw. Which pair, side
and draw a process belongs to is `runners[0].extra_info.pair` in its records (`records.py`), and the columns
`repeat`, `side` and `draw` in the store. Standard library only, Python 3.10 syntax.
"""

import math
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeGuard

from runner.schema.records import Json
from runner.schema.statistics import PAIR_ALPHA, PAIR_FLOOR, geometric_mean, median, student_p, student_t

Side = Literal["base", "new"]
CodeWord = Literal["confirmed", "dismissed", "inconclusive", "moved"]

BASE: Side = "base"
NEW: Side = "new"
RUN_TIMES = ("device_latency_ms", "gpu_busy_ms", "compiled_latency_ms")  # the surest first
MAX_DRAWS = 20  # of each side in a comparison at equal choices
MAX_ROUNDS = 20  # of pinned processes in one draw
MAX_CANDIDATES = 200  # of a slot, of both sides
_FIRST_PINNED = 1000  # the number of the first pinned process; free ones have that of their pair
_FIRST_CANDIDATE = 5000  # that of the first process at a candidate that neither side need have drawn
_MOST_NUMBER = 10_000
LEAST_DRAWS = 3  # of each side; with fewer there is no answer
OUTLIER = 0.05  # a process further than this from the others of its choice is measured once more
INTERVAL_ALPHA = 0.05  # of the interval
ONE_WAY_ALPHA = 0.02  # of a change that every draw shows
LOOKS_FACTOR = 1.08  # on the limits of a test that is looked at after each round, up to 20 + 20 draws
ASSUMED_NOISE = 0.01  # of a process at known choices, where too few are stored
LEAST_REPEATS = 2  # processes of one choice on one card that say something of its noise
SURE = 0.95  # the share of comparisons in which a change that is "found" is confirmed
SURE_OF_NOTHING = 0.9  # the share in which a change of 1 % is dismissed
FOUND, NOTHING = 0.03, 0.01  # the changes that a comparison must find, and must dismiss
MOST_DRAWS = 400  # of a plan
_FLOOR = math.log1p(PAIR_FLOOR)
_FAR = math.log1p(OUTLIER)
_TINY_P = 1e-15  # less is lost in rounding
_MOST_LOG = 700.0  # beyond it a ratio is no double


class PairPlace(NamedTuple):
    """Place of a process. `draw` is 2 · pair, + 1 where the candidate drew the choices that are forced;
    None for a free process. `repeat` is unique among the processes of a side."""

    repeat: int
    side: int  # 0 base, 1 new
    draw: int | None = None


def pinned_repeat(draw: int, round_number: int, *, repeated: bool) -> int:
    """Return the `repeat` of a pinned process: from 1000 on, by draw, round, and first or second try."""
    return _FIRST_PINNED + 2 * (MAX_ROUNDS * draw + round_number) + repeated


def round_of(repeat: int) -> tuple[int, bool]:
    """Return the round of a pinned process in its draw, and whether it repeats a first try; of a process at
    a candidate its own number."""
    if is_candidate(repeat):
        return repeat, False
    number, repeated = divmod(repeat - _FIRST_PINNED, 2)
    return number % MAX_ROUNDS, bool(repeated)


def is_candidate(repeat: int) -> bool:
    """Return whether a process was pinned to a candidate of the autotuner, and not to a draw."""
    return repeat >= _FIRST_CANDIDATE


def pair_place(pair: Json) -> PairPlace | None:
    """Return the place that a record's fact `pair` names; None if it names none. Raise ValueError for a draw
    or a round that no comparison has."""
    if not isinstance(pair, dict) or pair.get("side") not in (BASE, NEW):
        return None
    number, side, owner = pair.get("number"), int(pair["side"] == NEW), pair.get("draw")
    candidate = pair.get("candidate")
    if not _is_below(number, _MOST_NUMBER):
        return None
    if owner is None:
        return PairPlace(number, side)
    round_number = pair.get("round", 0)
    if (
        owner not in (BASE, NEW)
        or not _is_below(number, MAX_DRAWS)
        or not _is_below(round_number, MAX_ROUNDS)
        or not (candidate is None or _is_below(candidate, MAX_CANDIDATES))
    ):
        raise ValueError(f"no comparison has the draw {owner!r} {number!r} or the round {round_number!r}")
    draw = 2 * number + (owner == NEW)
    if candidate is not None:
        return PairPlace(_FIRST_CANDIDATE + MAX_CANDIDATES * number + candidate, side, draw)
    repeated = pair.get("repeated") is True
    return PairPlace(pinned_repeat(draw, round_number, repeated=repeated), side, draw)


def _is_below(value: Json, limit: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < limit


@dataclass(frozen=True)
class Draw:
    """Both sides timed at one draw of the autotuner. `base` and `head` are geometric means of the processes
    that repeated it, positive, in the metric's unit. `owner` is the side that compiled it freely."""

    number: int
    owner: Side
    base: float
    head: float

    @property
    def log_ratio(self) -> float:
        return math.log(self.head) - math.log(self.base)


def draws_of(processes: Iterable[tuple[int, int, int, float | None]]) -> tuple[Draw, ...]:
    """Return the draws at which both sides have a positive value, from draw, side, number and value of each
    pinned process. A process that was repeated counts with its second value, one at a candidate not."""
    values: defaultdict[int, tuple[dict[int, float], dict[int, float]]] = defaultdict(lambda: ({}, {}))
    for draw, side, repeat, value in sorted(processes, key=lambda process: process[:3]):
        if value is not None and value > 0 and not is_candidate(repeat):
            values[draw][side][round_of(repeat)[0]] = value
    return tuple(
        Draw(draw, NEW if draw % 2 else BASE, *(geometric_mean([*side.values()]) for side in sides))
        for draw, sides in sorted(values.items())
        if all(sides)
    )


@dataclass(frozen=True)
class CodeChange:
    """The change of the code at equal choices: candidate ÷ baseline, a ratio of geometric means.

    `ratio` weighs the draws of both owners equally; `at_base` and `at_head` are the ratios at the draws of
    one owner. `low`, `high` (95 %) and `p` hold with the looks taken. What is not known is None.
    `moved`: the ratios at the owners' draws disagree, so there is no answer on the code alone.
    """

    word: CodeWord
    draws: tuple[int, int]  # of the baseline and of the candidate
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    at_base: float | None = None
    at_head: float | None = None


def code_change(draws: Iterable[Draw], most: int | None = None) -> CodeChange:
    """Judge the code from draws of both sides, by Student's t over their log ratios.

    `most` is the number of draws after which the comparison ends at the latest, if it is looked at after each
    round (`enough`); None for one look at the end. `confirmed`: p ≤ .005, and the change is more than 2 %; or
    p ≤ .02, and every draw changes by more than 5 % in one direction, since how much depends on the choice.
    `dismissed`: the interval lies within ± 2 %. `moved`: the means of the two owners differ by more than 2 %,
    at p ≤ .005, and are not both beyond 2 % in one direction. Fewer than 3 draws of a side: `inconclusive`.
    """
    judged = list(draws)
    sides = [[draw.log_ratio for draw in judged if draw.owner == owner] for owner in (BASE, NEW)]
    counts = len(sides[0]), len(sides[1])
    means = [statistics.fmean(side) if side else math.nan for side in sides]
    at_base, at_head = (_exp(mean) if side else None for mean, side in zip(means, sides, strict=True))
    if min(counts) < 2:
        return CodeChange("inconclusive", counts, at_base=at_base, at_head=at_head)
    middle, apart = statistics.fmean(means), means[1] - means[0]
    inside = math.fsum((ratio - mean) ** 2 for side, mean in zip(sides, means, strict=True) for ratio in side)
    # what the owners disagree in widens the interval: with equal counts this is the plain t test of all draws
    total = math.fsum((ratio - middle) ** 2 for side in sides for ratio in side)
    count, error_share = sum(counts), 1 / counts[0] + 1 / counts[1]
    error = math.sqrt(total / (count - 1) * error_share) / 2
    looks = Looks(count, most)
    p, half = looks.p(middle, error, count - 1), looks.limit(count - 1) * error
    word: CodeWord = "inconclusive"
    if min(counts) >= LEAST_DRAWS:
        apart_p = looks.p(apart, math.sqrt(inside / (count - 2) * error_share), count - 2)
        one_way = min(means) > _FLOOR or max(means) < -_FLOOR  # a change at either owner's draws
        all_far = min(map(min, sides)) > _FAR or max(map(max, sides)) < -_FAR
        if abs(apart) > _FLOOR and apart_p <= PAIR_ALPHA and not one_way:
            word = "moved"
        elif abs(middle) + half <= _FLOOR:
            word = "dismissed"
        elif abs(middle) > _FLOOR and p <= (ONE_WAY_ALPHA if all_far else PAIR_ALPHA):
            word = "confirmed"
    low, high = _exp(middle - half), _exp(middle + half)
    return CodeChange(word, counts, _exp(middle), low, high, p, at_base, at_head)


def answer_of(
    processes: Iterable[tuple[int, int, int, float | None, str | None]], most: int | None = None
) -> tuple[tuple[Draw, ...], CodeChange]:
    """Return the draws of pinned processes with the code's answer, from draw, side, number, value and quality
    of each. A value with a quality may not decide: where none may, all draws come without an answer."""
    measured = list(processes)
    deciding = draws_of(process[:4] for process in measured if not process[4])
    return deciding or draws_of(process[:4] for process in measured), code_change(deciding, most)


def _exp(log_ratio: float) -> float:
    return math.exp(min(log_ratio, _MOST_LOG))


@dataclass(frozen=True)
class Looks:
    """How much a test that may stop after each round asks for: the limits of O'Brien and Fleming, which are
    strict at first and nearly those of a single look at the end. `most` None, or the least number of draws,
    means a single look."""

    draws: int
    most: int | None

    @property
    def factor(self) -> float:
        """Return by how much a normal deviate has to exceed that of a single look."""
        if self.most is None or self.most <= 2 * LEAST_DRAWS:
            return 1.0
        return LOOKS_FACTOR / math.sqrt(min(1.0, self.draws / self.most))

    def p(self, middle: float, error: float, degrees: int) -> float:
        """Return the p-value of a mean of zero, to be compared with the level of a single look."""
        if error == 0.0:
            return 0.0 if middle else 1.0
        p = student_p(middle / error, degrees)
        return p if self.factor == 1.0 else math.erfc(_deviate(max(p, _TINY_P)) / self.factor / math.sqrt(2))

    def limit(self, degrees: int, alpha: float = INTERVAL_ALPHA) -> float:
        """Return how many standard errors an interval of this error rate reaches to each side."""
        return student_t(math.erfc(_deviate(alpha) * self.factor / math.sqrt(2)), degrees)


def _deviate(p: float) -> float:
    """Return the normal deviate of a two-sided p-value."""
    return -statistics.NormalDist().inv_cdf(p / 2)


def enough(draws: Sequence[Draw], most: int) -> bool:
    """Return whether a comparison may stop after this round: its answer is clear, or there are `most` draws.

    Judge it afterwards with the same `most`.
    """
    return len(draws) >= most or code_change(draws, most).word != "inconclusive"


def outliers(processes: Sequence[tuple[Side, Side, float]]) -> list[int]:
    """Return the places of the processes of a round to measure once more, from owner of the choices, side
    and value of each.

    These are further than 5 % from the median of the others with their choices; none are where the code
    explains it. Which side is which is not asked, so that neither is favoured. A repeat counts in place of
    the first value, also if it is as far away.
    """
    far = []
    for index, (owner, _side, value) in enumerate(processes):
        others = [one[2] for elsewhere, one in enumerate(processes) if elsewhere != index and one[0] == owner]
        if others and abs(math.log(value / median(others))) > _FAR:
            far.append(index)
    return [] if _is_code(processes) else far


def _is_code(processes: Iterable[tuple[Side, Side, float]]) -> bool:
    """Return whether one side is slower by more than 5 % at the choices of both, and the processes of a side
    with the same choices are all within 5 %: no few slow processes of equal sides look like that."""
    logs: defaultdict[tuple[Side, Side], list[float]] = defaultdict(list)
    for owner, side, value in processes:
        logs[owner, side].append(math.log(value))
    if len(logs) < 4 or any(max(own) - min(own) > _FAR for own in logs.values()):
        return False
    changes = [median(logs[owner, NEW]) - median(logs[owner, BASE]) for owner in (BASE, NEW)]
    return min(changes) > _FAR or max(changes) < -_FAR


@dataclass(frozen=True)
class ChoiceNoise:
    """The relative standard deviation of a process at known choices, and how many made it."""

    noise: float = ASSUMED_NOISE
    processes: int = 0
    degrees: int = 0  # of freedom

    @property
    def assumed(self) -> bool:
        return not self.degrees


def choice_noise(choices: Iterable[Sequence[float]]) -> ChoiceNoise:
    """Return the noise from the values of each choice on one card, pooled over those that were repeated at
    least twice; without one it is assumed."""
    repeated = [[math.log(value) for value in same] for same in choices if len(same) >= LEAST_REPEATS]
    degrees = sum(len(same) - 1 for same in repeated)
    if not degrees:
        return ChoiceNoise()
    squares = math.fsum((value - statistics.fmean(same)) ** 2 for same in repeated for value in same)
    return ChoiceNoise(math.sqrt(squares / degrees), degrees + len(repeated), degrees)


@dataclass(frozen=True)
class Power:
    """The share of comparisons that confirm a change of this size, and that dismiss it."""

    confirmed: float
    dismissed: float


def power(
    noise: float, draws: int, effect: float = FOUND, most: int | None = None, repeats: int = 1
) -> Power:
    """Return what a comparison of this many draws, half of each side, makes of a relative change.

    `noise` is that of one process at known choices, `repeats` the processes of a side in each draw. Early
    stops are not counted: with them a comparison finds a little more. The sum over the observed scatter is
    the integral of the noncentral t distribution.
    """
    looks, size, error = Looks(draws, most), abs(math.log1p(effect)), noise * math.sqrt(2 / repeats / draws)
    if not error:
        return Power(float(size > _FLOOR), float(size <= _FLOOR))
    interval, needed = (looks.limit(draws - 1, alpha) * error for alpha in (INTERVAL_ALPHA, PAIR_ALPHA))
    confirmed = dismissed = 0.0
    for scatter, weight in _scatters(draws - 1):
        least = max(needed * scatter, _FLOOR)
        confirmed += weight * (_above((least - size) / error) + _above((least + size) / error))
        room = max(0.0, _FLOOR - interval * scatter)
        dismissed += weight * (1 - _above((room - size) / error) - _above((room + size) / error))
    return Power(confirmed, dismissed)


@lru_cache(maxsize=64)
def _scatters(degrees: int, steps: int = 400) -> tuple[tuple[float, float], ...]:
    """Return observed ÷ true standard deviations and the weight of each, by the chi distribution."""
    width = 6 / math.sqrt(2 * degrees)
    low, high = max(0.0, 1 - width), 1 + width
    places = [low + (high - low) * (step + 0.5) / steps for step in range(steps)]
    logs = [(degrees - 1) * math.log(at) - degrees * at * at / 2 for at in places]
    top = max(logs)
    weights = [math.exp(value - top) for value in logs]
    total = math.fsum(weights)
    return tuple((index, weight / total) for index, weight in zip(places, weights, strict=True))


def _above(deviate: float) -> float:
    return math.erfc(deviate / math.sqrt(2)) / 2


def detects_percent(noise: float, draws: int, repeats: int = 1) -> float:
    """Return the smallest change in per cent that is confirmed in 95 % of such comparisons."""
    low, high = 0.0, 1.0
    while power(noise, draws, high, repeats=repeats).confirmed < SURE:
        low, high = high, 2 * high
    for _ in range(20):
        middle = (low + high) / 2
        is_found = power(noise, draws, middle, repeats=repeats).confirmed >= SURE
        low, high = (low, middle) if is_found else (middle, high)
    return 100 * high


def power_words(noise: ChoiceNoise, draws: int, repeats: int = 1, process_s: float | None = None) -> str:
    """Return what a comparison finds, as in "6 draws find 2.1 % in 95 %, about 4 min": of so many draws, half
    of each side, where one process takes `process_s`."""
    percent = detects_percent(noise.noise, draws, repeats=repeats)
    parts = [f"{draws} draws find {percent:.1f} % in {100 * SURE:.0f} %"]
    if process_s is not None:
        parts.append(f"about {max(1, round(process_s * comparison_processes(draws, repeats) / 60))} min")
    return ", ".join([*parts, *["noise assumed"] * noise.assumed])


def comparison_processes(draws: int, repeats: int = 1) -> int:
    """Return how many processes a comparison starts: two that warm up, one free one for each draw, and
    `repeats` of both sides pinned to each."""
    return 2 + draws * (1 + 2 * repeats)


def draws_to_decide(noise: float) -> int:
    """Return the fewest draws that confirm 3 % in 95 % and dismiss 1 % in 90 %; at most 400. They are the
    `most` of a comparison that stops on a clear answer."""

    def decide(draws: int) -> bool:
        is_found = power(noise, draws, FOUND, draws).confirmed >= SURE
        return is_found and power(noise, draws, NOTHING, draws).dismissed >= SURE_OF_NOTHING

    plans = range(2 * LEAST_DRAWS, MOST_DRAWS, 2)
    return next(iter(plans[bisect_left(plans, True, key=decide) :]), MOST_DRAWS)
