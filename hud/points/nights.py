"""Nights, the two sides that a table compares, and the values of their runs.

A night is the runs of one stream and branch on one commit that began within 24 hours, whatever their suites
and schedules; reruns and A/B comparisons belong to none.
"""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

from hud.models import ACTIVE, NEVER_RAN, STATUS_CODES, Stream
from hud.runs.branches import stored_names
from hud.sql import fetch_tuples

SHORT_COMMIT = 7  # characters
_DAYS = 120  # before the newest run
KEPT_S = 600  # a deleted upload is gone from the tables after as long
_HASH = re.compile(r"[0-9a-f]{12,64}")
_FEWEST_DIGITS = 4  # that may stand for a commit
_LONGEST = timedelta(hours=24)  # of a night's runs on one commit
_GAP = timedelta(hours=6)  # between runs without a commit that ends a night
_AT_LATEST = timedelta(hours=36)
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
    began: datetime | None = None  # order time of its first run
    complete: bool = True  # every planned task has ended
    ended: int = 0  # tasks that have ended, of `planned`, of runs that are queued or running
    planned: int = 0

    @property
    def short_commit(self) -> str:
        return self.commit[:SHORT_COMMIT]

    def is_default(self, now: datetime) -> bool:
        """Return whether a page may choose it by itself: when it is complete, or 36 hours after it began."""
        return self.complete or self.began is None or now - self.began > _AT_LATEST

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


@dataclass(frozen=True)
class NightRun:
    """A run as it is grouped into nights. `tasks` were planned, of which `ended` have ended; an uploaded run
    has none, and ended when it was stored."""

    pk: int
    time: datetime
    commit: str
    tasks: int
    ended: int
    active: bool  # queued or running


# Runs r with their request q, that belong to nights. An A/B comparison and a rerun belong to none.
_OF_NIGHTS = """
    SELECT r.id, r.order_time, r.commit, coalesce(t.tasks, 0), coalesce(t.ended, 0), r.state = ANY(%(active)s)
    FROM hud_run r LEFT JOIN LATERAL (
        SELECT count(*) AS tasks, count(*) FILTER (WHERE finished IS NOT NULL) AS ended
        FROM hud_task WHERE run_id = r.id AND r.upload_id IS NULL
    ) t ON r.state = ANY(%(active)s)
"""


def read(stream: Stream, branch: str = "") -> list[Night]:
    """Return the nights of a stream's branch, oldest first: 1 statement."""
    rows = fetch_tuples(
        f"""
        {_OF_NIGHTS}
        WHERE r.stream_id = %(stream)s AND r.branch = ANY(%(branches)s) AND r.base_interpreter = ''
            AND NOT r.rerun AND r.order_time > (
                SELECT max(order_time) FROM hud_run
                WHERE stream_id = %(stream)s AND branch = ANY(%(branches)s)) - %(days)s
        ORDER BY r.order_time, r.id
        """,  # noqa: S608 — a constant of this module  # nosec B608
        {
            "stream": stream.pk,
            "branches": stored_names(branch),
            "active": list(ACTIVE),
            "days": timedelta(days=_DAYS),
        },
    )
    return group(NightRun(*row) for row in rows)


def group(runs: Iterable[NightRun]) -> list[Night]:
    """Return the nights of the runs of one stream and branch, oldest first; `runs` come in their order.

    Runs on one commit that began within 24 hours of the first are one night; without a commit, runs with
    gaps of less than 6 hours.
    """
    groups: list[list[NightRun]] = []
    newest: dict[str, list[NightRun]] = {}  # by commit: the night that a run may join
    for run in runs:
        own = newest.get(run.commit)
        if own is None or (
            run.time - own[0].time > _LONGEST if run.commit else run.time - own[-1].time >= _GAP
        ):
            own = newest[run.commit] = []
            groups.append(own)
        own.append(run)
    dates = Counter(own[-1].time.date() for own in groups)
    return [_night(tuple(own), dates[own[-1].time.date()] == 1) for own in groups]


@lru_cache(maxsize=1024)
def _night(runs: tuple[NightRun, ...], alone: bool) -> Night:
    last = runs[-1]
    named = last.commit[:12] if _HASH.fullmatch(last.commit) else last.commit
    return Night(
        side=str(last.time.date()) if alone or not last.commit else f"commit:{named}",
        title=day(last.time),
        time=last.time,
        commit=last.commit,
        runs=tuple(sorted(run.pk for run in runs)),
        began=runs[0].time,
        complete=not any(run.active for run in runs),
        ended=sum(run.ended for run in runs),
        planned=sum(run.tasks for run in runs),
    )


def side(text: str, nights: Sequence[Night], stream: Stream) -> Night | None:
    """Return the side that a URL names: a date, ``night:2026-11-20``, ``run:12``, ``commit:abc123`` or
    ``latest:main``; None where there is none in the stream. `nights` are those of the stream that have
    results of the page's subject. At most 1 statement."""
    kind, _colon, name = text.partition(":")
    if kind == "latest":
        candidates = nights if not name else read(stream, name)
        return candidates[-1] if candidates else None
    if kind not in {"run", "commit"}:
        asked = name if kind == "night" else text
        return next((night for night in reversed(nights) if night.side == asked or _on(night, asked)), None)
    if (kind == "run" and not (name.isdecimal() and len(name) < 10)) or not name:
        return None
    rows = fetch_tuples(
        f"""
        {_OF_NIGHTS}
        WHERE r.base_interpreter = '' AND CASE WHEN %(run)s IS NULL
            THEN r.stream_id = %(stream)s AND NOT r.rerun
                AND (r.commit = %(commit)s OR (%(begins)s AND starts_with(r.commit, %(commit)s)))
            ELSE r.id = %(run)s END
        ORDER BY r.order_time, r.id LIMIT %(most)s
        """,
        {
            "active": list(ACTIVE),
            "most": _MOST_RUNS,
            "stream": stream.pk,
            "run": int(name) if kind == "run" else None,
            "commit": name,
            "begins": len(name) >= _FEWEST_DIGITS,
        },
    )
    runs = tuple(NightRun(*row) for row in rows)
    if not runs or len({run.commit for run in runs} - {name}) > 1:  # none, or several commits
        return None
    night = _night(runs, alone=False)
    return replace(night, side=text, title=f"run {name}" if kind == "run" else night.title)


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
        ), newest AS (  -- of several points of a series in a night
            SELECT DISTINCT ON (night.place, p.series_id) night.place, p.series_id, p.value, p.status
            FROM unnest(%(runs)s::int[], %(places)s::int[]) AS night(run_id, place)
            JOIN hud_point p ON p.run_id = night.run_id AND p.status <> ALL(%(never)s) AND NOT p.rerun
            JOIN hud_run r ON r.id = p.run_id
            ORDER BY night.place, p.series_id, (r.host_name = (
                SELECT l.host_name FROM hud_seriesstate t JOIN hud_run l ON l.id = (t.level->>'last_run')::int
                WHERE t.series_id = p.series_id ORDER BY t.order_time DESC LIMIT 1)) DESC NULLS LAST,
                p.order_time DESC, p.run_id DESC
        )
        SELECT place, suite, backend, dynamic, name, array_agg(experiment_id),
            array_agg(CASE WHEN status <> 0 AND (value IS NULL OR name = %(passes)s) THEN NULL
                WHEN name = %(passes)s THEN coalesce(value, 1) ELSE value END)
        FROM newest JOIN wanted w ON w.id = newest.series_id
        GROUP BY 1, 2, 3, 4, 5
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
