"""Measurements: what came in, from which `hud.models.points` are made.

Most runs measure a metric once, with one sample. That is a row of `hud.models.points.Point` alone; what says
more has a `DetailedMeasurement` for each process. `Measurement` reads both, from a view.
"""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from hud.models.base import NamedRow
from hud.models.runs import Run
from hud.models.series import Environment, Series
from hud.models.uploads import Upload
from runner.schema.records import STATUSES

# Status of a measurement or a task, as the small integer that the store keeps.
STATUS_CODES = {name: code for code, name in enumerate(STATUSES)}
STATUS_NAMES = dict(enumerate(STATUSES))
FIRST_RUN_ONLY = "of one run only, which holds compilation and warm-up"  # a warning
NEVER_RAN = frozenset({"not_run", "unsupported"})  # neither a failure nor a value


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
