"""Times as they are read from PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db.utils import DataError

from hud.sql import fetch_tuples

pytestmark = pytest.mark.django_db


def _read(text: str) -> datetime:
    time: datetime = fetch_tuples("SELECT %s::timestamptz", [text])[0][0]
    return time


def test_times_are_in_utc_with_their_microseconds() -> None:
    assert _read("2026-11-23 05:06:07.5+02") == datetime(2026, 11, 23, 3, 6, 7, 500_000, UTC)
    assert _read("0001-01-01 00:00:00+00") == datetime(1, 1, 1, tzinfo=UTC)
    found = _read("2026-11-23 03:00:00.000001+00")
    assert (found.utcoffset(), found.microsecond) == (timedelta(), 1)


@pytest.mark.parametrize("text", ["infinity", "0044-03-15 00:00:00+00 BC", "12026-01-01 00:00:00+00"])
def test_a_time_that_python_cannot_hold_is_an_error(text: str) -> None:
    with pytest.raises(DataError):
        _read(text)
