"""Results that a host delivers for its running task."""

from __future__ import annotations

import uuid

from django.db import transaction
from django.db.models import Subquery, Value
from django.db.models.functions import Coalesce

from hud.ingest.receive import Receipt, deliver
from hud.models import Environment, Host, Run, Task
from hud.runs.tasks import lease_end, leased_task


def take_results(*, uid: uuid.UUID, token: uuid.UUID, host: Host, body: bytes) -> Receipt:
    """Store what the task measured, under its lease. Raise LeaseBroken, UnknownTask, BadUpload."""
    with transaction.atomic():
        task = leased_task(uid=uid, token=token, host=host, lock=True)
        run = Run.objects.get(pk=task.run_id)
        receipt = deliver(body, run, suite=task.spec["suite"], repeat=task.repeat)
        # a run takes its measurements' torch commit; in an A/B comparison the candidate's
        measured = Environment.objects.filter(measurement__run_id=run.pk, measurement__side=int(run.is_ab))
        environments = measured.order_by("pk")
        commit = Coalesce(Subquery(environments.values("torch_git")[:1]), Value(""))
        Run.objects.filter(pk=run.pk, commit="").update(commit=commit)
        Task.objects.filter(pk=task.pk).update(lease_until=lease_end())
    return receipt
