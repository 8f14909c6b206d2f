"""Statements of pages are prepared, those of everything else are not."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from hud.sql import fetch_tuples

pytestmark = pytest.mark.django_db


def _prepared() -> set[str]:
    rows: list[Any] = fetch_tuples("SELECT statement FROM pg_prepared_statements")
    return {statement for (statement,) in rows}


def test_pages_prepare_what_they_read_again(client: Client) -> None:
    for _ in range(4):
        assert client.get("/suites.json").status_code == 200
    assert any("FROM hud_run" in statement for statement in _prepared())


def test_posts_and_background_work_prepare_nothing(client: Client) -> None:
    before = _prepared()
    for number in range(4):
        assert fetch_tuples("SELECT %(number)s::int", {"number": number}) == [(number,)]
        client.post("/login/", {"username": "nobody", "password": "wrong"})
    assert _prepared() == before
