"""Every call with a cursor goes on from each `next`, and refuses any other text by the parameter's name."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.accounts.keys import create_key
from hud.api import api, host_api
from hud.api.cursors import cursor_to
from tests.support.factories import create_experiment, create_measurement, create_run

pytestmark = pytest.mark.django_db
TIME = "2026-11-28T18:34:37.123456Z"
WRONG = [
    *("1_2_3", "1_000", " 1", "+1", "1.0", "-1", "1e3", "\u0661", "\uff11", "1\n", "0x1", "true", "null"),
    *("4294967296", "9223372036854775808", "9" * 400, "2147483648", "_", "__", "1_"),
    *(f"99999{TIME[4:]}_1_1", f"0000{TIME[4:]}_1_1", "2026-02-30T00:00:00Z_1_1", "2026-13-01T00:00:00Z_1_1"),
    *("2026-01-01T24:00:01Z_1_1", "2026-01-01T00:00:60Z_1_1", "2026-01-01T::::::::Z_1_1"),
    *(f"{TIME}_9999999999_1", f"{TIME}_1_9999999999", f"{TIME}_1", f"{TIME}_1_1_1", f"{TIME}_1__1"),
    *(f"{TIME}_1_\u0661", f"{TIME}_-1_1", f"{TIME[:-1]}+00:00_1_1", f"{TIME}_1_1\n", f"{TIME}\0_1_1"),
]


def calls() -> dict[str, dict[str, Any]]:
    """The schema of the cursor of each call that takes one, by path."""
    paths = api.get_openapi_schema()["paths"] | host_api.get_openapi_schema()["paths"]
    return {
        path: parameter["schema"]
        for path, methods in paths.items()
        for call in methods.values()
        for parameter in call.get("parameters", ())
        if parameter["name"] == "cursor"
    }


def is_of(pattern: str, cursor: str) -> bool:
    """Return whether a cursor has the form that the schema says, and parts that a row can have."""
    try:
        parts = cursor.split("_") if cursor else []
        values = [datetime.fromisoformat(part) if "T" in part else int(part) for part in parts]
    except ValueError:
        return False
    in_range = all(value < 2**31 for value in values if isinstance(value, int))
    return bool(in_range and re.fullmatch(pattern, cursor))


@pytest.fixture
def addresses(client: Client) -> dict[str, str]:
    """Return the address of each call that takes a cursor."""
    experiment = create_experiment()
    create_measurement(run=create_run(), experiment=experiment, value=1.0)
    key = create_key(name="k", scopes=["read", "admin"], who="t")[1]
    client.defaults["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    given = {"experiment": experiment.pk, "metric": "device_bandwidth_gbps"}
    return {path: path.format(**given) for path in calls()}


def refused(client: Client, address: str, cursor: str) -> bool:
    """Return whether a cursor is refused, by its name; else it is followed."""
    answer = client.get(address, {"cursor": cursor})
    if answer.status_code == 200:
        return False
    errors = answer.json()["errors"]
    assert answer.status_code == 422, (cursor, answer.content)
    assert [error["pointer"].strip("/?") for error in errors] == ["cursor"], (cursor, answer.content)
    return True


def test_each_list_in_pages_is_among_them() -> None:
    names = {path.removeprefix("/api/v1/").partition("/")[0] for path in calls()}
    assert names >= {"runs", "experiments", "series", "audit"}


def test_a_cursor_that_no_answer_had_is_refused_by_name(client: Client, addresses: dict[str, str]) -> None:
    for address in addresses.values():
        assert not refused(client, address, "")
        for cursor in WRONG:
            assert refused(client, address, cursor), (address, cursor)


def test_any_text_is_followed_or_refused_by_name(client: Client, addresses: dict[str, str]) -> None:
    patterns = {path: schema["pattern"] for path, schema in calls().items()}
    ids = st.integers(0, 10**11).map(str)
    times = st.from_regex(
        r"[0-9]{4,5}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]Z", fullmatch=True
    )
    points = st.tuples(times, ids, ids).map("_".join)
    cursors = st.one_of(st.text(), ids, points, *(st.from_regex(form) for form in patterns.values()))

    @settings(max_examples=200, deadline=None, database=None)
    @given(st.sampled_from(sorted(addresses)), cursors)
    def ask(path: str, cursor: str) -> None:
        assert refused(client, addresses[path], cursor) or is_of(patterns[path], cursor), cursor

    ask()


@pytest.mark.parametrize("microsecond", [0, 1, 999_999])
def test_what_is_written_is_read(client: Client, addresses: dict[str, str], microsecond: int) -> None:
    time = datetime.fromisoformat("2026-11-28T19:34:37+01:00").replace(microsecond=microsecond)
    for path, schema in calls().items():
        row = (time, 1, 2**31 - 1) if "T" in schema["pattern"] else (2**31 - 1,)
        cursor = cursor_to(*row)
        assert is_of(schema["pattern"], cursor)
        assert not refused(client, addresses[path], cursor)
