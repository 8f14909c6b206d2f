"""The processes of an A/B comparison: which pair, side and draw each belongs to.

A free process draws its own choices of the autotuner; a pinned one is given those of a draw. In the records
it is `runners[0].extra_info.pair` (`records.py`), in the store the columns `repeat`, `side` and `draw`.
Standard library only, Python 3.10 syntax, like `records.py`.
"""

from typing import Literal, NamedTuple, TypeGuard

from runner.schema.records import Json

Side = Literal["base", "new"]
BASE: Side = "base"
NEW: Side = "new"
RUN_TIMES = ("device_latency_ms", "gpu_busy_ms", "compiled_latency_ms")  # the surest first
MAX_DRAWS = 20  # of each side in a comparison at equal choices
MAX_ROUNDS = 20  # of pinned processes in one draw
MAX_CANDIDATES = 200  # of a slot, of both sides
_FIRST_PINNED = 1000  # the number of the first pinned process; free ones have that of their pair
_FIRST_CANDIDATE = 5000  # that of the first process at a candidate that neither side need have drawn
_MOST_NUMBER = 10_000


class PairPlace(NamedTuple):
    """Place of a process. `draw` is 2 · pair, + 1 where the candidate drew the choices that are forced;
    None for a free process. `repeat` is unique among the processes of a side."""

    repeat: int
    side: int  # 0 base, 1 new
    draw: int | None = None


def draw_number(pair: int, owner: str) -> int:
    """Return the number of the draw of a side in a pair."""
    return 2 * pair + (owner == NEW)


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
    draw = draw_number(number, owner)
    if candidate is not None:
        return PairPlace(_FIRST_CANDIDATE + MAX_CANDIDATES * number + candidate, side, draw)
    repeated = pair.get("repeated") is True
    return PairPlace(pinned_repeat(draw, round_number, repeated=repeated), side, draw)


def _is_below(value: Json, limit: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < limit
