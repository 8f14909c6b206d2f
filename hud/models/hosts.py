"""Attached machines, and the processes in the background."""

from django.db import models
from django.db.models.functions import Now

from hud.models.base import NamedRow


class Host(NamedRow):
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
    # results that it delivered for a task and that were none of the task's, and the reason of the last
    refused_results = models.BigIntegerField(db_default=0)
    refused_reason = models.CharField(max_length=300, blank=True, db_default="")
    redis_user = models.BooleanField(null=True)  # whether it has one of its own; NULL: not tried yet
    created = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name


class Accelerator(NamedRow):
    """One GPU, or the CPU, of a host: runs one task at a time."""

    host = models.ForeignKey(Host, models.CASCADE, related_name="accelerators")
    name = models.CharField(max_length=40)  # cuda:0, cpu
    device = models.CharField(max_length=20)  # cuda, cpu
    device_name = models.CharField(max_length=200)
    arch = models.CharField(max_length=60)
    uuid = models.CharField(max_length=80, blank=True)
    unavailable_reason = models.CharField(max_length=300, blank=True)  # as its host says; '' none
    quarantine_reason = models.CharField(max_length=300, blank=True, db_default="", default="")  # '' none
    quarantined_at = models.DateTimeField(null=True)  # the time of the reading that says so
    canaries_from = models.DateTimeField(null=True)  # a person has let it back: its baseline begins then
    present = models.BooleanField(default=True)
    rung_at = models.DateTimeField(null=True)  # last wake-up
    since_night = models.IntegerField(default=0, db_default=0)  # tasks that it took since its last of a night
    catalog = models.JSONField(default=dict)  # what it can run: suites, pythons (interpreters by name)
    labels = models.JSONField(default=dict)  # its host's, and the built-in ones of `hud.hosts.registration`

    class Meta:
        constraints = [models.UniqueConstraint(fields=["host", "name"], name="accelerator_identity")]

    @property
    def hindrance(self) -> str:
        """Return why it takes no work though its host does, or ''."""
        return f"quarantined: {self.quarantine_reason}" if self.quarantine_reason else self.unavailable_reason

    @property
    def queue(self) -> str:
        """Name of its RQ queue; begins as everything does that its host's own Redis user may touch."""
        return f"host-{self.host_id}-accelerator-{self.pk}"


class Heartbeat(NamedRow):
    """The latest heartbeat of a background process, on the database's clock."""

    name = models.CharField(max_length=20, primary_key=True)
    started = models.DateTimeField()
    last = models.DateTimeField()
    trusted_from = models.DateTimeField()  # leases may be broken only after this
