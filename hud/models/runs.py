"""Schedules, runs, their requests and tasks, and the files that those left."""

from __future__ import annotations

import uuid
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hud.models.base import NamedRow, choices_of
from hud.models.hosts import Accelerator, Host
from hud.models.keys import Upload
from hud.models.series import Experiment
from hud.models.streams import Stream, adhoc_id
from hud.states.runs import RunState, TaskState
from runner.schema.compilations import inductor_words


class Schedule(NamedRow):
    """Runs that nobody has to ask for: `manage.py tick` fires it when its time has come."""

    name = models.CharField(max_length=100, unique=True)
    cron = models.CharField(max_length=100)  # minute hour day-of-month month day-of-week
    time_zone = models.CharField(max_length=60, default="UTC")
    preset = models.CharField(max_length=60, blank=True)  # what it measures but for `suite` and the lists
    suite = models.CharField(max_length=60, blank=True)  # '': all of the preset
    cases = ArrayField(models.CharField(max_length=200), default=list, blank=True)  # none: all of the suite
    modes = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    dtypes = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    backends = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    compilations = models.PositiveSmallIntegerField(null=True, blank=True)  # NULL: the device's default
    repeats = models.PositiveSmallIntegerField(default=1)
    device = models.CharField(max_length=40, blank=True)  # '': cuda; of each accelerator where `everywhere`
    environment = models.CharField(max_length=60, blank=True)
    labels = models.JSONField(default=dict, blank=True)  # which an accelerator must have
    everywhere = models.BooleanField(default=False)  # a run on each such accelerator, not on any one
    # of its runs; NULL: nightly
    stream = models.ForeignKey(Stream, models.PROTECT, null=True, blank=True, related_name="schedules")
    enabled = models.BooleanField(default=True)
    active_from = models.DateTimeField(db_default=Now())  # due times before are nobody's loss
    created = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name


class ScheduleTrigger(NamedRow):
    """One due time of a schedule: its runs were requested, or there is a reason why not."""

    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="triggers")
    due = models.DateTimeField()
    at = models.DateTimeField(db_default=Now())
    reason = models.CharField(max_length=1000, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["schedule", "due"], name="schedule_trigger_identity")]


State = RunState  # the same word as Task.State, for runs
TERMINAL = (State.SUCCEEDED, State.FAILED, State.TIMED_OUT, State.LOST, State.CANCELLED)
ACTIVE = (State.QUEUED, State.RUNNING)
_END_HAS_TIME = Q(finished__isnull=False) | Q(state__in=["queued", "running"])  # of a run or task


class Turn(NamedRow):
    """When a task of an owner's runs of a class was last claimed; owners take turns."""

    run_class = models.CharField(max_length=6)
    owner = models.CharField(max_length=150)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run_class", "owner"], name="turn_identity")]


_IDENTITY = ("stream", "source", "external_id", "host_name", "commit")  # of an uploaded run


class Run(NamedRow):
    """One execution of (part of) a suite on one host, or one upload. What was asked for is its `request`."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    state = models.CharField(max_length=10, choices=choices_of(State), default=State.QUEUED)
    reason = models.CharField(max_length=500, blank=True)
    title = models.CharField(max_length=300, blank=True)
    host_name = models.CharField(max_length=200, blank=True)  # that executes it, or as its upload says
    # Interpreters by name. They are here because an uploaded A/B comparison has no request, and because the
    # judge and every page that shows a value leave A/B runs out.
    interpreter = models.CharField(max_length=60, blank=True)  # in an A/B run the candidate's; '' its host's
    base_interpreter = models.CharField(max_length=60, blank=True, db_default="")  # of an A/B run
    upload = models.ForeignKey(Upload, models.CASCADE, null=True, related_name="runs")
    stream = models.ForeignKey(Stream, models.PROTECT, default=adhoc_id, related_name="runs")
    # It measures again what a stream has (a rerun, a retry, a run with pinned choices), or its file is not
    # whole. Its points shape no level, night, best, newest or trend.
    rerun = models.BooleanField(default=False, db_default=False)
    source = models.CharField(max_length=100, blank=True)
    external_id = models.CharField(max_length=200, null=True)
    repo = models.CharField(max_length=200, blank=True)
    branch = models.CharField(max_length=200, blank=True)
    commit = models.CharField(max_length=64, blank=True)
    provenance = models.TextField(blank=True)
    points = models.IntegerField(default=0, db_default=0)  # counted by hud.points.write
    regressed = models.IntegerField(default=0, db_default=0)  # of its points
    order_time = models.DateTimeField(db_default=Now())  # place in every series
    order_time_source = models.CharField(max_length=20, default="upload")  # time of commit, run or upload
    cancel_asked = models.DateTimeField(null=True)
    created = models.DateTimeField(db_default=Now())
    started = models.DateTimeField(null=True)
    finished = models.DateTimeField(null=True)

    IDENTITY: ClassVar = _IDENTITY

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=_IDENTITY, condition=Q(external_id__isnull=False), name="run_natural_key"
            ),
            models.CheckConstraint(condition=_END_HAS_TIME, name="run_end_has_time"),
        ]
        indexes = [
            models.Index(fields=["-created"], name="run_created"),
            models.Index(fields=["stream", "-order_time"], name="run_stream"),
            models.Index(fields=["created"], condition=Q(state__in=["queued", "running"]), name="run_active"),
            models.Index(fields=["id"], condition=~Q(base_interpreter=""), name="run_is_ab"),
        ]

    @property
    def is_ab(self) -> bool:
        return bool(self.base_interpreter)

    @property
    def candidate(self) -> str:
        """Return the name of an A/B comparison's candidate."""
        options = inductor_words(self.request_or_empty.candidate_options)
        return f"{self.interpreter} with {options}" if options else self.interpreter

    @property
    def request_or_empty(self) -> RunRequest:
        """Return the run's request; for an uploaded run, which has none, an empty one."""
        return getattr(self, "request", None) or RunRequest()


