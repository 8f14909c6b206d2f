"""One run: its tasks, how far they are, and what they measured so far."""

import shlex
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.http import Http404
from django.utils import timezone
from django.utils.safestring import SafeString

from hud.corrections.deletion import uploads_of
from hud.judging.compare import ab_runs
from hud.judging.comparison import KernelsOfSides, MetricComparison
from hud.models import ACTIVE, Point, Run, RunRequest, SidePoint, State, Stream, Task, Upload
from hud.pages.run import results
from hud.pages.run.results import ResultFilters, RunResults
from hud.points.read import OF_EXPERIMENT
from hud.runs.lines import ArtifactLine, OfRun, TaskLine, artifacts_of, tasks_of
from hud.runs.queue import Progress, QueuedRun, progress_of, read_waiting
from hud.sql import fetch_models, fetch_tuples
from hud.tables.html import NOTHING
from runner.schema.compilations import BISECTED, EXPLAINABLE, blind_text, explained_in, inductor_texts
from runner.schema.suite import BadRequest, TaskSpec
from runner.suites import SUITES

SHOWN_COMMANDS = 5
SHOWN_PICTURES = 3
_JUDGED_SOON = timedelta(minutes=1)  # after its end; later the page does not wait for verdicts any more
HEADER = (*OF_EXPERIMENT.names, "stream")


