"""Request runs: of one experiment again, or of a suite or part of it.

Runs and tasks are rows; Redis only carries wake-ups. `hud/runs/tasks.py` hands the tasks to hosts.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import F, OuterRef, Subquery
from django.db.models.functions import Now

from hud.accounts import audit
from hud.hosts import registration
from hud.models import (
    NIGHTLY,
    Accelerator,
    Compilation,
    Experiment,
    Kernel,
    Point,
    Run,
    RunClass,
    RunRequest,
    ScheduleTrigger,
    Series,
    Stream,
    Task,
)
from hud.models.streams import adhoc
from hud.problems import Problem
from hud.runs import matching, overlays, streams
from hud.runs.matching import ResourceRequest
from runner.schema import compilations
from runner.schema.compilations import InductorValue, inductor_problems
from runner.schema.options import OptionValue, setting_text
from runner.schema.protocol import OVERLAYS_ALLOWED, overlay_of
from runner.schema.statistics import LEAST_PAIRS
from runner.schema.suite import IDENTITY, BadRequest, TaskSpec
from runner.schema.tasks import Process, Replication, Selection, plan, task_of
from runner.suites import SUITES, suite_of
from runner.suites.request import tasks_of_preset

MAX_REPEATS = 20
MAX_TASKS = 1500
DEFAULT_INTERPRETER = "default"  # the interpreter that every host has
_PINNED = re.compile(
    r"run:(?P<run>\d{1,9})/experiment:(?P<experiment>\d{1,9})(/compilation:(?P<number>\d{1,4}))?", re.ASCII
)
_NO_KNOBS: Mapping[str, OptionValue | None] = MappingProxyType({})


@dataclass(frozen=True)
class RunOptions:
    """The resources of a run, how often each task is measured, and the person or program that requests it.

    A base interpreter or `candidate_options` (of inductor) make the run an A/B comparison: each task is one
    process of each side. The candidate's own interpreter is the default baseline of its options.
    """

    resources: ResourceRequest
    who: str
    replication: Replication = field(default_factory=Replication)
    pinned: str = ""  # the compilation whose choices are forced, as `_choices_of` reads it
    candidate_options: Mapping[str, InductorValue] = field(default_factory=dict)
    branch: str = ""
    stream: Stream | None = None  # None: its schedule's, or that of what it repeats
    run_class: RunClass = "person"
    commit: str = ""  # that it measures; '': of its torch
    pull_request: int | None = None
    trigger: ScheduleTrigger | None = None  # the due time of the schedule that requests it
    retry_of: Run | None = None  # else the last one that was requested of the experiment
    may_run_code: bool = False  # overlays: who requests it has the scope `code`
    # of the form that was sent: until its run is over, the same one requests no other
    uid: UUID | None = None

    @property
    def is_ab(self) -> bool:
        return bool(self.resources.base_interpreter or self.candidate_options)


def request_rerun(
    experiment: Experiment, options: RunOptions, *, knobs: Mapping[str, OptionValue | None] = _NO_KNOBS
) -> Run:
    """Request a run of an experiment. `knobs` replace its case parameters, as in `spec_of`; if they describe
    another experiment, the run belongs to that one. Raise BadRequest."""
    spec = spec_of(experiment, device=_device(options.resources, experiment.device), knobs=knobs)
    is_other = _is_other(spec, experiment)
    subject = _experiment_of(spec, experiment.arch) if is_other else experiment
    title = f"{experiment.suite}: {_title(spec, experiment) if is_other else experiment.title}"
    return request_run([spec], options, title=title, experiment=subject, repeats=[experiment])


def request_reruns(experiments: Sequence[Experiment], options: RunOptions) -> Run:
    """Request one run of several experiments of a suite on one device. Raise BadRequest."""
    suites = {experiment.suite for experiment in experiments}
    if len(suites) != 1:
        raise BadRequest("choose experiments of one suite")
    device = options.resources.device
    if len(experiments) == 1:
        return request_rerun(experiments[0], options)
    specs = [spec_of(experiment, device=device) for experiment in experiments]
    cases = list(dict.fromkeys(spec.case for spec in specs))
    more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
    title = f"{suites.pop()}: {', '.join(cases[:3])}{more}"
    return request_run(specs, options, title=title, repeats=experiments)


def request_explanation(failed: Run, series: Series, who: str) -> Run:
    """Request a run that finds the part of the compiler at fault for a failed metric of a run, on any host of
    the same arch, with the same interpreter. Raise BadRequest."""
    experiment = series.experiment
    suite = SUITES.get(experiment.suite)
    knobs = suite.explaining_knobs(series.metric.name, experiment.backend) if suite else {}
    if not knobs:
        raise BadRequest(f"{experiment.title}, {experiment.backend}: the runner cannot explain it")
    interpreter = "" if failed.upload_id else failed.interpreter
    resources = ResourceRequest(experiment.device, arch=experiment.arch, interpreter=interpreter)
    return request_rerun(experiment, RunOptions(resources, who, retry_of=failed), knobs=knobs)


def request_suite(selection: Selection, options: RunOptions, *, preset: str = "") -> Run:
    """Request a run of a suite or part of it, by default on the host's device; or what a preset measures but
    for what is selected. Raise BadRequest."""
    device = selection.device or _device(options.resources, "cuda")
    cases = ", ".join(selection.cases) or "all cases"
    specs = tasks_of(replace(selection, device=device), preset)
    return request_run(specs, options, title=f"{preset or selection.suite}: {cases}")


def tasks_of(selection: Selection, preset: str) -> list[TaskSpec]:
    """Return the tasks of a selection, or of a preset but for what is selected. Raise BadRequest."""
    if not preset:
        return plan(selection)
    filters = {name: getattr(selection, name) for name in ("cases", "modes", "dtypes", "backends")}
    suites = list(filter(None, [selection.suite]))
    return tasks_of_preset(preset, selection.device, suites=suites, **filters)


def _device(resources: ResourceRequest, default: str) -> str:
    """Return the requested device; else the requested host's, cuda if it has a GPU; else the default."""
    if resources.device or resources.host is None:
        return resources.device or default
    gpus = Accelerator.objects.filter(host=resources.host, present=True, device="cuda")
    return "cuda" if gpus.exists() else "cpu"


