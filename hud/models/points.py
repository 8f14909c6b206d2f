"""Measurements, which came in, and the points that are made of them: what one run says of one series in one
environment. Everything that shows, judges, compares or exports numbers reads points.

`runner.schema.points` makes their values from measurements, `hud.points.write` stores them together, and the
judge adds its part. Most runs measure a metric once, with one sample. That is a row of `Point` alone; what
says more has a `DetailedMeasurement` for each process. `Measurement` reads both, from a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from hud.models.base import NamedRow, Real
from hud.models.keys import Upload
from hud.models.runs import Run
from hud.models.series import Environment, Experiment, Metric, Series
from hud.models.streams import Stream
from runner.schema.records import NEVER_RAN, STATUSES

if TYPE_CHECKING:
    from hud.points.targets import AppliedTarget, Targets

# Status of a measurement or a task, as the small integer that the store keeps.
STATUS_CODES = {name: code for code, name in enumerate(STATUSES)}
STATUS_NAMES = dict(enumerate(STATUSES))
FIRST_RUN_ONLY = "of one run only, which holds compilation and warm-up"  # a warning


def words_are_reason(status: int, value: float | None) -> bool:
    """Return whether `Measurement.note` is the reason of a missing value or of a status other than ok."""
    return status != 0 or value is None


def is_finite(name: str) -> Q:
    """Return the condition that a number is neither NaN nor infinite. It may be missing."""
    return Q(**{f"{name}__isnull": True}) | Q(**{f"{name}__gte": -1e300, f"{name}__lte": 1e300})


class MeasurementFields(NamedRow):
    """One metric of one experiment in one run: its value, samples, spread and target, or a status.

    Its references are not checked by the database: that takes more than storing the row, and ingest has
    looked every id up in the same transaction.
    """

    pk = models.CompositePrimaryKey("run", "series", "environment", "repeat", "side")
    order_time = models.DateTimeField()  # its run's; of a history file without commits its record's own
    value = models.FloatField(null=True)  # made of the samples by runner.schema.suite.value_rule
    samples = ArrayField(models.FloatField(), null=True)  # NULL where the value is the only one
    target = models.FloatField(null=True)
    spread = models.FloatField(null=True)  # runner.schema.statistics.spread of the samples
    n = models.IntegerField(default=1)
    status = models.SmallIntegerField(default=0)  # index into runner.schema.records.STATUSES
    # number of the fresh process; in an A/B run of the pair; of pinned ones see `runner.schema.draws`
    repeat = models.SmallIntegerField(default=0)
    side = models.SmallIntegerField(default=0)  # in an A/B run: 0 base, 1 head
    # of a process in an A/B run that was pinned to the choices of a draw: 2 · pair, + 1 where head drew them
    draw = models.SmallIntegerField(null=True)
    # number of the compilation in its run, where it is known to have started from a fresh cache
    compilation = models.SmallIntegerField(null=True)
    target_arch = models.CharField(max_length=60, null=True)  # whose target it is; NULL: this arch's
    code = models.CharField(max_length=200, null=True)  # the outside system's own word
    # in words: what to know of a value, or where there is none, or its status is not ok, the reason
    note = models.CharField(max_length=300, null=True)
    quality = models.CharField(max_length=20, null=True)  # of runner.schema.records: why it may not decide

    class Meta:
        abstract = True


class Measurement(MeasurementFields):
    """A measurement, whichever table has it. For reading only: its table is a view."""

    run = models.ForeignKey(Run, models.DO_NOTHING, db_constraint=False)
    series = models.ForeignKey(Series, models.DO_NOTHING, db_constraint=False)
    environment = models.ForeignKey(Environment, models.DO_NOTHING, db_constraint=False)
    upload = models.ForeignKey(Upload, models.DO_NOTHING, null=True, db_constraint=False)
    in_point = models.BooleanField()  # its point is its only row

    class Meta:
        managed = False
        db_table = "hud_measurement"


class DetailedMeasurement(MeasurementFields):
    """A measurement that says more than its point: of several samples, one of several processes, or of a side
    of an A/B comparison.

    Rows are many: they have no surrogate id, and are written by COPY (`hud/ingest/store.py`). Whoever writes
    here calls `hud.points.write.unfold` before and `make` after it. Rows that are referred to go through the
    ORM alone, which takes their measurements along.
    """

    run = models.ForeignKey(Run, models.CASCADE, db_index=False, db_constraint=False)
    series = models.ForeignKey(Series, models.CASCADE, db_index=False, db_constraint=False)
    environment = models.ForeignKey(Environment, models.PROTECT, db_index=False, db_constraint=False)
    # the file it came in
    upload = models.ForeignKey(Upload, models.SET_NULL, null=True, db_index=False, db_constraint=False)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=is_finite("value"), name="value_is_finite"),
            models.CheckConstraint(condition=is_finite("target"), name="target_is_finite"),
            models.CheckConstraint(
                condition=Q(samples__isnull=True) | ~Q(samples__overlap=["NaN", "Infinity", "-Infinity"]),
                name="samples_are_finite",
            ),
            models.CheckConstraint(
                condition=Q(value__isnull=False) | Q(code__isnull=False) | ~Q(status=0),
                name="missing_value_has_status",
            ),
        ]


class UnjudgedRun(NamedRow):
    """A run with measurements that the judge has not taken up. Rows are only added and taken away: marking
    each series in the upload itself would cost more than storing its measurement."""

    run = models.ForeignKey(Run, models.CASCADE)


class RunSubject(NamedRow):
    """A suite on an arch, in a mode and dtype, of which a run has results: pages and ticks learn from it what
    there is without reading points."""

    run = models.ForeignKey(Run, models.CASCADE, db_index=False, related_name="subjects")
    stream = models.ForeignKey(Stream, models.CASCADE, db_index=False, related_name="+")  # its run's
    suite = models.CharField(max_length=60)
    arch = models.CharField(max_length=100, blank=True)
    mode = models.CharField(max_length=40, blank=True)
    dtype = models.CharField(max_length=40, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "suite", "arch", "mode", "dtype"], name="run_subject")
        ]
        indexes = [models.Index(fields=["stream", "suite", "arch", "mode", "dtype"], name="stream_subject")]


class RunSummary(NamedRow):
    """Counts and order of the points of a large run, for its page: `hud.points.summaries` makes them."""

    run = models.OneToOneField(Run, models.CASCADE, primary_key=True, related_name="+")
    version = models.CharField(max_length=200)  # of what it was made of
    counts = models.JSONField()
    places = models.BinaryField()  # its points by importance


class KeptValue(NamedRow):
    """A value of `hud.points.kept` that outlives a process."""

    digest = models.CharField(max_length=64, primary_key=True)  # of its key
    value = models.BinaryField()
    at = models.DateTimeField(db_default=Now())


# What the judge says of a point, as the small integer that the store keeps.
VERDICTS = ("new", "unchanged", "improved", "regressed", "inconclusive", "failed", "not_run")
VERDICT_CODES = {name: code for code, name in enumerate(VERDICTS)}


class PointFields(NamedRow):
    """The columns that `runner.schema.points.Point` fills.

    As with measurements, the database does not check the references: ingest has looked every id up.
    """

    order_time = models.DateTimeField()  # its run's; of a history file without commits the record's own
    value = models.FloatField(null=True)  # median over compilations of each one's value
    series = models.ForeignKey(Series, models.CASCADE, db_index=False, db_constraint=False)
    run = models.ForeignKey(Run, models.CASCADE, db_index=False, db_constraint=False)
    environment = models.ForeignKey(Environment, models.PROTECT, db_index=False, db_constraint=False)
    samples = models.IntegerField(default=1)
    spread = Real(null=True)  # relative; over compilations where there are several, else inside a process
    target = models.FloatField(null=True)  # as its record says it
    processes = models.SmallIntegerField(default=1)
    compilations = models.SmallIntegerField(default=1)
    # the worst of its compilations: STATUS_CODES
    status_code = models.SmallIntegerField(default=0, db_column="status")
    # one for each compilation, in order: NULL where it gave none; the whole is NULL where there is one
    values = ArrayField(models.FloatField(null=True), null=True)
    variants = ArrayField(models.CharField(max_length=16), null=True)  # NULL where none is known
    counts = ArrayField(models.IntegerField(), null=True)  # samples of each; NULL where there is one
    target_arch = models.CharField(max_length=60, null=True)  # whose target it is; NULL: this arch's
    code = models.CharField(max_length=200, null=True)  # the outside system's own word
    note = models.TextField(null=True)  # what to know of the value, or the reason of a missing one
    # of runner.schema.records: why it may decide nothing; NULL: it may
    quality = models.CharField(max_length=60, null=True)

    class Meta:
        abstract = True

    # what a page adds by `show`
    experiment: Experiment
    metric: Metric
    targets: list[AppliedTarget]
    own_target: AppliedTarget | None
    expectation: str = ""  # like the next one as `hud.points.expectations.add` says it
    known_failure: str = ""  # why a failure is no news

    @property
    def status(self) -> str:
        return STATUS_NAMES.get(self.status_code, "failed")

    @property
    def reason(self) -> str | None:
        """Return why there is no number, or why its status is not ok."""
        return self.note if words_are_reason(self.status_code, self.value) else None

    @property
    def warning(self) -> str | None:
        """Return the warning that a reader needs beside the number."""
        return None if words_are_reason(self.status_code, self.value) else self.note

    @property
    def compilation_values(self) -> list[float | None]:
        return self.values if self.values is not None else [self.value]

    @property
    def never_ran(self) -> bool:
        return self.value is None and self.status in NEVER_RAN

    def show(self, experiment: Experiment, metric: Metric, targets: Targets) -> Self:
        """Add whose value it is, and the targets that apply to it."""
        self.experiment, self.metric = experiment, metric
        self.targets = targets.of(experiment, metric, self.target, self.target_arch)
        self.own_target = next((target for target in self.targets if target.own), None)
        return self

    @property
    def verdict(self) -> str:
        raise NotImplementedError

    @property
    def met(self) -> str:
        """Return met, missed or none."""
        own = self.own_target
        return own.met_by(self.value, self.metric.direction) if own else "none"

    @property
    def shortfall(self) -> float:
        """Return how far the value is from its target, as a share of the target."""
        own = self.own_target
        if own is None or self.value is None or own.value == 0:
            return 0.0
        return abs(own.value - self.value) / abs(own.value)


class Point(PointFields):
    """A point of a series, with the judge's part. The sides of an A/B comparison have `SidePoint`s.

    The value, status, code, note and target of a single measurement are those of its point. With `repeat`,
    the point is therefore all that is stored of it.
    """

    pk = models.CompositePrimaryKey("series", "order_time", "run", "environment")
    branch = models.CharField(max_length=200, blank=True)  # like `rerun` as its run has it
    rerun = models.BooleanField(default=False)  # shapes no level, best, newest or trend
    # the judge's part; NULL until it is judged
    verdict_code = models.SmallIntegerField(null=True, db_column="verdict")  # index into VERDICTS
    change = Real(null=True)  # relative to the level, signed as the value moved
    noise = Real(null=True)  # relative, of the series
    factor = Real(null=True)  # change / noise
    level = models.FloatField(null=True)
    level_points = models.SmallIntegerField(null=True)  # that make the level
    level_stream = models.ForeignKey(  # whose level it is; NULL: of its own stream
        Stream, models.DO_NOTHING, null=True, db_index=False, db_constraint=False, related_name="+"
    )
    verdict_reason = models.CharField(max_length=40, null=True)  # why it is inconclusive or new
    superseded = models.SmallIntegerField(null=True)  # its earlier verdict, if that was another one
    # of the measurement, where that is no row of its own: its only one, with at most one sample
    upload = models.ForeignKey(Upload, models.SET_NULL, null=True, db_index=False, db_constraint=False)
    repeat = models.SmallIntegerField(null=True)  # NULL: `DetailedMeasurement` has its measurements
    compilation = models.SmallIntegerField(null=True)

    class Meta:
        indexes = [models.Index(fields=["run", "series"], name="point_run")]
        constraints = [
            models.CheckConstraint(
                condition=is_finite("value") & is_finite("target"), name="point_is_finite"
            ),
            models.CheckConstraint(
                condition=Q(repeat__isnull=True)
                | Q(processes=1) & (Q(value__isnull=False) | Q(code__isnull=False) | ~Q(status_code=0)),
                name="held_measurement",
            ),
        ]

    @property
    def verdict(self) -> str:
        """Return the judge's verdict; '' while it has not judged."""
        if self.never_ran:
            return "not_run"
        return "" if self.verdict_code is None else VERDICTS[self.verdict_code]


