"""The store. Words are those of CONTRIBUTING; real columns and constraints carry identity.

A value that is missing is NULL with a status, never 0; the database itself refuses NaN and infinities.
Rows of `Measurement` are many and small: no surrogate id, samples only where there are two or more,
written by COPY (`hud/ingest/store.py`), never one by one.
"""

from __future__ import annotations

import uuid
from enum import StrEnum
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from hud.life import RunState, TaskState
from runner.catalog import inductor_options
from runner.records import STATUSES


def _choices(states: type[StrEnum]) -> list[tuple[str, str]]:
    return [(state.value, state.value.replace("_", " ").title()) for state in states]


State = RunState  # the same word as Task.State, for runs
TERMINAL = (State.SUCCEEDED, State.FAILED, State.TIMED_OUT, State.LOST, State.CANCELLED)
ACTIVE = (State.QUEUED, State.RUNNING)
# Status of a measurement or a task, as the small integer that the store keeps.
STATUS_CODES = {name: code for code, name in enumerate(STATUSES)}
STATUS_NAMES = dict(enumerate(STATUSES))


class Host(models.Model):
    """An attached machine. One RQ queue for each of its accelerators."""

    name = models.CharField(max_length=100, unique=True)
    labels = models.JSONField(default=dict)
    facts = models.JSONField(default=dict)
    drained = models.BooleanField(default=False)
    paused_until = models.DateTimeField(null=True)
    note = models.CharField(max_length=500, blank=True)
    detached_at = models.DateTimeField(null=True)
    last_beat = models.DateTimeField(null=True)
    clock_skew_s = models.FloatField(null=True)
    redis_user = models.BooleanField(null=True)  # whether it has one of its own; NULL: not tried yet
    created = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name


class Accelerator(models.Model):
    """One GPU, or the CPU, of a host: runs one task at a time."""

    host = models.ForeignKey(Host, models.CASCADE, related_name="accelerators")
    name = models.CharField(max_length=40)  # cuda:0, cpu
    device = models.CharField(max_length=20)  # cuda, cpu
    device_name = models.CharField(max_length=200)
    arch = models.CharField(max_length=60)
    uuid = models.CharField(max_length=80, blank=True)
    dirty = models.CharField(max_length=300, blank=True)  # why it must not be used, as its host says
    present = models.BooleanField(default=True)
    rung_at = models.DateTimeField(null=True)  # last doorbell
    catalog = models.JSONField(default=dict)  # what it can run: suites, pythons (interpreters by name)
    labels = models.JSONField(default=dict)  # its host's, and those of `hud.matching.labels_of`

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["host", "name"], name="accelerator_identity"),
        ]

    def __str__(self) -> str:
        return f"{self.host_id}/{self.name}"

    @property
    def queue(self) -> str:
        """Name of its RQ queue; begins as everything does that its host's own Redis user may touch."""
        return f"host-{self.host_id}-accelerator-{self.pk}"


class ApiKey(models.Model):
    """A key for programs. Only its SHA-256 is kept; `prefix` is what a page may show."""

    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16)
    digest = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=20))
    host = models.ForeignKey(Host, models.CASCADE, null=True, related_name="keys")
    created = models.DateTimeField(db_default=Now())
    expires = models.DateTimeField(null=True)
    last_used = models.DateTimeField(null=True)
    revoked = models.DateTimeField(null=True)
    calls_left = models.FloatField(default=0)  # token bucket of `hud.keys.take_call`
    calls_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Environment(models.Model):
    """Where a number was measured. `class_key` says what a baseline may be compared with: everything
    but torch and triton, which are the subject."""

    fingerprint = models.CharField(max_length=64, unique=True)
    class_key = models.CharField(max_length=64, db_index=True)
    torch = models.CharField(max_length=100, blank=True)
    torch_git = models.CharField(max_length=64, blank=True)
    gpu = models.CharField(max_length=200, blank=True)
    facts = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.fingerprint


