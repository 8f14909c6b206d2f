"""Whose task comes next: pure rules, which `hud.runs.matching` has as SQL for claims.

Each accelerator serves people first, then CI, then nights; but while nights wait, each `NIGHT_EVERY`-th of
its tasks is theirs. Inside a class owners take turns task by task: next is who was served longest ago.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Literal, TypeAlias, get_args

RunClass: TypeAlias = Literal["person", "ci", "night"]  # who waits for a run
RUN_CLASSES: tuple[RunClass, ...] = get_args(RunClass)
NIGHT_EVERY = 4
_MOST_TASKS = 1000  # that `expected_starts` looks ahead


@dataclass(slots=True)
class WaitingRun:
    """A run with tasks that nobody has claimed."""

    run: int
    run_class: RunClass
    owner: str
    created: float
    tasks: int
    task_s: float  # that one usually takes; inf where nobody knows
    places: Collection[int]  # accelerators that take them now
    began: bool = False  # some of its tasks have started


def next_run(
    waiting: Sequence[WaitingRun], place: int, served: Mapping[tuple[RunClass, str], float], nights_ago: int
) -> WaitingRun | None:
    """Return the run whose task an accelerator gets next, or None. `served` has the time of the last task of
    a class and owner, `nights_ago` how many tasks the accelerator has had since its last one of a night."""
    here = [run for run in waiting if run.tasks and place in run.places]
    first = "night" if nights_ago >= NIGHT_EVERY - 1 else ""

    def order(run: WaitingRun) -> tuple[bool, int, float, float, int]:
        turn = served.get((run.run_class, run.owner), -inf)
        return run.run_class != first, RUN_CLASSES.index(run.run_class), turn, run.created, run.run

    return min(here, key=order, default=None)


def expected_starts(
    waiting: Sequence[WaitingRun],
    free_in_s: Mapping[int, float],
    served: Mapping[tuple[RunClass, str], float],
    nights_ago: Mapping[int, int],
) -> dict[int, float]:
    """Return in how many seconds each run starts that has not, by playing what the accelerators will do.
    `free_in_s` is when each ends its task; times in `served` are below 0, the present."""
    turns, nights, starts = dict(served), dict(nights_ago), dict[int, float]()
    missing = {run.run for run in waiting if not run.began}
    events = [(seconds, place) for place, seconds in free_in_s.items()]
    heapify(events)
    for _ in range(_MOST_TASKS):
        if not (events and missing) or events[0][0] == inf:
            break
        now, place = heappop(events)
        run = next_run(waiting, place, turns, nights.get(place, 0))
        if run is None:
            continue
        run.tasks -= 1
        turns[run.run_class, run.owner] = now
        nights[place] = 0 if run.run_class == "night" else nights.get(place, 0) + 1
        if run.run in missing:
            starts[run.run] = now
            missing.remove(run.run)
        heappush(events, (now + run.task_s, place))
    return starts
