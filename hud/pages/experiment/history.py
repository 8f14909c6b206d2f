"""The points of a series in a range, and where each came from."""

from collections.abc import Iterable, Mapping
from typing import Any

from hud.models import Environment, Experiment, Metric, Point, Run
from hud.pages.experiment.choice import Choice
from hud.points.targets import Targets
from hud.runs.branches import branch_or_default, stored_names
from hud.sql import attach, by_id, fetch_models, int_array
from hud.tables.table import DataTable

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


def read(
    series: Mapping[int, tuple[Experiment, Metric]],
    newest: Point,
    choice: Choice,
    targets: Targets,
    environments: dict[int, Environment],
) -> tuple[dict[int, list[Point]], Point | None]:
    """Return the points of the range of each series, oldest first, and the `newest` one of all, with run,
    environment and targets: 2 statements, 1 more for `environments` that are not known yet."""
    points = fetch_models(
        Point,
        "ORDER BY one.series_id, one.order_time, one.run_id, one.environment_id",
        window_params(series, choice),
        rows=f"SELECT n.* FROM unnest(%(series)s::int[]) s(id) CROSS JOIN LATERAL ({WINDOW}) n",  # noqa: S608 — a constant  # nosec B608
    )
    runs = by_id(Run, [point.run_id for point in (*points, newest)])
    known = [point for point in (*points, newest) if point.run_id in runs]  # else deleted meanwhile
    environments |= by_id(Environment, {point.environment_id for point in known} - environments.keys())
    attach(known, "run", runs)
    attach(known, "environment", environments)
    found: dict[int, list[Point]] = {pk: [] for pk in series}
    for point in known:
        point.show(*series[point.series_id], targets)
        if point is not newest:
            found[point.series_id].append(point)
    return found, newest if newest.run_id in runs else None


ORIGIN = DataTable(  # of a point with run and environment
    """placed_by=run.order_time_source host=run.host_name source=run.source commit=run.commit branch
    environment=environment.fingerprint environment_class=environment.class_key torch=environment.torch
    torch_git=environment.torch_git""",
    branch=lambda point: branch_or_default(point.run.branch),
)
