"""Runs, their tasks and artifacts, as pages and API list them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db.models import Max, Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from hud.models import ACTIVE, Accelerator, Artifact, Host, Point, Run, RunRequest, Series, SidePoint, Stream
from hud.models.keys import Upload
from hud.models.runs import Task
from hud.runs.branches import branch_or_default, other_branch, stored_names
from hud.runs.streams import named
from hud.sql import attach, by_id, fetch_models, int_array
from hud.tables.table import DataTable
from runner.schema.options import setting_text

COLUMNS = DataTable["RunLine"]("""
    run:int=run.pk state:str=run.state reason:str=run.reason title:str host:str arch:str=asked.arch
    source:str=run.source commit:str=run.commit branch:str filename:str=run.upload?.filename
    external_id:str|None=run.external_id done:int total:int created=run.created
    started=run.started finished=run.finished
    requested_by:str=asked.requested_by retry_of:int|None=asked.retry_of_id
    pull_request:int|None=asked.pull_request upload:int|None=run.upload_id
    seconds:float|None regressed:int=run.regressed stream:str=run.stream.name
""")
ARTIFACT = DataTable["ArtifactLine"](
    """id:int=artifact.pk task:int=task.task.position name:str=task.name process:int=task.task.repeat
    kind:str=artifact.kind size_bytes:int=artifact.size_bytes sha256:str=artifact.sha256 url:str""",
    url=lambda line: f"/api/v1/runs/{line.task.task.run_id}/artifacts/{line.artifact.pk}",
)

# Kinds of runs with their names on the page. A night is a schedule's run or an upload with a commit of the
# default branch; a pull request is any other branch.
KINDS = {
    "night": "night",
    "person": "person's",
    "pull_request": "pull request",
    "rerun": "on a host",
    "upload": "upload",
}
_RANGE = ".."


class OfRun:
    """A run as lists and its page show it."""

    run: Run

    @property
    def host(self) -> str:
        asked = self.asked.host
        return asked.name if asked else self.run.host_name

    @property
    def _file(self) -> str:
        upload = self.run.upload
        return (upload.filename or f"upload {upload.pk}") if upload else ""

    @property
    def title(self) -> str:
        return self.run.title or self._file or f"run {self.run.pk}"

    @property
    def origin(self) -> list[str]:
        """Return what distinguishes runs of one title and commit: file and external id."""
        its_id = f"id {self.run.external_id}" if self.run.external_id else ""
        return [text for text in (self._file, its_id) if text and text != self.title]

    @property
    def other_branch(self) -> str:
        return other_branch(self.run.branch)

    @property
    def branch(self) -> str:
        return branch_or_default(self.run.branch)

    @cached_property
    def asked(self) -> RunRequest:
        return self.run.request_or_empty

    @property
    def active(self) -> bool:
        return self.run.state in ACTIVE

    @property
    def seconds(self) -> float | None:
        """Return the duration, so far while it runs; None before it starts."""
        started = self.run.started
        return ((self.run.finished or timezone.now()) - started).total_seconds() if started else None


@dataclass
class RunLine(OfRun):
    run: Run
    done: int  # tasks that have ended
    total: int

    @property
    def who(self) -> str:
        """Return who or what asked for it: a person or key, the schedule, or the source of an upload."""
        asked = self.asked
        return asked.requested_by or ("schedule" if asked.trigger_id else "") or self.run.source


def read(ids: Sequence[int]) -> list[RunLine]:
    """Return these runs, the newest first: 1 statement, 2 with a run on a host."""
    return _lines("WHERE own.id = ANY(%(ids)s::int[]) ORDER BY own.id DESC", {"ids": int_array(ids)})


def matching(criteria: Mapping[str, Any]) -> tuple[QuerySet[Run], list[str]]:
    """Return the runs that meet all of these criteria, and the commits of a range that no run has.

    They are `state`, `stream`, `kind`, `branch`, `pull_request`, `suite`, `arch`, `source`; `commit`, the
    beginning of one or a range; `host`, a part of its name; the words `q`, and the days `since` and `until`.
    '' and None are any.
    """
    runs = Run.objects.alias(first_series=_series("series_id"), last_series=_series("-series_id"))
    unknown = list[str]()
    for name, value in criteria.items():
        if value and name == "commit":
            within, unknown = _of_commits(value)
            runs = runs.filter(within)
        elif value:
            runs = runs.filter(_CRITERIA[name](value))
    return runs, unknown


def _of_kind(kind: str) -> Q:
    default = Q(branch__in=stored_names())
    return {
        "night": default & (Q(request__trigger__isnull=False) | Q(upload__isnull=False) & ~Q(commit="")),
        "person": Q(request__run_class="person"),
        "pull_request": ~default,
        "rerun": Q(upload__isnull=True),
        "upload": Q(upload__isnull=False),
    }[kind]


def _with_series(**experiment: str) -> Q:
    """Return the condition that the first or last series of a run is of such an experiment. A run of three
    suites is found by two of them: looking through all of its rows would read the whole store for a suite
    that is rare."""
    fields = {f"experiment__{name}": value for name, value in experiment.items()}
    series = Series.objects.filter(**fields).values("pk")
    return Q(first_series__in=series) | Q(last_series__in=series)


def _series(order: str) -> Coalesce:
    first = (
        Subquery(model._default_manager.filter(run=OuterRef("pk")).order_by(order).values("series_id")[:1])
        for model in (Point, SidePoint)
    )
    return Coalesce(*first)


def _of_words(text: str) -> Q:
    condition = Q()
    for word in text.split()[:8]:
        in_names = Q(title__icontains=word) | Q(upload__filename__icontains=word)
        condition &= in_names | Q(commit__startswith=word) | Q(source=word)
    return condition


def _of_commits(text: str) -> tuple[Q, list[str]]:
    """Return the condition of a commit or of a range, and which commits no run has."""
    old, dots, new = text.partition(_RANGE)
    if not dots:
        return Q(commit__startswith=text), []
    ends = {
        commit: Run.objects.filter(commit__startswith=commit).aggregate(
            first=Min("order_time"), last=Max("order_time")
        )
        for commit in (old, new.lstrip("."))
        if commit
    }
    unknown = [commit for commit, end in ends.items() if end["first"] is None]
    if unknown or len(ends) < 2:
        return Q(pk__in=[]), unknown
    times = [time for end in ends.values() for time in end.values()]
    ended = Q(commit__startswith=old) | Q(commit__startswith=new.lstrip("."))
    streams = Run.objects.filter(ended).values("stream")  # another one may have commits of its own
    within = Q(order_time__range=(min(times), max(times)), stream__in=streams)
    return within & ~Q(commit=""), []


_CRITERIA: dict[str, Callable[[Any], Q]] = {
    "q": _of_words,
    "state": lambda state: Q(state=state),
    "stream": lambda name: Q(stream__in=named(name)),
    "kind": _of_kind,
    "branch": lambda branch: Q(branch__in=stored_names(branch)),
    "pull_request": lambda number: Q(request__pull_request=number) | Q(branch=f"pull/{number}"),
    "suite": lambda suite: Q(request__selection__suite=suite) | _with_series(suite=suite),
    "arch": lambda arch: Q(request__arch=arch) | _with_series(arch=arch),
    "source": lambda source: Q(source=source),
    "host": lambda name: Q(request__host__name__icontains=name) | Q(host_name__icontains=name),
    "since": lambda day: Q(created__date__gte=day),
    "until": lambda day: Q(created__date__lte=day),
}


def latest(stream: Stream, limit: int) -> list[RunLine]:
    """Return the newest runs of a stream: 1 statement, 2 with a run on a host."""
    condition = "WHERE own.stream_id = %(stream)s ORDER BY own.id DESC LIMIT %(limit)s"
    return _lines(condition, {"stream": stream.pk, "limit": limit})


# of a run. Of uploads only the names of files, as a receipt may be large
_ABOUT = {
    "filename": "(SELECT filename FROM hud_upload WHERE id = own.upload_id)",
    "total": "(SELECT count(*) FROM hud_task WHERE run_id = own.id)",
    "done": "(SELECT count(finished) FROM hud_task WHERE run_id = own.id)",
}


def _lines(condition: str, params: Mapping[str, Any]) -> list[RunLine]:
    """Return the runs `own` of a condition."""
    related = """JOIN hud_stream stream ON stream.id = own.stream_id
        LEFT JOIN hud_runrequest request ON request.run_id = own.id"""
    chosen = f"{related} {condition}"
    runs: list[Any] = fetch_models(Run, chosen, params, computed=_ABOUT, stream=Stream, request=RunRequest)
    for run in runs:
        if run.upload_id:
            run.upload = Upload(pk=run.upload_id, filename=run.filename, stream=run.stream)
    lines = [RunLine(run, run.done, run.total) for run in runs]
    asked = [line.asked for line in lines]
    attach(asked, "host", by_id(Host, [request.host_id for request in asked]))
    return lines


@dataclass(slots=True)
class TaskLine:
    task: Task
    now: datetime = field(default_factory=timezone.now)

    @property
    def name(self) -> str:
        """Return ``gemv int8`` or ``layer_norm bfloat16, D=1024+4096, compilation 1``."""
        spec = self.task.spec
        settings = sorted((spec.get("knobs") or {}).items())
        knobs = ", ".join(f"{name}={setting_text(value)}" for name, value in settings)
        name = f"{spec.get('case', '')} {spec.get('dtype', '')}".strip()
        number = spec.get("compilation")
        return ", ".join(filter(None, [name, knobs, f"compilation {number}" if number else ""]))

    @property
    def running(self) -> bool:
        return self.task.state == Task.State.RUNNING

    @property
    def ended(self) -> bool:
        return self.task.state not in (Task.State.QUEUED, Task.State.RUNNING)

    @property
    def seconds(self) -> float | None:
        """Return the duration, so far while it runs; None before it starts."""
        if self.task.started is None or self.task.state == Task.State.QUEUED:
            return None
        return ((self.task.finished or self.now) - self.task.started).total_seconds()

    @property
    def word(self) -> str:
        """Return the state to show; once done, the status of its process."""
        return self.task.status if self.task.state == Task.State.DONE else self.task.state

    @property
    def share(self) -> float:
        """Return the share of its work that is done, 0 to 1."""
        if self.ended:
            return 1.0
        done, total = self.task.progress.get("done", 0), self.task.progress.get("total", 0)
        return min(done / total, 1.0) if self.running and total else 0.0


def tasks_of(run: Run) -> list[TaskLine]:
    """Return the tasks in their order: 1 statement, 3 with tasks that were claimed."""
    tasks = fetch_models(Task, "WHERE run_id = %(run)s ORDER BY position", {"run": run.pk})
    accelerators = by_id(Accelerator, [task.accelerator_id for task in tasks])
    attach(accelerators.values(), "host", by_id(Host, [row.host_id for row in accelerators.values()]))
    attach(tasks, "accelerator", accelerators)
    return [TaskLine(task) for task in tasks]


@dataclass(slots=True)
class ArtifactLine:
    artifact: Artifact
    task: TaskLine


def artifacts_of(tasks: Sequence[TaskLine]) -> list[ArtifactLine]:
    """Return the artifacts by task and kind: 1 statement."""
    lines = {line.task.pk: line for line in tasks}
    models = fetch_models(Artifact, "WHERE task_id = ANY(%(tasks)s::int[])", {"tasks": int_array(lines)})
    models.sort(key=lambda artifact: (lines[artifact.task_id].task.position, artifact.kind, artifact.pk))
    return [ArtifactLine(artifact, lines[artifact.task_id]) for artifact in models]
