"""Hand-written SQL, where the ORM cannot express a query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from django.db import connection
from django.db.models import Model
from psycopg.rows import class_row

T = TypeVar("T")
M = TypeVar("M", bound=Model)


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


def by_id(model: type[M], ids: Iterable[int | None]) -> dict[int, M]:
    """Return rows by id. One array, since hundreds of parameters cost more than the statement."""
    wanted = list({pk for pk in ids if pk is not None})
    if not wanted:
        return {}
    table = model._meta.db_table
    rows = model._default_manager.raw(f"SELECT * FROM {table} WHERE id = ANY(%s)", [wanted])  # noqa: S608 — a table of ours  # nosec B608
    return {row.pk: row for row in rows}
