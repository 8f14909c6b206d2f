"""The identity of an experiment as pickers: each leads to the nearest experiment with another value."""

from collections.abc import Sequence
from dataclasses import dataclass
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
    own = _parts(experiment)
    parts = [(one, _parts(one)) for one in related]
    names = list(dict.fromkeys([*own, *(name for _one, found in parts for name in found)]))
    found = []
    for name in names:
        best: dict[str, tuple[int, Experiment]] = {}
        for one, said in parts:
            text = said.get(name, "default")
            if text == own.get(name, "default") or (name == "arch" and not is_named(text)):
                continue
            others = {*own, *said} - {name}
            distance = sum(own.get(other) != said.get(other) for other in others)
            if text not in best or distance < best[text][0]:
                best[text] = distance, one
        options = [Option(text, one.pk, not distance) for text, (distance, one) in best.items()]
        options.sort(key=lambda one: (not one.exact, len(one.text), one.text))
        text = own.get(name, "default")
        if text or options:
            found.append(Picker(name, text or "unknown", options[:_MOST]))
    return found


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
