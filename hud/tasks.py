"""Work under lease: claim, progress, results, finish, loss.

Every write of a host is fenced by the token of its claim: once `break_leases` has given a task up, the
old token writes nothing any more. Until then, late results are taken.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import DurationField, F, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from hud import ingest, runs
from hud.models import Accelerator, Environment, Host, Run, State, Task
from runner.records import STATUSES

HANDED_BACK = "handed_back"  # code of a task that its host gives back undone


class LeaseBroken(Exception):
    """The token is not (any longer) that of a running task."""


class UnknownTask(LookupError):
    """No such task for this host."""


@dataclass(frozen=True)
class Claim:
    task: Task
    run_id: int


@dataclass(frozen=True)
class Orders:
    """What the hud answers to a report of progress."""

    cancel: bool


# A watched run goes ahead of a nightly; then first come, first served.
_NEXT = """
    SELECT t.id FROM hud_task t JOIN hud_run r ON r.id = t.run_id
    WHERE t.state = 'queued' AND r.state IN ('queued', 'running') AND r.cancel_asked IS NULL
      AND (r.host_id IS NULL OR r.host_id = %(host)s)
      AND (r.arch = '' OR r.arch = %(arch)s) AND r.device = %(device)s
      AND t.spec->>'suite' = ANY(%(suites)s)
    ORDER BY NOT r.watched, r.created, r.id, t.position
    FOR UPDATE OF t SKIP LOCKED LIMIT 1
"""


def claim(*, accelerator: Accelerator, nonce: str) -> Claim | None:
    """The next task for an accelerator, or None. The same nonce gets the same task again."""
    running = Task.objects.filter(accelerator=accelerator, state=Task.State.RUNNING).first()
    if running:
        return Claim(running, running.run_id) if running.nonce == nonce else None
    try:
        with transaction.atomic():
            return _claim_next(accelerator, nonce)
    except IntegrityError:
        return None  # another process of this host claimed for the same accelerator at the same moment


def _claim_next(accelerator: Accelerator, nonce: str) -> Claim | None:
    with connection.cursor() as cursor:
        cursor.execute(
            _NEXT,
            {
                "host": accelerator.host_id,
                "arch": accelerator.arch,
                "device": accelerator.device,
                "suites": accelerator.catalog.get("suites", []),
            },
        )
        row = cursor.fetchone()
    if row is None:
        return None
    Task.objects.filter(pk=row[0]).update(
        state=Task.State.RUNNING,
        accelerator=accelerator,
        token=uuid.uuid4(),
        nonce=nonce[:64],
        attempt=F("attempt") + 1,
        lease_until=_lease_end(),
        started=Now(),
        progress={},
        log_bytes=0,
    )
    task = Task.objects.get(pk=row[0])
    Run.objects.filter(pk=task.run_id, state=State.QUEUED).update(
        state=State.RUNNING, started=Now(), host_name=accelerator.host.name
    )
    return Claim(task, task.run_id)


def _lease_end() -> Combinable:
    return Now() + Value(timedelta(seconds=settings.HUD_LEASE_S), output_field=DurationField())


def held(*, uid: uuid.UUID, token: uuid.UUID, host: Host, lock: bool = False) -> Task:
    """The running task of this token. Raises UnknownTask for another host's, LeaseBroken for an old token."""
    tasks = Task.objects.select_for_update() if lock else Task.objects.all()
    task = tasks.filter(uid=uid).first()
    if task is None or (task.accelerator_id and not _is_of(task, host)):
        raise UnknownTask("no such task for this host")
    if task.token != token or task.state != Task.State.RUNNING:
        raise LeaseBroken("the lease of this task has ended")
    return task


def _is_of(task: Task, host: Host) -> bool:
    return Accelerator.objects.filter(tasks=task, host=host).exists()


def report(*, task: Task, progress: dict[str, Any]) -> Orders:
    """Extends the lease and keeps the progress. Raises LeaseBroken."""
    kept = Task.objects.filter(pk=task.pk, token=task.token, state=Task.State.RUNNING).update(
        lease_until=_lease_end(), progress=progress
    )
    if not kept:
        raise LeaseBroken("the lease of this task has ended")
    return Orders(cancel=Run.objects.filter(pk=task.run_id, cancel_asked__isnull=False).exists())


