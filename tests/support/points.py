"""Points of whole runs, whose measurements a test has changed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from hud.models import Measurement, Point, SidePoint
from hud.points import write


def make_of_runs(runs: Sequence[int]) -> int:
    """Make the points of these runs anew; return how many changed."""
    of_runs = (kind.objects.filter(run__in=runs) for kind in (Measurement, Point, SidePoint))
    changed = write.make(chain.from_iterable(rows.values_list("run_id", "series_id") for rows in of_runs))
    write.forget_subjects(runs)
    return changed
