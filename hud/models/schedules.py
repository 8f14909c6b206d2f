"""Runs that come by the clock."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from hud.models.base import NamedRow
from hud.models.streams import Stream


class Schedule(NamedRow):
    """Runs that nobody has to ask for: `manage.py tick` fires it when its time has come."""

    name = models.CharField(max_length=100, unique=True)
    cron = models.CharField(max_length=100)  # minute hour day-of-month month day-of-week
    time_zone = models.CharField(max_length=60, default="UTC")
    suite = models.CharField(max_length=60)
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