def take_results(*, uid: uuid.UUID, token: uuid.UUID, host: Host, body: bytes) -> ingest.Receipt:
    """Stores what the task measured, under its lease. Raises LeaseBroken, UnknownTask, ingest.BadUpload."""
    with transaction.atomic():
        task = held(uid=uid, token=token, host=host, lock=True)
        receipt = ingest.deliver(body, Run.objects.get(pk=task.run_id), process=task.process)
        _note_environment(task.run_id)
        Task.objects.filter(pk=task.pk).update(lease_until=_lease_end())
    return receipt


def _note_environment(run_id: int) -> None:
    """A run's commit is torch's, where its measurements say one."""
    Run.objects.filter(pk=run_id, commit="").update(
        commit=Environment.objects.filter(measurement__run_id=run_id).order_by("pk").values("torch_git")[:1]
    )


def finish(*, uid: uuid.UUID, token: uuid.UUID, host: Host, status: str, code: str, reason: str) -> Task:
    """Ends a task, once; the same call again answers the same. Raises LeaseBroken, UnknownTask."""
    if status not in STATUSES and status != "cancelled":
        raise ValueError(f"a task ends as one of {', '.join(STATUSES)} or cancelled, not {status!r}")
    with transaction.atomic():
        ended = Task.objects.filter(uid=uid, token=token).exclude(state=Task.State.RUNNING).first()
        if ended and _is_of(ended, host):
            return ended
        task = held(uid=uid, token=token, host=host, lock=True)
        if code == HANDED_BACK:
            _give_back(task)
        else:
            cancelled = status == "cancelled"
            Task.objects.filter(pk=task.pk).update(
                state=Task.State.CANCELLED if cancelled else Task.State.DONE,
                status="not_run" if cancelled else status,
                code=code[:100],
                reason=reason[:1000],
                finished=Now(),
                lease_until=None,
            )
            runs.settle(task.run_id)
    task.refresh_from_db()
    return task


def _give_back(task: Task) -> None:
    """Undone work returns to the queue and has used no attempt; a cancelled run's work ends instead."""
    if Run.objects.filter(pk=task.run_id, cancel_asked__isnull=False).exists():
        _end(task, Task.State.CANCELLED, "cancelled while its host stopped")
    else:
        _requeue(task, attempt=max(task.attempt - 1, 0))


def _requeue(task: Task, *, attempt: int) -> None:
    Task.objects.filter(pk=task.pk).update(
        state=Task.State.QUEUED, token=None, lease_until=None, accelerator=None, nonce="", attempt=attempt
    )


def _end(task: Task, state: str, reason: str) -> None:
    Task.objects.filter(pk=task.pk).update(
        state=state, status="not_run", reason=reason, finished=Now(), lease_until=None, token=None
    )
    runs.settle(task.run_id)


def break_leases() -> list[int]:
    """Gives up on tasks whose lease has ended on the database's clock; tried again once. Returns their ids.

    Only `manage.py tick` calls this, and only while `beacons.trusted()`.
    """
    expired = list(
        Task.objects.filter(state=Task.State.RUNNING, lease_until__lt=Now()).values_list("pk", flat=True)
    )
    broken = []
    for task_id in expired:
        with transaction.atomic():
            task = (
                Task.objects.select_for_update()
                .filter(pk=task_id, state=Task.State.RUNNING, lease_until__lt=Now())
                .first()
            )
            if task is None:
                continue
            _lose(task)
            broken.append(task_id)
    return broken


def _lose(task: Task) -> None:
    where = str(task.accelerator)
    reason = f"host silent on {where}, attempt {task.attempt}"
    if Run.objects.filter(pk=task.run_id, cancel_asked__isnull=False).exists():
        _end(task, Task.State.CANCELLED, f"cancelled; {reason}")
    elif task.attempt < settings.HUD_MAX_ATTEMPTS:
        Task.objects.filter(pk=task.pk).update(reason=f"lost once: {reason}")
        _requeue(task, attempt=task.attempt)
    else:
        _end(task, Task.State.LOST, f"lost: {reason}")
