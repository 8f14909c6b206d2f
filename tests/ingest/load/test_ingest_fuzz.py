"""The door under any input, down to the database: a receipt, or a refusal after which nothing is stored."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hud.ingest import BadUpload, Receipt, inflate, ingest
from hud.models import Expectation, Measurement, Target, Upload
from hud.problems import Problem
from runner.formats import FORMATS, json_text
from runner.formats.parameters import Parameters
from tests.support.records import as_lines, as_list, v3_record

FEW, MANY = 100, 5000
NAMES = [*Parameters.__dataclass_fields__]
FULL = v3_record(
    values=[1.5, "2.5", 3],
    runners=[{"name": "h", "type": "NVIDIA H200", "cpu_count": 8, "extra_info": {"cuda": "13.0"}}],
    dependencies={"torch": {"version": "2.13", "sha": "ab"}, "numpy": {"version": "2"}},
    inputs={"x": {"shape": [1]}},
    timestamp=1_700_000_000,
    workflow_id=7,
    job_id=8,
    run_attempt=1,
    head_sha="ab",
    head_branch="main",
    repo="pytorch/pytorch",
)
text = st.text(max_size=30) | st.sampled_from(
    [
        "",
        "nan",
        "NaN",
        "1e400",
        " 1",
        "1_0",
        "\u0661",
        "\0",
        "\x1f",
        "\ud800",
        "\u202e",
        "x" * 300,
        "0.0",
        "OK",
    ]
)
numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),  # also NaN and the infinities, which json.dumps writes as words that JSON does not have
    st.sampled_from([0, -0.0, 1e-320, 1e300, 1.1e300, 2**63, 2**64, 10**400]),
)
scalars = st.none() | st.booleans() | numbers | text
values = st.recursive(
    scalars,
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(text, inside, max_size=4),
    max_leaves=8,
)


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside a JSON value."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [place, *(found for key, child in children for found in places(child, (*place, key)))]


PLACES = [place for place in places(FULL) if place]


def with_other(changes: list[tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
    """The full record with other things in some places; a place that has gone is passed over."""
    record = copy.deepcopy(FULL)
    for place, value in changes:
        inside: Any = record
        try:
            for step in place[:-1]:
                inside = inside[step]
            inside[place[-1]] = value
        except (LookupError, TypeError):
            continue
    return record


records = st.lists(st.tuples(st.sampled_from(PLACES), values), min_size=1, max_size=3).map(with_other)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good body with a piece cut out and another put in."""
    body = draw(st.sampled_from([as_list(FULL, FULL), as_lines(FULL, v3_record()), gzip.compress(b"[]")]))
    start, end = sorted((draw(st.integers(0, len(body))), draw(st.integers(0, len(body)))))
    return body[:start] + draw(st.binary(max_size=6)) + body[end if draw(st.booleans()) else start :]


def outcome(work: Callable[[], Any]) -> Any:
    """What it returns, or the refusal that says why it does not."""
    try:
        return work()
    except BadUpload as refusal:
        return refusal if refusal.detail else None
    except Problem as problem:  # a name of no stream
        return BadUpload(problem.detail) if problem.status == HTTPStatus.UNPROCESSABLE_ENTITY else None


def _rows() -> int:
    """Return how many results are stored, expected ones too."""
    return Measurement.objects.count() + Expectation.objects.count()


def taken_in(body: bytes, given: dict[str, str]) -> None:
    """Uploads it; fails on any other end than a receipt or a refusal, each with what it says."""
    before = (_rows(), Upload.objects.count())
    receipt = outcome(lambda: ingest(body, Parameters.parse(given), max_records=100))
    if isinstance(receipt, BadUpload):
        assert all(fault.detail and isinstance(fault.to_json()["pointer"], str) for fault in receipt.faults)
        assert (_rows(), Upload.objects.count()) == before
        return
    assert isinstance(receipt, Receipt)
    json.dumps(receipt.to_json(), allow_nan=False)
    assert all(entry["reason"] for entry in receipt.skipped)
    if given.get("dry_run") not in {"1", "true"} and not Target.objects.exists():
        assert _rows() == before[0] + receipt.stored


