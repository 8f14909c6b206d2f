"""Life of a run: requested, worked off task by task (`hud/tasks.py`), cancelled, settled.

A run's state is derived from its tasks (`hud/life.py`) and ends once; terminal states never change.
PostgreSQL is the truth; Redis only carries the doorbell. Rows are locked tasks first, then their run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Required, TypedDict, Unpack

from django.db import transaction
from django.db.models.functions import Now

from hud import audit, doorbell, life, matching
from hud.matching import Wish
from hud.models import ACTIVE, Accelerator, Audit, Experiment, Firing, Host, Run, State, Task
from runner.catalog import (
    SUITES,
    BadRequest,
    Cell,
    KnobValue,
    TaskSpec,
    cells,
    effect,
    inductor_options,
    plan,
    tasks_of,
)
from runner.catalog.backends import backend_of, identity
from runner.catalog.inductor_options import InductorOptions
from runner.catalog.suites.operators import asked_inputs

MAX_REPEATS = 20
MAX_TASKS = 500
DEFAULT_ENVIRONMENT = "default"  # the interpreter that every host has
_NO_LABELS: Mapping[str, str] = MappingProxyType({})
_NO_OPTIONS: Mapping[str, bool | int] = MappingProxyType({})


class NotPossible(ValueError):
    """The request cannot be run; the text says why, in words for a person. `knob` is what is wrong of it,
    where that is a knob."""

    def __init__(self, text: str, knob: str = "") -> None:
        super().__init__(text)
        self.knob = knob


class Terms(TypedDict, total=False):
    """Where a run goes, in which environments, how often, and who asks for it."""

    host: Required[Host | None]
    arch: Required[str]
    repeats: Required[int]
    who: Required[str]
    labels: Mapping[str, str]
    environment: str
    base_environment: str
    new_options: Mapping[str, bool | int]


def request_rerun(
    *,
    experiment: Experiment,
    device: str,
    knobs: Mapping[str, KnobValue | None] = MappingProxyType({}),
    **terms: Unpack[Terms],
) -> Run:
    """A new run of one experiment, on a host or any host of an arch, device or labels; `knobs` go before the
    experiment's own, as `spec_of` has them. Where they make it another experiment, the run is that one's.
    Raises NotPossible."""
    device = device or (host_device(terms["host"]) if terms["host"] else experiment.device)
    spec = spec_of(experiment, device=device, knobs=knobs)
    other = _is_other(spec, experiment)
    subject = _experiment_of(spec, experiment.arch) if other else experiment
    earlier = Run.objects.filter(experiment=subject).order_by("-created").values_list("pk", flat=True)
    return request_run(
        specs=[spec],
        title=f"{experiment.suite}: {_title(spec, experiment) if other else experiment.title}",
        device=spec.device,
        experiment=subject,
        retry_of=earlier.first() if subject else None,
        watched=True,
        **terms,
    )


def request_suite(
    *,
    suite: str,
    cases: Sequence[str],
    device: str,
    filters: Mapping[str, Sequence[str]] = MappingProxyType({}),
    knobs: Mapping[str, KnobValue | None] = MappingProxyType({}),
    firing: Firing | None = None,
    **terms: Unpack[Terms],
) -> Run:
    """A new run of (part of) a suite; `filters` are modes, dtypes and backends. Raises NotPossible."""
    device = device or (host_device(terms["host"]) if terms["host"] else "cuda")
    cells = _cells(suite, cases, device, filters, knobs)
    specs = _tasks_of(cells)
    return request_run(
        specs=specs,
        remarks=effect.remarks(cells),
        title=f"{suite}: {', '.join(cases) if cases else 'all cases'}",
        device=specs[0].device,
        watched=firing is None,
        firing=firing,
        **terms,
    )


def plan_suite(
    suite: str,
    cases: Sequence[str],
    device: str,
    filters: Mapping[str, Sequence[str]],
    knobs: Mapping[str, KnobValue | None] = MappingProxyType({}),
) -> list[TaskSpec]:
    """Tasks of (part of) a suite. Raises NotPossible for what the catalogue does not offer."""
    return _tasks_of(_cells(suite, cases, device, filters, knobs))


def _cells(
    suite: str,
    cases: Sequence[str],
    device: str,
    filters: Mapping[str, Sequence[str]],
    knobs: Mapping[str, KnobValue | None],
) -> list[Cell]:
    try:
        return cells(suite, cases=cases, device=device, knobs=knobs, **filters)  # type: ignore[arg-type]
    except BadRequest as error:
        raise NotPossible(str(error), error.knob) from error


def _tasks_of(cells: Sequence[Cell]) -> list[TaskSpec]:
    try:
        return tasks_of(cells)
    except BadRequest as error:
        raise NotPossible(str(error), error.knob) from error


def request_run(
    *,
    specs: Sequence[TaskSpec],
    title: str,
    host: Host | None,
    arch: str,
    device: str,
    repeats: int,
    who: str,
    labels: Mapping[str, str] = _NO_LABELS,
    environment: str = "",
    base_environment: str = "",
    new_options: Mapping[str, bool | int] = _NO_OPTIONS,
    experiment: Experiment | None = None,
    retry_of: int | None = None,
    watched: bool = False,
    firing: Firing | None = None,
    remarks: Sequence[str] = (),
) -> Run:
    """Stores the run with its tasks and rings the doorbell after the commit; `remarks` are kept with what was
    requested. With a base environment each
    task is a pair, one process in either environment; options of inductor are the new one's alone, and
    need no other base than itself. Raises NotPossible."""
    check_size(specs, repeats)
    options = _options(new_options, specs)
    if base_environment or options:
        environment = environment or DEFAULT_ENVIRONMENT
        base_environment = base_environment or environment
    wish = Wish(device, host, arch, labels, environment, base_environment)
    _able, problem = matching.fitting(wish, {spec.suite for spec in specs}, matching.attached())
    if problem:
        raise NotPossible(problem)
    with transaction.atomic():
        run = Run.objects.create(
            title=title[:300],
            request={
                "suite": specs[0].suite,
                "cases": sorted({spec.case for spec in specs}),
                "repeats": repeats,
                **({"remarks": "; ".join(remarks)} if remarks else {}),
            },
            host=host,
            arch=arch,
            device=device,
            labels=dict(labels),
            environment=environment,
            base_environment=base_environment,
            new_options=options,
            firing=firing,
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


def _options(given: Mapping[str, bool | int], specs: Sequence[TaskSpec]) -> InductorOptions:
    """Raises NotPossible for what inductor has not, and for tasks that it does not compile."""
    try:
        options = inductor_options.checked(given)
    except BadRequest as error:
        raise NotPossible(str(error)) from error
    problem = next(filter(None, (inductor_options.problem(options, spec) for spec in specs)), "")
    if problem:
        raise NotPossible(problem)
    return options


def check_size(specs: Sequence[TaskSpec], repeats: int) -> None:
    """Raises NotPossible for more than one run may be."""
    if not 1 <= repeats <= MAX_REPEATS:
        raise NotPossible(f"repeats are 1 to {MAX_REPEATS}, not {repeats}")
    if len(specs) * repeats > MAX_TASKS:
        raise NotPossible(f"a run has at most {MAX_TASKS} tasks; this one would have {len(specs) * repeats}")


def spec_of(
    experiment: Experiment, *, device: str, knobs: Mapping[str, KnobValue | None] = MappingProxyType({})
) -> TaskSpec:
    """What the runner would do for this experiment on a device; `knobs` go before its own, and None is the
    suite's own value. Raises NotPossible."""
    if experiment.suite not in SUITES:
        raise NotPossible(
            f"the runner has no suite {experiment.suite!r} here; it has: {', '.join(sorted(SUITES))}"
        )
    offered = {knob.name for knob in SUITES[experiment.suite].knobs}
    unknown = next((name for name in knobs if name not in offered), "")
    if unknown:
        raise NotPossible(f"suite {experiment.suite} has no knob {unknown!r}", unknown)
    said = {**_asked_knobs(experiment), **knobs}
    try:
        (spec,) = plan(
            experiment.suite,
            cases=[experiment.case],
            device=device,
            modes=[experiment.mode] if experiment.mode else [],
            dtypes=[experiment.dtype],
            backends=[experiment.backend],
            dynamic=experiment.dynamic,
            knobs={name: value for name, value in said.items() if value is not None},
        )
    except BadRequest as error:
        raise NotPossible(str(error), error.knob) from error
    return spec


