"""Where a pinned run takes its configurations from: a stored compilation, named as the pages name points."""

from __future__ import annotations

import re

from hud.models import Compilation, Kernel
from runner.schema.compilations import pinned

_SOURCE = re.compile(
    r"run:(?P<run>\d{1,9})/experiment:(?P<experiment>\d{1,9})(/compilation:(?P<number>\d{1,4}))?", re.ASCII
)


class NoChoices(ValueError):
    """The source names no stored compilation with configurations."""


def choices_of(source: str) -> dict[str, str]:
    """Return the configuration of each slot in the compilation that `source` names, such as
    ``run:12/experiment:5/compilation:2``; without a number in the first. Raise NoChoices."""
    found = _SOURCE.fullmatch(source)
    if found is None:
        raise NoChoices(f"{source!r} is not run:ID/experiment:ID or run:ID/experiment:ID/compilation:NUMBER")
    wanted = {"run_id": int(found["run"]), "experiment_id": int(found["experiment"])}
    if found["number"] is not None:
        wanted["number"] = int(found["number"])
    stored = Compilation.objects.filter(**wanted).exclude(variant="")
    compilation = stored.order_by("number", "repeat", "side").first()
    if compilation is None:
        raise NoChoices(f"no compilation with kernels is stored for {source}")
    rows = Kernel.objects.filter(pk__in=compilation.kernels)
    by_id = {row.pk: (row.slot, row.config) for row in rows}
    choices = pinned(by_id[pk] for pk in compilation.kernels if pk in by_id)
    if not choices:
        raise NoChoices(f"{source} has no kernel whose configuration can be forced")
    return choices
