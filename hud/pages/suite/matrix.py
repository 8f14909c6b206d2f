"""The part of the suite page that only PyTorch/XLA's has: its verifier's codes, openxla beside inductor."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hud.models import FIRST_RUN_ONLY
from hud.pages.sql import fetch
from hud.pages.suite.query import place

_ON_XLA = ("openxla", "xla")
_COMPARED = ("eager", "inductor", *_ON_XLA)
_MOST_LINES = 200
# Code → what it means, what to do.
HELP = {
    "PASS": (
        "The result is eager's, within the tolerance.",
        "Nothing: its times can be trusted.",
    ),
    "FAIL": (
        "The result is wrong: it differs from eager by more than its rounding explains.",
        "Its times are withheld. Find the operator in the HLO; if no change of yours did it, open an issue.",
    ),
    "EAGER_FAILED": (
        "The model fails without any compiler.",
        "Repair or leave out the model: nothing can be said of the backend. The log has the exception.",
    ),
    "EXCEPTION_RAISED": (
        "The backend, or the comparison itself, raised an exception.",
        "Read the reason in the run's log; where eager and another backend pass, it is this backend's.",
    ),
    "NONDETERMINISTIC_EAGER_RUN": (
        "Two eager runs from one seed differ, so nothing can be compared.",
        "The times stand, unchecked. Look for random operators or atomics in the model.",
    ),
    "VERIFIER_SKIPPED": (
        "Nobody asked for the check, or the cell cannot run.",
        "Run it with verify=true; a cell that cannot run says why in its own row.",
    ),
    "VERIFIER_DIDNT_RUN": (
        "The check was asked for and never came to its end: crash, time-out, or a cell that cannot run.",
        "Its row has the reason; --resume tries it again.",
    ),
}


@dataclass(slots=True)
class CodeLine:
    code: str
    meaning: str
    advice: str
    experiments: int  # whose newest check ended so


@dataclass(slots=True)
class Comparison:
    """One model at equal batch, precision and iterations. Seconds an iteration by backend."""

    case: str
    mode: str
    dtype: str
    arch: str  # or its device, where that is not known
    runtime: str  # of the cells on XLA
    batch_size: Any
    iterations: int
    times_s: dict[str, float] = field(default_factory=dict)
    experiments: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """How many times as fast openxla is."""
        return self.times_s["inductor"] / self.times_s["openxla"]

    @property
    def cells(self) -> list[tuple[int | None, float | None]]:
        return [(self.experiments.get(name), self.times_s.get(name)) for name in _COMPARED]


@dataclass(slots=True)
class XlaPart:
    codes: list[CodeLine]
    comparisons: list[Comparison]
    backends: tuple[str, ...] = _COMPARED


@dataclass(slots=True)
class _Newest:
    experiment: int
    case: str
    mode: str
    dtype: str
    backend: str
    arch: str
    device: str
    knobs: str
    metric: str
    value: float | None
    code: str | None
    note: str | None

    @property
    def is_steady_time(self) -> bool:
        """A time without compilation in it: one run alone has none."""
        there = self.metric == "per_iter_time" and self.value is not None
        return there and FIRST_RUN_ONLY not in (self.note or "")


def read(suite: str) -> XlaPart:
    """Return the newest check and the newest time of every experiment, in one statement."""
    newest = fetch(
        _Newest,
        """
        SELECT e.id experiment, e."case", e.mode, e.dtype, e.backend, e.arch, e.device, e.knobs::text,
               m.name metric, found.value, found.code, found.note
        FROM hud_experiment e
        JOIN hud_series s ON s.experiment_id = e.id
        JOIN hud_metric m ON m.id = s.metric_id
        CROSS JOIN LATERAL (
            SELECT value, code, note FROM hud_measurement
            WHERE series_id = s.id ORDER BY at DESC, run_id DESC LIMIT 1) found
        WHERE e.suite = %(suite)s AND m.name IN ('per_iter_time', 'verification_code')
        ORDER BY e."case", e.mode, e.dtype, e.arch, e.device, e.id
        """,
        {"suite": suite},
    )
    codes = Counter(one.code for one in newest if one.metric == "verification_code" and one.code)
    lines = [CodeLine(code, *said, codes.pop(code, 0)) for code, said in HELP.items()]
    lines += [CodeLine(str(code), "", "", count) for code, count in sorted(codes.items())]
    return XlaPart(lines, list(_comparisons(newest))[:_MOST_LINES])


def _comparisons(newest: list[_Newest]) -> Iterator[Comparison]:
    """Cells that differ in the backend alone, where both compilers have a time.

    Those on one XLA runtime stand in one line, with eager and inductor as they run without any.
    """
    lines: dict[tuple[Any, ...], Comparison] = {}
    plain: dict[tuple[Any, ...], list[_Newest]] = {}
    for one in newest:
        if not one.is_steady_time or one.backend not in _COMPARED:
            continue
        knobs = json.loads(one.knobs)
        runtime = str(knobs.pop("xla", ""))
        where = place(one.arch, one.device)
        key = (one.case, one.mode, one.dtype, where, json.dumps(knobs, sort_keys=True))
        if one.backend in _ON_XLA:
            batch_size, iterations = knobs.get("batch_size", ""), knobs.get("iterations_per_run", 1)
            line = Comparison(one.case, one.mode, one.dtype, where, runtime, batch_size, iterations)
            _add(lines.setdefault((*key, runtime), line), one)
        elif not runtime:
            plain.setdefault(key, []).append(one)
    for place_of_line, line in lines.items():
        for one in plain.get(place_of_line[:-1], []):
            _add(line, one)
    return (line for line in lines.values() if {"inductor", "openxla"} <= set(line.times_s))


def _add(line: Comparison, one: _Newest) -> None:
    assert one.value is not None
    line.times_s[one.backend] = one.value
    line.experiments[one.backend] = one.experiment
