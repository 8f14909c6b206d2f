"""Life of a run: requested, worked off task by task (`hud/tasks.py`), cancelled, settled.

A run's state is derived from its tasks and ends once; terminal states never change. PostgreSQL is the
truth; Redis only carries the doorbell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection, transaction
from django.db.models.functions import Now

from hud import audit, doorbell
from hud.models import ACTIVE, Accelerator, Experiment, Host, Run, State, Task
from runner.catalog import SUITES, BadRequest, TaskSpec, plan

MAX_REPEATS = 20
MAX_TASKS = 500


class NotPossible(ValueError):
    """The request cannot be run; the text says why, in words for a person."""


def request_rerun(
    *, experiment: Experiment, host: Host | None, arch: str, device: str, repeats: int, who: str
) -> Run:
    """A new run of one experiment, on a host or any host of an arch or device. Raises NotPossible."""
    spec = spec_of(experiment, device=device or (host_device(host) if host else experiment.device))
    earlier = Run.objects.filter(experiment=experiment).order_by("-created").values_list("pk", flat=True)
    return request_run(
        specs=[spec],
        title=f"{experiment.suite}: {experiment.title}",
        host=host,
        arch=arch,
        device=spec.device,
        repeats=repeats,
        who=who,
        experiment=experiment,
        retry_of=earlier.first(),
        watched=True,
    )


def request_suite(
    *, suite: str, cases: Sequence[str], host: Host | None, arch: str, device: str, repeats: int, who: str
) -> Run:
    """A new run of (part of) a suite. Raises NotPossible."""
    try:
        specs = plan(suite, cases=cases, device=device or (host_device(host) if host else "cuda"))
    except BadRequest as error:
        raise NotPossible(str(error)) from error
    return request_run(
        specs=specs,
        title=f"{suite}: {', '.join(cases) if cases else 'all cases'}",
        host=host,
        arch=arch,
        device=specs[0].device,
        repeats=repeats,
        who=who,
        watched=True,
    )


def request_run(
    *,
    specs: Sequence[TaskSpec],
    title: str,
    host: Host | None,
    arch: str,
    device: str,
    repeats: int,
    who: str,
    experiment: Experiment | None = None,
    retry_of: int | None = None,
    watched: bool = False,
) -> Run:
    """Stores the run with its tasks and rings the doorbell after the commit. Raises NotPossible."""
    if not 1 <= repeats <= MAX_REPEATS:
        raise NotPossible(f"repeats are 1 to {MAX_REPEATS}, not {repeats}")
    if len(specs) * repeats > MAX_TASKS:
        raise NotPossible(f"a run has at most {MAX_TASKS} tasks; this one would have {len(specs) * repeats}")
    _find_accelerators(host=host, arch=arch, device=device, suites={spec.suite for spec in specs})
    with transaction.atomic():
        run = Run.objects.create(
            title=title[:300],
            request={
                "suite": specs[0].suite,
                "cases": sorted({spec.case for spec in specs}),
                "repeats": repeats,
            },
            host=host,
            arch=arch,
            device=device,
            source="runner",
            at=Now(),
            at_source="run",
            experiment=experiment,
            retry_of_id=retry_of,
            requested_by=who[:150],
            watched=watched,
        )
        Task.objects.bulk_create(
            Task(run=run, position=process * len(specs) + place, process=process, spec=spec.to_json())
            for process in range(repeats)
            for place, spec in enumerate(specs)
        )
        audit.note(who=who, action="run.request", subject=f"run {run.pk}", detail=run.request)
        transaction.on_commit(lambda: doorbell.ring_for(run.pk), robust=True)
    run.refresh_from_db()
    return run


def spec_of(experiment: Experiment, *, device: str) -> TaskSpec:
    """What the runner would do for this experiment on a device. Raises NotPossible."""
    if experiment.suite not in SUITES:
        raise NotPossible(
            f"the runner has no suite {experiment.suite!r} here; it has: {', '.join(sorted(SUITES))}"
        )
    knobs = {name: value for name, value in experiment.knobs.items() if (name, value) != ("D", "mean")}
    if isinstance(knobs.get("D"), int):
        knobs["D"] = [knobs["D"]]
    try:
        (spec,) = plan(
            experiment.suite,
            cases=[experiment.case],
            device=device,
            modes=[experiment.mode] if experiment.mode else [],
            dtypes=[experiment.dtype],
            backends=[experiment.backend],
            dynamic=experiment.dynamic,
            knobs=knobs,
        )
    except BadRequest as error:
        raise NotPossible(str(error)) from error
    return spec


def host_device(host: Host) -> str:
    """The device a host works on: cuda where it has a GPU."""
    devices = set(Accelerator.objects.filter(host=host, present=True).values_list("device", flat=True))
    return "cuda" if "cuda" in devices else "cpu"


def _find_accelerators(*, host: Host | None, arch: str, device: str, suites: set[str]) -> None:
    """Raises NotPossible where no attached accelerator could ever take such a task."""
    found = Accelerator.objects.filter(present=True, host__detached_at__isnull=True).select_related("host")
    attached = list(found)
    if not attached:
        raise NotPossible(
            "no host is attached; attach one with: python -m runner attach --hud URL --token TOKEN"
        )
    if host:
        attached = [item for item in attached if item.host_id == host.pk]
        if not attached:
            raise NotPossible(f"host {host.name} is not attached")
    there = sorted({item.arch for item in attached})
    if arch and not [item for item in attached if item.arch == arch]:
        raise NotPossible(f"no attached host has arch {arch}; attached are: {', '.join(there)}")
    fitting = [item for item in attached if arch in {"", item.arch} and item.device == device]
    if not fitting:
        raise NotPossible(f"no attached host has device {device}; attached are: {', '.join(there)}")
    able = [item for item in fitting if suites <= set(item.catalog.get("suites", []))]
    if not able:
        raise NotPossible(
            f"no attached host can run {', '.join(sorted(suites))}: its runner does not offer it"
        )


def cancel(*, run: Run, who: str) -> None:
    """Queued tasks end at once, a running one is told with its next report. Twice is the same as once."""
    with transaction.atomic():
        # tasks before the run, as `claim` and `finish` lock them
        queued = Task.objects.select_for_update().filter(run=run, state=Task.State.QUEUED)
        ids = list(queued.order_by("pk").values_list("pk", flat=True))
        asked = Run.objects.filter(pk=run.pk, state__in=ACTIVE, cancel_asked__isnull=True).update(
            cancel_asked=Now()
        )
        if not asked:
            return
        Task.objects.filter(pk__in=ids).update(
            state=Task.State.CANCELLED, finished=Now(), reason=f"cancelled by {who}"[:1000]
        )
        audit.note(who=who, action="run.cancel", subject=f"run {run.pk}")
        settle(run.pk)


# How a run ends, by what its tasks say; the first line that applies wins.
_ENDS = (
    (State.CANCELLED, lambda task: task["state"] == Task.State.CANCELLED),
    (State.LOST, lambda task: task["state"] == Task.State.LOST),
    (State.TIMED_OUT, lambda task: task["status"] == "timed_out"),
    (State.FAILED, lambda task: task["status"] not in {"ok", "cannot_tell"}),
)


def settle(run_id: int) -> None:
    """Ends a run whose tasks have all ended; inside the caller's transaction, once."""
    Run.objects.select_for_update().get(pk=run_id)
    tasks = list(Task.objects.filter(run_id=run_id).order_by("position").values("state", "status", "reason"))
    if any(task["state"] in {Task.State.QUEUED, Task.State.RUNNING} for task in tasks):
        return
    state, reason = _end_of(tasks)
    Run.objects.filter(pk=run_id, state__in=ACTIVE).update(state=state, reason=reason[:500], finished=Now())


def _end_of(tasks: Sequence[Mapping[str, Any]]) -> tuple[State, str]:
    for state, applies in _ENDS:
        for task in tasks:
            if applies(task):
                return state, task["reason"] or task["status"]
    return State.SUCCEEDED, ""


def queue_position(run: Run) -> int | None:
    """How many runs go ahead of a queued one, for accelerators it could use; None once it has started."""
    if run.state != State.QUEUED:
        return None
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT count(*) FROM hud_run other
            WHERE other.state IN ('queued', 'running') AND other.id <> %(id)s AND other.upload_id IS NULL
              AND (other.device = %(device)s)
              AND (other.host_id IS NULL OR %(host)s::int IS NULL OR other.host_id = %(host)s)
              AND (other.state = 'running' OR (NOT other.watched, other.created, other.id)
                   < (NOT %(watched)s, %(created)s, %(id)s))
            """,
            {
                "id": run.pk,
                "device": run.device,
                "host": run.host_id,
                "watched": run.watched,
                "created": run.created,
            },
        )
        return int(cursor.fetchone()[0])
