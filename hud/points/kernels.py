"""The kernels of a variant, and the source of binaries."""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from hud.models import Compilation, KernelBinary, Regression, kernels_of
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
    return dict(KernelBinary.objects.filter(binary__in=binaries).values_list("binary", "code__text"))


def known_between(regressions: Collection[Regression]) -> set[tuple[int, int]]:
    """Return the runs and experiments with kernels, of those between which these moved: 1 statement."""
    runs = {run for one in regressions for run in (one.first_run_id, one.last_good_run_id) if run}
    experiments = {one.series.experiment_id for one in regressions}
    rows = fetch_tuples(
        """SELECT DISTINCT run_id, experiment_id FROM hud_compilation
        WHERE experiment_id = ANY(%(experiments)s::int[]) AND run_id = ANY(%(runs)s::int[])
            AND kernels <> '{}'""",
        {"experiments": int_array(experiments), "runs": int_array(runs)},
    )
    return {(run, experiment) for run, experiment in rows}
