"""Derive a run's state from its tasks, and cancel runs.

`states.py` has the rules; a terminal state never changes. Locks are taken on tasks first, then on their run.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from hud.accounts import audit
from hud.hosts import registration
from hud.models import ACTIVE, Audit, Host, Run, State, Task
from hud.runs import states

_UNENDED = (states.TaskState.QUEUED, states.TaskState.RUNNING)


def task_state(row: Task) -> states.Task:
    return states.Task(states.TaskState(row.state), row.attempt, row.token, row.status)


def update_run_state(run_id: int) -> None:
    """Derive a run's state from its tasks, inside the transaction that changed one of them."""
    run = Run.objects.select_for_update().get(pk=run_id)
    if run.state not in ACTIVE:
        return
    rows = list(Task.objects.filter(run_id=run_id).order_by("position").defer("spec", "progress"))
    state, decisive = states.run_state([task_state(row) for row in rows])
    if state == run.state:
        return
    run.state = state
    if state == State.QUEUED:  # all tasks were handed back
        run.started, run.host_name = None, ""
    elif state == State.RUNNING:
        run.started = Now()
    else:
        run.finished = Now()
    if decisive is not None:
        reason = rows[decisive].reason
        if not reason and state == State.CANCELLED:  # the host that stopped it does not know who asked
            asked = Audit.objects.filter(
                at__gte=run.cancel_asked, action="run.cancel", subject=f"run {run.pk}"
            ).first()
            reason = f"cancelled by {asked.who}" if asked else "cancelled"
        run.reason = (reason or rows[decisive].status)[:500]
    run.save(update_fields=["state", "reason", "started", "finished", "host_name"])


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
