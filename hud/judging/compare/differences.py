"""The facts of the environments of a comparison's sides, and which differ."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hud.judging.compare.points import Places, Points
from hud.points.facts import fact_name, flat

_FIRST = ["commit", "branch", "host", "torch", "torch_git", "triton"]  # facts in this order
_PLACE = {"host": "host", "gpu_uuid": "card", "gpu": "card"}
_MOST = 3  # values of a fact to show


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
        sides = [[value[:60] for value in values] for values in self.values]
        more = [f" and {len(values) - _MOST} more" if len(values) > _MOST else "" for values in sides]
        return [", ".join(side[:_MOST]) + rest or "not known" for side, rest in zip(sides, more, strict=True)]

    def to_json(self) -> dict[str, Any]:
        base, *heads = map(list, self.values)
        return {"name": self.name, "base": base, "head": heads[0], "heads": heads}


# Facts that come with the arch, and ids that say no more than the facts beside them
_OF_ARCH = {"gpu", "gpu_uuid", "gpu_memory_bytes", "capability", "arch", "torch_git"}
_NAMED = 4  # facts in a sentence
_SHA = re.compile(r"(?<=\b[0-9a-f]{9})[0-9a-f]{31}\b")  # but for its first digits


def sentence(facts: Sequence[Fact], across: Collection[str]) -> str:
    """Return what differs between the sides, beside what the comparison is across."""
    known = [fact for fact in facts if fact.name not in {*across, *(_OF_ARCH if "arch" in across else ())}]
    # the commit of torch is mostly the run's own
    different = list({fact.values: fact for fact in reversed(known) if fact.differs}.values())[::-1]
    shown = [f"{fact.title} {_SHA.sub('', ' → '.join(fact.words))}" for fact in different[:_NAMED]]
    more = [f"{len(different) - _NAMED} more"] if len(different) > _NAMED else []
    same = [fact.title for fact in known if fact.name in _FIRST and not fact.differs]
    words = "; ".join([*shown, *more]) or "nothing that is known"
    parts = [f"What {'else ' if across else ''}differs: {words}."]
    return " ".join([*parts, f"Equal: {', '.join(same)}."] if same else parts)


def differences(sides: Sequence[Points], places: Places) -> list[Fact]:
    """Return every fact of the points of each side, those of the runs first."""
    by_name: dict[str, list[set[str]]] = {}
    for at, points in enumerate(sides):
        run_ids, environment_ids = (
            np.unique(points.table[name][points.there]).tolist() for name in ("run", "environment")
        )
        runs = [places.runs[pk] for pk in run_ids]
        facts = [{"commit": run.commit, "branch": run.branch, "host": run.host_name} for run in runs]
        facts += [flat(places.environments[pk].facts) for pk in environment_ids]
        for name, value in (item for fact in facts for item in fact.items()):
            if name != "date" and value not in (None, "", 0, {}):
                by_name.setdefault(name, [set() for _side in sides])[at].add(str(value))
    names = [*(name for name in _FIRST if name in by_name), *sorted(by_name.keys() - _FIRST)]
    return [Fact(name, tuple(tuple(sorted(values)) for values in by_name[name])) for name in names]