def _asked_knobs(experiment: Experiment) -> dict[str, KnobValue]:
    """The knobs of its identity as a task asks for them; results tell more than can be asked for."""
    own = {name: value for name, value in experiment.knobs.items() if (name, value) != ("D", "mean")}
    if isinstance(inputs := own.get("inputs"), str):
        own["inputs"] = asked_inputs(inputs)
    if isinstance(own.get("D"), int):
        own["D"] = [own["D"]]
    return own


def _is_other(spec: TaskSpec, experiment: Experiment) -> bool:
    """Whether a task that began as this experiment's measures another one, whatever its device."""
    offered = {knob.name for knob in SUITES[spec.suite].knobs}
    asked = _asked_knobs(experiment)
    if not asked.keys() <= offered:
        return True
    own = replace(spec, knobs=asked).identity()
    names = [backend_of(one).name(one.device) for one in (spec, replace(spec, knobs={}))]
    return spec.identity() != own or names[0] != names[1]


def _experiment_of(spec: TaskSpec, arch: str) -> Experiment | None:
    """The experiment that a task measures, where it has ever been measured on that arch."""
    size = spec.knobs.get("D")
    alone = {"D": size[0]} if isinstance(size, list) and len(size) == 1 else {}
    return Experiment.objects.filter(
        suite=spec.suite,
        case=spec.case,
        knobs={**identity(spec), **alone},
        mode=spec.mode,
        dtype=spec.dtype,
        backend=backend_of(spec).name(spec.device),
        device=spec.device,
        arch=arch,
        dynamic=spec.dynamic,
    ).first()


