"""Hosts, cards and environments of the points of each side, and the facts in which they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hud.models import Environment, Run
from hud.pages.compare.points import ComparedPoint
from hud.pages.compare.sides import Side
from hud.pages.experiment.history import fact_name
from hud.sql import by_id

_FIRST = ["commit", "branch", "host", "torch", "torch_git", "triton"]  # facts in this order
_PLACE = {"host": "host", "gpu_uuid": "card", "gpu": "card"}
_MOST = 3  # values of a fact to show


class Place(NamedTuple):
    """Where a point was measured."""

    class_key: str
    card: str  # '' where nothing says it
    host: str


@dataclass
class Places:
    """Hosts, cards and environments of the points of all sides."""

    environments: dict[int, Environment]
    runs: dict[int, Run]
    _known: dict[tuple[int, int], Place] = field(default_factory=dict)

    @classmethod
    def read(cls, sides: Iterable[Side], points: Iterable[ComparedPoint]) -> Places:
        """Return the places of these points: 2 statements, 1 where the sides are single runs."""
        keys = {(point.environment_id, point.run_id) for point in points}
        newest = {side.newest.pk: side.newest for side in sides}
        others = by_id(Run, {run for _environment, run in keys} - newest.keys())
        return cls(by_id(Environment, {environment for environment, _run in keys}), {**newest, **others})

    def of(self, point: ComparedPoint) -> Place:
        key = point.environment_id, point.run_id
        if key not in self._known:
            environment = self.environments[point.environment_id]
            card = str(environment.facts.get("gpu_uuid") or "")
            self._known[key] = Place(environment.class_key, card, self.runs[point.run_id].host_name)
        return self._known[key]


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


def differences(points: Sequence[Iterable[ComparedPoint]], places: Places) -> list[Fact]:
    """Return every fact of the points of each side, those of the runs first."""
    found: dict[str, list[set[str]]] = {}
    for at, of_side in enumerate(points):
        keys = {(point.environment_id, point.run_id) for point in of_side}
        runs = (places.runs[pk] for pk in {run for _environment, run in keys})
        facts = [{"commit": run.commit, "branch": run.branch, "host": run.host_name} for run in runs]
        facts += [_flat(places.environments[pk].facts) for pk in {environment for environment, _run in keys}]
        for name, value in (item for one in facts for item in one.items()):
            if name != "date" and value not in (None, "", 0, {}):
                found.setdefault(name, [set() for _side in points])[at].add(str(value))
    others = sorted(found.keys() - _FIRST)
    return [
        Fact(name, tuple(tuple(sorted(values)) for values in found[name]))
        for name in (*(name for name in _FIRST if name in found), *others)
    ]


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, fact in facts.items():
        flat.update(fact if isinstance(fact, dict) else {name: fact})
    return flat


def _words(values: Sequence[str]) -> str:
    shown = ", ".join(value[:60] for value in values[:_MOST])
    return shown + (f" and {len(values) - _MOST} more" if len(values) > _MOST else "") or "not known"
