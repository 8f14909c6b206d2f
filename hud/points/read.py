"""Read points: the values that pages, API, exports and messages show."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from hud.models import Experiment, Metric, Point, Series, Stream
from hud.points.targets import Targets
from hud.runs.branches import stored_names
from hud.sql import attach, by_id, fetch_models, fetch_tuples, int_array, numbers_of
from hud.tables.table import EXPERIMENT, IDENTITY, DataTable
from runner.suites import SUITES

# Metrics that are read first in suites that the runner does not have, most telling first.
_OTHER_SUITES = "speedup accuracy abs_latency compilation_latency compression_ratio dynamo_peak_mem"
_REST = "device_speedup same_choice_ratio device_latency_ms compiled_latency_ms cold_compile_s warm_compile_s"
POINT = DataTable(  # of a point that `show` completed
    """metric=metric.name unit=metric.unit direction=metric.direction value spread n=samples compilations
    status code reason quality verdict change noise level level_stream verdict_reason target target_name
    target_met record_target=target record_target_arch=target_arch warning time=order_time run=run_id
    processes rerun expectation=expectation? known_failure=known_failure?""",
    level_stream=lambda point: point.level_stream_id and point.level_stream.name,
    target=lambda point: point.own_target and point.own_target.value,
    target_name=lambda point: point.own_target and point.own_target.name,
    target_met=lambda point: {"met": True, "missed": False}.get(point.met),
)
OF_EXPERIMENT = DataTable(EXPERIMENT, *POINT.columns)
HEADER = (*IDENTITY.names, "stream", *POINT.names)  # of `rows_in_stream`


def rows_in_stream(points: Sequence[Point], stream: Stream) -> list[dict[str, Any]]:
    """Return a row for each point, beginning with its experiment and the stream."""
    return [{**IDENTITY.row(point.experiment), "stream": stream.name, **POINT.row(point)} for point in points]


@cache
def _places(suite: str) -> dict[str, int]:
    headline = SUITES[suite].headline_metrics if suite in SUITES else _OTHER_SUITES.split()
    return {name: rank for rank, name in enumerate((*headline, *_REST.split()))}


def main_metrics(suite: str) -> list[str]:
    """Return the names of a suite's main metrics, the most telling first."""
    return list(_places(suite))


def metric_place(suite: str, metric: Metric) -> tuple[int, str]:
    """Return a sort key: the suite's main metrics first, then by name."""
    places = _places(suite)
    return places.get(metric.name, len(places)), metric.name


# The newest point of series s that counts: of the branch and no rerun; one that tries something out only
# where there are no others. It takes the parameters `branches` and `until`, a time or 'infinity'.
NEWEST_POINT = """
    SELECT * FROM (
        (SELECT *, 1 AS preference FROM hud_point
        WHERE series_id = s.id AND order_time <= %(until)s::timestamptz
            AND NOT rerun AND branch = ANY(%(branches)s)
        ORDER BY order_time DESC, run_id DESC, environment_id DESC LIMIT 1)
        UNION ALL
        (SELECT *, 2 FROM hud_point WHERE series_id = s.id AND order_time <= %(until)s::timestamptz
        ORDER BY order_time DESC, run_id DESC, environment_id DESC LIMIT 1)
    ) candidate ORDER BY preference LIMIT 1
"""


def latest(series_ids: Iterable[int], branch: str = "", until: datetime | None = None) -> dict[int, Point]:
    """Return the newest point of each series on a branch, by default the default one, up to a time: 1
    statement."""
    newest = fetch_models(
        Point,
        "",
        {"series": int_array(series_ids), "branches": stored_names(branch), "until": until or "infinity"},
        rows=f"SELECT p.* FROM unnest(%(series)s::int[]) s(id) CROSS JOIN LATERAL ({NEWEST_POINT}) p",  # noqa: S608 — a constant  # nosec B608
    )
    return {point.series_id: point for point in with_levels(newest)}


def with_levels(points: list[Point]) -> list[Point]:
    """Add the streams that some points were judged against, and are not in: 1 statement if there are any."""
    if others := {point.level_stream_id for point in points} - {None}:
        attach(points, "level_stream", by_id(Stream, others))
    return points


def recent(series_ids: Iterable[int], most: int) -> list[list[float]]:
    """Return the newest values of each series, oldest first, without reruns and other branches: 1
    statement."""
    newest = fetch_tuples(
        """
        SELECT array_send(ARRAY(
            SELECT value FROM hud_point
            WHERE series_id = s.id AND value IS NOT NULL AND NOT rerun AND branch = ANY(%(branches)s)
            ORDER BY order_time DESC, run_id DESC, environment_id DESC LIMIT %(most)s
        )) FROM unnest(%(series)s::int[]) WITH ORDINALITY AS s(id, place) ORDER BY place
        """,
        {"series": int_array(series_ids), "branches": stored_names(), "most": most},
        binary=True,
    )
    return [numbers_of(values)[::-1].tolist() for (values,) in newest]


def of_runs(series: Sequence[int], runs: Sequence[int]) -> dict[int, Point]:
    """Return the newest point of each series in its run: 1 statement, one look-up in an index for each; none
    without series."""
    if not series:
        return {}
    points = fetch_models(
        Point,
        "ORDER BY series_id, order_time, environment_id",
        {"series": int_array(series), "runs": int_array(runs)},
        rows="""
        SELECT p.* FROM unnest(%(series)s::int[], %(runs)s::int[]) AS wanted(series_id, run_id)
        CROSS JOIN LATERAL (
            SELECT * FROM hud_point WHERE run_id = wanted.run_id AND series_id = wanted.series_id OFFSET 0
        ) p
        """,
    )
    return {point.series_id: point for point in with_levels(points)}


def shown(
    series: Iterable[Series], experiments: dict[int, Experiment], points: dict[int, Point], targets: Targets
) -> list[Point]:
    """Return the points of those series that have one. `series` come with their metric."""
    return [
        points[series_row.pk].show(experiments[series_row.experiment_id], series_row.metric, targets)
        for series_row in series
        if series_row.pk in points
    ]
