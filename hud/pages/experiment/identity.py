"""The identity of an experiment as pickers: each leads to the nearest experiment with another value."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from hud.models import Experiment
from runner.schema.devices import is_named

_MOST = 60  # of one picker
_FIELDS = ("mode", "dtype", "backend", "arch")


@dataclass(frozen=True)
class Option:
    text: str
    experiment: int
    exact: bool  # it differs in nothing else


@dataclass(frozen=True)
class Picker:
    """A part of the identity, with the other values it has for this case."""

    name: str
    text: str
    options: list[Option]


def pickers(experiment: Experiment, related: Sequence[Experiment]) -> list[Picker]:
    """Return a picker for each part that says something."""
    own, others = _parts(experiment), [_parts(one) for one in related]
    differing = [sum(own.get(name) != parts.get(name) for name in own | parts) for parts in others]
    nearest = sorted(zip(differing, related, others, strict=True), key=itemgetter(0))
    shown = []
    for name in dict.fromkeys([*own, *(name for parts in others for name in parts)]):
        text = own.get(name, "default")
        options: dict[str, Option] = {}
        for count, one, parts in nearest:
            other = parts.get(name, "default")
            if other != text and (name != "arch" or is_named(other)):
                options.setdefault(other, Option(other, one.pk, exact=count == 1))
        if text or options:
            ordered = sorted(options.values(), key=lambda one: (not one.exact, len(one.text), one.text))
            shown.append(Picker(name, text or "unknown", ordered[:_MOST]))
    return shown


def same_but(experiment: Experiment, related: Sequence[Experiment], *names: str) -> list[Experiment]:
    """Return the experiments that differ in nothing but these parts of the identity, in their order."""
    kept = [name for name in Experiment.IDENTITY if name not in names]
    found = [one for one in related if all(getattr(one, name) == getattr(experiment, name) for name in kept)]
    return sorted(found, key=lambda one: [getattr(one, name) for name in names])


def _parts(experiment: Experiment) -> dict[str, Any]:
    """Return each part of the identity as text; the arch stands for the device where it is known."""
    found: dict[str, Any] = {name: str(value) for name, value in sorted(experiment.knobs.items())}
    found |= {name: getattr(experiment, name) for name in _FIELDS}
    found["arch"] = found["arch"] or experiment.device
    found["shapes"] = "dynamic" if experiment.dynamic else "static"
    return found
