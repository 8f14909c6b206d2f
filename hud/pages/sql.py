"""Hand-written SQL, where the ORM cannot express a query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import psycopg
from django.db import connection
from django.db.models import Model
from numpy.typing import NDArray
from psycopg.pq import Format
from psycopg.rows import class_row

T = TypeVar("T")
M = TypeVar("M", bound=Model)
_ELEMENTS = {20: ">i8", 21: ">i2", 23: ">i4", 701: ">f8", 1184: ">i8"}  # OIDs; 1184: µs since 2000
# psycopg's own loader, in C: Django's takes ten times as long for each time of hundreds of rows.
_TIMESTAMPTZ = 1184
_LOAD_TIME = psycopg.adapters.get_loader(_TIMESTAMPTZ, Format.TEXT)


def fetch(row: type[T], statement: str, params: Mapping[str, Any]) -> list[T]:
    """Return the rows of `statement`; its columns have the names of the fields of the dataclass `row`."""
    with connection.cursor() as cursor:
        cursor.cursor.adapters.register_loader(_TIMESTAMPTZ, _LOAD_TIME)
        cursor.cursor.row_factory = class_row(row)
        cursor.execute(statement, params)
        rows: list[T] = cursor.fetchall()
        return rows


def fetch_tuples(statement: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.cursor.adapters.register_loader(_TIMESTAMPTZ, _LOAD_TIME)
        cursor.execute(statement, params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def by_id(model: type[M], ids: Iterable[int | None]) -> dict[int, M]:
    """Return rows by id. One array, since hundreds of parameters cost more than the statement."""
    wanted = {pk for pk in ids if pk is not None}
    if not wanted:
        return {}
    table = model._meta.db_table
    rows = model._default_manager.raw(f"SELECT * FROM {table} WHERE id = ANY(%s::int[])", [int_array(wanted)])  # noqa: S608 — a table of ours  # nosec B608
    return {row.pk: row for row in rows}


def int_array(numbers: Iterable[int]) -> str:
    """Return an array in PostgreSQL's own words, which costs less than a parameter for each element."""
    return f"{{{','.join(map(str, numbers))}}}"


def fetch_columns(statement: str, params: Mapping[str, Any]) -> list[NDArray[Any]]:
    """Return the columns of a statement with one row of `array_send(array_agg(…))`, of numbers without NULL.
    An element costs a hundredth of what it costs as a part of a row."""
    (row,) = fetch_tuples(statement, params)
    return [_numbers(column) for column in row]


def _numbers(array: bytes | None) -> NDArray[Any]:
    """Return a one-dimensional array of PostgreSQL's binary format: dimensions, whether there are NULLs, the
    elements' type, length and lower bound, then each element after its own length."""
    if array is None:
        return np.empty(0, np.int64)
    _dimensions, nulls, kind, length, _bound = np.frombuffer(array, ">i4", 5)
    if nulls:
        raise ValueError("an array of numbers holds NULL")
    element = _ELEMENTS[int(kind)]
    found = np.frombuffer(array, [("length", ">i4"), ("value", element)], int(length), offset=20)["value"]
    return found.astype(element[1:])
