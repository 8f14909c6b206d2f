"""What the compiler produced: compilations, the kernels in them, and the kernels' code.

A kernel's description is stored once, and a compilation holds arrays of 12 bytes a kernel. The words are
those of `runner.schema.compilations`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from hud.models.runs import Run
from hud.models.series import Environment, Experiment
from hud.models.uploads import Upload


class Real(models.FloatField):  # type: ignore[type-arg]  # not subscriptable when it runs
    """A number of 4 bytes, with 7 digits."""

    def db_type(self, connection: Any) -> str:  # noqa: ARG002 — Django's signature
        return "real"


class Kernel(models.Model):
    """A kernel as compilations describe it: `runner.schema.compilations.Kernel` without times and calls.

    Rows stay when the last compilation with them is deleted; the next one is likely to bring them again.
    """

    digest = models.UUIDField(unique=True)  # over all that follows but `ranked`
    slot = models.CharField(max_length=16)
    choice = models.CharField(max_length=16)
    binary = models.CharField(max_length=16)
    name = models.CharField(max_length=300)
    kind = models.CharField(max_length=12)
    config = models.CharField(max_length=500)
    origins = models.JSONField(default=list)  # operators, as aten.mm
    bytes = models.BigIntegerField(null=True)  # like `flops` of all its calls in one step
    flops = models.BigIntegerField(null=True)
    candidates = models.IntegerField(default=0)  # configurations that the autotuner timed; 0 if unknown
    # of max-autotune: configurations with µs, as the compilation timed them that brought the kernel first
    ranked = models.JSONField(default=list)
    default_config = models.CharField(max_length=500)  # the one taken without max-autotune

    def __str__(self) -> str:
        return self.name


class Compilation(models.Model):
    """One compilation of an experiment: what a fresh process compiled.

    The arrays have one entry for each kernel of a step. The lists of reasons hold objects with `reason`,
    `place` and `count`, as `runner.schema.compilations.Note` has them.
    """

    pk = models.CompositePrimaryKey("run", "experiment", "environment", "repeat", "side")
    run = models.ForeignKey(Run, models.CASCADE, db_index=False, related_name="compilations")
    experiment = models.ForeignKey(Experiment, models.CASCADE, db_index=False, related_name="compilations")
    environment = models.ForeignKey(Environment, models.PROTECT, db_index=False)
    repeat = models.SmallIntegerField(
        default=0
    )  # like `side`, `number` and `upload` as its measurements have
    side = models.SmallIntegerField(default=0)
    number = models.SmallIntegerField(null=True)
    order_time = models.DateTimeField()  # of its run, kept here for the order of an experiment's compilations
    variant = models.CharField(max_length=16)  # fingerprint of the choices; '' without kernels
    busy_us = models.FloatField(null=True)
    gaps_us = models.FloatField(null=True)
    overlap_us = models.FloatField(null=True)
    kernels = ArrayField(models.IntegerField(), default=list)  # ids of `Kernel`
    times_us = ArrayField(Real(null=True), default=list)  # of all calls in one step; NULL on a CPU
    calls = ArrayField(Real(), default=list)  # in one step
    graph_breaks = models.JSONField(default=list)
    recompiles = models.JSONField(default=list)
    cudagraph_skips = models.JSONField(default=list)
    phases_s = models.JSONField(default=dict)  # dynamo's own phases
    caches = models.JSONField(default=dict)  # hits and misses by cache
    upload = models.ForeignKey(Upload, models.SET_NULL, null=True, db_index=False, db_constraint=False)
    uncounted = models.BooleanField(default=True)  # waits for `hud.judging.compilations`

    class Meta:
        indexes: ClassVar = [
            models.Index("experiment", F("order_time").desc(), name="compilation_experiment"),
            models.Index("variant", name="compilation_variant"),
            models.Index("run", condition=Q(uncounted=True), name="compilation_uncounted"),
        ]

    def __str__(self) -> str:
        return f"compilation {self.repeat} of {self.experiment_id} in run {self.run_id}"


class KernelCode(models.Model):
    """The source of kernels, once for each content. Goes when no host has delivered it for a while."""

    digest = models.UUIDField(unique=True)  # over the text
    text = models.TextField()
    delivered = models.DateTimeField(db_default=Now(), db_index=True)  # the last time

    def __str__(self) -> str:
        return str(self.digest)


class KernelBinary(models.Model):
    """The source of a binary. Binaries of different configurations share one."""

    binary = models.CharField(max_length=16, primary_key=True)  # `Kernel.binary`
    code = models.ForeignKey(KernelCode, models.CASCADE, related_name="binaries")

    def __str__(self) -> str:
        return self.binary
