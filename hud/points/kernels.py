"""Which points have kernels, and the source of binaries."""

from collections.abc import Collection

from hud.models import KernelBinary, Regression
from hud.sql import fetch_tuples, int_array


def code_of(binaries: Collection[str]) -> dict[str, str]:
    """Return the source of these binaries, as far as it was kept: 1 statement, none without binaries."""
    return dict(KernelBinary.objects.filter(binary__in=binaries).values_list("binary", "code__text"))


def known_between(regressions: Collection[Regression]) -> set[tuple[int, int]]:
    """Return the runs and experiments with kernels, of those between which these moved: 1 statement."""
    runs = {run for row in regressions for run in (row.first_run_id, row.last_good_run_id) if run}
    experiments = {regression.series.experiment_id for regression in regressions}
    rows = fetch_tuples(
        """SELECT DISTINCT run_id, experiment_id FROM hud_compilation
        WHERE experiment_id = ANY(%(experiments)s::int[]) AND run_id = ANY(%(runs)s::int[])
            AND kernels <> '{}'""",
        {"experiments": int_array(experiments), "runs": int_array(runs)},
    )
    return {(run, experiment) for run, experiment in rows}
