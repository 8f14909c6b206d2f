"""Tasks under lease: claim, report, finish, lose; the state of a run follows. `hud/states/runs.py` has the
rules. Locks are taken on tasks first, then on their run.

Every write of a host is fenced by the token of its claim: after `break_leases` has taken the task back, the
old token writes nothing. Until then late results are accepted.
"""

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import DurationField, Q, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from hud.accounts import audit
from hud.models import ACTIVE, Accelerator, ApiKey, Audit, Host, Run, RunEnd, RunRequest, State, Task
from hud.problems import Problem
from hud.runs import matching
from hud.runs.requests import DEFAULT_INTERPRETER
from hud.sql import fetch_tuples
from hud.states import runs as states
from hud.states.runs import TaskState
from runner.schema.protocol import CHANGED_INTERPRETER, Fingerprint, overlay_of
from runner.schema.records import STATUSES

HANDED_BACK = "handed_back"  # code of a task that its host returns without having run it
_LOST, _GIVEN_BACK = "task.lost", "task.handed_back"  # actions in the audit
LeaseBroken = states.StaleToken


_NEXT = f"""
    SELECT t.id FROM {matching.FITTING_RUNS}
    JOIN hud_task t ON t.run_id = r.id AND t.state = 'queued'
    {matching.TURNS}
    WHERE a.id = %(accelerator)s AND {matching.OPEN} AND {matching.MAY_GO}
    ORDER BY {matching.ORDER}, t.home_id IS DISTINCT FROM a.id, t.position
    FOR UPDATE OF t SKIP LOCKED LIMIT 1
"""  # noqa: S608 - constants of ours  # nosec B608


def claim(
    *, accelerator: Accelerator, nonce: str, fingerprints: Mapping[str, Fingerprint] = MappingProxyType({})
) -> Task | None:
    """Return the next task for an accelerator, with its run and request, or None. The same nonce gets the
    same task again, even if the host has been paused since. `fingerprints` are those of the host's
    interpreters: a task of a run that began with other ones fails, and the next is taken."""
    running = Task.objects.filter(accelerator=accelerator, state=TaskState.RUNNING)
    if task := running.select_related("run__request").first():
        return task if task.nonce == nonce else None
    try:
        while (taken := _take(accelerator, nonce, fingerprints)) and taken.state != TaskState.RUNNING:
            pass
    except IntegrityError:
        return None  # another process of this host claimed for the same accelerator at the same moment
    return taken


def _take(accelerator: Accelerator, nonce: str, fingerprints: Mapping[str, Fingerprint]) -> Task | None:
    """Give the next task to an accelerator, or end it as failed if an interpreter has changed."""
    with transaction.atomic():
        bounds = {"same_card": settings.HUD_SAME_CARD_S, "lost": settings.HUD_LOST_S}
        tuples = fetch_tuples(_NEXT, {"accelerator": accelerator.pk, **bounds})
        if not tuples:
            matching.pass_over(accelerator.pk)
            return None
        task = Task.objects.get(pk=tuples[0][0])
        refusal = _freeze(task.run_id, accelerator.host, fingerprints)
        token = uuid.uuid4()
        after = task_state(task).claimed(token, cancelling=False)
        columns = {"accelerator": accelerator, "started": Now(), "progress": {}, "log_bytes": 0}
        if refusal:
            after = after.finished(token, "failed", cancelling=False)
            columns |= {"code": CHANGED_INTERPRETER, "reason": refusal[:1000]}
        else:
            columns |= {"nonce": nonce[:64], "lease_until": lease_end()}
        _save(task, after, **columns)
        Run.objects.filter(pk=task.run_id, host_name="").update(host_name=accelerator.host.name)
        taken = Task.objects.select_related("run__request").get(pk=task.pk)
        matching.note_turn(taken)
        return taken


def _freeze(run_id: int, host: Host, fingerprints: Mapping[str, Fingerprint]) -> str:
    """Keep the fingerprints of a run's interpreters at its first claim; return why one is another by now, or
    ''. An interpreter without torch is not kept: its task fails by itself."""
    request = RunRequest.objects.select_for_update(of=("self",)).select_related("run").get(pk=run_id)
    frozen = dict(request.fingerprints)
    named = filter(None, (request.run.interpreter or DEFAULT_INTERPRETER, request.run.base_interpreter))
    for name, _commit in map(overlay_of, named):
        now, first = fingerprints.get(name), frozen.get(name)
        if now is None:  # an older runner says nothing
            continue
        if first is None:
            frozen.update({name: {**asdict(now), "host": host.pk}} if now.torch else {})
            continue
        begun, on = Fingerprint.from_json(first), first["host"]
        if now != begun if on == host.pk else now.subject != begun.subject:
            names = Host.objects.in_bulk([on, host.pk])
            return (
                f"interpreter {name} has changed since this run began: it began with {begun} on "
                f"{names.get(on, 'a host that is gone')}, and {host.name} now has {now}"
            )
    if frozen != request.fingerprints:
        RunRequest.objects.filter(pk=run_id).update(fingerprints=frozen)
    return ""


