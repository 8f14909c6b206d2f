"""Which file a measurement came in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hud.models import Upload
from hud.queries.sql import fetch


@dataclass(slots=True)
class File:
    upload_id: int
    filename: str
    format: str


def files(upload_ids: Collection[int]) -> dict[int, File]:
    """Files by the ids of their uploads: one statement."""
    found = fetch(
        File,
        "SELECT id, filename, format FROM hud_upload WHERE id = ANY(%(ids)s) ORDER BY id",
        {"ids": list(upload_ids)},
    )
    return {file.upload_id: file for file in found}


def uploads_of_run(run_id: int) -> list[Upload]:
    """The upload that made a run, and every other one that brought measurements of it: one statement."""
    statement = """
        SELECT * FROM hud_upload
        WHERE id IN (
            SELECT upload_id FROM hud_run WHERE id = %(run)s
            UNION SELECT upload_id FROM hud_measurement WHERE run_id = %(run)s)
        ORDER BY id
    """
    return list(Upload.objects.raw(statement, {"run": run_id}))
