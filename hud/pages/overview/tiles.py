"""The suites beside the table: targets, or their main numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from hud.models import Metric, OverdueSuite, Point
from hud.pages.backends import BackendComparison
from hud.pages.backends_table import suite_place
from hud.points.kept import Kept
from hud.points.nights import MODEL_SUITES
from hud.points.read import NEWEST_POINT, metric_place
from hud.runs.branches import stored_names
from hud.sql import by_id, fetch_tuples

_LINES = 2
_means_of_nights = Kept(64, list[Any])


@dataclass
class Tile:
    suite: str
    met: int = 0
    missed: int = 0
    ran: int = 0
    known: int = 0  # experiments that ever gave a value
    last: datetime | None = None
    is_late: bool = False
    # with words, value, metric, target, and whether the value may not decide
    lines: Sequence[tuple[str, float, Metric, float | None, bool]] = ()


def read(
    comparison: BackendComparison,
    aimed: Sequence[Point],
    overdue: Sequence[OverdueSuite],
    until: datetime | None,
) -> list[Tile]:
    """Return a tile for each suite that the table does not have, in 2 statements, from the newest points up
    to a time. `aimed` are those with a target."""
    beside = [name for name in comparison.suites if name not in MODEL_SUITES]
    arch = comparison.filters.arch
    tiles = {name: Tile(name) for name in sorted(beside, key=suite_place)}
    late = {schedule.suite for schedule in overdue if schedule.arch == arch}
    versions = tuple((night.runs, night.versions) for night in comparison.nights_of_stream)
    key = tuple(tiles), arch, comparison.stream.pk, until, versions
    rows = _means_of_nights.get(key, lambda: _means(*key[:-1])) if tiles else []
    metrics = by_id(Metric, [row[1] for row in rows])
    for suite, _metric, ran, known, last, *_means_of_it in rows:
        tile = tiles[suite]
        if known > tile.known:
            tile.ran, tile.known = ran, known
        tile.last = max(tile.last or last, last)
    for tile in tiles.values():
        own = [
            value for value in aimed if (value.experiment.suite, value.experiment.arch) == (tile.suite, arch)
        ]
        judged = [value for value in own if value.own_target]
        judged.sort(key=lambda value: value.shortfall * (-1 if value.met == "missed" else 1))
        tile.met = sum(value.met == "met" for value in judged)
        tile.missed = sum(value.met == "missed" for value in judged)
        tile.is_late = tile.suite in late
        tile.lines = [
            (f"{one.experiment.title} {one.experiment.dtype}", one.value, one.metric, target.value, pale)
            for one, pale in ((point, bool(point.quality)) for point in judged)
            if (target := one.own_target) and one.value is not None
        ][:_LINES]
        if not tile.lines:
            means = [(metrics[row[1]], *row[5:]) for row in rows if row[0] == tile.suite and row[5]]
            means.sort(key=lambda line: metric_place(tile.suite, line[0]))
            tile.lines = [(metric.title, mean, metric, None, pale) for metric, mean, pale in means[:_LINES]]
    return [tile for tile in tiles.values() if tile.last]


def _means(suites: Sequence[str], arch: str, stream: int, until: datetime | None) -> list[tuple[Any, ...]]:
    """Return for each suite and metric: experiments that ran last time and ever, the newest time, the
    geometric mean of the values that may decide, else of all, and whether it is of all."""
    return fetch_tuples(
        f"""
        SELECT e.suite, s.metric_id, count(p.value), count(*), max(p.order_time),
            exp(coalesce(avg(ln(p.value)) FILTER (WHERE p.value > 0 AND p.quality IS NULL),
                avg(ln(p.value)) FILTER (WHERE p.value > 0))),
            count(*) FILTER (WHERE p.value > 0 AND p.quality IS NULL) = 0
        FROM hud_experiment e
        JOIN hud_series s ON s.experiment_id = e.id AND s.stream_id = %(stream)s
        JOIN hud_metric k ON k.id = s.metric_id AND k.kind = 'timing' AND k.direction <> 'none'
        CROSS JOIN LATERAL ({NEWEST_POINT}) p
        WHERE e.suite = ANY(%(suites)s) AND e.arch = %(arch)s GROUP BY 1, 2
        """,  # noqa: S608 — a constant  # nosec B608
        {
            "suites": list(suites),
            "arch": arch,
            "stream": stream,
            "branches": stored_names(),
            "until": until or "infinity",
        },
    )
