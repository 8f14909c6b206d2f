"""Which points have kernels, the source of binaries, and the export of the largest kernels."""

from collections.abc import Collection
from typing import Any

from hud.models import Compilation, Regression, Stream
from hud.sql import fetch_named, fetch_tuples
from runner.schema.replay import OPERANDS

# Of the newest compilation of each experiment, what can run alone.
_RUNNABLE = """
        FROM hud_experiment e
        JOIN LATERAL (
            SELECT c.*, h.id host_id
            FROM hud_compilation c JOIN hud_run r ON r.id = c.run_id AND r.stream_id = %(stream)s
            LEFT JOIN hud_host h ON h.name = r.host_name AND r.upload_id IS NULL
            WHERE c.experiment_id = e.id AND c.kernels <> '{}' AND c.draw IS NULL
            ORDER BY c.order_time DESC, c.run_id DESC, c.busy_us LIMIT 1
        ) c ON true
        JOIN hud_binarylist list ON list.id = c.binary_list_id
        JOIN LATERAL unnest(c.kernels, c.times_us, c.binary_places) spent(kernel, time_us, place) ON true
        JOIN hud_kernel k ON k.id = spent.kernel AND k.name ~ '^\\w{1,200}$'
        JOIN LATERAL (
            SELECT "binary", code_id FROM hud_kernelbinary WHERE host_id IN (0, c.host_id)
                AND "binary" = lpad(to_hex(list.binaries[spent.place + 1]), 16, '0')
            ORDER BY host_id DESC LIMIT 1
        ) b ON true
        JOIN hud_kernelcode code ON code.id = b.code_id AND position(%(operands)s IN code.text) > 0
        WHERE %(arch)s = '' OR e.arch = %(arch)s
"""
# Time and bytes of one call.
_LARGEST = f"""
    SELECT * FROM (
        SELECT DISTINCT ON (b.binary) k.name, b.binary, k.kind, k.config, k.offered,
            spent.time_us / nullif(k.calls, 0) time_us, (k.bytes / nullif(k.calls, 0))::bigint bytes,
            k.calls, spent.time_us step_us, e.id experiment, c.run_id run, e.suite, e."case", code.text code
        {_RUNNABLE}
        ORDER BY b.binary, spent.time_us DESC NULLS LAST
    ) kernel ORDER BY step_us DESC NULLS LAST, bytes DESC NULLS LAST, kernel.binary LIMIT %(most)s
"""  # noqa: S608 — constants  # nosec B608


def code_of(binaries: Collection[str], *runs: int) -> dict[tuple[int, str], str]:
    """Return the source of these binaries by run, as far as the run's host delivered it or else an operator's
    file has it: 1 statement, none without binaries. Of 0, which is no run, the files alone count."""
    if not binaries:
        return {}
    rows = fetch_tuples(
        """
        SELECT given.run, b.binary, code.text FROM unnest(%s::int[]) AS given(run)
        LEFT JOIN hud_run r ON r.id = given.run AND r.upload_id IS NULL
        LEFT JOIN hud_host h ON h.name = r.host_name
        JOIN hud_kernelbinary b ON b.binary = ANY(%s) AND b.host_id IN (0, h.id)
        JOIN hud_kernelcode code ON code.id = b.code_id ORDER BY b.host_id
        """,
        [list(runs), list(binaries)],
    )
    return {(run, binary): text for run, binary, text in rows}


def largest(stream: Stream, arch: str, most: int) -> list[dict[str, Any]]:
    """Return the kernels that take the most time of a step and whose code has operands, on an arch or on all:
    1 statement."""
    params = {"stream": stream.pk, "arch": arch, "most": most, "operands": OPERANDS}
    return [row._asdict() for row in fetch_named(_LARGEST, params)]


def is_any_runnable(stream: Stream, arch: str) -> bool:
    """Return whether `largest` has a kernel: 1 statement."""
    params = {"stream": stream.pk, "arch": arch, "operands": OPERANDS}
    ((found,),) = fetch_tuples(f"SELECT EXISTS (SELECT {_RUNNABLE})", params)  # nosec B608
    return bool(found)


def known_between(regressions: Collection[Regression]) -> set[tuple[int, int]]:
    """Return the runs and experiments with kernels, of those between which these moved: 1 statement."""
    runs = {run for row in regressions for run in (row.first_run_id, row.last_good_run_id) if run}
    experiments = {regression.series.experiment_id for regression in regressions}
    with_kernels = Compilation.objects.filter(experiment__in=experiments, run__in=runs).exclude(kernels=[])
    return set(with_kernels.values_list("run", "experiment").distinct())
