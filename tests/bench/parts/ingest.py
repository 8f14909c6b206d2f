"""Uploads over HTTP into PostgreSQL, beside a plain COPY of the same rows.

Verdicts run afterwards, in another process: part `judge` shows them. `BENCH_ROWS` names other sizes of the
store, smallest first.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.bench import processes
from tests.bench.application import Application
from tests.bench.figures import Figure, median_of
from tests.bench.records import RECORDS, Shape, body, compilations, without_compilations

if TYPE_CHECKING:
    from tests.bench.yardstick import Yardstick

SIZES = tuple(int(rows) for rows in os.environ.get("BENCH_ROWS", "0,100000,1000000").split(","))
REPEATS = 7
TINY = 20  # uploads of one record for each repetition
CASES = 20  # compilations of one upload


@dataclass(frozen=True)
class _Cost:
    """CPU in ms per measurement, and the run that holds the upload."""

    app_ms: float
    database_ms: float
    run: int


@dataclass
class _Level:
    """CPU in ms of the repetitions at one size of the store."""

    app: list[float] = field(default_factory=list)  # per measurement
    tiny: list[float] = field(default_factory=list)  # per request
    database: list[float] = field(default_factory=list)  # per measurement
    copied: list[float] = field(default_factory=list)  # per measurement, of the plain COPY


def ingest(application: Application) -> Iterator[Figure]:
    from tests.bench.rows import grow
    from tests.bench.yardstick import Yardstick

    numbers = iter(range(1, 10_000))
    for _ in range(8):  # every worker has seen a request
        _upload(application, next(numbers), records=1)
    first = _upload(application, next(numbers))
    yield Figure("ingest", "first upload, every experiment is new: app CPU", first.app_ms, "ms", 0.07)
    yield Figure("ingest", "first upload, every experiment is new: database CPU", first.database_ms, "ms")
    yardstick = Yardstick()
    levels = []
    for rows in SIZES:
        grow(rows)
        yardstick.catch_up()
        levels.append(_Level())
        for _ in range(REPEATS):
            _repeat(application, yardstick, numbers, levels[-1])
        yield from _figures(levels[-1], f"{rows:,} stored")
    yield from _flatness(levels)
    yield from _variants(application, numbers)
    yield from _peaks(application)


def _repeat(application: Application, yardstick: Yardstick, numbers: Iterator[int], level: _Level) -> None:
    cost = _upload(application, next(numbers))
    level.app.append(cost.app_ms)
    level.database.append(cost.database_ms)
    rows = yardstick.rows_of(cost.run)
    before_ms = application.database_cpu_ms()
    assert yardstick.copy(rows) == RECORDS
    level.copied.append((application.database_cpu_ms() - before_ms) / RECORDS)
    level.tiny.append(
        statistics.mean(_upload(application, next(numbers), records=1).app_ms for _ in range(TINY))
    )


def _upload(
    application: Application,
    number: int,
    *,
    records: int = RECORDS,
    shape: Shape = "harness",
    lines: bool = False,
) -> _Cost:
    content = body(number, records=records, shape=shape, lines=lines)
    web_ms, database_ms = application.web_cpu_ms(), application.database_cpu_ms()
    receipt = application.upload(content, f"commit={number:x}&commit_date=2026-01-01&branch=main")
    assert receipt["stored"] == records, receipt
    return _Cost(
        (application.web_cpu_ms() - web_ms) / records,
        (application.database_cpu_ms() - database_ms) / records,
        receipt["run_ids"][0],
    )


def _figures(level: _Level, where: str) -> Iterator[Figure]:
    ratio = statistics.median(level.database) / statistics.median(level.copied)
    yield median_of("ingest", f"{where}: app CPU per measurement of {RECORDS:,}", level.app, "ms", 0.06)
    yield median_of("ingest", f"{where}: app CPU per request with one measurement", level.tiny, "ms", 15)
    yield median_of("ingest", f"{where}: database CPU per measurement", level.database, "ms")
    yield median_of("ingest", f"{where}: plain COPY with ON CONFLICT", level.copied, "ms")
    yield Figure("ingest", f"{where}: database CPU over plain COPY", ratio, "x", 2)


def _flatness(levels: list[_Level]) -> Iterator[Figure]:
    for what, values in (
        ("app CPU per measurement", [statistics.median(level.app) for level in levels]),
        ("app CPU per request with one measurement", [statistics.median(level.tiny) for level in levels]),
        ("database CPU per measurement", [statistics.median(level.database) for level in levels]),
    ):
        yield Figure("ingest", f"{what}, largest store over smallest", values[-1] / values[0], "x", 1.2)


def _variants(application: Application, numbers: Iterator[int]) -> Iterator[Figure]:
    shapes: tuple[tuple[str, Shape, bool, float], ...] = (
        ("as JSON lines", "harness", True, 0.06),
        ("of half a kB", "small", False, 0.04),
        ("of a tool nobody knows", "stranger", False, 0.05),
    )
    for what, shape, lines, limit in shapes:
        _upload(application, next(numbers), shape=shape, lines=lines)  # its experiments may be new
        app_ms = [
            _upload(application, next(numbers), shape=shape, lines=lines).app_ms for _ in range(REPEATS)
        ]
        yield median_of("ingest", f"{what}: app CPU per measurement", app_ms, "ms", limit)


def _peaks(application: Application) -> Iterator[Figure]:
    for name, root, limit in (
        ("gunicorn", application.hud.pid, 300),
        ("PostgreSQL, with 256 MiB shared by all", application.postmaster, None),
    ):
        peak_mib = max(processes.memory_mib(process) for process in processes.tree(root))
        yield Figure("ingest", f"peak memory of any process of {name}", peak_mib, "MiB", limit)


def kernels(application: Application) -> Iterator[Figure]:
    """CPU and bytes of compilations of 200 kernels, beside the same uploads without them."""
    numbers = iter(range(1, 10_000))
    bare_ms = statistics.median(
        [_compile(application, next(numbers), None)[0] for _ in range(3 + REPEATS)][3:]
    )
    app_ms, size = _compile(application, next(numbers), new_binaries=False)
    yield Figure("kernels", "new kernels: app CPU per compilation", app_ms - bare_ms, "ms", 5)
    yield Figure("kernels", "new kernels: bytes per compilation", size, "B", 20_000)
    for _ in range(5):  # until every choice was drawn
        _compile(application, next(numbers), new_binaries=False)
    for what, new in (("known kernels", False), ("known kernels, binaries of a new torch", True)):
        costs = [_compile(application, next(numbers), new_binaries=new) for _ in range(REPEATS)]
        beyond = [app_ms - bare_ms for app_ms, _size in costs]
        yield median_of("kernels", f"{what}: app CPU per compilation", beyond, "ms", 5)
        size = statistics.median(size for _ms, size in costs)
        yield Figure("kernels", f"{what}: bytes per compilation", size, "B", 20_000)
    yield Figure("kernels", "arrays of a compilation: bytes per kernel", _bytes_per_kernel(), "B", 12)


def _compile(application: Application, number: int, new_binaries: bool | None) -> tuple[float, float]:
    """Upload compilations; return CPU in ms and stored bytes of each."""
    content = (
        without_compilations(cases=CASES)
        if new_binaries is None
        else compilations(number, cases=CASES, new_binaries=new_binaries)
    )
    web_ms, stored = application.web_cpu_ms(), _stored_bytes()
    receipt = application.upload(content, f"commit={number:x}&commit_date=2026-01-01&branch=main")
    assert receipt["stored"] == CASES, receipt
    return (application.web_cpu_ms() - web_ms) / CASES, (_stored_bytes() - stored) / CASES


def _stored_bytes() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT sum(pg_total_relation_size(name::regclass))
            FROM unnest(ARRAY['hud_compilation', 'hud_kernel', 'hud_binarylist', 'hud_linelist']) AS name"""
        )
        return int(cursor.fetchone()[0])


def _bytes_per_kernel() -> float:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT sum(pg_column_size(kernels) + pg_column_size(times_us) + pg_column_size(binary_places))
                / sum(cardinality(kernels))::float8
            FROM hud_compilation"""
        )
        return float(cursor.fetchone()[0])