def _save(row: Task, after: states.TaskLife, **columns: Any) -> None:
    """Write a task's new state, then its run's."""
    if after.state is TaskState.QUEUED:
        columns = {"lease_until": None, "accelerator": None, "nonce": "", **columns}
    elif after.ended:
        columns = {"lease_until": None, "finished": Now(), **columns}
    Task.objects.filter(pk=row.pk).update(
        state=after.state, attempt=after.attempt, token=after.token, status=after.status, **columns
    )
    update_run_state(row.run_id)


def task_state(row: Task) -> states.TaskLife:
    return states.TaskLife(states.TaskState(row.state), row.attempt, row.token, row.status)


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
        RunRequest.objects.filter(pk=run_id).update(fingerprints={})
    elif state == State.RUNNING:
        run.started = Now()
    else:
        run.finished = Now()
        RunEnd.objects.create(run=run)
    if decisive is not None:
        reason = rows[decisive].reason
        if not reason and state == State.CANCELLED:  # the host that stopped it does not know who asked
            asked = Audit.objects.filter(
                at__gte=run.cancel_asked, action="run.cancel", subject=f"run {run.pk}"
            ).first()
            reason = f"cancelled by {asked.who}" if asked else "cancelled"
        run.reason = (reason or rows[decisive].status)[:500]
    run.save(update_fields=["state", "reason", "started", "finished", "host_name"])


def lease_end() -> Combinable:
    return Now() + Value(timedelta(seconds=settings.HUD_LEASE_S), output_field=DurationField())


def _cancelling(row: Task) -> bool:
    """Return whether the run was cancelled. `row` is locked, as `cancel` would lock it."""
    return Run.objects.filter(pk=row.run_id, cancel_asked__isnull=False).exists()


def _find(uid: uuid.UUID, host: Host, *, lock: bool) -> Task:
    """Return a task that this host or no host has. Raise Problem 404 for another host's task, but LeaseBroken
    if this host had it before."""
    task = (Task.objects.select_for_update() if lock else Task.objects.all()).filter(uid=uid).first()
    if task is not None:
        if task.accelerator is None or task.accelerator.host_id == host.pk:
            return task
        # the audit has a row for each task that a host lost or handed back
        audited = Audit.objects.filter(subject=f"run {task.run_id}", action__in=(_LOST, _GIVEN_BACK))
        if audited.filter(detail__contains={"task": str(task.uid), "host": host.pk}).exists():
            raise LeaseBroken("this task has gone to another host")
    raise Problem(404, "no such task for this host")


def _note_given_up(task: Task, action: str, *, who: str, now: TaskState) -> None:
    """Audit that a host no longer has `task`, which is unchanged so far."""
    accelerator = task.accelerator
    assert accelerator
    detail = {
        "task": str(task.uid),
        "attempt": task.attempt,
        "host": accelerator.host_id,
        "accelerator": f"{accelerator.host.name}/{accelerator.name}",
        "now": now,
    }
    audit.note(who=who, action=action, subject=f"run {task.run_id}", detail=detail)


def leased_task(*, uid: uuid.UUID, token: uuid.UUID, host: Host, lock: bool = False) -> Task:
    """Return the running task of this token. Raise Problem 404, or LeaseBroken for an old token."""
    task = _find(uid, host, lock=lock)
    task_state(task).written(token)
    return task


def report(*, task: Task, progress: dict[str, Any]) -> bool:
    """Extend the lease and store the progress; return whether to stop. Raise LeaseBroken."""
    updated = Task.objects.filter(pk=task.pk, token=task.token, state=TaskState.RUNNING).update(
        lease_until=lease_end(), progress=progress
    )
    if not updated:
        raise LeaseBroken("the lease of this task has ended")
    return _cancelling(task)


