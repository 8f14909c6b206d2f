"""Runs, their tasks and artifacts, as pages and API list them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from django.db.models import Count, Q
from django.utils import timezone

from hud.models import ACTIVE, Artifact, Run, RunRequest, Stream, Task
from hud.runs.branches import branch_or_default, other_branch
from hud.tables.table import DataTable

COLUMNS = DataTable["RunLine"]("""
    run=run.pk state=run.state reason=run.reason title host arch=asked.arch source=run.source
    commit=run.commit branch filename=run.upload?.filename external_id=run.external_id done total
    created=run.created started=run.started finished=run.finished requested_by=asked.requested_by
    retry_of=asked.retry_of_id upload=run.upload_id seconds regressed=run.regressed stream=run.stream.name
""")
ARTIFACT = DataTable["ArtifactLine"](
    """id:int=artifact.pk task:int=task.task.position name:str=task.name process:int=task.task.repeat
    kind:str=artifact.kind size_bytes:int=artifact.size_bytes sha256:str=artifact.sha256 url:str""",
    url=lambda line: f"/api/v1/runs/{line.task.task.run_id}/artifacts/{line.artifact.pk}",
)


class OfRun:
    """What lines and pages of a run show of it."""

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
    """Return these runs, the newest first: 1 statement. A receipt, which may be large, is left out."""
    runs = Run.objects.filter(pk__in=ids).order_by("-pk").select_related("stream", "upload", "request__host")
    counted = runs.defer("provenance", "upload__receipt", "upload__parameters").annotate(
        done=Count("tasks", filter=~Q(tasks__state__in=[Task.State.QUEUED, Task.State.RUNNING])),
        total=Count("tasks"),
    )
    return [RunLine(run, run.done, run.total) for run in counted]


def latest(stream: Stream, limit: int) -> list[RunLine]:
    """Return the newest runs of a stream: 2 statements."""
    newest = Run.objects.filter(stream=stream).order_by("-pk").values_list("pk", flat=True)
    return read(newest[:limit])


@dataclass(slots=True)
class TaskLine:
    task: Task
    now: datetime = field(default_factory=timezone.now)

    @property
    def name(self) -> str:
        """Return ``gemv int8`` or ``layer_norm bfloat16, D=1024+4096, compilation 1``."""
        spec = self.task.spec
        knobs = ", ".join(
            f"{name}={'+'.join(map(str, value)) if isinstance(value, list) else value}"
            for name, value in sorted((spec.get("knobs") or {}).items())
        )
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
        done, total = self.task.progress.get("done"), self.task.progress.get("total")
        if not self.running or not isinstance(done, int) or not isinstance(total, int) or total < 1:
            return 0.0
        return min(max(done / total, 0.0), 1.0)


def tasks_of(run: Run) -> list[TaskLine]:
    """Return the tasks in their order: 3 statements at most."""
    tasks = Task.objects.filter(run=run).order_by("position").prefetch_related("accelerator__host")
    return [TaskLine(task) for task in tasks]


@dataclass(slots=True)
class ArtifactLine:
    artifact: Artifact
    task: TaskLine


def artifacts_of(tasks: Sequence[TaskLine]) -> list[ArtifactLine]:
    """Return the artifacts by task and kind: 1 statement."""
    lines = {line.task.pk: line for line in tasks}
    found = Artifact.objects.filter(task__in=lines).order_by("task__position", "kind", "pk")
    return [ArtifactLine(one, lines[one.task_id]) for one in found]
