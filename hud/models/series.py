"""Experiments, metrics, series, targets and environments."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from hud.models.base import NamedRow
from hud.models.streams import Stream, adhoc_id
from hud.sql import fetch_tuples
from runner.schema.metrics import is_known

_THRESHOLD = ("metric", "suite", "case", "backend", "arch")
_TARGET = (*_THRESHOLD, "dtype", "size")
_IDENTITY = ("suite", "case", "knobs", "mode", "dtype", "backend", "device", "arch", "dynamic")


class Environment(NamedRow):
    """The place of a measurement. `class_key` says what a baseline may be compared with: everything
    but torch and triton, which are the subject."""

    fingerprint = models.CharField(max_length=64, unique=True)
    class_key = models.CharField(max_length=64, db_index=True)
    torch = models.CharField(max_length=100, blank=True)
    torch_git = models.CharField(max_length=64, blank=True)
    gpu = models.CharField(max_length=200, blank=True)
    facts = models.JSONField(default=dict)


class Experiment(NamedRow):
    """A benchmark that is compared over time. Its identity never contains a host, a date or a commit."""

    suite = models.CharField(max_length=60)
    case = models.CharField(max_length=200)
    knobs = models.JSONField(default=dict)
    mode = models.CharField(max_length=40, blank=True)
    dtype = models.CharField(max_length=40, blank=True)
    backend = models.CharField(max_length=100, blank=True)
    device = models.CharField(max_length=40, blank=True)
    arch = models.CharField(max_length=100, blank=True)
    dynamic = models.BooleanField(default=False)

    IDENTITY: ClassVar = _IDENTITY

    class Meta:
        constraints = [models.UniqueConstraint(fields=_IDENTITY, name="experiment_identity")]

    def __str__(self) -> str:
        return f"{self.suite}/{self.title}"

    @property
    def title(self) -> str:
        """The case with its knobs: ``layer_norm[D=mean]``."""
        knobs = ",".join(f"{name}={value}" for name, value in sorted(self.knobs.items()))
        return f"{self.case}[{knobs}]" if knobs else self.case


class Metric(NamedRow):
    """A named quantity. Filled from `runner.schema.metrics`; unknown names come without direction."""

    name = models.CharField(max_length=200, unique=True)
    title = models.CharField(max_length=200)
    unit = models.CharField(max_length=40, blank=True)
    direction = models.CharField(max_length=4, default="none")
    kind = models.CharField(max_length=20, default="timing")
    precision = models.SmallIntegerField(default=4)
    floor = models.FloatField(default=0.05)
    # an operator said the unit and direction of a name that the registry does not know
    told = models.BooleanField(default=False, db_default=False)

    IDENTITY: ClassVar = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def has_own_direction(self) -> bool:
        """Return whether an upload or an operator said which way is worse, of a name that the registry does
        not know."""
        return self.direction != "none" and not is_known(self.name)


class Series(NamedRow):
    """The points of one experiment, metric and stream, ordered by commit date, then run time."""

    experiment = models.ForeignKey(Experiment, models.CASCADE, related_name="series")
    metric = models.ForeignKey(Metric, models.PROTECT)
    stream = models.ForeignKey(Stream, models.PROTECT, default=adhoc_id, related_name="series")
    # over all parts of its identity, so that an upload finds it by one index; NULL: nothing has come in
    digest = models.CharField(max_length=32, null=True)
    touched_at = models.DateTimeField(null=True, db_index=True)  # waits for `manage.py judge` from there on
    touched_until = models.DateTimeField(null=True, db_index=True)  # its newest point that waits

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["experiment", "metric", "stream"], name="series_identity"),
            models.UniqueConstraint(fields=["digest"], name="series_digest"),
        ]


class Alias(NamedRow):
    """A suite, case, arch or host that was renamed: what comes in under the old name lands under the new one.
    `suite` limits a case or an arch to one suite; '' means all."""

    kind = models.CharField(max_length=10)
    suite = models.CharField(max_length=60, blank=True)
    old = models.CharField(max_length=200)
    new = models.CharField(max_length=200)
    who = models.CharField(max_length=150)
    at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["kind", "suite", "old"], name="alias_identity")]

    def __str__(self) -> str:
        return f"{self.kind} {self.old} to {self.new}" + (f" in {self.suite}" if self.suite else "")


class Aliases(dict[tuple[str, str, str], str]):
    """New names by kind, suite and old name, read once for many."""

    @classmethod
    def read(cls) -> Aliases:
        rows = fetch_tuples("SELECT kind, suite, old, new FROM hud_alias")
        return cls({(kind, suite, old): new for kind, suite, old, new in rows})

    def current(self, kind: str, name: str, suite: str = "") -> str:
        """Return what this name is called now, after all its renamings; one of its suite goes first."""
        for _ in self:
            new = self.get((kind, suite, name), self.get((kind, "", name), name))
            if new == name:
                break
            name = new
        return name


class Target(NamedRow):
    """A value that an operator wants a metric to reach. Empty identity fields mean any."""

    metric = models.ForeignKey(Metric, models.CASCADE)
    suite = models.CharField(max_length=60, blank=True, default="", db_default="")
    backend = models.CharField(max_length=100, blank=True, default="", db_default="")
    case = models.CharField(max_length=200, blank=True)
    dtype = models.CharField(max_length=40, blank=True)
    arch = models.CharField(max_length=100, blank=True)
    size = models.CharField(max_length=40, blank=True)  # the knob D
    value = models.FloatField(null=True)
    fraction = models.FloatField(null=True)  # of the arch's measured copy bandwidth
    note = models.CharField(max_length=300, blank=True)

    IDENTITY: ClassVar = _TARGET

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=_TARGET, name="target_identity"),
            models.CheckConstraint(
                condition=Q(value__isnull=False, fraction__isnull=True)
                | Q(value__isnull=True, fraction__isnull=False),
                name="target_is_value_or_fraction",
            ),
        ]


class Threshold(NamedRow):
    """How an operator wants series to be judged. Empty identity fields mean any, NULL leaves it as it is."""

    metric = models.CharField(max_length=200, blank=True)
    suite = models.CharField(max_length=60, blank=True)
    case = models.CharField(max_length=200, blank=True)
    backend = models.CharField(max_length=100, blank=True)
    arch = models.CharField(max_length=100, blank=True)
    relative = models.FloatField(null=True)  # smallest change that counts, 0.02 for 2 %
    minimum = models.FloatField(null=True)  # smallest change that counts, in the metric's unit
    judged = models.BooleanField(null=True)  # False: no verdicts; True: opens regressions
    note = models.CharField(max_length=300, blank=True)

    IDENTITY: ClassVar = _THRESHOLD

    class Meta:
        constraints = [models.UniqueConstraint(fields=_THRESHOLD, name="threshold_identity")]


class Annotation(NamedRow):
    """A person's note beside the charts: of an experiment, of a suite, or without either of everything. It
    stands at a commit or at a time."""

    suite = models.CharField(max_length=60, blank=True)
    experiment = models.ForeignKey(Experiment, models.CASCADE, null=True, related_name="annotations")
    commit = models.CharField(max_length=64, blank=True)
    at = models.DateTimeField(null=True)
    text = models.CharField(max_length=300)
    link = models.CharField(max_length=300, blank=True)  # http or https
    author = models.CharField(max_length=150)
    created = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=~Q(commit="") | Q(at__isnull=False), name="annotation_has_place")
        ]
        indexes = [models.Index(fields=["suite", "-created"], name="annotation_suite")]

    @property
    def scope(self) -> str:
        """Return experiment, suite or all."""
        return "experiment" if self.experiment_id else "suite" if self.suite else "all"
