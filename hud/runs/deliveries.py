"""Results that a host delivers for the task it runs."""

from __future__ import annotations

import uuid

from django.db import transaction
from django.db.models import Subquery, Value
from django.db.models.functions import Coalesce

from hud import ingest
from hud.models import Environment, Host, Run, Task
from hud.runs.tasks import lease_end, leased_task


def take_results(*, uid: uuid.UUID, token: uuid.UUID, host: Host, body: bytes) -> ingest.Receipt:
    """Store what the task measured, under its lease. Raise LeaseBroken, UnknownTask, ingest.BadUpload."""
    with transaction.atomic():
        task = leased_task(uid=uid, token=token, host=host, lock=True)
        run = Run.objects.get(pk=task.run_id)
        receipt = ingest.deliver(body, run, suite=task.spec["suite"], repeat=task.process)
        _note_environment(run)
        Task.objects.filter(pk=task.pk).update(lease_until=lease_end())
    return receipt


def _note_environment(run: Run) -> None:
    """Set the run's commit to torch's, where its measurements say one; in pairs that of the new side."""
    found = Environment.objects.filter(measurement__run_id=run.pk, measurement__side=int(run.in_pairs))
    first = found.order_by("pk").values("torch_git")[:1]
    Run.objects.filter(pk=run.pk, commit="").update(commit=Coalesce(Subquery(first), Value("")))
