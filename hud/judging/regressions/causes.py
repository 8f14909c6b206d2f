"""Group regressions that have one cause, and rank them. Numbers and names only.

Metrics of one experiment are one row. What moved on a host whose canaries moved is one group, and the last.
Where no canaries were measured, experiments that moved in the same run by about the same factor are one group
if they are most of what that run measured: the host is the likely cause. Experiments of one
suite and backend that moved between the same two runs are one group too: the backend is the likely cause. So
are the backends on which one case began to fail in the same run.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

_FEWEST = 3  # experiments in a group
_FEWEST_BACKENDS = 2  # on which one case fails
_MOST_OF_RUN = 0.5  # share of the experiments of a run that points at its host
_ALIKE = 0.02  # log changes this close to their median are alike, or within a quarter of it
CERTAIN = 10.0  # a change of this many times the noise could not be more certain

Why = Literal["experiment", "host", "backend", "case"]


@dataclass(frozen=True)
class Moved:
    """A regression as grouping sees it. `change` is relative, None for a failure."""

    key: int
    experiment: int
    family: Hashable  # suite and backend
    case: Hashable  # suite, case and its parameters
    run: int | None  # the first that moved
    last_good_run: int | None
    change: float | None
    factor: float | None
    worse_up: bool  # a larger value is worse
    failed: bool = False
    host: str = ""  # that is the cause, as its canaries say
    quiet_host: bool = False  # its canaries have not moved


@dataclass(frozen=True)
class Group:
    why: Why
    keys: tuple[int, ...]  # the most telling first


def score(moved: Moved) -> float:
    """Return certainty × size in log space: twice as slow ranks like half the bandwidth. Failures lead."""
    if moved.failed or moved.change is None:
        return math.inf
    certainty = min((moved.factor if moved.factor is not None else CERTAIN) / CERTAIN, 1.0)
    return certainty * abs(_log_change(moved))


def group(moves: Sequence[Moved], experiments_of_run: Mapping[int, int]) -> list[Group]:
    """Return the groups, the highest score first. `experiments_of_run` is how many each run measured."""
    by_experiment: dict[int, list[Moved]] = {}
    by_host: dict[str, list[int]] = {}
    for moved in sorted(moves, key=lambda one: (-score(one), one.key)):
        if moved.host:
            by_host.setdefault(moved.host, []).append(moved.key)
        else:
            by_experiment.setdefault(moved.experiment, []).append(moved)
    leading = [rows[0] for rows in by_experiment.values()]
    groups: list[tuple[float, Group]] = []
    taken: set[int] = set()
    candidates: list[tuple[Why, int, list[list[Moved]]]] = [
        ("host", _FEWEST, _same_run(leading, experiments_of_run)),
        ("backend", _FEWEST, _same_step(leading)),
        ("case", _FEWEST_BACKENDS, _same_failure(leading)),
    ]
    for why, fewest, same in candidates:
        for members in same:
            free = [one for one in members if one.experiment not in taken]
            if len(free) >= fewest:
                taken |= {one.experiment for one in free}
                keys = [row.key for one in free for row in by_experiment[one.experiment]]
                groups.append((max(map(score, free)), Group(why, tuple(keys))))
    for one in leading:
        if one.experiment not in taken:
            keys = [row.key for row in by_experiment[one.experiment]]
            groups.append((score(one), Group("experiment", tuple(keys))))
    ranked = [found for _score, found in sorted(groups, key=lambda row: (-row[0], row[1].keys))]
    return ranked + [Group("host", tuple(keys)) for keys in by_host.values()]


def _same_run(leading: Sequence[Moved], experiments_of_run: Mapping[int, int]) -> list[list[Moved]]:
    """Return the experiments that moved alike in one run, where they are most of the run."""
    by_run: dict[int, list[Moved]] = {}
    for one in leading:
        if one.run is not None and one.change is not None and not one.failed and not one.quiet_host:
            by_run.setdefault(one.run, []).append(one)
    found = []
    for run, members in by_run.items():
        middle = median(_slowdown(one) for one in members)
        alike = [one for one in members if abs(_slowdown(one) - middle) <= max(_ALIKE, abs(middle) / 4)]
        if len(alike) >= _MOST_OF_RUN * experiments_of_run.get(run, math.inf):
            found.append(alike)
    return found


def _same_step(leading: Sequence[Moved]) -> list[list[Moved]]:
    by_step: dict[Hashable, list[Moved]] = {}
    for one in leading:
        if one.run is not None:
            by_step.setdefault((one.family, one.run, one.last_good_run, one.failed), []).append(one)
    return list(by_step.values())


def _same_failure(leading: Sequence[Moved]) -> list[list[Moved]]:
    by_case: dict[Hashable, list[Moved]] = {}
    for one in leading:
        if one.failed and one.run is not None:
            by_case.setdefault((one.case, one.run), []).append(one)
    return list(by_case.values())


def _log_change(moved: Moved) -> float:
    change = moved.change or 0.0
    return math.log1p(change) if change > -1 else -math.inf


def _slowdown(moved: Moved) -> float:
    """Return the log change as a slowdown, whatever the metric's direction is."""
    return _log_change(moved) if moved.worse_up else -_log_change(moved)