class SidePoint(PointFields):
    """One side of an A/B comparison in one experiment and metric. It belongs to no level,
    trend, best or count: the sides are compared with each other."""

    pk = models.CompositePrimaryKey("run", "series", "environment", "side")
    side = models.SmallIntegerField()  # 0 base, 1 head
    # which the judge says of points of a series alone
    change = noise = level = level_stream = level_stream_id = verdict_reason = None
    rerun = False

    class Meta:
        indexes = [models.Index(F("series"), name="side_point_series")]

    @property
    def verdict(self) -> str:
        """Return in_pairs: its run compares its own two sides, and is not judged."""
        return "not_run" if self.never_ran else "in_pairs"


class Expectation(NamedRow):
    """An expected result of a case, from a list. It is no measurement: it belongs to no run and to no
    count. A field that is '' was not said; the row is shown nowhere until it is."""

    stream = models.ForeignKey(Stream, models.CASCADE, related_name="expectations")
    upload = models.ForeignKey("hud.Upload", models.CASCADE, related_name="expectations")
    suite = models.CharField(max_length=60)
    case = models.CharField(max_length=200)
    mode = models.CharField(max_length=40, blank=True)
    dtype = models.CharField(max_length=40, blank=True)
    backend = models.CharField(max_length=100, blank=True)  # `inductor`: with or without CUDA graphs
    device = models.CharField(max_length=40, blank=True)  # family: cuda, cpu, xpu, rocm
    dynamic = models.BooleanField(default=False)
    metric = models.CharField(max_length=200)
    value = models.FloatField(null=True)
    margin = models.FloatField(default=0, db_default=0.0)  # relative, by which the value may be missed
    status = models.SmallIntegerField(default=0)  # STATUS_CODES
    code = models.CharField(max_length=200, blank=True)  # the outside system's own word
    commit = models.CharField(max_length=64, blank=True)  # of the list
    listed = models.DateTimeField()  # commit date of the list, else the time of its upload

    class Meta:
        indexes = [models.Index(fields=["suite", "case", "metric"], name="expectation_case")]


class KnownFailure(NamedRow):
    """A failure that a person has marked: it is shown, and no news."""

    stream = models.ForeignKey(Stream, models.CASCADE, related_name="known_failures")
    experiment = models.ForeignKey("hud.Experiment", models.CASCADE, related_name="known_failures")
    reason = models.CharField(max_length=1000)
    author = models.CharField(max_length=150)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["stream", "experiment"], name="known_failure_identity")
        ]