def finish(*, uid: uuid.UUID, token: uuid.UUID, host: Host, status: str, code: str, reason: str) -> Task:
    """End a task, or queue it again if it was handed back. Repeating the call changes nothing.

    Raise LeaseBroken, Problem 404, and ValueError for a status that a task cannot have.
    """
    if status not in STATUSES and status != states.CANCELLED:
        raise ValueError(f"a task ends as one of {', '.join(STATUSES)} or cancelled, not {status!r}")
    with transaction.atomic():
        task = _find(uid, host, lock=True)
        before, cancelling = task_state(task), _cancelling(task)
        if code == HANDED_BACK:
            after = before.handed_back(token, cancelling=cancelling)
            reason = "cancelled while its host stopped" if after.ended else ""
        else:
            after = before.finished(token, status, cancelling=cancelling)
        if after is not before:
            if code == HANDED_BACK:
                _note_given_up(task, _GIVEN_BACK, who=f"host {host.name}", now=after.state)
            _save(task, after, code=code[:100] if after.ended else "", reason=reason[:1000])
            if not after.ended:
                transaction.on_commit(partial(matching.ring_idle, again_s=0, run_id=task.run_id), robust=True)
    task.refresh_from_db()
    return task


def cancel(*, run: Run, who: str) -> None:
    """End the queued tasks now and the running one at its next report. Cancelling again changes nothing."""
    with transaction.atomic():
        # lock every task that could move, so that none returns to the queue unseen
        unended = Task.objects.filter(run=run, state__in=(TaskState.QUEUED, TaskState.RUNNING))
        rows = list(unended.select_for_update().order_by("pk"))
        asked = Run.objects.filter(pk=run.pk, state__in=ACTIVE, cancel_asked__isnull=True).update(
            cancel_asked=Now()
        )
        if not asked:
            return
        ended = [row.pk for row in rows if task_state(row).cancel_asked().ended]
        Task.objects.filter(pk__in=ended).update(
            state=TaskState.CANCELLED,
            status=states.NOT_RUN,
            finished=Now(),
            reason=f"cancelled by {who}"[:1000],
        )
        audit.note(who=who, action="run.cancel", subject=f"run {run.pk}")
        update_run_state(run.pk)


def end_early(*, run: Run, reason: str) -> None:
    """Take back the tasks that no host has begun, since the run does not need them any more."""
    with transaction.atomic():
        waiting = Task.objects.filter(run=run, state=TaskState.QUEUED, attempt=0)
        rows = list(waiting.select_for_update(skip_locked=True).values_list("pk", flat=True))
        if rows:
            Task.objects.filter(pk__in=rows).delete()
            Run.objects.filter(pk=run.pk).update(reason=f"{reason}; {len(rows)} tasks were not needed")
            update_run_state(run.pk)


def detach_host(*, host: Host, who: str) -> None:
    """Detach a host, revoke its keys and cancel the runs requested for it, which no other host may take.

    Other tasks that it still runs are lost when their leases end, and go to another host.
    """
    with transaction.atomic():
        Host.objects.filter(pk=host.pk).update(detached_at=Now())
        ApiKey.objects.filter(host=host, revoked__isnull=True).update(revoked=Now())
        audit.note(who=who, action="host.detach", subject=host.name)
    for run in Run.objects.filter(request__host=host, state__in=ACTIVE):
        cancel(run=run, who=f"{who}, who detached {host.name}")


def break_leases() -> list[int]:
    """Take back tasks whose lease has ended on the database's clock; return their ids. Each is retried once.

    Only `manage.py tick` calls this, and only while `heartbeats.trusted()`.
    """
    # where the clock went back, a host that lives has a new lease by now; the others' would last for too long
    ahead = lease_end() + Value(timedelta(seconds=settings.HUD_LEASE_S), output_field=DurationField())
    ended = Q(lease_until__lt=Now()) | Q(lease_until__gt=ahead)
    expired = Task.objects.filter(ended, state=TaskState.RUNNING)
    broken = []
    for task_id in list(expired.values_list("pk", flat=True)):
        with transaction.atomic():
            task = expired.select_for_update().filter(pk=task_id).first()
            if task is None:
                continue
            after = task_state(task).lease_broken(
                cancelling=_cancelling(task), max_attempts=settings.HUD_MAX_ATTEMPTS
            )
            assert task.accelerator
            where = f"{task.accelerator.host.name}/{task.accelerator.name}"
            word = {TaskState.QUEUED: "lost once", TaskState.CANCELLED: "cancelled"}.get(after.state, "lost")
            _note_given_up(task, _LOST, who="tick", now=after.state)
            _save(task, after, reason=f"{word}: host silent on {where}, attempt {task.attempt}")
            broken.append(task_id)
    return broken