def request_run(
    specs: Sequence[TaskSpec],
    options: RunOptions,
    *,
    title: str,
    experiment: Experiment | None = None,
    repeats: Sequence[Experiment] = (),
) -> Run:
    """Store a run with its tasks and wake idle hosts after the commit. A run that `repeats` experiments is a
    rerun, like a retry and one with pinned choices. Raise BadRequest."""
    pinned = _pinned(specs, options)
    replication = replace(options.replication, is_ab=options.is_ab)
    if pinned:
        replication = replace(replication, caches="pinned")
    is_free_ab = replication.is_ab and not replication.at_equal_choices
    processes = processes_of(specs, replication)
    candidate_options = dict(options.candidate_options)
    resources = replace(options.resources, device=options.resources.device or specs[0].device)
    if options.is_ab:
        interpreter = resources.interpreter or DEFAULT_INTERPRETER
        base = resources.base_interpreter or interpreter
        resources = replace(resources, interpreter=interpreter, base_interpreter=base)
    interpreters = (resources.interpreter, resources.base_interpreter)
    if any(overlay_of(name)[1] for name in interpreters):
        resources = replace(resources, labels={**resources.labels, **OVERLAYS_ALLOWED})
    able, problem = matching.eligible_accelerators(
        resources, {spec.suite for spec in specs}, registration.visible_accelerators()
    )
    if not problem:
        problem = matching.missing_packages(specs, able, interpreters)
    if problem:
        raise BadRequest(problem)
    commits = overlays.checked(interpreters, able, is_permitted=options.may_run_code and options.is_ab)
    if candidate_options:
        kinds = registration.inductor_options(able, overlay_of(resources.interpreter)[0])
        _check_inductor_options(specs, candidate_options, kinds)
    earlier = Run.objects.filter(request__experiment=experiment).order_by("-created")
    retry_of = options.retry_of or (earlier.first() if experiment else None)
    stream = options.stream or _stream_of(options, repeats)
    try:
        streams.check_open(stream)
    except Problem as error:
        raise BadRequest(str(error)) from error
    with transaction.atomic():
        run, is_new = _run_of(
            options.uid,
            title=title[:300],
            stream=stream,
            rerun=bool(repeats or retry_of or pinned),
            interpreter=resources.interpreter,
            base_interpreter=resources.base_interpreter,
            source="runner",
            branch=options.branch or (f"pull/{options.pull_request}" if options.pull_request else ""),
            commit=options.commit,
            order_time=Now(),
            order_time_source="run",
        )
        if not is_new:
            return run
        selection = {
            "suite": specs[0].suite,
            "cases": sorted({spec.case for spec in specs}),
            "compilations": 1 + max(process.task.compilation for process in processes),
            "repeats": replication.pairs_planned if is_free_ab else replication.rounds,
            **({"draws": replication.pairs_planned} if replication.at_equal_choices else {}),
        }
        RunRequest.objects.create(
            run=run,
            selection=selection,
            host=resources.host,
            arch=resources.arch,
            device=resources.device,
            caches=replication.used_caches,
            pinned=pinned,
            labels=dict(resources.labels),
            candidate_options=candidate_options,
            experiment=experiment,
            retry_of=retry_of,
            trigger=options.trigger,
            requested_by=options.who[:150],
            run_class=options.run_class,
            pull_request=options.pull_request,
        )
        Task.objects.bulk_create(
            Task(
                run=run,
                position=position,
                repeat=process.number,
                caches=process.caches,
                spec=process.task.to_json(),
            )
            for position, process in enumerate(processes)
        )
        matching.assign_cards(run)
        action, detail = "run.overlay" if commits else "run.request", {**selection, "commits": commits}
        audit.note(who=options.who, action=action, subject=f"run {run.pk}", detail=detail)
        overlays.keep_patch(run)
        transaction.on_commit(lambda: matching.ring_idle(again_s=0, run_id=run.pk), robust=True)
    return Run.objects.select_related("request").get(pk=run.pk)


