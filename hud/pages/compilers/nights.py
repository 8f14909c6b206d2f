"""Nights, the two sides that a table compares, and the values of their runs.

A night is the runs of one commit of a branch within 24 hours; runs without a commit are a night by date. Runs
of one experiment alone, A/B comparisons and pinned runs belong to none.
"""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

from hud.models import ACTIVE, NEVER_RAN, STATUS_CODES
from hud.pages.sql import fetch_tuples
from hud.runs.branches import stored_names

SHORT_COMMIT = 7  # characters
_DAYS = 120  # before the newest run
KEPT_S = 600  # a deleted upload is gone from the tables after as long
_HASH = re.compile(r"[0-9a-f]{12,64}")
_FEWEST_DIGITS = 4  # that may stand for a commit
_MOST_RUNS = 3000  # of one side
_MOST_KEPT = 600  # nights in the memory of a process, a few 10 kB each

PASSES, SPEEDUP, COMPILE, MEMORY = "accuracy", "speedup", "cold_compile", "memory"
PREFERRED: Mapping[str, tuple[str, ...]] = {  # metrics of each column, device time first
    SPEEDUP: ("device_speedup", "speedup"),
    COMPILE: ("cold_compile_s", "compilation_latency"),
    MEMORY: ("compression_ratio", "peak_memory_ratio"),
}
_PEAKS = ("eager_peak_memory_bytes", "compiled_peak_memory_bytes")  # their ratio is the last
_METRICS = (PASSES, *PREFERRED[SPEEDUP], *PREFERRED[COMPILE], "compression_ratio", *_PEAKS)


@dataclass(frozen=True)
class Subject:
    """The experiments of a table: those of its suites on one arch, in one mode and dtype."""

    arch: str
    mode: str
    dtype: str
    suites: tuple[str, ...]


@dataclass(frozen=True)
class Night:
    """The runs of a night, or of another side of a comparison."""

    side: str  # as the URL has it
    title: str
    time: datetime
    commit: str
    runs: tuple[int, ...]
    complete: bool = True  # no run is queued or running

    @property
    def short_commit(self) -> str:
        return self.commit[:SHORT_COMMIT]

    @property
    def as_side(self) -> str:
        """Return the side for pages that know runs and commits only."""
        return f"commit:{self.commit}" if self.commit else f"run:{self.runs[-1]}"


Block: TypeAlias = tuple[str, str]  # suite and backend, as a table shows it
Values: TypeAlias = dict[str, dict[int, float | None]]  # metric → experiment; None where it failed