class Experiment(models.Model):
    """What is compared over time. Its identity never contains a host, a date or a commit."""

    suite = models.CharField(max_length=60)
    case = models.CharField(max_length=200)
    knobs = models.JSONField(default=dict)
    mode = models.CharField(max_length=40, blank=True)
    dtype = models.CharField(max_length=40, blank=True)
    backend = models.CharField(max_length=100, blank=True)
    device = models.CharField(max_length=40, blank=True)
    arch = models.CharField(max_length=100, blank=True)
    dynamic = models.BooleanField(default=False)

    IDENTITY: ClassVar = (
        "suite",
        "case",
        "knobs",
        "mode",
        "dtype",
        "backend",
        "device",
        "arch",
        "dynamic",
    )

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=[
                    "suite",
                    "case",
                    "knobs",
                    "mode",
                    "dtype",
                    "backend",
                    "device",
                    "arch",
                    "dynamic",
                ],
                name="experiment_identity",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.suite}/{self.title}"

    @property
    def title(self) -> str:
        """The case with its knobs: ``layer_norm[D=mean]``."""
        knobs = ",".join(f"{name}={value}" for name, value in sorted(self.knobs.items()))
        return f"{self.case}[{knobs}]" if knobs else self.case


class Metric(models.Model):
    """A named quantity. Filled from `runner.catalog.metrics`; unknown names come without direction."""

    name = models.CharField(max_length=200, unique=True)
    title = models.CharField(max_length=200)
    unit = models.CharField(max_length=40, blank=True)
    direction = models.CharField(max_length=4, default="none")
    kind = models.CharField(max_length=20, default="timing")
    precision = models.SmallIntegerField(default=4)
    floor = models.FloatField(default=0.05)

    def __str__(self) -> str:
        return self.name


class Series(models.Model):
    """The measurements of one experiment and metric, ordered by commit date, then run time."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="series")
    metric = models.ForeignKey(Metric, models.PROTECT)
    # over all parts of its identity, so that an upload finds it by one index; NULL: nothing has come in
    digest = models.CharField(max_length=32, null=True)
    touched_at = models.DateTimeField(null=True, db_index=True)  # waits for `manage.py judge` from there on

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["experiment", "metric"], name="series_identity"),
            models.UniqueConstraint(fields=["digest"], name="series_digest"),
        ]

    def __str__(self) -> str:
        return f"{self.experiment_id} {self.metric_id}"


class Upload(models.Model):
    """One body that came through the door, with the receipt it got."""

    content_key = models.CharField(max_length=64, unique=True)  # over the content and its parameters
    filename = models.CharField(max_length=500, blank=True)
    format = models.CharField(max_length=40)
    parameters = models.JSONField(default=dict)
    receipt = models.JSONField(default=dict)
    key = models.ForeignKey(ApiKey, models.SET_NULL, null=True)
    created = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"upload {self.pk}"


class Import(models.Model):
    """An upload too large for one request: its body waits below `HUD_DATA/imports/` and is taken in by
    `manage.py judge`. Ends as done, with its receipt, or failed, with the problem."""

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    content_key = models.CharField(max_length=64)  # the same content waits or has failed only once
    parameters = models.JSONField(default=dict)
    key = models.ForeignKey(ApiKey, models.SET_NULL, null=True)
    done_records = models.IntegerField(default=0)
    receipt = models.JSONField(null=True)
    problem = models.JSONField(null=True)  # detail and errors, where it was refused
    created = models.DateTimeField(db_default=Now())
    finished = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["content_key"], condition=~Q(state="failed"), name="import_content_key"
            ),
        ]

    def __str__(self) -> str:
        return f"import {self.pk}"


class IdempotencyKey(models.Model):
    """A client's own name for one request, and the answer it got: the same request gets it again."""

    key = models.ForeignKey(ApiKey, models.CASCADE)
    text = models.CharField(max_length=200)
    content_key = models.CharField(max_length=64)  # of the request that used it first
    receipt = models.JSONField()
    created = models.DateTimeField(db_default=Now())

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["key", "text"], name="idempotency_key_identity"),
        ]

    def __str__(self) -> str:
        return self.text


