"""How a run's state follows from its tasks, and how a run is cancelled.

The state is derived (`states.py`) and ends once; terminal states never change. Rows are locked tasks first,
then their run.
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
    """Return what decides about a task, read from its row."""
    return states.Task(states.TaskState(row.state), row.attempt, row.token, row.status)


def update_run_state(run_id: int) -> None:
    """Derive a run's state from its tasks, inside the transaction that changed one of them."""
    run = Run.objects.select_for_update().get(pk=run_id)
    if run.state not in ACTIVE:
        return
    rows = list(Task.objects.filter(run_id=run_id).order_by("position").defer("spec", "progress"))
    state, place = states.run_state([task_state(row) for row in rows])
    if state == run.state:
        return
    run.state = state
    if state == State.QUEUED:  # all of it was handed back
        run.started, run.host_name = None, ""
    elif state == State.RUNNING:
        run.started = Now()
    else:
        run.finished = Now()
    if place is not None:
        said = _cancelled_by(run) if state == State.CANCELLED else rows[place].status
        run.reason = (rows[place].reason or said)[:500]
    run.save(update_fields=["state", "reason", "started", "finished", "host_name"])


def _cancelled_by(run: Run) -> str:
    """For a task that its host stopped: the host knows only that somebody asked for it."""
    asked = Audit.objects.filter(
        at__gte=run.cancel_asked, action="run.cancel", subject=f"run {run.pk}"
    ).first()
    return f"cancelled by {asked.who}" if asked else "cancelled"


def cancel(*, run: Run, who: str) -> None:
    """End queued tasks now and tell a running one with its next report. Twice is the same as once."""
    with transaction.atomic():
        # every task that could move is held, so that none slips back into the queue unseen
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
    """Detach a host and cancel the runs asked of this very host, since nobody else may take them.

    What it still runs is lost when its lease ends, and goes to another host.
    """
    registration.detach(host=host, who=who)
    for run in Run.objects.filter(host=host, state__in=ACTIVE):
        cancel(run=run, who=f"{who}, who detached {host.name}")
