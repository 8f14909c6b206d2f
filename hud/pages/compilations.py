"""The kernels of a variant, and the source of binaries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from hud.models import Compilation, Regression, kernels_of
from hud.sql import fetch_tuples, int_array


def of_variant(variant: str) -> dict[str, Any] | None:
    """Return the kernels of a variant for the API, None if no compilation has it; 3 queries."""
    rows = Compilation.objects.filter(variant=variant)
    newest = rows.order_by("-order_time", "-run", "-repeat").first()
    if newest is None:
        return None
    compiled = newest.compiled(kernels_of([newest]))
    return {
        "variant": variant,
        "compilations": rows.count(),
        "run": newest.run_id,
        "experiment": newest.experiment_id,
        "time": newest.order_time,
        "busy_us": newest.busy_us,
        "kernels": [asdict(kernel) for kernel in compiled.kernels],
    }


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
