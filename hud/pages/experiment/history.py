"""The points of a series: where each came from, and what differs from the one before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

import orjson

from hud.models import Environment, Experiment, Metric, Upload
from hud.sql import fetch, fetch_tuples, int_array
from hud.points.targets import AppliedTarget, Targets
from hud.pages.values import VALUE_COLUMNS, VERDICT_JOIN, MetricValue, compilation_medians, over_processes
from hud.runs.branches import branch_or_default, other_branch, stored_names

# Facts of an environment, and of the runs in it, whose names are not those that pages show
_FACT_NAMES = {
    "compiler": "C++ compiler",
    "cpu": "CPU",
    "cpu_count": "processors",
    "gpu": "GPU",
    "gpu_memory_bytes": "GPU memory",
    "gpu_uuid": "card",
    "os": "OS",
    "torch_git": "torch commit",
}


def fact_name(name: str) -> str:
    return _FACT_NAMES.get(name, name)


@dataclass(frozen=True)
class Range:
    """Which points to read: the newest `points` processes of a branch ('': all) between two times."""

    points: int
    branch: str = ""
    since: datetime | None = None
    until: datetime | None = None
    before: tuple[datetime, int] | None = None  # time and run of the first point that is not read


@dataclass(frozen=True, slots=True)
class Extent:
    """The number of a series' points in a range, and where its newest ones begin."""

    points: int
    processes: int
    first: datetime | None
    since: datetime | None  # where to begin to read the newest points and the newest of the chosen branch


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts of an environment that are compared with those of others."""

    pk: int
    fingerprint: str
    class_key: str
    torch: str
    torch_git: str
    facts: dict[str, Any]


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
    environment: Surroundings = field(init=False)
    compilations: list[tuple[int, float]] = field(default_factory=list)  # number and value of each
    before: Point | None = field(default=None, repr=False, compare=False)
    same_class: bool = True  # as the newest point: may be its baseline
    file: Upload | None = None  # it came in

    @property
    def place(self) -> tuple[datetime, int]:
        return self.order_time, self.run_id

    @property
    def changed(self) -> list[str]:
        """Return the facts that differ from the point before."""
        return changes(self.before.environment, self.environment) if self.before else []

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
    total: int = 0  # points of the range, of which some may have been read
    target: AppliedTarget | None = None  # of this arch

    @property
    def newest(self) -> Point | None:
        """Return the newest point of the branch. A/B runs and other branches count only without any."""
        names = stored_names(self.branch)
        own = (point for point in reversed(self.points) if point.branch in names and not point.is_ab)
        return next(own, self.points[-1] if self.points else None)

    @property
    def newest_first(self) -> list[Point]:
        return self.points[::-1]

    @property
    def order(self) -> list[str]:
        """Return the kinds of time that order the points."""
        return sorted({point.order_time_source for point in self.points})


# The newest processes of series s in a range.
_WINDOW = """
    SELECT n.* FROM hud_measurement n
    WHERE n.series_id = s.id
        AND (%(since)s::timestamptz IS NULL OR n.order_time >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR n.order_time <= %(until)s)
        AND (%(time)s::timestamptz IS NULL OR
            (n.order_time, n.run_id) < (%(time)s::timestamptz, %(run)s::int))
        AND (%(branches)s::text[] IS NULL
            OR n.run_id IN (SELECT id FROM hud_run WHERE branch = ANY(%(branches)s)))
    ORDER BY n.order_time DESC, n.run_id DESC FETCH FIRST %(points)s ROWS WITH TIES