def _check_inductor_options(
    specs: Sequence[TaskSpec], values: Mapping[str, InductorValue], kinds: dict[str, Any]
) -> None:
    """Raise BadRequest for options that cannot be set, or a task that takes none."""
    if problems := inductor_problems(values, kinds):
        text = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise BadRequest(f"options of inductor cannot be set: {text}", options=problems)
    for spec in specs:
        if not SUITES[spec.suite].takes_inductor_options(spec):
            task = f"{spec.suite}/{spec.case} ({spec.backend})"
            raise BadRequest(f"{task} takes no options of inductor")


def _run_of(uid: UUID | None, **about: Any) -> tuple[Run, bool]:
    """Return the run of a form until it is over, else a new one, and whether it is new."""
    if uid and Run.objects.filter(uid=uid, finished__isnull=False).exists():
        uid = None
    return Run.objects.get_or_create(uid=uid or uuid4(), defaults=about)


def _stream_of(options: RunOptions, repeats: Sequence[Experiment]) -> Stream:
    """Return the stream of a run that names none: of its schedule, of the run that it repeats, or the one in
    which its experiments were measured last."""
    if options.trigger:
        return options.trigger.schedule.stream or Stream.objects.get_or_create(name=NIGHTLY)[0]
    if options.retry_of:
        return options.retry_of.stream
    newest = Point.objects.filter(series=OuterRef("pk"), rerun=False).order_by("-order_time")
    measured = Series.objects.filter(experiment__in=repeats).annotate(
        newest=Subquery(newest.values("order_time")[:1])
    )
    series = measured.select_related("stream").order_by(F("newest").desc(nulls_last=True), "pk").first()
    return series.stream if series else adhoc()


def _pinned(specs: Sequence[TaskSpec], options: RunOptions) -> dict[str, Any]:
    """Return the choices to force and where they come from; {} where none are. Raise BadRequest."""
    caches = options.replication.caches
    if not options.pinned:
        if caches == "pinned" and not options.is_ab:
            raise BadRequest("say whose choices are pinned: run:ID/experiment:ID/compilation:NUMBER")
        return {}
    if options.is_ab:
        raise BadRequest("an A/B comparison pins the choices that its own sides draw, not those of a run")
    if caches == "kept" or len(specs) != 1:
        raise BadRequest("the choices of a compilation are pinned in one task, compiled afresh")
    return {"source": options.pinned, "choices": _choices_of(options.pinned)}