class Schedule(models.Model):
    """Runs that nobody has to ask for: `manage.py tick` fires it when its time has come."""

    name = models.CharField(max_length=100, unique=True)
    cron = models.CharField(max_length=100)  # minute hour day-of-month month day-of-week
    time_zone = models.CharField(max_length=60, default="UTC")
    suite = models.CharField(max_length=60)
    cases = ArrayField(models.CharField(max_length=200), default=list, blank=True)  # none: all of the suite
    modes = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    dtypes = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    backends = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    repeats = models.PositiveSmallIntegerField(default=1)
    device = models.CharField(max_length=40, blank=True)  # '': cuda; of each accelerator where `everywhere`
    environment = models.CharField(max_length=60, blank=True)
    labels = models.JSONField(default=dict, blank=True)  # which an accelerator must have
    everywhere = models.BooleanField(default=False)  # a run on each such accelerator, not on any one
    enabled = models.BooleanField(default=True)
    active_from = models.DateTimeField(db_default=Now())  # due times before are nobody's loss
    created = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name


class Firing(models.Model):
    """One due time of a schedule, done: its runs, or the reason why there are none."""

    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="firings")
    due = models.DateTimeField()
    at = models.DateTimeField(db_default=Now())
    reason = models.CharField(max_length=1000, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["schedule", "due"], name="firing_identity"),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} due {self.due}"


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
    # another one, measured in turn with it: repeats are pairs then, and `Measurement.process` is twice the
    # number of the pair, and one more for `environment`
    base_environment = models.CharField(max_length=60, blank=True, db_default="")
    new_options = models.JSONField(default=dict)  # inductor's, of `environment` in pairs: the base has none
    firing = models.ForeignKey("Firing", models.SET_NULL, null=True, related_name="runs")  # a schedule's run
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
        """Whether two environments were measured in turn."""
        return bool(self.base_environment)

    @property
    def new_side(self) -> str:
        """Of a run in pairs: what is tried against the base."""
        options = inductor_options.words(self.new_options)
        return f"{self.environment} with {options}" if options else self.environment


class Task(models.Model):
    """One launch of a fresh process for one case of a run: claimed, leased, tried again, fenced."""

    State = TaskState

    uid = models.UUIDField(default=uuid.uuid4, unique=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="tasks")
    position = models.IntegerField()
    process = models.SmallIntegerField(default=0)  # repeats of one case are processes 0, 1, 2 …
    spec = models.JSONField()  # runner.catalog.TaskSpec
    state = models.CharField(max_length=10, choices=_choices(TaskState), default=TaskState.QUEUED)
    status = models.CharField(max_length=12, blank=True)  # one of runner.records.STATUSES, once done
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