class RunRequest(NamedRow):
    """The request of a person, program or schedule that started a run. An uploaded run has none."""

    run = models.OneToOneField(Run, models.CASCADE, primary_key=True, related_name="request")
    selection = models.JSONField(default=dict)  # suite, cases, compilations, repeats, and draws of an A/B run
    host = models.ForeignKey(Host, models.PROTECT, null=True, related_name="requests")  # the only one allowed
    arch = models.CharField(max_length=100, blank=True)  # that an accelerator must have; '' any
    device = models.CharField(max_length=40, blank=True)
    caches = models.CharField(max_length=6, db_default="fresh", default="fresh")  # runner.schema.tasks.Caches
    pinned = models.JSONField(default=dict)  # of pinned caches: source, and choices by slot
    labels = models.JSONField(default=dict)  # that an accelerator must have
    candidate_options = models.JSONField(default=dict)  # inductor options of an A/B comparison's candidate
    # of its interpreters by name, as its first claim had them: runner.schema.protocol, and the host
    fingerprints = models.JSONField(default=dict)
    experiment = models.ForeignKey(Experiment, models.SET_NULL, null=True)  # whose rerun this is
    retry_of = models.ForeignKey(Run, models.SET_NULL, null=True, related_name="retries")
    trigger = models.ForeignKey(ScheduleTrigger, models.SET_NULL, null=True, related_name="requests")
    requested_by = models.CharField(max_length=150, blank=True)
    run_class = models.CharField(max_length=6, db_default="night", default="night")  # a RunClass
    pull_request = models.PositiveIntegerField(null=True)  # whose commit it measures


class Task(NamedRow):
    """One launch of a fresh process for one case of a run: claimed, leased, tried again, fenced."""

    State = TaskState

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="tasks")
    position = models.IntegerField()
    repeat = models.SmallIntegerField(default=0)  # number of the fresh process; in an A/B run, of the pair
    caches = models.CharField(max_length=6, db_default="fresh", default="fresh")  # of this process
    spec = models.JSONField()  # runner.schema.suite.TaskSpec
    state = models.CharField(max_length=10, choices=choices_of(TaskState), default=TaskState.QUEUED)
    status = models.CharField(max_length=12, blank=True)  # one of runner.schema.records.STATUSES, once done
    code = models.CharField(max_length=100, blank=True)
    reason = models.CharField(max_length=1000, blank=True)
    attempt = models.SmallIntegerField(default=0)  # how often it was claimed
    accelerator = models.ForeignKey(Accelerator, models.SET_NULL, null=True, related_name="tasks")
    # the card on which its series was last measured, and since when another one was free for it
    home = models.ForeignKey(Accelerator, models.SET_NULL, null=True, related_name="+")
    passed_at = models.DateTimeField(null=True)
    token = models.UUIDField(null=True)  # of the latest claim: fences writes; NULL once its lease was broken
    nonce = models.CharField(max_length=64, blank=True)  # makes a repeated claim answer the same task
    lease_until = models.DateTimeField(null=True)
    progress = models.JSONField(default=dict)
    log_bytes = models.BigIntegerField(default=0)
    started = models.DateTimeField(null=True)
    finished = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "position"], name="task_position"),
            models.UniqueConstraint(
                fields=["accelerator"], condition=Q(state="running"), name="one_running_task_per_accelerator"
            ),
            models.CheckConstraint(
                condition=~Q(state="running")
                | Q(accelerator__isnull=False, token__isnull=False, lease_until__isnull=False),
                name="running_task_has_lease",
            ),
            models.CheckConstraint(condition=_END_HAS_TIME, name="task_end_has_time"),
        ]
        indexes = [models.Index(fields=["run", "position"], condition=Q(state="queued"), name="task_queued")]


class Artifact(NamedRow):
    """A file that a task left: below `HUD_DATA/artifacts/<run>/`, under a name the server made."""

    task = models.ForeignKey(Task, models.CASCADE, related_name="artifacts")
    kind = models.CharField(max_length=40)
    path = models.CharField(max_length=200)
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["task", "kind", "sha256"], name="artifact_identity")]
