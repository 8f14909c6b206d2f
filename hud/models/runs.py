"""Runs, their tasks, and the files that those left."""

from __future__ import annotations

import uuid
from enum import StrEnum
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hud.models.hosts import Accelerator, Host
from hud.models.schedules import Firing
from hud.models.series import Experiment
from hud.models.uploads import Upload
from hud.runs.states import RunState, TaskState
from runner.schema import inductor_options

State = RunState  # the same word as Task.State, for runs
TERMINAL = (State.SUCCEEDED, State.FAILED, State.TIMED_OUT, State.LOST, State.CANCELLED)
ACTIVE = (State.QUEUED, State.RUNNING)


def _choices(states: type[StrEnum]) -> list[tuple[str, str]]:
    return [(state.value, state.value.replace("_", " ").title()) for state in states]


class Run(models.Model):
    """One execution of (part of) a suite on one host, or one upload."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    state = models.CharField(max_length=10, choices=_choices(State), default=State.QUEUED)
    reason = models.CharField(max_length=500, blank=True)
    title = models.CharField(max_length=300, blank=True)
    request = models.JSONField(default=dict)  # what was asked, as the catalogue names it
    host = models.ForeignKey(Host, models.PROTECT, null=True, related_name="runs")
    host_name = models.CharField(max_length=200, blank=True)  # as given, where no attached host did it
    arch = models.CharField(max_length=100, blank=True)  # which accelerators may take its tasks; '' any
    device = models.CharField(max_length=40, blank=True)
    labels = models.JSONField(default=dict)  # which an accelerator must have
    environment = models.CharField(max_length=60, blank=True)  # interpreter by name; '' its host's default
    # another one, measured in turn with it: repeats are pairs then
    base_environment = models.CharField(max_length=60, blank=True, db_default="")
    new_options = models.JSONField(default=dict)  # inductor's, of `environment` in pairs: the base has none
    firing = models.ForeignKey(Firing, models.SET_NULL, null=True, related_name="runs")  # a schedule's run
    upload = models.ForeignKey(Upload, models.CASCADE, null=True, related_name="runs")
    source = models.CharField(max_length=100, blank=True)
    external_id = models.CharField(max_length=200, null=True)
    repo = models.CharField(max_length=200, blank=True)
    branch = models.CharField(max_length=200, blank=True)
    commit = models.CharField(max_length=64, blank=True)
    provenance = models.TextField(blank=True)
    at = models.DateTimeField(db_default=Now())  # place in every series: commit date, else the run's time
    at_source = models.CharField(max_length=20, default="upload")  # commit, run or upload
    retry_of = models.ForeignKey("self", models.SET_NULL, null=True, related_name="retries")
    experiment = models.ForeignKey(Experiment, models.SET_NULL, null=True)  # whose rerun this is
    cancel_asked = models.DateTimeField(null=True)
    requested_by = models.CharField(max_length=150, blank=True)
    watched = models.BooleanField(default=False)  # a person waits: goes ahead of a nightly
    created = models.DateTimeField(db_default=Now())
    started = models.DateTimeField(null=True)
    finished = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["source", "external_id", "host_name", "commit"],
                condition=Q(external_id__isnull=False),
                name="run_natural_key",
            ),
            models.CheckConstraint(
                condition=Q(finished__isnull=False) | Q(state__in=["queued", "running"]),
                name="run_end_has_time",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["-created"], name="run_created"),
            models.Index(fields=["created"], condition=Q(state__in=["queued", "running"]), name="run_active"),
            models.Index(fields=["id"], condition=~Q(base_environment=""), name="run_in_pairs"),
        ]

    def __str__(self) -> str:
        return f"run {self.pk}"

    @property
    def in_pairs(self) -> bool:
        """Return whether this is an A/B comparison."""
        return bool(self.base_environment)

    @property
    def new_side(self) -> str:
        """Return the name of an A/B comparison's candidate."""
        options = inductor_options.words(self.new_options)
        return f"{self.environment} with {options}" if options else self.environment


class Task(models.Model):
    """One launch of a fresh process for one case of a run: claimed, leased, tried again, fenced."""

    State = TaskState

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="tasks")
    position = models.IntegerField()
    process = models.SmallIntegerField(default=0)  # repeats of one case are processes 0, 1, 2 …
    spec = models.JSONField()  # runner.schema.plan.TaskSpec
    state = models.CharField(max_length=10, choices=_choices(TaskState), default=TaskState.QUEUED)
    status = models.CharField(max_length=12, blank=True)  # one of runner.schema.records.STATUSES, once done
    code = models.CharField(max_length=100, blank=True)
    reason = models.CharField(max_length=1000, blank=True)
    attempt = models.SmallIntegerField(default=0)  # how often it was claimed
    accelerator = models.ForeignKey(Accelerator, models.SET_NULL, null=True, related_name="tasks")
    token = models.UUIDField(null=True)  # of the latest claim: fences writes; NULL once its lease was broken
    nonce = models.CharField(max_length=64, blank=True)  # makes a repeated claim answer the same task
    lease_until = models.DateTimeField(null=True)
    progress = models.JSONField(default=dict)
    log_bytes = models.BigIntegerField(default=0)
    started = models.DateTimeField(null=True)
    finished = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["run", "position"], name="task_position"),
            models.UniqueConstraint(
                fields=["accelerator"], condition=Q(state="running"), name="one_running_task_per_accelerator"
            ),
            models.CheckConstraint(
                condition=~Q(state="running")
                | Q(accelerator__isnull=False, token__isnull=False, lease_until__isnull=False),
                name="running_task_has_lease",
            ),
            models.CheckConstraint(
                condition=Q(finished__isnull=False) | Q(state__in=["queued", "running"]),
                name="task_end_has_time",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["run", "position"], condition=Q(state="queued"), name="task_queued"),
        ]

    def __str__(self) -> str:
        return f"task {self.pk}"


class Artifact(models.Model):
    """A file that a task left: below `HUD_DATA/artifacts/<run>/`, under a name the server made."""

    task = models.ForeignKey(Task, models.CASCADE, related_name="artifacts")
    kind = models.CharField(max_length=40)
    path = models.CharField(max_length=200)
    size_bytes = models.BigIntegerField()
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["task", "kind", "sha256"], name="artifact_identity"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of task {self.task_id}"
