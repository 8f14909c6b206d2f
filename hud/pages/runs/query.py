"""The list of runs, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from hud.models import ACTIVE, Run, Task
from hud.runs.branches import branch_or_default, other_branch

PAGE_ROWS = 50
SHORT_COMMIT = 10  # characters
Kind = Literal["", "rerun", "upload"]
_COLUMNS = (  # without those that may be large: receipts of uploads, facts of hosts
    "state", "reason", "title", "host_name", "source", "external_id", "branch", "commit",
    "created", "started", "finished", "order_time", "order_time_source", "upload__filename",
    "request__arch", "request__requested_by", "request__retry_of", "request__host__name",
)  # fmt: skip


@dataclass(frozen=True)
class Filters:
    state: str = ""
    kind: Kind = ""
    host: str = ""
    q: str = ""
    before: int | None = None  # only runs with a smaller id: the next page


@dataclass(slots=True)
class RunLine:
    run: Run
    done: int  # tasks that have ended
    total: int

    @property
    def host(self) -> str:
        return host_of(self.run)

    @property
    def title(self) -> str:
        return title_of(self.run)

    @property
    def origin(self) -> list[str]:
        """Return what distinguishes runs of one title: file, commit and external id."""
        run = self.run
        file = (run.upload.filename or f"upload {run.upload_id}") if run.upload else ""
        commit = f"commit {run.commit[:SHORT_COMMIT]}" if run.commit else ""
        its_id = f"id {run.external_id}" if run.external_id else ""
        return [text for text in (file, commit, its_id) if text and text != self.title]

    @property
    def other_branch(self) -> str:
        return other_branch(self.run.branch)

    @property
    def active(self) -> bool:
        return self.run.state in ACTIVE

    @property
    def seconds(self) -> float | None:
        return seconds_of(self.run)

    def to_row(self) -> dict[str, Any]:
        run, asked = self.run, self.run.request_or_empty
        return {
            "run": run.pk,
            "state": run.state,
            "reason": run.reason,
            "title": self.title,
            "host": self.host,
            "arch": asked.arch,
            "source": run.source,
            "commit": run.commit,
            "branch": branch_or_default(run.branch),
            "filename": run.upload.filename if run.upload else "",
            "external_id": run.external_id,
            "done": self.done,
            "total": self.total,
            "created": run.created,
            "started": run.started,
            "finished": run.finished,
            "requested_by": asked.requested_by,
            "retry_of": asked.retry_of_id,
            "upload": run.upload_id,
        }


@dataclass
class RunsPage:
    lines: list[RunLine]
    next_before: int | None  # for the next page; None on the last one


def host_of(run: Run) -> str:
    asked = run.request.host if hasattr(run, "request") else None
    return asked.name if asked else run.host_name


def seconds_of(run: Run) -> float | None:
    """Return the duration, so far while it runs; None before it starts."""
    if run.started is None:
        return None
    return ((run.finished or timezone.now()) - run.started).total_seconds()


def title_of(run: Run) -> str:
    if run.title:
        return run.title
    return run.upload.filename or f"upload {run.upload_id}" if run.upload else f"run {run.pk}"


def read(filters: Filters) -> RunsPage:
    """Return the page, in 2 statements."""
    found = list(_matching(filters)[: PAGE_ROWS + 1])
    page = found[:PAGE_ROWS]
    return RunsPage(_with_tasks(page), page[-1].pk if len(found) > PAGE_ROWS else None)


def latest(limit: int) -> list[RunLine]:
    """Return the newest runs, in 2 statements."""
    return _with_tasks(list(_matching(Filters())[:limit]))


def _matching(filters: Filters) -> QuerySet[Run]:
    runs = Run.objects.select_related("request__host", "upload").only(*_COLUMNS).order_by("-pk")
    if filters.state:
        runs = runs.filter(state=filters.state)
    if filters.kind:
        runs = runs.filter(upload__isnull=filters.kind == "rerun")
    if filters.host:
        asked = Q(request__host__name__icontains=filters.host)
        runs = runs.filter(asked | Q(host_name__icontains=filters.host))
    for word in filters.q.split()[:8]:
        runs = runs.filter(Q(title__icontains=word) | Q(upload__filename__icontains=word) | Q(commit=word))
    if filters.before:
        runs = runs.filter(pk__lt=filters.before)
    return runs


def _with_tasks(runs: Iterable[Run]) -> list[RunLine]:
    ended = ~Q(state__in=(Task.State.QUEUED, Task.State.RUNNING))
    counted = Task.objects.filter(run__in=runs).values("run")
    totals = counted.annotate(done=Count("pk", filter=ended), total=Count("pk"))
    counts = {run: numbers for run, *numbers in totals.values_list("run", "done", "total")}
    return [RunLine(run, *counts.get(run.pk, (0, 0))) for run in runs]