def check_bytes(body: bytes, name: str) -> None:
    taken_in(body, {"format": name})


def check_records(found: list[dict[str, Any]], partial: bool) -> None:
    body = json.dumps(found).encode("utf-8", "surrogatepass")
    taken_in(body, {"partial": "1" if partial else "0"})


def check_values(value: Any) -> None:
    taken_in(json.dumps(value).encode(), {})


def check_parameters(given: dict[str, str]) -> None:
    taken_in(as_list(v3_record()), given)


def check_inflating(body: bytes) -> None:
    assert isinstance(outcome(lambda: inflate(body)), bytes | BadUpload)


INPUTS: dict[Callable[..., None], tuple[st.SearchStrategy[Any], ...]] = {
    check_bytes: (st.binary(max_size=200) | damaged(), st.sampled_from(["", *FORMATS])),
    check_records: (st.lists(records, max_size=3), st.booleans()),
    check_values: (values,),
    check_parameters: (
        st.dictionaries(
            st.sampled_from(NAMES) | text,
            text | st.sampled_from(["0", "1", "true", *FORMATS, "2026-01-01"]),
            max_size=6,
        ),
    ),
    check_inflating: (damaged() | st.binary(max_size=50).map(gzip.compress),),
}


def _repeatedly(check: Callable[..., None], inputs: tuple[st.SearchStrategy[Any], ...], times: int) -> None:
    """Each time over an empty store."""

    def once(given_inputs: tuple[Any, ...]) -> None:
        with transaction.atomic():
            check(*given_inputs)
            transaction.set_rollback(True)

    hurried = settings(max_examples=times, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    hurried(given(st.tuples(*inputs))(once))()


@pytest.mark.django_db
@pytest.mark.parametrize("times", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])
@pytest.mark.parametrize("check", INPUTS, ids=lambda check: check.__name__)
def test_any_input_is_taken_in_or_refused(check: Callable[..., None], times: int) -> None:
    _repeatedly(check, INPUTS[check], times)


# ---- what JSON allows and the door does not


def spelt(value: Any, ascii_only: bool) -> str:
    """JSON text; a tuple of pairs is an object, so that a key can stand in it twice."""
    if isinstance(value, tuple):
        return (
            "{"
            + ", ".join(f"{spelt(key, ascii_only)}: {spelt(item, ascii_only)}" for key, item in value)
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(spelt(item, ascii_only) for item in value) + "]"
    return json.dumps(value, ensure_ascii=ascii_only)


def wrong_in(value: Any, depth: int = 1) -> bool:
    """Told from the value itself: a repeated key, more than 16 levels, an integer beyond 64 bits."""
    if isinstance(value, tuple):
        keys = [key for key, _item in value]
        inside = any(wrong_in(item, depth + 1) for _key, item in value)
        return inside or len(set(keys)) < len(keys) or depth > json_text.MAX_DEPTH
    if isinstance(value, list):
        return any(wrong_in(item, depth + 1) for item in value) or depth > json_text.MAX_DEPTH
    return isinstance(value, int) and not -(2**63) <= value < 2**64


keys = st.sampled_from(["a", "b", '"', "\\", '\\"', "u0022", "\x01", "é", "{", "[", ""])
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats(allow_nan=False, allow_infinity=False)
)
nested = st.recursive(
    plain | st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.lists(st.tuples(keys, inside), max_size=4).map(lambda pairs: (*pairs,))
    ),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nested, st.integers(0, 19), st.booleans(), st.booleans())
def test_the_quick_look_misses_nothing(
    value: Any, depth: int, ascii_only: bool, quotes_as_numbers: bool
) -> None:
    for level in range(depth):
        value = [value] if level % 2 else (("k", value),)
    body = spelt(value, ascii_only)
    if quotes_as_numbers:
        body = body.replace("\\\\", "\0").replace('\\"', "\\u0022").replace("\0", "\\\\")
    assert bool(json_text.problem(body.encode())) == wrong_in(value)
