"""The part of a suite's page for a matrix of backends: verification codes, and times side by side."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.models import FIRST_RUN_ONLY, Stream
from hud.pages.suite.query import place
from hud.points.read import NEWEST_POINT
from hud.runs.branches import stored_names
from hud.sql import fetch_tuples
from runner.schema.suite import Matrix
from runner.suites import SUITES

_MOST_LINES = 200


@dataclass(slots=True)
class BackendComparison:
    """One model at equal batch, precision and iterations: seconds per iteration by backend."""

    case: str
    mode: str
    dtype: str
    arch: str  # or its device, where that is unknown
    runtime: str  # of XLA
    batch_size: Any
    iterations: int
    matrix: Matrix
    times_s: dict[str, float] = field(default_factory=dict)
    experiments: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """How many times as fast the second of the compared backends is."""
        first, second = self.matrix.ratio
        return self.times_s[first] / self.times_s[second]

    def add(self, backend: str, time_s: float, experiment: int) -> None:
        self.times_s[backend], self.experiments[backend] = time_s, experiment

    @property
    def cells(self) -> list[tuple[int | None, float | None]]:
        return [(self.experiments.get(name), self.times_s.get(name)) for name in self.matrix.backends]


def read(stream: Stream, suite: str) -> dict[str, Any] | None:
    """Return the newest check and the newest time of every experiment in a stream, in one statement; None
    where the suite has no matrix. `codes` have meaning, advice and how many newest checks have the code."""
    matrix = SUITES[suite].matrix if suite in SUITES else None
    if matrix is None:
        return None
    rows = fetch_tuples(
        f"""
        SELECT m.name, found.value, found.code, found.note, e.id, e."case", e.mode, e.dtype, e.backend,
            e.arch, e.device, e.knobs::text
        FROM hud_experiment e
        JOIN hud_series s ON s.experiment_id = e.id
        JOIN hud_metric m ON m.id = s.metric_id
        CROSS JOIN LATERAL ({NEWEST_POINT}) found
        WHERE e.suite = %(suite)s AND s.stream_id = %(stream)s AND m.name IN (%(time)s, %(code)s)
        ORDER BY e."case", e.mode, e.dtype, e.arch, e.device, e.id
        """,  # noqa: S608 — a constant  # nosec B608
        {
            "suite": suite,
            "stream": stream.pk,
            "time": matrix.time_metric,
            "code": matrix.code_metric,
            "branches": stored_names(),
            "until": "infinity",
        },
    )
    codes = Counter(code for metric, _value, code, *_more in rows if metric == matrix.code_metric and code)
    lines = [(code, *said, codes.pop(code, 0)) for code, said in matrix.codes.items()]
    lines += [(code, "", "", count) for code, count in sorted(codes.items())]
    # a single repeat has no time without compilation
    times = [
        (value, *about)
        for metric, value, _code, note, *about in rows
        if metric == matrix.time_metric and value is not None and FIRST_RUN_ONLY not in (note or "")
    ]
    comparisons = _comparisons(times, matrix)[:_MOST_LINES]
    return {"codes": lines, "comparisons": comparisons, "backends": matrix.backends}


def _comparisons(times: Sequence[tuple[Any, ...]], matrix: Matrix) -> list[BackendComparison]:
    """Return experiments that differ in the backend alone, where both compilers have a time.

    Each line has one XLA runtime, with eager and inductor as they run without any.
    """
    lines: dict[tuple[Any, ...], BackendComparison] = {}
    plain: dict[tuple[Any, ...], list[tuple[str, float, int]]] = {}
    for value, experiment, case, mode, dtype, backend, arch, device, knobs_text in times:
        knobs = json.loads(knobs_text)
        runtime = str(knobs.pop(matrix.runtime_knob, ""))
        subject = case, mode, dtype, place(arch, device)
        key = (*subject, json.dumps(knobs, sort_keys=True))
        if backend in matrix.runtime_backends:
            batch_size, iterations = knobs.get("batch_size", ""), knobs.get("iterations_per_run", 1)
            line = BackendComparison(*subject, runtime, batch_size, iterations, matrix)
            lines.setdefault((*key, runtime), line).add(backend, value, experiment)
        elif backend in matrix.backends and not runtime:
            plain.setdefault(key, []).append((backend, value, experiment))
    for key, line in lines.items():
        for one in plain.get(key[:-1], []):
            line.add(*one)
    return [line for line in lines.values() if set(matrix.ratio) <= set(line.times_s)]
