"""Hosts and cards of the points of each side, and the facts in which their environments differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hud.models import Environment, Run
from hud.pages.compare.cohort import Cohort
from hud.pages.compare.judged import Place
from hud.pages.compare.points import Bools, Point, Points
from hud.pages.experiment.history import fact_name
from hud.sql import by_id

_SUBJECT = {"torch", "torch_git", "triton", "commit", "branch"}  # what a comparison is about
_PLACE = {"host": "host", "gpu_uuid": "card", "gpu": "card"}
_MOST = 3  # values of a fact to show


@dataclass
class Places:
    """Hosts, cards and environments of the points of all sides."""

    environments: dict[int, Environment]
    runs: dict[int, Run]
    _known: dict[tuple[int, int], Place] = field(default_factory=dict)

    def of(self, point: Point) -> Place:
        return self.by_ids(point.environment_id, point.run_id)

    def by_ids(self, environment_id: int, run_id: int) -> Place:
        key = environment_id, run_id
        if key not in self._known:
            environment = self.environments[environment_id]
            card = str(environment.facts.get("gpu_uuid") or "")
            self._known[key] = Place(environment.class_key, card, self.runs[run_id].host_name)
        return self._known[key]


def places_of(found: Sequence[Points]) -> Places:
    """Return the places of these points: 2 statements, 1 where the sides are single runs."""
    known = {points.side.newest.pk: points.side.newest for points in found}
    environments = {pk for points in found for pk in np.unique(points.environment).tolist()}
    ran = {pk for points in found for pk in np.unique(points.run).tolist()}
    return Places(by_id(Environment, environments), {**known, **by_id(Run, ran - known.keys())})


def elsewhere(cohort: Cohort, side: int, places: Places) -> Bools:
    """Return which experiments have a metric whose two points were measured at different places."""
    both = (cohort.at[0] >= 0) & (cohort.at[side] >= 0)
    rows, columns = np.nonzero(both)
    numbers: dict[Place, int] = {}
    of_sides = []
    for place in (0, side):
        points, at = cohort.sides[place], cohort.at[place][rows, columns]
        keys = points.environment[at].astype(np.int64) * 2**32 + points.run[at]
        distinct, which = np.unique(keys, return_inverse=True)
        found = [places.by_ids(key >> 32, key & (2**32 - 1)) for key in distinct.tolist()]
        of_sides.append(np.array([numbers.setdefault(one, len(numbers)) for one in found], int)[which])
    different: Bools = np.zeros(cohort.ids.size, bool)
    different[rows[of_sides[0] != of_sides[1]]] = True
    return different


@dataclass(frozen=True)
class Fact:
    """A fact with its values on each side, several where a side has several environments."""

    name: str
    values: tuple[tuple[str, ...], ...]

    @property
    def differs(self) -> bool:
        return len(set(self.values)) > 1

    @property
    def meaning(self) -> str:
        return "subject" if self.name in _SUBJECT else _PLACE.get(self.name, "")

    @property
    def title(self) -> str:
        return fact_name(self.name)

    @property
    def words(self) -> list[str]:
        """Return the values of each side as text."""
        return [_words(values) for values in self.values]

    def to_json(self) -> dict[str, Any]:
        base, *heads = self.values
        return {
            "name": self.name,
            "base": list(base),
            "head": list(heads[0]),
            "heads": list(map(list, heads)),
        }


def differences(
    points: Sequence[Points],
    environments: Mapping[int, Environment],
    runs: Mapping[int, Run],
) -> list[Fact]:
    """Return every fact, those of the runs first."""
    found: dict[str, list[set[str]]] = {}
    for place, of_side in enumerate(points):
        facts = [
            {"commit": runs[pk].commit, "branch": runs[pk].branch, "host": runs[pk].host_name}
            for pk in np.unique(of_side.run).tolist()
        ]
        facts += [_flat(environments[pk].facts) for pk in np.unique(of_side.environment).tolist()]
        for one in facts:
            for name, value in one.items():
                if name != "date" and value not in (None, "", 0, {}):
                    found.setdefault(name, [set() for _side in points])[place].add(str(value))
    facts_first = {name: number for number, name in enumerate(("commit", "branch", "host", *_SUBJECT))}
    return [
        Fact(name, tuple(tuple(sorted(values)) for values in found[name]))
        for name in sorted(found, key=lambda name: (facts_first.get(name, 99), name))
    ]


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, fact in facts.items():
        flat.update(fact if isinstance(fact, dict) else {name: fact})
    return flat


def _words(values: Sequence[str]) -> str:
    shown = [value[:60] for value in values[:_MOST]]
    more = len(values) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") or "not known"
