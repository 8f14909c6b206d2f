"""Compilations with their kernels: of a point, the newest of an experiment, those of a variant."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import QuerySet

from hud.models import Compilation, Regression, kernels_of
from hud.sql import fetch_tuples, int_array
from hud.runs.branches import stored_names
from runner.schema.compilations import Compiled


@dataclass(frozen=True)
class Produced:
    """A compilation and what it produced."""

    row: Compilation
    compiled: Compiled


def newest(experiment_id: int, limit: int = 50) -> list[Produced]:
    """Return the newest compilations of an experiment, newest first, without A/B runs and other branches; 3
    queries."""
    rows = Compilation.objects.filter(
        experiment_id=experiment_id, run__base_interpreter="", run__branch__in=stored_names()
    )
    return _with_kernels(rows.select_related("run").order_by("-order_time", "-run", "-repeat")[:limit])


def of_variant(variant: str) -> dict[str, Any] | None:
    """Return the kernels of a variant for the API, None if no compilation has it; 3 queries."""
    rows = Compilation.objects.filter(variant=variant)
    found = _with_kernels(rows.order_by("-order_time", "-run", "-repeat")[:1])
    return (
        {
            "variant": variant,
            "compilations": rows.count(),
            "run": found[0].row.run_id,
            "experiment": found[0].row.experiment_id,
            "time": found[0].row.order_time,
            "busy_us": found[0].row.busy_us,
            "kernels": [asdict(kernel) for kernel in found[0].compiled.kernels],
        }
        if found
        else None
    )


def code_of(binaries: Collection[str]) -> dict[str, str]:
    """Return the source of these binaries, as far as it was kept: 1 statement, none without binaries."""
    if not binaries:
        return {}
    found = fetch_tuples(
        """
        SELECT b.binary, c.text FROM hud_kernelbinary b JOIN hud_kernelcode c ON c.id = b.code_id
        WHERE b.binary = ANY(%(binaries)s)
        """,
        {"binaries": list(binaries)},
    )
    return dict(found)


def known_between(regressions: Collection[Regression]) -> set[tuple[int, int]]:
    """Return the runs and experiments with kernels, of those between which these moved: 1 statement."""
    runs = {run for one in regressions for run in (one.first_run_id, one.last_good_run_id) if run}
    found = fetch_tuples(
        """
        SELECT DISTINCT run_id, experiment_id FROM hud_compilation
        WHERE experiment_id = ANY(%(of)s::int[]) AND run_id = ANY(%(runs)s::int[]) AND kernels <> '{}'
        """,
        {"of": int_array({one.series.experiment_id for one in regressions}), "runs": int_array(runs)},
    )
    return {(run, experiment) for run, experiment in found}


def _with_kernels(found: QuerySet[Compilation]) -> list[Produced]:
    rows = list(found)
    kernels = kernels_of(rows)
    return [Produced(row, row.compiled(kernels)) for row in rows]