class Measurement(models.Model):
    """One metric of one experiment in one run: all samples, their median, spread, target, or a status.

    Its references are not checked by the database: that takes more than storing the row, and ingest has
    looked every id up in the same transaction. Rows that are referred to go through the ORM alone, which
    takes their measurements along.
    """

    pk = models.CompositePrimaryKey("run", "series", "environment", "process")
    run = models.ForeignKey(Run, models.CASCADE, db_index=False, db_constraint=False)
    series = models.ForeignKey(Series, models.CASCADE, db_index=False, db_constraint=False)
    environment = models.ForeignKey(Environment, models.PROTECT, db_index=False, db_constraint=False)
    at = models.DateTimeField()  # of its run, kept here for the order of the series
    median = models.FloatField(null=True)
    samples = ArrayField(models.FloatField(), null=True)  # NULL where the median is the only one
    target = models.FloatField(null=True)
    spread = models.FloatField(null=True)  # runner.summary.spread of the samples
    n = models.IntegerField(default=1)
    status = models.SmallIntegerField(default=0)  # index into runner.records.STATUSES
    process = models.SmallIntegerField(default=0)  # which of the run's repeated fresh processes
    target_arch = models.CharField(max_length=60, null=True)  # whose target it is; NULL: this arch's
    code = models.CharField(max_length=200, null=True)  # the outside system's own word
    warning = models.CharField(max_length=300, null=True)
    # the file it came in
    upload = models.ForeignKey(Upload, models.SET_NULL, null=True, db_index=False, db_constraint=False)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(median__isnull=True) | Q(median__gte=-1e300, median__lte=1e300),
                name="median_is_finite",
            ),
            models.CheckConstraint(
                condition=Q(target__isnull=True) | Q(target__gte=-1e300, target__lte=1e300),
                name="target_is_finite",
            ),
            models.CheckConstraint(
                condition=Q(samples__isnull=True) | ~Q(samples__overlap=["NaN", "Infinity", "-Infinity"]),
                name="samples_are_finite",
            ),
            models.CheckConstraint(
                condition=Q(median__isnull=False) | Q(code__isnull=False) | ~Q(status=0),
                name="missing_value_has_status",
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["series", "at", "run"],
                include=["environment", "median", "status"],
                name="measurement_series",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.series_id} in run {self.run_id}"


class Target(models.Model):
    """What an operator set: the value a metric should reach. Empty identity fields mean any."""

    metric = models.ForeignKey(Metric, models.CASCADE)
    case = models.CharField(max_length=200, blank=True)
    dtype = models.CharField(max_length=40, blank=True)
    arch = models.CharField(max_length=100, blank=True)
    size = models.CharField(max_length=40, blank=True)  # the knob D
    value = models.FloatField(null=True)
    fraction = models.FloatField(null=True)  # of the arch's measured copy bandwidth
    note = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["metric", "case", "dtype", "arch", "size"], name="target_identity"
            ),
            models.CheckConstraint(
                condition=Q(value__isnull=False, fraction__isnull=True)
                | Q(value__isnull=True, fraction__isnull=False),
                name="target_is_value_or_fraction",
            ),
        ]

    def __str__(self) -> str:
        return f"target of {self.metric_id}"


class TouchedRun(models.Model):
    """A run whose measurements the judge has not taken up yet. Rows are only added and taken away: marking
    each series in the upload itself would cost more than storing its measurement."""

    run = models.ForeignKey(Run, models.CASCADE)

    def __str__(self) -> str:
        return f"run {self.run_id}"


class Verdict(models.Model):
    """What the judge said of a measurement; rows only where there is something to say."""

    pk = models.CompositePrimaryKey("run", "series", "environment")
    run = models.ForeignKey(Run, models.CASCADE)
    series = models.ForeignKey(Series, models.CASCADE)
    environment = models.ForeignKey(Environment, models.PROTECT, db_index=False)
    verdict = models.CharField(max_length=12, db_index=True)
    change = models.FloatField(null=True)  # relative to the baseline, signed as the value moved
    noise = models.FloatField(null=True)  # relative, of the series
    factor = models.FloatField(null=True)  # change / noise
    baseline = models.FloatField(null=True)
    baseline_n = models.IntegerField(default=0)
    at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return self.verdict


class Audit(models.Model):
    """Who did what, when: reruns, cancels, keys, hosts. Rows are only ever added."""

    at = models.DateTimeField(db_default=Now())
    who = models.CharField(max_length=150)
    action = models.CharField(max_length=60)
    subject = models.CharField(max_length=200)
    detail = models.JSONField(default=dict)

    class Meta:
        indexes: ClassVar = [models.Index(F("at").desc(), name="audit_at")]

    def __str__(self) -> str:
        return f"{self.who} {self.action} {self.subject}"


class Beacon(models.Model):
    """One row for each background process: when it last went round, on the database's clock."""

    name = models.CharField(max_length=20, primary_key=True)
    started = models.DateTimeField()
    last = models.DateTimeField()
    trusted_from = models.DateTimeField()  # leases may be broken only after this

    def __str__(self) -> str:
        return self.name
