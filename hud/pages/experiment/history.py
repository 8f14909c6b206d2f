"""The points of a series: where each came from, and what differs from the one before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any

from hud.models import Environment, Experiment, Metric, Upload
from hud.pages.sql import fetch
from hud.pages.targets import AppliedTarget, Targets
from hud.pages.values import VALUE_COLUMNS, VERDICT_JOIN, MetricValue, compilation_medians, over_processes
from hud.runs.branches import branch_or_default, other_branch, stored_names


@dataclass(frozen=True)
class Range:
    """Which points to read: the newest `points` processes of a branch ('': all) between two times."""

    points: int
    branch: str = ""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(slots=True)
class Point(MetricValue):
    """A value in its series: where it came from, and what differs from the point before."""

    baseline: float | None  # of its verdict, where it has one
    host: str  # of its run, like all up to `uploaded`
    source: str
    commit: str
    branch: str
    repo: str
    order_time_source: str  # commit, run or upload: which time places the run in its series
    provenance: str
    created: datetime
    requested_by: str
    uploaded: bool
    environment: Environment = field(init=False)
    compilations: list[tuple[int, float]] = field(default_factory=list)  # number and value of each
    changed: list[str] = field(default_factory=list)  # facts that differ from the point before
    same_class: bool = True  # as the newest point: may be its baseline
    file: Upload | None = None  # it came in

    @property
    def other_branch(self) -> str:
        return other_branch(self.branch)

    def to_row(self) -> dict[str, Any]:
        environment = self.environment
        return {
            **MetricValue.to_row(self),
            "placed_by": self.order_time_source,
            "host": self.host,
            "source": self.source,
            "commit": self.commit,
            "branch": branch_or_default(self.branch),
            "file": self.file.filename if self.file else None,
            "environment": environment.fingerprint,
            "environment_class": environment.class_key,
            "torch": environment.torch,
            "torch_git": environment.torch_git,
        }


@dataclass
class History:
    """Points of one series, oldest first, in the order of the series."""

    experiment: Experiment
    metric: Metric
    branch: str = ""  # whose newest point is the newest; '' the default branch
    points: list[Point] = field(default_factory=list)
    target: AppliedTarget | None = None  # of this arch

    @property
    def newest(self) -> Point | None:
        """Return the newest point of the branch. A/B runs and other branches count only without any."""
        names = stored_names(self.branch)
        own = (point for point in reversed(self.points) if point.branch in names and not point.is_ab)
        return next(own, self.points[-1] if self.points else None)

    @property
    def processes(self) -> int:
        return sum(point.processes for point in self.points)

    @property
    def newest_first(self) -> list[Point]:
        return self.points[::-1]

    @property
    def order(self) -> list[str]:
        """Return the kinds of time that order the points."""
        return sorted({point.order_time_source for point in self.points})


def fill(wanted: Mapping[int, History], asked: Range, targets: Targets) -> None:
    """Give each history, by its series, the points of the range, oldest first: three statements.

    `points` counts fresh processes: those of one run in one environment are one point.
    """
    rows = fetch(
        Point,
        f"""
        SELECT {VALUE_COLUMNS}, v.baseline,
            coalesce(nullif(r.host_name, ''), h.name, '') host, r.source, r.commit,
            r.branch, r.repo, r.order_time_source, r.provenance, r.created,
            coalesce(q.requested_by, '') requested_by,
            r.upload_id IS NOT NULL uploaded
        FROM hud_series s
        JOIN LATERAL (
            SELECT n.* FROM hud_measurement n
            WHERE n.series_id = s.id
                AND (%(since)s::timestamptz IS NULL OR n.order_time >= %(since)s)
                AND (%(until)s::timestamptz IS NULL OR n.order_time <= %(until)s)
                AND (%(branches)s::text[] IS NULL
                    OR n.run_id IN (SELECT id FROM hud_run WHERE branch = ANY(%(branches)s)))
            ORDER BY n.order_time DESC, n.run_id DESC FETCH FIRST %(points)s ROWS WITH TIES
        ) m ON true
        JOIN hud_run r ON r.id = m.run_id
        LEFT JOIN hud_runrequest q ON q.run_id = r.id
        LEFT JOIN hud_host h ON h.id = q.host_id
        {VERDICT_JOIN}
        WHERE s.id = ANY(%(series)s)
        WINDOW point AS (PARTITION BY s.id, m.order_time, m.run_id, m.environment_id)
        ORDER BY s.id, m.order_time, m.run_id, max(m.repeat) OVER point, max(m.side) OVER point,
            m.environment_id, m.repeat, m.side
        """,  # noqa: S608 — constants  # nosec B608
        {
            "series": list(wanted),
            "points": asked.points,
            "since": asked.since,
            "until": asked.until,
            "branches": branches(asked.branch),
        },
    )
    environments = Environment.objects.in_bulk({row.environment_id for row in rows})
    files = Upload.objects.only("filename", "format").in_bulk({row.upload_id for row in rows} - {None})
    for _place, group in groupby(
        rows, key=lambda row: (row.series_id, row.order_time, row.run_id, row.environment_id)
    ):
        processes = list(group)
        point = over_processes(processes)
        history = wanted[point.series_id]
        point.compilations = compilation_medians(processes)
        point.environment = environments[point.environment_id]
        point.file = files.get(point.upload_id or 0)
        history.points.append(point.show(history.experiment, history.metric, targets))
    for history in wanted.values():
        history.target = targets.own(history.experiment, history.metric)
        _compare_neighbours(history)


def branches(asked: str) -> list[str] | None:
    """Return the stored names of the branches to read: all, or the default one and the one asked for."""
    return sorted({*stored_names(), *stored_names(asked)}) if asked else None


def _compare_neighbours(history: History) -> None:
    """Set each point's changes from the point before, and whether it has the newest point's class."""
    if history.newest is None:
        return
    if history.target is None:
        history.target = history.newest.own_target
    for point in history.points:
        point.same_class = point.environment.class_key == history.newest.environment.class_key
    for before, point in zip(history.points, history.points[1:], strict=False):
        point.changed = changes(before.environment, point.environment)


def changes(before: Environment, after: Environment) -> list[str]:
    """Return ``torch 2.10.0 → 2.11.0`` for each fact that differs; those of one side only are last."""
    if before.pk == after.pk:
        return []
    old, new = _flat(before.facts), _flat(after.facts)
    names = [*new, *(name for name in old if name not in new)]
    differ = [name for name in names if (old.get(name) or "") != (new.get(name) or "")]
    return [
        f"{name} {_brief(old.get(name))} → {_brief(new.get(name))}"
        for name in sorted(differ, key=lambda name: not (old.get(name) and new.get(name)))
    ]


def _brief(fact: Any) -> str:
    """Return a fact as text; the middle of a card's long identity is left out."""
    text = str(fact or "unknown")
    return f"{text[:8]}…{text[-4:]}" if text.startswith("GPU-") and len(text) > 20 else text


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts by their names; a variable keeps its underscores, others are words."""
    flat: dict[str, Any] = {}
    for name, fact in facts.items():
        flat.update(fact if isinstance(fact, dict) else {name.replace("_", " "): fact})
    return flat
