"""Compilations, the kernels in them, and the kernels' code.

A kernel's description is stored once, and a compilation holds arrays of 10 bytes a kernel: the description,
the time and the place of the binary in a list, which is another with every version of torch. The words are
those of `runner.schema.compilations`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q, prefetch_related_objects
from django.db.models.functions import Now

from hud.models.base import NamedRow, Real
from hud.models.keys import Upload
from hud.models.runs import Run
from hud.models.series import Environment, Experiment
from runner.schema import compilations as schema

_SAME = (
    *("slot", "choice", "name", "kind", "config", "calls", "bytes", "flops", "candidates"),
    *("registers", "spills", "shared_bytes"),
)


class Kernel(NamedRow):
    """A kernel as compilations describe it: `runner.schema.compilations.Kernel` without time and binary.

    Rows stay when the last compilation with them is deleted; the next one is likely to bring them again.
    """

    digest = models.UUIDField(unique=True)  # over all that follows but `ranked`
    slot = models.CharField(max_length=16)
    choice = models.CharField(max_length=16)
    name = models.CharField(max_length=300)
    kind = models.CharField(max_length=12)
    config = models.CharField(max_length=500)
    origins = models.JSONField(default=list)  # operators, as aten.mm
    calls = Real()  # in one step
    bytes = models.BigIntegerField(null=True)  # like `flops` of all its calls in one step
    flops = models.BigIntegerField(null=True)
    candidates = models.IntegerField(default=0)  # configurations that the autotuner timed; 0 if unknown
    # of max-autotune: configurations with µs, as the compilation timed them that brought the kernel first
    ranked = models.JSONField(default=list)
    default_config = models.CharField(max_length=500)  # the one taken without max-autotune
    # the configurations that the autotuner chose from; empty if unknown
    offered = ArrayField(models.CharField(max_length=500), default=list, db_default=[])
    registers = models.IntegerField(null=True)
    spills = models.IntegerField(null=True)
    shared_bytes = models.IntegerField(null=True)
    skipped = models.JSONField(default=list, db_default=[])  # configurations, with the registers they spill

    def compiled(self, binary: int, time_us: float | None, lines: str) -> schema.Kernel:
        """Return the kernel as a compilation has it."""
        text, own_lines = f"{binary % 2**64:016x}", tuple(lines.splitlines())
        return schema.Kernel(binary=text, time_us=time_us, lines=own_lines, **self._described)

    @cached_property
    def _described(self) -> dict[str, Any]:
        """Return what is the same in every compilation, of which each repeats most kernels."""
        same = {name: getattr(self, name) for name in _SAME}
        ranked = tuple((config, time_us) for config, time_us in self.ranked)
        lists = {"origins": tuple(self.origins), "offered": tuple(self.offered), "ranked": ranked}
        skipped = tuple(map(tuple, self.skipped))
        return {**same, **lists, "skipped": skipped, "default": self.default_config}


class BinaryList(NamedRow):
    """Binaries of compilations, which name them by their places here; hardly ever of several experiments.

    It only grows: `hud.ingest.compilations` has the next compilation of an experiment and environment share
    the list. Rows stay when the last compilation with them is deleted.
    """

    binaries = ArrayField(models.BigIntegerField())  # the 16 hex digits as a signed number


class LineList(NamedRow):
    """The model's lines of the kernels of compilations, which share it as long as they have the same kernels
    from the same lines. Rows stay when the last compilation with them is deleted."""

    digest = models.UUIDField(unique=True)  # over `lines`
    lines = ArrayField(models.TextField())  # of each kernel, one below the other; '' where unknown


class Compilation(NamedRow):
    """One compilation of an experiment: what a fresh process compiled.

    The arrays have one entry for each kernel of a step. The lists of reasons hold objects with `reason`,
    `place` and `count`, as `runner.schema.compilations.Note` has them.
    """

    pk = models.CompositePrimaryKey("run", "experiment", "environment", "repeat", "side")
    run = models.ForeignKey(Run, models.CASCADE, db_index=False, related_name="compilations")
    experiment = models.ForeignKey(Experiment, models.CASCADE, db_index=False, related_name="compilations")
    environment = models.ForeignKey(Environment, models.PROTECT, db_index=False)
    # like `side`, `draw`, `number` and `upload` as its measurements have
    repeat = models.SmallIntegerField(default=0)
    side = models.SmallIntegerField(default=0)
    draw = models.SmallIntegerField(null=True)
    number = models.SmallIntegerField(null=True)
    order_time = models.DateTimeField()  # of its run, kept here for the order of an experiment's compilations
    variant = models.CharField(max_length=16)  # fingerprint of the choices; '' without kernels
    busy_us = models.FloatField(null=True)
    gaps_us = models.FloatField(null=True)
    overlap_us = models.FloatField(null=True)
    kernels = ArrayField(models.IntegerField(), default=list)  # ids of `Kernel`
    times_us = ArrayField(Real(null=True), default=list)  # of all calls in one step; NULL on a CPU
    # NULL without kernels
    binary_list = models.ForeignKey(
        BinaryList, models.PROTECT, null=True, db_index=False, db_constraint=False
    )
    binary_places = ArrayField(models.SmallIntegerField(), default=list)  # in that list, from 0
    # NULL without lines
    line_list = models.ForeignKey(LineList, models.PROTECT, null=True, db_index=False, db_constraint=False)
    graph_breaks = models.JSONField(default=list)
    recompiles = models.JSONField(default=list)
    cudagraph_skips = models.JSONField(default=list)
    phases_s = models.JSONField(default=dict)  # dynamo's own phases
    caches = models.JSONField(default=dict)  # hits and misses by cache
    # slots that were left to the autotuner although choices were forced; NULL where none was to be
    unpinned = ArrayField(models.CharField(max_length=16), null=True)
    blind = models.JSONField(null=True)  # kinds of notes that failed, with the reason; NULL where none did
    upload = models.ForeignKey(Upload, models.SET_NULL, null=True, db_index=False, db_constraint=False)
    uncounted = models.BooleanField(default=True)  # waits for `hud.judging.compilations`
    # a kernel takes less time than the card needs for its bytes: its times prove nothing
    impossible = models.BooleanField(default=False, db_default=False)

    class Meta:
        indexes = [
            models.Index("experiment", F("order_time").desc(), name="compilation_experiment"),
            models.Index("variant", name="compilation_variant"),
            models.Index("run", condition=Q(uncounted=True), name="compilation_uncounted"),
        ]

    def compiled(self, kernels: Mapping[int, Kernel]) -> schema.Compiled:
        """Return the compilation as its record said it; `kernels` is what `kernels_of` returned."""
        lines = self.line_list.lines if self.line_list else [""] * len(self.kernels)
        measured = zip(self.kernels, self.binary_places, self.times_us, lines, strict=True)
        binaries = self.binary_list.binaries if self.binary_list else []
        notes = {
            name: tuple(schema.Note(**note) for note in getattr(self, name))
            for name in ("graph_breaks", "recompiles", "cudagraph_skips")
        }
        return schema.Compiled(
            kernels=tuple(
                kernels[pk].compiled(binaries[index], time_us, text) for pk, index, time_us, text in measured
            ),
            busy_us=self.busy_us,
            gaps_us=self.gaps_us,
            overlap_us=self.overlap_us,
            phases_s=self.phases_s,
            caches={name: (hits, misses) for name, (hits, misses) in self.caches.items()},
            forced=None if self.unpinned is None else len(self.kernels) - len(self.unpinned),
            unpinned=tuple(self.unpinned or ()),
            blind=self.blind or {},
            **notes,
        )


def kernels_of(compilations: Sequence[Compilation]) -> dict[int, Kernel]:
    """Return the kernels of these compilations by id, and read their lists: 3 queries."""
    prefetch_related_objects(compilations, "binary_list", "line_list")
    return Kernel.objects.in_bulk({pk for compilation in compilations for pk in compilation.kernels})


class KernelCode(NamedRow):
    """The source of kernels, once for each content. Goes when no host has delivered it for a while."""

    digest = models.UUIDField(unique=True)  # over the text
    text = models.TextField()
    delivered = models.DateTimeField(db_default=Now(), db_index=True)  # the last time


class KernelBinary(NamedRow):
    """The source of a binary, as a host delivered it: its digits do not come from the source, so that nothing
    else can vouch for it. Binaries of different configurations share one."""

    pk = models.CompositePrimaryKey("binary", "host_id")
    binary = models.CharField(max_length=16)  # 16 hex digits
    host_id = models.IntegerField(db_default=0)  # 0: an operator's file
    code = models.ForeignKey(KernelCode, models.CASCADE, related_name="binaries")
