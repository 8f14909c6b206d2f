"""What pages read of a wide database: by an index what they show, not every series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from hud.models import Run
from hud.pages import backends
from hud.pages.overview import judged
from hud.points import streams
from hud.sql import execute
from tests.support.factories import create_environment, create_metric, create_run

WIDE = 4000  # series, each with a point and a state
_LARGE = {"hud_experiment", "hud_point", "hud_series", "hud_seriesstate"}

pytestmark = pytest.mark.django_db


def rows_read(call: Callable[[], object]) -> float:
    """Return how many rows of the large tables the statements of a call read, as their plans say, with little
    memory, as 100 times as many series leave."""
    with connection.cursor() as cursor, CaptureQueriesContext(connection) as captured:
        cursor.execute("SET LOCAL work_mem = '64kB'; SET LOCAL hash_mem_multiplier = 1")
        call()
        plans = []
        for query in captured.captured_queries:
            if query["sql"].lstrip().upper().startswith(("SELECT", "WITH")):
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query['sql']}")
                plans.append(cursor.fetchone()[0][0]["Plan"])
    return sum(map(_rows_of, plans))


def _rows_of(plan: dict[str, Any]) -> float:
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    is_scan = plan["Node Type"] in {"Materialize", "CTE Scan"} or plan.get("Relation Name") in _LARGE
    own = float(rows * plan["Actual Loops"]) if is_scan else 0.0
    return own + sum(map(_rows_of, plan.get("Plans", [])))


@pytest.fixture
def wide() -> Run:
    """Return the newest of two runs, of which each has measured as many series."""
    older, newest = create_run(order_time="2026-11-20T00:00Z"), create_run(order_time="2026-11-21T00:00Z")
    environment, metric = create_environment(), create_metric("speedup")
    execute(
        """
        INSERT INTO hud_experiment (suite, "case", knobs, mode, dtype, backend, device, arch, dynamic)
        SELECT 'wide', n, '{}', 'inference', 'float16', 'inductor', 'cuda', 'h200', false
        FROM generate_series(1, %s) n
        """,
        [WIDE],
    )
    execute(
        """
        INSERT INTO hud_series (experiment_id, metric_id, stream_id)
        SELECT id, %s, %s FROM hud_experiment WHERE suite = 'wide'
        """,
        [metric.pk, newest.stream_id],
    )
    for run in (older, newest):
        execute(
            """
            INSERT INTO hud_point (series_id, order_time, run_id, environment_id, value, samples, processes,
                compilations, status, branch, rerun, verdict, repeat)
            SELECT id, %s, %s, %s, 1, 1, 1, 1, 0, %s, false, 1, 0 FROM hud_series WHERE stream_id = %s
            """,
            [run.order_time, run.pk, environment.pk, run.branch, run.stream_id],
        )
    execute(
        """
        INSERT INTO hud_seriesstate (series_id, class_key, headline, level, run_id, environment_id,
            order_time, points, recent)
        SELECT id, 'gpu', true, '{}', %s, %s, %s, 2, '{1,1}' FROM hud_series WHERE stream_id = %s
        """,
        [newest.pk, environment.pk, newest.order_time, newest.stream_id],
    )
    execute("ANALYZE hud_experiment, hud_series, hud_point, hud_seriesstate")
    return newest


def test_head_of_a_page(wide: Run) -> None:
    assert rows_read(streams.listed) < 100


def test_list_of_streams(wide: Run) -> None:
    assert rows_read(streams.read) < 3 * WIDE  # it counts the series


def test_judged_night_reads_each_state_once(wide: Run) -> None:
    comparison = backends.BackendComparison(wide.stream, backends.BackendFilters(), {}, [], only_arch=True)
    assert judged.read(comparison, [wide.pk]).series == WIDE
    assert rows_read(lambda: judged.read(comparison, [wide.pk])) < 5 * WIDE
