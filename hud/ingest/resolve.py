"""The runs an upload belongs to: one for each commit and host; a run that another file made is joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID, uuid4

from django.db.models import Q
from django.utils import timezone

from hud.ingest.others import OURS
from hud.ingest.parse import Observation
from hud.ingest.run_keys import RunKey
from hud.models import Run, State
from runner.catalog.missing import CANCELLED
from runner.formats.parameters import Parameters

_WELL = (State.SUCCEEDED, "")
_FAILED = {"wrong", "oom", "crashed", "failed"}
_ENDS = (State.CANCELLED, State.TIMED_OUT, State.FAILED, State.SUCCEEDED)  # as `hud/life.py` has them


def _end_by(item: Observation) -> tuple[State, str]:
    """How a run of our runner ended, by one of its results; of other systems' runs nobody knows."""
    if not item.run.source.startswith(OURS) or item.run.uid:
        return _WELL
    words = f"{item.identity[1]}: {item.words or item.status}"[:500]
    if (item.status, item.code) == ("not_run", CANCELLED):
        return State.CANCELLED, words
    if item.status == "timed_out":
        return State.TIMED_OUT, words
    return (State.FAILED, words) if item.status in _FAILED else _WELL


def _worst_first(end: tuple[State, str]) -> int:
    return _ENDS.index(end[0])


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
        ends: dict[RunKey, tuple[State, str]] = {}
        for item in observations:
            if item.run not in self.places:
                suites.setdefault(item.run, set()).add(item.identity[0])
                if item.status != "ok":
                    ends[item.run] = min(ends.get(item.run, _WELL), _end_by(item), key=_worst_first)
        for key in sorted(
            suites, key=lambda item: (item.source, item.external_id or "", item.host, item.commit)
        ):
            self.places[key] = self._place(key, sorted(suites[key]), ends.get(key, _WELL))

    def _place(self, key: RunKey, suites: list[str], end: tuple[State, str]) -> tuple[int, datetime]:
        now = timezone.now()
        uid = UUID(key.uid) if key.uid else uuid4()
        wanted = Run(
            uid=uid,
            state=end[0],
            reason=end[1],
            title=f"{key.source}: {', '.join(suites)}"[:300],
            host_name=key.host,
            upload_id=self.upload_id,
            source=key.source,
            external_id=key.external_id,
            repo=key.repo,
            branch=key.branch,
            commit=key.commit,
            provenance=self.parameters.provenance,
            at=key.at or now,
            at_source=key.at_source,
            environment=key.environment,
            base_environment=key.base_environment,
            started=now,
            finished=now,
        )
        # two uploads may bring a new run at the same moment: the second waits here, then finds it
        Run.objects.bulk_create([wanted], ignore_conflicts=True)
        natural = Q(
            external_id=key.external_id, source=key.source, host_name=key.host, commit=key.commit
        ) & Q(external_id__isnull=False)
        found = min(Run.objects.filter(Q(uid=uid) | natural), key=lambda run: run.uid != uid)
        if found.upload_id is None:
            self.own.add(found.pk)
            return found.pk, found.at
        new = [suite for suite in suites if suite not in found.title]
        if new:
            Run.objects.filter(pk=found.pk).update(title=", ".join([found.title, *new])[:300])
        return found.pk, found.at