def _choices_of(source: str) -> dict[str, str]:
    """Return the configuration of each slot in the compilation that `source` names, such as
    ``run:12/experiment:5/compilation:2``; without a number in the first. Raise BadRequest."""
    match = _PINNED.fullmatch(source)
    if match is None:
        raise BadRequest(f"{source!r} is not run:ID/experiment:ID[/compilation:NUMBER]")
    named = {name: int(value) for name, value in match.groupdict().items() if value is not None}
    stored = Compilation.objects.filter(**named).exclude(variant="")
    compilation = stored.order_by("number", "repeat", "side").first()
    if compilation is None:
        raise BadRequest(f"no compilation with kernels is stored for {source}")
    kernels = Kernel.objects.in_bulk(compilation.kernels)
    in_order = (kernels[pk] for pk in compilation.kernels if pk in kernels)
    choices = compilations.pinned((kernel.slot, kernel.config) for kernel in in_order)
    if not choices:
        raise BadRequest(f"{source} has no kernel whose configuration can be forced")
    return choices


def processes_of(specs: Sequence[TaskSpec], replication: Replication) -> list[Process]:
    """Return the processes of a run. Raise BadRequest for more of them, compilations or repeats than a
    run may have, and for cases that only a command can name."""
    for spec in specs:
        suite_of(spec.suite).check_listed(spec.case)
    repeats = replication.repeats
    if repeats is not None and not 1 <= repeats <= MAX_REPEATS:
        raise BadRequest(f"repeats are 1 to {MAX_REPEATS}, not {repeats}")
    processes = replication.processes(specs)
    if replication.is_ab and not replication.at_equal_choices and replication.pairs_planned < LEAST_PAIRS:
        raise BadRequest(f"an A/B comparison needs at least {LEAST_PAIRS} pairs")
    if len(processes) > MAX_TASKS:
        raise BadRequest(f"a run has at most {MAX_TASKS} tasks; this one would have {len(processes)}")
    return processes


def spec_of(
    experiment: Experiment, *, device: str, knobs: Mapping[str, OptionValue | None] = _NO_KNOBS
) -> TaskSpec:
    """Return the task that measures this experiment on a device. `knobs` replace its case parameters; None
    stands for the suite's default. Raise BadRequest."""
    if experiment.suite not in SUITES:
        known = ", ".join(sorted(SUITES))
        raise BadRequest(f"the runner has no suite {experiment.suite!r} here; it has: {known}")
    offered = SUITES[experiment.suite].offered
    if unknown := next((name for name in knobs if name not in offered), ""):
        raise BadRequest(f"suite {experiment.suite} has no option {unknown!r}", unknown)
    return task_of({**{name: getattr(experiment, name) for name in IDENTITY}, "device": device}, knobs)


def _is_other(spec: TaskSpec, experiment: Experiment) -> bool:
    """Return whether a task measures another experiment than this one, apart from the device."""
    suite = SUITES[spec.suite]
    asked = suite.asked_knobs(experiment.knobs)
    if not asked.keys() <= suite.offered.keys():
        return True
    same_knobs = spec.identity() == replace(spec, knobs=asked).identity()
    return not same_knobs or suite.canonical(spec).backend != suite.canonical(replace(spec, knobs={})).backend


def _experiment_of(spec: TaskSpec, arch: str) -> Experiment | None:
    """Return the one experiment that a task measures, if it has been measured on that architecture."""
    results = SUITES[spec.suite].expected(spec, {})
    if len(results) != 1:
        return None
    of_spec = {name: getattr(spec, name) for name in ("suite", "mode", "dtype", "device", "dynamic")}
    of_result = {name: getattr(results[0], name) for name in ("case", "knobs", "backend")}
    return Experiment.objects.filter(**of_spec, **of_result, arch=arch).first()


def _title(spec: TaskSpec, experiment: Experiment) -> str:
    """Return the title of a rerun whose case parameters describe a different experiment."""
    named = SUITES[spec.suite].canonical(spec)
    knobs = {name: setting_text(value) for name, value in named.identity().items()}
    title = Experiment(case=spec.case, knobs=knobs).title
    return title if named.backend == experiment.backend else f"{title}, {named.backend}"
