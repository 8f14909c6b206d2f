"""One way to run a statement of our own: rows come back as a small dataclass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from django.db import connection

T = TypeVar("T")


def fetch(row: type[T], statement: str, params: Mapping[str, Any]) -> list[T]:
    """Rows of `statement`, its columns in the order of the fields of the dataclass `row`."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return [row(*columns) for columns in cursor.fetchall()]
