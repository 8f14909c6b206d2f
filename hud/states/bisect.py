"""Which versions a bisect compares next, and what it ends with. Pure.

Versions are numbered from the good end, 0, to the bad one. Each comparison is made in pairs and answered over
all pairs of the same two versions so far. The ends are compared first: what does not come back today is not
searched for. A version in the middle is on the bad side if it is worse than the good end by at least half of
what the bad end is, because versions also differ by what nobody searches for. The last comparison is always
that of the two neighbours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

# none: not one pair has a value; unclear: neither a change nor surely none
Word = Literal["worse", "same", "unclear", "none"]
MOST_ATTEMPTS = 3  # at an unclear comparison
MOST_FAILURES = 2  # of a version, then it is left out


class BisectState(StrEnum):
    RUNNING = "running"
    FOUND = "found"
    NOT_REPRODUCED = "not_reproduced"
    CANNOT_TELL = "cannot_tell"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class StepAnswer:
    base: int
    head: int
    word: Word
    attempts: int
    size: float = 0.0  # of the change, |log ratio|


def next_step(versions: int, answers: Sequence[StepAnswer]) -> tuple[BisectState, int, int]:
    """Return the state of a bisect over so many versions, and two of them: those to compare next while it is
    running; at its end the closest ones between which the change is, or the ends where the first comparison
    is not answered."""
    known = {(answer.base, answer.head): answer for answer in answers}
    low, high = 0, versions - 1
    ends = _settled(known, low, high)
    if ends is None:
        return BisectState.RUNNING, low, high
    if ends != "worse":
        return BisectState.NOT_REPRODUCED if ends == "same" else BisectState.CANNOT_TELL, low, high
    least = known[0, versions - 1].size / 2
    left_out: set[int] = set()
    while between := [index for index in range(low + 1, high) if index not in left_out]:
        middle = min(between, key=lambda index: (abs(2 * index - low - high), index))
        compared = 0, middle
        word = _settled(known, *compared, least)
        if word == "unclear":  # the other end may tell it apart
            compared = middle, versions - 1
            opposite = _settled(known, *compared, least)
            word = "same" if opposite == "worse" else "worse" if opposite == "same" else opposite
        if word is None:
            return BisectState.RUNNING, *compared
        if word == "worse":
            high = middle
        elif word == "same":
            low = middle
        elif word == "none":
            left_out.add(middle)
        else:
            return BisectState.CANNOT_TELL, low, high
    neighbours = _settled(known, low, high)
    if neighbours is None:
        return BisectState.RUNNING, low, high
    is_found = neighbours == "worse" and high - low == 1
    return BisectState.FOUND if is_found else BisectState.CANNOT_TELL, low, high


def most_steps(versions: int) -> int:
    """Return how many comparisons are usual at most: the ends, the halves, the neighbours."""
    return 2 + max(versions - 2, 0).bit_length()


def _settled(
    known: Mapping[tuple[int, int], StepAnswer], base: int, head: int, least: float = 0.0
) -> Word | None:
    """Return the answer, "same" for one below `least`; None while another comparison may make it clear."""
    answer = known.get((base, head))
    most = {"unclear": MOST_ATTEMPTS, "none": MOST_FAILURES}
    if answer is None or answer.attempts < most.get(answer.word, 0):
        return None
    return "same" if answer.word == "worse" and answer.size < least else answer.word
