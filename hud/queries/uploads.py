"""Which files made a run. Several files of one execution join one run, and a run keeps only the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hud.models import Experiment
from hud.queries.sql import fetch

_WINDOW = 50  # uploads after a run's first one among which its others are looked for


@dataclass(slots=True)
class File:
    run_id: int
    upload_id: int
    filename: str
    format: str
    suite: str | None  # as its parameters say; None or '': nothing
    mode: str | None
    dtype: str | None

    def may_hold(self, experiment: Experiment) -> bool:
        """False where its parameters speak of something else."""
        said = ((self.suite, experiment.suite), (self.mode, experiment.mode), (self.dtype, experiment.dtype))
        return all(value in (None, "", own) for value, own in said)


def files_of(first_uploads: Mapping[int, int]) -> dict[int, list[File]]:
    """Files of each run, given the run's first upload: one statement."""
    files = fetch(
        File,
        """
        SELECT given.run, u.id, u.filename, u.format,
            u.parameters->>'suite', u.parameters->>'mode', u.parameters->>'dtype'
        FROM unnest(%(runs)s::int[], %(uploads)s::int[]) AS given(run, first)
        JOIN hud_upload u ON u.id BETWEEN given.first AND given.first + %(window)s
            AND (u.id = given.first OR u.receipt->'run_ids' @> to_jsonb(given.run))
        ORDER BY u.id
        """,
        {"runs": list(first_uploads), "uploads": list(first_uploads.values()), "window": _WINDOW},
    )
    by_run: dict[int, list[File]] = {}
    for file in files:
        by_run.setdefault(file.run_id, []).append(file)
    return by_run
