"""The runs an upload belongs to: one for each commit and host; a run that another file made is joined."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection

from hud.ingest.observe import Observation, RunKey
from hud.ingest.parameters import Parameters
from hud.models import Run, State


@dataclass
class Runs:
    """Runs met so far in one upload: each with its id and its place in every series. `own` are runs of
    this hud's runner, which an upload (of an export, say) may repeat but not add to."""

    parameters: Parameters
    upload_id: int
    places: dict[RunKey, tuple[int, datetime]] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)

    @property
    def ids(self) -> list[int]:
        return sorted({run_id for run_id, _at in self.places.values()})

    def meet(self, observations: Sequence[Observation]) -> None:
        """Finds or makes the runs of these observations."""
        suites: dict[RunKey, set[str]] = {}
        for item in observations:
            if item.run not in self.places:
                suites.setdefault(item.run, set()).add(item.identity[0])
        for key in sorted(
            suites, key=lambda item: (item.source, item.external_id or "", item.host, item.commit)
        ):
            self.places[key] = self._place(key, sorted(suites[key]))

    def _place(self, key: RunKey, suites: list[str]) -> tuple[int, datetime]:
        values: dict[str, Any] = {
            "uid": key.uid or str(uuid.uuid4()),
            "state": State.SUCCEEDED,
            "title": f"{key.source}: {', '.join(suites)}"[:300],
            "host": key.host,
            "upload": self.upload_id,
            "source": key.source,
            "external_id": key.external_id,
            "repo": key.repo,
            "branch": key.branch,
            "commit": key.commit,
            "provenance": self.parameters.provenance,
            "at": key.at,
            "at_source": key.at_source,
        }
        with connection.cursor() as cursor:
            cursor.execute(_MAKE, values)
            made = cursor.fetchone()
            if made:
                return int(made[0]), made[1]
            cursor.execute(_FIND, values)
            run_id, at, title, upload_id = cursor.fetchone()
        if upload_id is None:
            self.own.add(run_id)
        new = [suite for suite in suites if suite not in title]
        if new and upload_id is not None:
            Run.objects.filter(pk=run_id).update(title=", ".join([title, *new])[:300])
        return int(run_id), at


_MAKE = """
    INSERT INTO hud_run (uid, state, reason, title, request, host_name, arch, device, upload_id,
        source, external_id, repo, branch, "commit", provenance, at, at_source, requested_by, watched,
        started, finished)
    VALUES (%(uid)s, %(state)s, '', %(title)s, '{}', %(host)s, '', '', %(upload)s, %(source)s,
        %(external_id)s, %(repo)s, %(branch)s, %(commit)s, %(provenance)s,
        coalesce(%(at)s::timestamptz, now()), %(at_source)s, '', false, now(), now())
    ON CONFLICT DO NOTHING RETURNING id, at
"""
_FIND = """
    SELECT id, at, title, upload_id FROM hud_run WHERE uid = %(uid)s OR (
        external_id = %(external_id)s AND source = %(source)s AND host_name = %(host)s
        AND "commit" = %(commit)s)
    ORDER BY uid = %(uid)s DESC LIMIT 1
"""
