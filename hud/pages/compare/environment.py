"""Hosts, cards and environments of the points of each side, and the facts in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hud.models import Environment, Run
from hud.pages.compare.points import Bools, Ints, Points
from hud.pages.experiment.history import fact_name, flat
from hud.sql import by_id

_FIRST = ["commit", "branch", "host", "torch", "torch_git", "triton"]  # facts in this order
_PLACE = {"host": "host", "gpu_uuid": "card", "gpu": "card"}
_MOST = 3  # values of a fact to show


class Place(NamedTuple):
    """The environment class, card and host of a measured point."""

    class_key: str = ""
    card: str = ""  # '' where nothing says it
    host: str = ""


@dataclass
class Places:
    """Hosts, cards and environments of the points of all sides."""

    environments: dict[int, Environment]
    runs: dict[int, Run]
    _known: dict[tuple[int, int], Place] = field(default_factory=dict)

    @classmethod
    def read(cls, sides: Sequence[Points]) -> Places:
        """Return the places of these points: 2 statements, 1 where the sides are single runs."""
        newest = {points.side.newest.pk: points.side.newest for points in sides}
        environments = {pk for points in sides for pk in np.unique(points.environment).tolist()}
        ran = {pk for points in sides for pk in np.unique(points.run).tolist()}
        return cls(by_id(Environment, environments), {**newest, **by_id(Run, ran - newest.keys())})

    def of(self, environment_id: int, run_id: int) -> Place:
        key = environment_id, run_id
        if key not in self._known:
            environment = self.environments[environment_id]
            card = str(environment.facts.get("gpu_uuid") or "")
            self._known[key] = Place(environment.class_key, card, self.runs[run_id].host_name)
        return self._known[key]

    def elsewhere(self, base: Points, head: Points) -> Bools:
        """Return which experiments have a metric whose two points were measured at different places."""
        both, numbers = base.there & head.there, dict[Place, int]()
        of_base, of_head = (self._numbered(table, both, numbers) for table in (base, head))
        found = np.zeros(len(both), bool)
        found[np.nonzero(both)[0][of_base != of_head]] = True
        return found

    def _numbered(self, table: Points, chosen: Bools, numbers: dict[Place, int]) -> Ints:
        """Return a number for the place of each of these points."""
        keys, which = np.unique(table.environment[chosen] << 32 | table.run[chosen], return_inverse=True)
        places = [self.of(key >> 32, key & (2**32 - 1)) for key in keys.tolist()]
        return np.array([numbers.setdefault(one, len(numbers)) for one in places], int)[which]


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
        return _PLACE.get(self.name) or ("subject" if self.name in _FIRST else "")

    @property
    def title(self) -> str:
        return fact_name(self.name)

    @property
    def words(self) -> list[str]:
        """Return the values of each side as text."""
        return [_words(values) for values in self.values]

    def to_json(self) -> dict[str, Any]:
        base, *heads = map(list, self.values)
        return {"name": self.name, "base": base, "head": heads[0], "heads": heads}


def differences(sides: Sequence[Points], places: Places) -> list[Fact]:
    """Return every fact of the points of each side, those of the runs first."""
    found: dict[str, list[set[str]]] = {}
    for at, points in enumerate(sides):
        runs = [places.runs[pk] for pk in np.unique(points.run).tolist()]
        facts = [{"commit": run.commit, "branch": run.branch, "host": run.host_name} for run in runs]
        facts += [flat(places.environments[pk].facts) for pk in np.unique(points.environment).tolist()]
        for name, value in (item for one in facts for item in one.items()):
            if name != "date" and value not in (None, "", 0, {}):
                found.setdefault(name, [set() for _side in sides])[at].add(str(value))
    names = [*(name for name in _FIRST if name in found), *sorted(found.keys() - _FIRST)]
    return [Fact(name, tuple(tuple(sorted(values)) for values in found[name])) for name in names]


def _words(values: Sequence[str]) -> str:
    shown = ", ".join(value[:60] for value in values[:_MOST])
    return shown + (f" and {len(values) - _MOST} more" if len(values) > _MOST else "") or "not known"