@dataclass
class RunPage(OfRun):
    run: Run
    tasks: list[TaskLine]
    progress: Progress
    results: RunResults
    retries: list[Run] = field(default_factory=list)
    waiting: QueuedRun | None = None  # while it is queued
    previous: int | None = None  # the same before it: id of the run to compare with
    pairs: list[MetricComparison] = field(default_factory=list)  # of an A/B run
    kernels: list[KernelsOfSides] = field(default_factory=list)  # likewise, where they are known
    uploads: list[Upload] = field(default_factory=list)  # it came in these
    artifacts: list[ArtifactLine] = field(default_factory=list)
    explanations: dict[int, tuple[str, int]] = field(default_factory=dict)  # series → what, in which run
    explainable: set[int] = field(default_factory=set)  # a failed series of each experiment
    correction: int | None = None  # that deletes it in the background
    blind: str = ""  # which notes its compilations could not take, and why
    csrf: SafeString = NOTHING  # the field of its table's forms; '' for who may not request a run

    @property
    def changes(self) -> bool:
        """Return whether to poll: until the run has ended and its results are judged."""
        finished = self.run.finished
        if self.active or finished is None:
            return True
        return not self.results.judged and timezone.now() - finished < _JUDGED_SOON

    @property
    def share(self) -> float:
        """Return the share of all tasks' work that is done, 0 to 1."""
        return sum(line.share for line in self.tasks) / len(self.tasks) if self.tasks else 1.0

    @property
    def endings(self) -> list[tuple[str, int]]:
        """Return how many tasks have each state, the most frequent first."""
        return Counter(line.word.replace("_", " ") for line in self.tasks).most_common()

    @property
    def current(self) -> TaskLine | None:
        """Return the task whose log to show: the running one, else the last that started."""
        started = [line for line in self.tasks if line.task.started]
        return next((line for line in started if line.running), started[-1] if started else None)

    @property
    def failures(self) -> list[TaskLine]:
        return [line for line in self.tasks if line.ended and line.word not in ("ok", "cancelled")]

    @property
    def failed(self) -> TaskLine | None:
        """Return the first task that ended badly and left a log."""
        return next((line for line in self.failures if line.task.log_bytes), None)

    @property
    def cost_minutes(self) -> float:
        """Return for how long its tasks occupied accelerators, so far."""
        return sum(line.seconds or 0.0 for line in self.tasks) / 60

    @property
    def accelerators(self) -> list[str]:
        """Return the devices that its tasks ran on, each once."""
        used = (line.task.accelerator for line in self.tasks)
        return list(dict.fromkeys(f"{row.device_name} ({row.name})" for row in used if row))

    @property
    def commands(self) -> list[str]:
        """Return the commands that run its first tasks on another machine, each once; those of an A/B run
        compare the same sides."""
        commands = dict.fromkeys(_command(line.task) for line in self.tasks[:SHOWN_COMMANDS])
        options = _ab_options(self.run) if self.run.is_ab else []
        return [" ".join([command, *options]) for command in commands if command]

    @property
    def headline_pairs(self) -> list[MetricComparison]:
        """Return the times that stand for an A/B run's first experiments."""
        return ab_runs.headlines(self.pairs)[:SHOWN_PICTURES]

    @property
    def confirmed(self) -> tuple[int, int]:
        """Return how many metrics of an A/B run are confirmed worse, and how many better."""
        counts = Counter(line.better for line in self.pairs)
        return counts[False], counts[True]

    @property
    def overdue(self) -> bool:
        return self.active and self.progress.eta_s == 0.0

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the shown results as data; those of an A/B run have a side."""
        rows = [OF_EXPERIMENT.row(point) | {"stream": self.run.stream.name} for point in self.results.rows]
        for row, point in zip(rows, self.results.rows, strict=True):
            if isinstance(point, SidePoint):
                row["side"] = "new" if point.side else "base"
        return rows


def read(pk: int, filters: ResultFilters, size: int, *, grouped: bool = True) -> RunPage:
    """Return the page with `size` points of its results, in a fixed number of statements. Raise Http404."""
    related = """JOIN hud_stream stream ON stream.id = own.stream_id
        LEFT JOIN hud_runrequest request ON request.run_id = own.id WHERE own.id = %(run)s"""
    rows = fetch_models(Run, related, {"run": pk}, stream=Stream, request=RunRequest)
    if not rows:
        raise Http404(f"no run has the id {pk}")
    run = rows[0]
    again = "WHERE id IN (SELECT run_id FROM hud_runrequest WHERE retry_of_id = %(run)s) ORDER BY id"
    retries = fetch_models(Run, again, {"run": pk})
    tasks = tasks_of(run)
    progress = Progress(sum(line.ended for line in tasks), len(tasks), None)
    if run.state in ACTIVE:
        progress = progress_of(run)
    page = RunPage(run, tasks, progress, results.read(run, filters, size, grouped=grouped), retries)
    page.artifacts = artifacts_of(tasks)
    page.waiting = read_waiting(run)
    page.previous, failed_notes, page.correction = _beside(run)
    page.blind = blind_text(dict(failed_notes))
    if run.upload_id:
        page.uploads = uploads_of(run)
    _fill_explanations(page)
    if run.is_ab:
        page.pairs, page.kernels = ab_runs.read(run)
    return page


def _beside(run: Run) -> tuple[int | None, list[tuple[str, str]], int | None]:
    """Return the last run of the same title, source and branch that measured this one's first series too, and
    was no rerun (None for an A/B run, which has points in no series); which notes of torch's internals failed
    in its compilations, with the reasons; and the correction that deletes it: 1 statement."""
    tuples = fetch_tuples(
        """
        SELECT (
            SELECT r.id FROM (
                SELECT series_id FROM hud_point WHERE run_id = %(run)s AND value IS NOT NULL
                ORDER BY series_id LIMIT 1
            ) own
            JOIN hud_point p ON p.series_id = own.series_id AND p.order_time < %(time)s AND NOT p.rerun
                AND p.branch = %(branch)s
            JOIN hud_run r ON r.id = p.run_id
                AND (r.state, r.title, r.source) = (%(state)s, %(title)s, %(source)s)
            ORDER BY p.order_time DESC, p.run_id DESC LIMIT 1
        ), ARRAY(
            SELECT DISTINCT ARRAY[note, reason] FROM hud_compilation, jsonb_each_text(blind) one(note, reason)
            WHERE run_id = %(run)s
        ), (SELECT id FROM hud_correction WHERE action = 'run.delete' AND subject = %(subject)s
            AND finished IS NULL)
        """,
        {
            "run": run.pk,
            "subject": str(run),
            "time": run.order_time,
            "state": State.SUCCEEDED,
            **{name: getattr(run, name) for name in ("branch", "title", "source")},
        },
    )
    return tuples[0]


def _fill_explanations(page: RunPage) -> None:
    """Add which failures a new run can explain, and what such runs found: one statement if there are any."""
    failed = [
        row
        for row in page.results.rows
        if row.value is None and row.status in EXPLAINABLE and row.experiment.suite in SUITES
        if SUITES[row.experiment.suite].explaining_knobs(row.metric.name, row.experiment.backend)
    ]
    if failed and page.retries:
        later = Point.objects.filter(run__in=page.retries, series__in={row.series_id for row in failed})
        explained = later.filter(note__startswith=BISECTED).order_by("run_id")
        for series_id, run_id, note in explained.values_list("series_id", "run_id", "note"):
            page.explanations[series_id] = explained_in(note or ""), run_id
    open_ones = {
        point.experiment.pk: point.series_id
        for point in reversed(failed)
        if point.series_id not in page.explanations and not explained_in(point.note or "")
    }
    page.explainable = set() if page.run.is_ab else set(open_ones.values())


def _command(task: Task) -> str:
    """Return the command of a task, '' where this release's suite does not take it any more."""
    try:
        return TaskSpec.from_json(task.spec).command()
    except BadRequest:
        return ""


def _ab_options(run: Run) -> list[str]:
    """Return the options of `python -m runner run` that make a task the run's A/B comparison. `PATH` stands
    for an interpreter, of which a host says the name."""
    request, options = run.request_or_empty, []
    if run.interpreter != run.base_interpreter:
        options += [f"--base-python {run.base_interpreter}=PATH", f"--python {run.interpreter}=PATH"]
    elif not request.candidate_options:  # nothing else would make it a comparison
        options.append(f"--base-python {run.base_interpreter}=PATH")
    if request.candidate_options:
        options.append(shlex.join(["--new-opt", *inductor_texts(request.candidate_options)]))
    options += [
        f"--{name} {request.selection[name]}" for name in ("draws", "repeats") if request.selection.get(name)
    ]
    return options + [f"--caches {request.caches}"] * (request.caches != "pinned")
