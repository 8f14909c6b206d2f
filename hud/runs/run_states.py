"""Cancel runs, and those of a host that is detached. `states.py` has the rules."""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from hud.accounts import audit
from hud.hosts import registration
from hud.models import ACTIVE, Host, Run, Task
from hud.runs import states
from hud.runs.tasks import task_state, update_run_state

_UNENDED = (states.TaskState.QUEUED, states.TaskState.RUNNING)


def cancel(*, run: Run, who: str) -> None:
    """End the queued tasks now and the running one at its next report. Cancelling again changes nothing."""
    with transaction.atomic():
        # lock every task that could move, so that none returns to the queue unseen
        unended = Task.objects.select_for_update().filter(run=run, state__in=_UNENDED)
        rows = list(unended.order_by("pk"))
        asked = Run.objects.filter(pk=run.pk, state__in=ACTIVE, cancel_asked__isnull=True).update(
            cancel_asked=Now()
        )
        if not asked:
            return
        ended = [row.pk for row in rows if task_state(row).cancel_asked().ended]
        Task.objects.filter(pk__in=ended).update(
            state=states.TaskState.CANCELLED,
            status=states.NOT_RUN,
            finished=Now(),
            reason=f"cancelled by {who}"[:1000],
        )
        audit.note(who=who, action="run.cancel", subject=f"run {run.pk}")
        update_run_state(run.pk)


def detach_host(*, host: Host, who: str) -> None:
    """Detach a host and cancel the runs requested for it, which no other host may take.

    Other tasks that it still runs are lost when their leases end, and go to another host.
    """
    registration.detach(host=host, who=who)
    for run in Run.objects.filter(request__host=host, state__in=ACTIVE):
        cancel(run=run, who=f"{who}, who detached {host.name}")
