"""The large tables can be spread over machines as Citus does it, without a change of code: each unique key
has the column that says where a row lies, and no foreign key is in the way."""

from __future__ import annotations

import pytest

from hud.models import Compilation, DetailedMeasurement, Point, SidePoint
from hud.models.base import NamedRow
from hud.sql import fetch_tuples

pytestmark = pytest.mark.django_db
DISTRIBUTED_BY = {Point: "series_id", DetailedMeasurement: "series_id", SidePoint: "series_id"}
_UNIQUE_KEYS = """
    SELECT i.indexrelid::regclass::text, array_agg(a.attname::text)
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = %s::regclass AND (i.indisunique OR i.indisexclusion) GROUP BY 1
"""
_FOREIGN_KEYS = """
    SELECT conname FROM pg_constraint WHERE contype = 'f' AND %s::regclass IN (conrelid, confrelid)
"""


@pytest.mark.parametrize("model", DISTRIBUTED_BY)
def test_each_key_of_a_large_table_says_where_a_row_lies(model: type[NamedRow]) -> None:
    table = model._meta.db_table
    keys = fetch_tuples(_UNIQUE_KEYS, [table])
    assert keys
    assert [name for name, columns in keys if DISTRIBUTED_BY[model] not in columns] == []
    assert fetch_tuples(_FOREIGN_KEYS, [table]) == []


def test_a_key_without_that_column_is_found() -> None:
    """Compilations lie with their experiments, and refer to them by foreign keys."""
    table = Compilation._meta.db_table
    assert all("experiment_id" in columns for _name, columns in fetch_tuples(_UNIQUE_KEYS, [table]))
    assert [columns for _name, columns in fetch_tuples(_UNIQUE_KEYS, [table]) if "series_id" not in columns]
    assert fetch_tuples(_FOREIGN_KEYS, [table])