@dataclass(frozen=True)
class Results:
    """What the runs of one night measured."""

    blocks: dict[Block, Values] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return how many cases have a result."""
        return sum(max(map(len, values.values()), default=0) for values in self.blocks.values())

    def of(self, block: Block) -> Values:
        return self.blocks.get(block, {})


def read(branch: str = "") -> list[Night]:
    """Return the nights of a branch, oldest first: 1 statement."""
    found = fetch_tuples(
        """
        SELECT r.id, r.order_time, r.commit, r.state = ANY(%(active)s)
        FROM hud_run r LEFT JOIN hud_runrequest q ON q.run_id = r.id
        WHERE r.branch = ANY(%(branches)s) AND r.base_interpreter = '' AND q.experiment_id IS NULL
            AND q.caches IS DISTINCT FROM 'pinned' AND r.order_time > (
                SELECT max(order_time) FROM hud_run WHERE branch = ANY(%(branches)s)) - %(days)s
        ORDER BY r.order_time, r.id
        """,
        {"branches": stored_names(branch), "active": list(ACTIVE), "days": timedelta(days=_DAYS)},
    )
    groups: list[tuple[str, list[tuple[int, datetime, bool]]]] = []
    newest: dict[tuple[str, date | None], int] = {}  # place of the night that a run may join
    for run, at, commit, active in found:
        key = (commit, None if commit else at.date())
        place = newest.get(key)
        if place is None or at - groups[place][1][0][1] > timedelta(hours=24):
            newest[key] = place = len(groups)
            groups.append((commit, []))
        groups[place][1].append((run, at, active))
    dates = Counter(runs[-1][1].date() for _commit, runs in groups)
    return [_night(commit, tuple(runs), dates[runs[-1][1].date()] == 1) for commit, runs in groups]


@lru_cache(maxsize=1024)
def _night(commit: str, runs: tuple[tuple[int, datetime, bool], ...], alone: bool) -> Night:
    at = runs[-1][1]
    named = commit[:12] if _HASH.fullmatch(commit) else commit
    side = str(at.date()) if alone or not commit else f"commit:{named}"
    done = not any(active for _run, _at, active in runs)
    return Night(side, day(at), at, commit, tuple(sorted(run for run, _at, _active in runs)), done)


def day(at: datetime | date) -> str:
    return f"{at.day} {at:%b}"


def side(text: str, nights: Sequence[Night]) -> Night | None:
    """Return the side that a URL names: a date, ``run:12``, ``commit:abc123`` or ``latest:main``; None where
    there is none. At most 1 statement."""
    kind, _colon, name = text.partition(":")
    if kind == "latest":
        found = nights if not name else read(name)
        return found[-1] if found else None
    if kind not in {"run", "commit"}:
        return next((night for night in reversed(nights) if night.side == text or _on(night, text)), None)
    if (kind == "run" and not (name.isdecimal() and len(name) < 10)) or not name:
        return None
    rows = fetch_tuples(
        """
        SELECT id, order_time, commit, state = ANY(%(active)s) FROM hud_run
        WHERE base_interpreter = '' AND CASE WHEN %(run)s IS NULL
            THEN commit = %(commit)s OR (%(begins)s AND starts_with(commit, %(commit)s))
            ELSE id = %(run)s END
        ORDER BY order_time, id LIMIT %(most)s
        """,
        {
            "active": list(ACTIVE),
            "most": _MOST_RUNS,
            "run": int(name) if kind == "run" else None,
            "commit": name,
            "begins": len(name) >= _FEWEST_DIGITS,
        },
    )
    if not rows or len({row[2] for row in rows} - {name}) > 1:  # none, or several commits
        return None
    done = not any(active for *_run, active in rows)
    title = f"run {name}" if kind == "run" else day(rows[-1][1])
    return Night(text, title, rows[-1][1], rows[-1][2], tuple(sorted(row[0] for row in rows)), done)


def _on(night: Night, text: str) -> bool:
    return text == str(night.time.date())


_kept: OrderedDict[tuple[Subject, tuple[int, ...]], tuple[float, Results]] = OrderedDict()


def results(nights: Iterable[Night], subject: Subject) -> list[Results]:
    """Return the results of each night: 1 statement for all that this process has not read yet.

    A night whose runs are over does not change, and is kept in memory.
    """
    wanted = list(nights)
    if not subject.suites:
        return [Results() for _night in wanted]
    now = time.monotonic()
    found: dict[tuple[int, ...], Results] = {}
    for night in wanted:
        kept = _kept.get((subject, night.runs))
        if kept and now - kept[0] < KEPT_S:
            found[night.runs] = kept[1]
    missing = list({night.runs: night for night in wanted if night.runs not in found}.values())
    if missing:
        for night, one in zip(missing, _read_results(missing, subject), strict=True):
            found[night.runs] = one
            if night.complete:
                _kept[subject, night.runs] = now, one
                _kept.move_to_end((subject, night.runs))
    while len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)
    return [found[night.runs] for night in wanted]


def _read_results(nights: Sequence[Night], subject: Subject) -> list[Results]:
    runs = [(run, place) for place, night in enumerate(nights) for run in night.runs]
    rows = fetch_tuples(
        """
        WITH wanted AS MATERIALIZED (
            SELECT s.id, s.experiment_id, e.suite, e.backend, e.dynamic, k.name
            FROM hud_experiment e JOIN hud_series s ON s.experiment_id = e.id
            JOIN hud_metric k ON k.id = s.metric_id AND k.name = ANY(%(metrics)s)
            WHERE e.arch = %(arch)s AND e.mode = %(mode)s AND e.dtype = %(dtype)s
                AND e.suite = ANY(%(suites)s)
        ), point AS (
            SELECT night.place, w.suite, w.backend, w.dynamic, w.name, w.experiment_id,
                percentile_cont(0.5) WITHIN GROUP (ORDER BY m.value) AS value,
                bool_and(m.status <> 0) AS failed
            FROM unnest(%(runs)s::int[], %(places)s::int[]) AS night(run_id, place)
            JOIN hud_measurement m ON m.run_id = night.run_id AND m.status <> ALL(%(never)s)
            JOIN wanted w ON w.id = m.series_id
            GROUP BY 1, 2, 3, 4, 5, 6
        )
        SELECT place, suite, backend, dynamic, name, array_agg(experiment_id),
            array_agg(CASE WHEN failed THEN NULL
                WHEN name = %(passes)s THEN coalesce(value, 1) ELSE value END)
        FROM point GROUP BY 1, 2, 3, 4, 5
        """,
        {
            "metrics": list(_METRICS),
            "arch": subject.arch,
            "mode": subject.mode,
            "dtype": subject.dtype,
            "suites": list(subject.suites),
            "runs": [run for run, _place in runs],
            "places": [place for _run, place in runs],
            "never": [STATUS_CODES[name] for name in NEVER_RAN],
            "passes": PASSES,
        },
    )
    found = [Results() for _night in nights]
    for place, suite, backend, dynamic, metric, experiments, values in rows:
        block = suite, f"{backend}, dynamic" if dynamic else backend
        found[place].blocks.setdefault(block, {})[metric] = dict(zip(experiments, values, strict=True))
    for one in found:
        for measured in one.blocks.values():
            _add_memory_ratio(measured)
    return found


def _add_memory_ratio(measured: Values) -> None:
    eager, compiled = (measured.pop(name, {}) for name in _PEAKS)
    ratios = {
        experiment: value / peak
        for experiment, peak in compiled.items()
        if peak and (value := eager.get(experiment)) is not None
    }
    if ratios:
        measured["peak_memory_ratio"] = dict(ratios)