"""


def _params(series: Iterable[int], asked: Range) -> dict[str, Any]:
    time, run = asked.before or (None, None)
    return {
        "series": list(series),
        "points": asked.points,
        "since": asked.since,
        "until": asked.until,
        "time": time,
        "run": run,
        "branches": branches(asked.branch),
    }


def extent(series: int, asked: Range, newest: int) -> Extent:
    """Return how much of a series is in a range, and where its `newest` points begin: 1 statement."""
    (found,) = fetch(
        Extent,
        f"""
        SELECT count(*) points, coalesce(sum(processes), 0)::int processes, min(order_time) AS first,
            least(
                min(order_time) FILTER (WHERE place <= %(newest)s), max(order_time) FILTER (WHERE own)
            ) since
        FROM (
            SELECT m.order_time, count(*) processes, bool_or(EXISTS (
                    SELECT FROM hud_run r
                    WHERE r.id = m.run_id AND r.base_interpreter = '' AND r.branch = ANY(%(own)s)
                )) own, row_number() OVER (ORDER BY m.order_time DESC, m.run_id DESC) place
            FROM (SELECT %(series)s::int[] ids) asked, unnest(asked.ids) s(id), LATERAL ({_WINDOW}) m
            GROUP BY m.order_time, m.run_id, m.environment_id
        ) point
        """,  # noqa: S608 — constants  # nosec B608
        {**_params([series], asked), "newest": newest, "own": stored_names(asked.branch)},
    )
    return found


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
        JOIN LATERAL ({_WINDOW}) m ON true
        JOIN hud_run r ON r.id = m.run_id
        LEFT JOIN hud_runrequest q ON q.run_id = r.id
        LEFT JOIN hud_host h ON h.id = q.host_id
        {VERDICT_JOIN}
        WHERE s.id = ANY(%(series)s)
        WINDOW point AS (PARTITION BY s.id, m.order_time, m.run_id, m.environment_id)
        ORDER BY s.id, m.order_time, m.run_id, max(m.repeat) OVER point, max(m.side) OVER point,
            m.environment_id, m.repeat, m.side
        """,  # noqa: S608 — constants  # nosec B608
        _params(wanted, asked),
    )
    environments = surroundings({row.environment_id for row in rows})
    files = _files({row.upload_id for row in rows if row.upload_id})
    for _place, group in groupby(rows, key=attrgetter("series_id", "order_time", "run_id", "environment_id")):
        processes = list(group)
        point = over_processes(processes)
        history = wanted[point.series_id]
        point.compilations = compilation_medians(processes)
        point.environment = environments[point.environment_id]
        point.file = files.get(point.upload_id or 0)
        history.points.append(point.show(history.experiment, history.metric, targets))
    for history in wanted.values():
        history.target = targets.own(history.experiment, history.metric)
        history.total = len(history.points)
        _compare_neighbours(history)


def _files(ids: Collection[int]) -> dict[int, Upload]:
    """Return uploads by their ids, with their names and formats only: 1 statement, none without ids."""
    statement = "SELECT id, filename, format FROM hud_upload WHERE id = ANY(%s::int[])"
    return {one.pk: one for one in Upload.objects.raw(statement, [int_array(ids)])} if ids else {}


def surroundings(ids: Iterable[int]) -> dict[int, Surroundings]:
    """Return environments by their ids: 1 statement. Their facts are decoded here: Django's field takes
    several times as long for hundreds."""
    rows = fetch_tuples(
        """
        SELECT id, fingerprint, class_key, torch, torch_git, facts::text FROM hud_environment
        WHERE id = ANY(%(ids)s::int[])
        """,
        {"ids": int_array(ids)},
    )
    return {
        pk: Surroundings(pk, fingerprint, class_key, torch, torch_git, orjson.loads(facts))
        for pk, fingerprint, class_key, torch, torch_git, facts in rows
    }


def branches(asked: str) -> list[str] | None:
    """Return the stored names of the branches to read: all, or the default one and the one asked for."""
    return sorted({*stored_names(), *stored_names(asked)}) if asked else None


def _compare_neighbours(history: History) -> None:
    """Set each point's predecessor, and whether it has the newest point's class."""
    if history.newest is None:
        return
    if history.target is None:
        history.target = history.newest.own_target
    for point in history.points:
        point.same_class = point.environment.class_key == history.newest.environment.class_key
    for before, point in pairwise(history.points):
        point.before = before


def changes(before: Surroundings | Environment, after: Surroundings | Environment) -> list[str]:
    """Return ``torch 2.10.0 → 2.11.0`` for each fact that differs; those of one side only are last."""
    if before.pk == after.pk:
        return []
    both: list[str] = []
    came: list[str] = []
    gone: list[str] = []
    olds, news = before.facts, after.facts
    names = [name for name, new in news.items() if olds.get(name) != new]
    for name in [*names, *(name for name in olds if name not in news)]:
        for word, was, now in _flat(name, olds.get(name), news.get(name)):
            if (was or "") != (now or ""):
                kind = both if was and now else came if now else gone
                kind.append(f"{word} {_brief(was)} → {_brief(now)}")
    return [*both, *came, *gone]


def _brief(fact: Any) -> str:
    """Return a fact as text; the middle of a card's long identity is left out."""
    text = str(fact or "unknown")
    return f"{text[:8]}…{text[-4:]}" if text.startswith("GPU-") and len(text) > 20 else text


def _flat(name: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield a fact of two environments; those of a group one by one."""
    if not isinstance(old, dict) and not isinstance(new, dict):
        yield fact_name(name), old, new
        return
    before, after = (one if isinstance(one, dict) else {} for one in (old, new))
    for each in [*after, *(each for each in before if each not in after)]:
        yield each, before.get(each), after.get(each)
