"""What the overview and the compilers' page show of suites and backends."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

from hud.pages.compilers import formulas
from hud.points import nights as of_nights
from hud.pages.compilers import table as of_table
from hud.points.nights import Night, Results, Subject
from hud.pages.compilers.table import EXPECTED_NIGHTS, TREND_NIGHTS, Table
from hud.sql import fetch_tuples
from hud.runs.branches import branch_or_default
from runner.schema.devices import is_named

WINDOWS = (1, 7, 28, 90)  # days from the baseline to the candidate
CHOICES = ("arch", "mode", "dtype")
_MOST_NIGHTS = 200  # that a table reads
_MOST_KEPT = 64  # tables in the memory of a process


@dataclass(frozen=True)
class Filters:
    """The query string; '' means the choice with the most experiments, or the usual side."""

    branch: str = ""
    arch: str = ""
    mode: str = ""
    dtype: str = ""
    base: str = ""
    head: str = ""
    window: int = 7
    formulas: str = ""  # hud: those of PyTorch's HUD
    cell: str = ""  # suite/backend whose cases are listed
    sort: str = ""
    show: str = ""
    trend: str = ""  # the suite of the trend charts


@dataclass
class Comparison:
    """The table with what its pickers offer."""

    filters: Filters  # with what was chosen for the empty ones
    choices: dict[str, list[str]]
    branches: list[str]
    nights: list[Night]  # oldest first, with results of the subject's suites or not
    suites: list[str]  # all with experiments of the arch, mode and dtype or of the arch alone
    base: Night | None = None
    head: Night | None = None
    table: Table | None = None
    results: dict[Night, Results] = field(default_factory=dict)
    later: Night | None = None  # the newest night with results, if that is not the candidate
    complaints: list[str] = field(default_factory=list)

    @property
    def sides(self) -> list[Night]:
        """Return the nights that the pickers offer, newest first: without those known to have no results."""
        unread = Results({("", ""): {}})
        return [night for night in reversed(self.nights) if self.results.get(night, unread).blocks][:60]

    @property
    def branch(self) -> str:
        return branch_or_default(self.filters.branch)

    @property
    def pickers(self) -> list[tuple[str, str, str, list[str]]]:
        """Return the name, label, value and offers of each filter; an unknown value stays visible."""
        labels = {"arch": "Arch", "mode": "Mode", "dtype": "Type"}
        found = []
        for name, label in labels.items():
            value, offered = str(getattr(self.filters, name)), self.choices[name]
            found.append((name, label, value, offered if value in ("", *offered) else [*offered, value]))
        return found

    @property
    def query(self) -> str:
        """Return the query string of the same table, for links that add to it."""
        names = ("branch", *CHOICES, "base", "head")
        said = {name: getattr(self.filters, name) for name in names if getattr(self.filters, name)}
        if self.filters.window != Filters.window:
            said["window"] = str(self.filters.window)
        return urlencode(said) + "&" if said else ""

    def to_rows(self) -> list[dict[str, Any]]:
        return self.table.to_rows() if self.table else []


def read(filters: Filters) -> Comparison:
    """Return the comparison, in 3 statements, and 1 for each side that is no night, 1 for a new night."""
    combinations = fetch_tuples(
        "SELECT arch, mode, dtype, suite, count(*) FROM hud_experiment GROUP BY 1, 2, 3, 4", {}
    )
    branches = [
        branch_or_default(name)
        for (name,) in fetch_tuples(
            "SELECT branch FROM hud_run GROUP BY 1 ORDER BY max(order_time) DESC LIMIT 50", {}
        )
    ]
    chosen, subject = _subject(filters, combinations)
    found = Comparison(
        chosen,
        {
            name: sorted(
                {str(row[place]) for row in combinations if row[place] and (place or is_named(row[0]))}
            )
            for place, name in enumerate(CHOICES)
        },
        list(dict.fromkeys(branches)),
        of_nights.read(chosen.branch),
        sorted({row[3] for row in combinations if row[0] == chosen.arch}),
    )
    if found.nights:
        _compare(found, subject)
    return found


def _subject(filters: Filters, combinations: Sequence[tuple[Any, ...]]) -> tuple[Filters, Subject]:
    """Choose for the empty filters what has the most experiments of models, then of anything."""
    weights: Counter[tuple[str, str, str]] = Counter()
    for arch, mode, dtype, suite, count in combinations:
        if all(
            getattr(filters, name) in ("", value)
            for name, value in zip(CHOICES, (arch, mode, dtype), strict=True)
        ):
            weights[arch, mode, dtype] += count * (1000 if of_table.is_model_suite(suite) else 1)
    best = max(sorted(weights), key=lambda key: (is_named(key[0]), weights[key]), default=("", "", ""))
    arch, mode, dtype = best
    chosen = replace(filters, arch=arch, mode=mode, dtype=dtype) if weights else filters
    names = sorted({row[3] for row in combinations if of_table.is_model_suite(row[3])})
    return chosen, Subject(chosen.arch, chosen.mode, chosen.dtype, tuple(names))


def _compare(found: Comparison, subject: Subject) -> None:
    """Choose the sides and build the table."""
    asked = {name: getattr(found.filters, name) for name in ("base", "head")}
    sides = {name: of_nights.side(text, found.nights) if text else None for name, text in asked.items()}
    found.complaints = [
        f"{name}: no results of {text!r}" for name, text in asked.items() if text and not sides[name]
    ]
    base, head = (text if sides[name] else "" for name, text in asked.items())
    found.filters = replace(found.filters, base=base, head=head)
    candidates = [
        night for night in found.nights if sides["head"] is None or night.time <= sides["head"].time
    ]
    days = max(TREND_NIGHTS, found.filters.window) + 1
    since = candidates[-1].time - timedelta(days=days) if candidates else None
    within = sum(since is not None and night.time >= since for night in candidates)
    recent = candidates[-min(max(within, days), _MOST_NIGHTS) :]
    by_night = dict(zip(recent, of_nights.results(recent, subject), strict=True))
    measured = {night: by_night[night] for night in recent if by_night[night].blocks}
    candidate = sides["head"] or _usual_head(measured) or found.nights[-1]
    baseline = sides["base"] or _usual_base(list(measured), candidate, found.filters.window)
    more = [night for night in (baseline, candidate) if night and night not in by_night]
    by_night.update(zip(more, of_nights.results(more, subject), strict=True))
    found.base, found.head, found.results = baseline, candidate, by_night
    found.later = next((night for night in reversed(measured) if night.time > candidate.time), None)
    trend = [night for night in measured if night.time <= candidate.time][-days:]
    if found.filters.formulas:
        found.table = of_table.build(baseline, candidate, trend, by_night)
        formulas.by_hud_formulas(found.table, by_night)
    else:
        found.table = _table(subject, baseline, candidate, trend, by_night)


def _usual_head(measured: Mapping[Night, Results]) -> Night | None:
    """Return the newest night with at least half as many results as the fullest of the last ones: an upload
    of a few cases is no night."""
    sizes = {night: results.size for night, results in list(measured.items())[-EXPECTED_NIGHTS:]}
    most = max(sizes.values(), default=0)
    return next((night for night in reversed(sizes) if 2 * sizes[night] >= most), None)


def _usual_base(measured: Sequence[Night], head: Night, days: int) -> Night | None:
    """Return the newest night at least as many days older, else the oldest."""
    limit = head.time - timedelta(days=days) + timedelta(hours=6)  # nights do not begin by the minute
    older = [night for night in measured if night.time < head.time]
    far = [night for night in older if night.time <= limit]
    return far[-1] if far else older[0] if older else None


_kept: OrderedDict[tuple[Any, ...], tuple[float, Table]] = OrderedDict()


def _table(
    subject: Subject, base: Night | None, head: Night, trend: list[Night], by_night: dict[Night, Results]
) -> Table:
    """Return the table, from memory where it was made from the same nights."""
    used = [*trend, head, *([base] if base else [])]
    key = (subject, base, head, tuple(trend))
    kept = _kept.get(key)
    now = time.monotonic()
    if kept and now - kept[0] < of_nights.KEPT_S:
        return kept[1]
    table = of_table.build(base, head, trend, by_night)
    if all(night.complete for night in used):
        _kept[key] = now, table
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    return table
