"""Compilations of 200 kernels: CPU and bytes of each, beside the same uploads without them."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runner.schema.compilations import Compiled, Kernel, digest
from tests.bench.application import Application
from tests.bench.figures import Figure, median_of
from tests.support.records import compiled_record

CASES = 20  # compilations of one upload
KERNELS = 200
REPEATS = 7
_BYTES = 20_000


@dataclass(frozen=True)
class _Cost:
    app_ms: float  # per record
    bytes: float


def compilations(application: Application) -> Iterator[Figure]:
    numbers = iter(range(1, 10_000))

    def median_cost(made: Callable[[int, int], Compiled | None]) -> tuple[list[float], float]:
        costs = [_upload(application, next(numbers), made) for _ in range(REPEATS)]
        return [cost.app_ms for cost in costs], statistics.median(cost.bytes for cost in costs)

    for _ in range(3):  # every worker has seen a request
        _upload(application, next(numbers), lambda *_: None)
    without, _bytes = median_cost(lambda *_: None)
    bare_ms = statistics.median(without)
    first = _upload(application, next(numbers), lambda case, _upload: _compiled(case, 0, binaries=0))
    yield Figure("kernels", "new kernels: app CPU per compilation", first.app_ms - bare_ms, "ms")
    yield Figure("kernels", "new kernels: bytes per compilation", first.bytes, "B")
    for _ in range(3):  # until every choice was drawn
        _upload(application, next(numbers), lambda case, upload: _compiled(case, upload, binaries=0))
    for what, binaries in (("known kernels", False), ("known kernels, binaries of a new torch", True)):
        app_ms, size = median_cost(
            lambda case, upload, new=binaries: _compiled(case, upload, binaries=upload * new)  # type: ignore[misc]
        )
        beyond = [one - bare_ms for one in app_ms]
        yield median_of("kernels", f"{what}: app CPU per compilation", beyond, "ms", 5)
        yield Figure("kernels", f"{what}: bytes per compilation", size, "B", _BYTES)


def _upload(application: Application, number: int, made: Callable[[int, int], Compiled | None]) -> _Cost:
    records = [compiled_record(made(case, number), 0, case=f"model_{case}") for case in range(CASES)]
    content = json.dumps(records).encode()
    before_ms, before = application.web_cpu_ms(), _stored_bytes()
    receipt = application.upload(content, f"commit={number:x}&commit_date=2026-01-01&branch=main")
    assert receipt["stored"] == CASES, receipt
    return _Cost((application.web_cpu_ms() - before_ms) / CASES, (_stored_bytes() - before) / CASES)


def _stored_bytes() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_total_relation_size('hud_compilation') + pg_total_relation_size('hud_kernel')"
        )
        return int(cursor.fetchone()[0])


def _compiled(case: int, draw: int, *, binaries: int) -> Compiled:
    """One compilation of a case: each kernel has one of two configurations, as `draw` has it."""
    chance = random.Random(draw)
    kernels = []
    for place in range(KERNELS):
        name = f"triton_poi_fused__native_batch_norm_legit_no_training_hardtanh_{place}"
        config = f"XBLOCK={chance.choice((256, 1024))} num_warps=4 num_stages=1"
        slot = digest(str(case), str(place))
        choice = digest(slot, config)
        kernel = Kernel(
            slot,
            choice,
            digest(choice, str(binaries)),
            name,
            "pointwise",
            config,
            ("aten._native_batch_norm_legit_no_training", "aten.hardtanh"),
            time_us=chance.uniform(2, 700),
            bytes=2**20 + place,
            candidates=7,
        )
        kernels.append(kernel)
    phases = {f"phase_{place}": place / 10 for place in range(20)}
    return Compiled(tuple(kernels), busy_us=2950.1, gaps_us=3.2, phases_s=phases, caches={"fxgraph": (0, 3)})
