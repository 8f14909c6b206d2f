"""The points of a series: where each came from, and what differs from the one before."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hud.models import Environment, Experiment, Metric, Point, Run
from hud.pages.experiment.choice import Choice
from hud.points.read import with_levels
from hud.points.targets import Targets
from hud.runs.branches import branch_or_default, stored_names
from hud.sql import attach, by_id, fetch_models, int_array
from hud.tables.table import DataTable

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


@dataclass
class History:
    """Points of one series, oldest first, in the order of the series."""

    experiment: Experiment
    metric: Metric
    points: list[Point] = field(default_factory=list)  # with run and environment
    newest: Point | None = None  # that counts, also outside the range; None: not read

    @property
    def order(self) -> list[str]:
        """Return the kinds of time that order the points."""
        return sorted({one.run.order_time_source for one in self.points})


# The newest points of series s in a range.
WINDOW = """
    SELECT * FROM hud_point
    WHERE series_id = s.id
        AND (%(since)s::timestamptz IS NULL OR order_time >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR order_time <= %(until)s)
        AND (%(time)s::timestamptz IS NULL OR
            (order_time, run_id) < (%(time)s::timestamptz, %(run)s::int))
        AND (%(branches)s::text[] IS NULL OR branch = ANY(%(branches)s))
    ORDER BY order_time DESC, run_id DESC FETCH FIRST %(points)s ROWS WITH TIES
"""


def window_params(series: Iterable[int], choice: Choice) -> dict[str, Any]:
    time, run = choice.place or (None, None)
    own = {*stored_names(), *stored_names(choice.branch)}
    return {
        "series": int_array(series),
        "points": choice.points,
        "since": choice.since,
        "until": choice.until,
        "time": time,
        "run": run,
        "branches": sorted(own) if choice.branch else None,  # the default branch beside the one asked for
    }


def fill(
    wanted: Mapping[int, History],
    choice: Choice,
    targets: Targets,
    newest: Mapping[int, Point],
    environments: dict[int, Environment],
) -> None:
    """Give each history, by its series, the points of the range, and its newest one: 2 statements, 1 more for
    `environments` that are not known yet."""
    points = fetch_models(
        Point,
        "ORDER BY one.series_id, one.order_time, one.run_id, one.environment_id",
        window_params(wanted, choice),
        rows=f"SELECT n.* FROM unnest(%(series)s::int[]) s(id) CROSS JOIN LATERAL ({WINDOW}) n",  # noqa: S608 — a constant  # nosec B608
    )
    with_levels(points)
    known = [*points, *(newest[pk] for pk in wanted if pk in newest)]
    runs = by_id(Run, [point.run_id for point in known])
    environments |= by_id(Environment, {point.environment_id for point in known} - environments.keys())
    attach(known, "run", runs)
    attach(known, "environment", environments)
    for point in known:
        history = wanted[point.series_id]
        point.show(history.experiment, history.metric, targets)
    for point in points:
        if point.run_id in runs:  # else deleted meanwhile
            wanted[point.series_id].points.append(point)
    for pk, history in wanted.items():
        if pk in newest and newest[pk].run_id in runs:
            history.newest = newest[pk]


ORIGIN = DataTable(  # of a point with run and environment
    """placed_by=run.order_time_source host=run.host_name source=run.source commit=run.commit branch
    environment=environment.fingerprint environment_class=environment.class_key torch=environment.torch
    torch_git=environment.torch_git""",
    branch=lambda point: branch_or_default(point.run.branch),
)


def changes(before: Environment, after: Environment) -> list[str]:
    """Return ``torch 2.10.0 → 2.11.0`` for each fact that differs; those of one side only are last."""
    if before.pk == after.pk:
        return []
    differing = [
        name for name in {**after.facts, **before.facts} if before.facts.get(name) != after.facts.get(name)
    ]
    olds, news = (flat({name: one.facts.get(name) for name in differing}) for one in (before, after))
    kinds: tuple[list[str], ...] = [], [], []  # of both, of the second, of the first
    for name in {**news, **olds}:
        was, now = olds.get(name), news.get(name)
        if (was or "") != (now or ""):
            kinds[0 if was and now else 1 if now else 2].append(
                f"{fact_name(name)} {_brief(was)} → {_brief(now)}"
            )
    return [text for texts in kinds for text in texts]


def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts of an environment with those of a group one by one."""
    found: dict[str, Any] = {}
    for name, fact in facts.items():
        found.update(fact if isinstance(fact, dict) else {name: fact})
    return found


def _brief(fact: Any) -> str:
    """Return a fact as text; the middle of a card's long identity is left out."""
    text = str(fact or "unknown")
    return f"{text[:8]}…{text[-4:]}" if text.startswith("GPU-") and len(text) > 20 else text