def _title(spec: TaskSpec, experiment: Experiment) -> str:
    """Of the experiment that a task measures where it is another one than asked."""
    knobs = {
        name: "+".join(map(str, value)) if isinstance(value, list) else value
        for name, value in identity(spec).items()
    }
    title = Experiment(case=spec.case, knobs=knobs).title
    backend = backend_of(spec).name(spec.device)
    return title if backend == experiment.backend else f"{title}, {backend}"


def host_device(host: Host) -> str:
    """The device a host works on: cuda where it has a GPU."""
    devices = set(Accelerator.objects.filter(host=host, present=True).values_list("device", flat=True))
    return "cuda" if "cuda" in devices else "cpu"


def cancel(*, run: Run, who: str) -> None:
    """Queued tasks end at once, a running one is told with its next report. Twice is the same as once."""
    with transaction.atomic():
        # every task that could move is held, so that none slips back into the queue unseen
        unended = Task.objects.select_for_update().filter(run=run, state__in=_UNENDED)
        rows = list(unended.order_by("pk"))
        asked = Run.objects.filter(pk=run.pk, state__in=ACTIVE, cancel_asked__isnull=True).update(
            cancel_asked=Now()
        )
        if not asked:
            return
        ended = [row.pk for row in rows if life_of(row).cancel_asked().ended]
        Task.objects.filter(pk__in=ended).update(
            state=life.TaskState.CANCELLED,
            status=life.NOT_RUN,
            finished=Now(),
            reason=f"cancelled by {who}"[:1000],
        )
        audit.note(who=who, action="run.cancel", subject=f"run {run.pk}")
        settle(run.pk)


_UNENDED = (life.TaskState.QUEUED, life.TaskState.RUNNING)


def life_of(row: Task) -> life.Task:
    """What decides about a task, out of its row."""
    return life.Task(life.TaskState(row.state), row.attempt, row.token, row.status)


def settle(run_id: int) -> None:
    """Derives a run's state from its tasks anew; inside the transaction that changed one of them."""
    run = Run.objects.select_for_update().get(pk=run_id)
    if run.state not in ACTIVE:
        return
    rows = list(Task.objects.filter(run_id=run_id).order_by("position").defer("spec", "progress"))
    state, place = life.run_state([life_of(row) for row in rows])
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
