"""Small partitions of the large tables, so that the few rows of a test lie in several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db import connection

from hud import partitions
from hud.sql import fetch_tuples

LAST_RUN = "(SELECT last_value FROM hud_run_id_seq)"


def make_small(
    monkeypatch: pytest.MonkeyPatch, *, run: str = LAST_RUN, time: str = "timestamptz '2023-10-15'"
) -> tuple[partitions.LargeTable, ...]:
    """Let there be partitions up to this run and time: of two runs, and of a month."""
    two = replace(partitions.MEASUREMENTS, newest=run, bound_after="({}::int / 2 + 1) * 2")
    monkeypatch.setattr(partitions, "MEASUREMENTS", two)
    month = "date_trunc('month', {}::timestamptz, 'UTC') + interval '1 month'"
    of_month = replace(partitions.POINTS, newest=time, bound_after=month)
    monkeypatch.setattr(partitions, "POINTS", of_month)
    monkeypatch.setattr(partitions, "TABLES", (partitions.POINTS, partitions.MEASUREMENTS))
    return partitions.TABLES


def partition_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition both tables: for the next eight runs, and for times up to March 2025, which tests archive."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    for table in make_small(monkeypatch):
        partitions.partition(table)
    for table in make_small(monkeypatch, run=f"({LAST_RUN} + 8)", time="timestamptz '2025-03-15'"):
        while partitions.make_ahead(table):
            pass


def rows_by_partition(table: partitions.LargeTable) -> dict[str, int]:
    """Return the rows of each partition that has some, by the end of its name."""
    rows = fetch_tuples(f"SELECT tableoid::regclass::text, count(*) FROM {table.name} GROUP BY 1 ORDER BY 1")
    return {name.removeprefix(f"{table.name}_"): count for name, count in rows}
