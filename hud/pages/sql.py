"""Hand-written SQL, where the ORM cannot express a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from django.db import connection
from psycopg.rows import class_row

T = TypeVar("T")


def fetch(row: type[T], statement: str, params: Mapping[str, Any]) -> list[T]:
    """Return the rows of `statement`; its columns have the names of the fields of the dataclass `row`."""
    with connection.cursor() as cursor:
        cursor.cursor.row_factory = class_row(row)
        cursor.execute(statement, params)
        rows: list[T] = cursor.fetchall()
        return rows


def fetch_tuples(statement: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
