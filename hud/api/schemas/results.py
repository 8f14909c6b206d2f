"""Uploads, experiments, series and variants."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema

from hud.api.schemas.base import IdentityOut


class SkippedOut(Schema):
    pointer: str
    reason: str
    kind: str = ""  # absent in receipts of older versions
    line: int | None = None


class ReceiptOut(Schema):
    id: int | None
    run_ids: list[int]
    stored: int
    duplicates: int
    skipped: list[SkippedOut]
    skipped_total: int
    skipped_kinds: dict[str, int] = {}
    expectations: list[dict[str, Any]] = []
    warnings: list[str]
    metrics: list[dict[str, Any]] = []
    links: dict[str, str]


class ImportOut(Schema):
    id: str
    state: str
    done_records: int
    receipt: ReceiptOut | None
    problem: dict[str, Any] | None
    links: dict[str, str]


class ExperimentOut(IdentityOut):
    id: int


class ExperimentsOut(Schema):
    items: list[ExperimentOut]
    next: str | None


class CompilationOut(Schema):
    """The value of one compilation from `n` samples. `variant` is null where its kernels are not known."""

    variant: str | None
    value: float
    n: int


class PointOut(Schema):
    stream: str
    run: int
    time: str
    commit: str
    branch: str
    value: float | None
    n: int
    status: str
    code: str | None
    quality: str | None
    target: float | None
    target_arch: str | None
    target_met: bool | None
    verdict: str | None
    level: float | None
    expectation: str | None  # as_expected, unexpected_failure or unexpected_pass
    known_failure: str | None  # why its failure is no news
    change: float | None
    noise: float | None
    rerun: bool
    source: str
    processes: int
    compilations: list[CompilationOut]


class SeriesOut(Schema):
    unit: str
    direction: str
    points: list[PointOut]
    next: str | None


class KernelOut(Schema):
    slot: str
    choice: str
    binary: str
    name: str
    kind: str
    config: str
    origins: list[str]
    calls: float
    time_us: float | None
    bytes: int | None
    flops: int | None
    candidates: int
    ranked: list[tuple[str, float]]
    default: str


class VariantOut(Schema):
    """The kernels of a variant in its newest compilation, which is of this run and experiment."""

    variant: str
    compilations: int
    run: int
    experiment: int
    time: datetime
    busy_us: float | None
    kernels: list[KernelOut]
