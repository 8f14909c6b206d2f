"""What a list says of a point: which list holds, for which experiments, and what comes of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.models import STATUS_CODES, Expectation, Experiment, Point
from hud.points.expectations import AS_EXPECTED, UNEXPECTED_FAILURE, UNEXPECTED_PASS, holding, outcome
from runner.formats.metric_values import status_of_code
from runner.formats.torchdynamo.names import Compiler
from runner.schema.records import STATUSES, SUCCESS

NIGHT = datetime(2026, 11, 1, tzinfo=UTC)
SAID: dict[str, Any] = {
    "suite": "torchbench",
    "case": "dlrm",
    "mode": "inference",
    "dtype": "bfloat16",
    "backend": "inductor",
    "device": "cuda",
    "dynamic": False,
}


def expectation(*, listed: datetime = NIGHT, is_undated: bool = False, **fields: Any) -> Expectation:
    made = Expectation(**{**SAID, "metric": "accuracy", "code": "pass", "listed": listed, **fields})
    made.is_undated = is_undated  # type: ignore[attr-defined]  # as the query adds it
    return made


def experiment(**fields: Any) -> Experiment:
    return Experiment(**{**SAID, "backend": "inductor_cudagraphs", "arch": "h200", **fields})


def point(status: str = "ok", *, code: str | None = None, value: float | None = None) -> Point:
    return Point(status_code=STATUS_CODES[status], code=code, value=value)


@pytest.mark.parametrize(
    ("listed", "measured", "meets"),
    [
        ({}, {}, True),
        ({}, {"backend": "inductor_no_cudagraphs"}, True),
        ({}, {"backend": "inductor"}, True),
        ({}, {"backend": "inductor_cudagraphs_max_autotune"}, False),
        ({}, {"backend": "aot_eager"}, False),
        ({"backend": "inductor_cudagraphs"}, {"backend": "inductor_no_cudagraphs"}, False),
        ({"backend": "inductor_freezing"}, {"backend": "inductor_no_cudagraphs_freezing"}, True),
        ({}, {"arch": "mi300x"}, False),
        ({"device": "rocm"}, {"arch": "mi300x"}, True),
        ({"device": ""}, {}, False),
        ({"mode": ""}, {}, False),
        ({"dtype": ""}, {}, False),
        ({}, {"dynamic": True}, False),
        ({"dtype": "amp"}, {"dtype": "amp"}, True),
        ({"dtype": "amp"}, {"dtype": "amp", "knobs": {"amp_dtype": "float16"}}, False),
        ({"dtype": "amp_float16"}, {"dtype": "amp", "knobs": {"amp_dtype": "float16"}}, True),
    ],
)
def test_a_list_is_about_what_it_says(listed: Any, measured: Any, meets: bool) -> None:
    listing = [expectation(**listed)]
    assert bool(holding(listing, experiment(**measured), NIGHT)) is meets


@given(
    st.sets(st.sampled_from(["aot_inductor", "freezing", "max_autotune", "low_precision"])),
    st.sampled_from([True, False, None]),
    st.sampled_from(["cuda", "cpu", "xpu"]),
)
def test_inductor_is_met_with_and_without_cuda_graphs(
    parts: set[str], graphs: bool | None, device: str
) -> None:
    measured = Compiler(frozenset(parts), graphs).name(device)
    listing = [expectation(backend=Compiler(frozenset(parts)).name(""), device=device)]
    assert holding(listing, experiment(backend=measured, device=device, arch=""), NIGHT)


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.booleans()), max_size=6),
    st.integers(-5, 5),
)
def test_the_newest_list_that_is_not_later_holds(lists: list[tuple[int, bool]], day: int) -> None:
    made = [
        expectation(listed=NIGHT + timedelta(days=listed), is_undated=undated) for listed, undated in lists
    ]
    held = holding(made, experiment(), NIGHT + timedelta(days=day))
    earlier = [listed for listed, _undated in lists if listed <= day]
    undated = [listed for listed, is_undated in lists if is_undated]
    best = max(earlier or undated, default=None)
    assert (held and (held.listed - NIGHT).days) == best


@pytest.mark.parametrize(
    ("listed", "measured", "said"),
    [
        ("pass", "pass", AS_EXPECTED),
        ("pass", "pass_due_to_skip", AS_EXPECTED),
        ("pass", "fail_accuracy", UNEXPECTED_FAILURE),
        ("fail_accuracy", "pass", UNEXPECTED_PASS),
        ("fail_accuracy", "fail_accuracy", AS_EXPECTED),
        ("fail_accuracy", "eager_fail_to_run", UNEXPECTED_FAILURE),
        ("fail_to_run", "eager_fail_to_run", UNEXPECTED_FAILURE),
    ],
)
def test_words_are_compared_as_the_harness_compares_them(listed: str, measured: str, said: str) -> None:
    made = expectation(code=listed, status=STATUS_CODES[status_of_code(listed, "accuracy")])
    assert outcome(made, point(status_of_code(measured, "accuracy"), code=measured), "none") == said


@given(st.sampled_from(STATUSES), st.sampled_from(STATUSES))
def test_a_failure_without_a_word_is_told_by_its_status(listed: str, measured: str) -> None:
    said = outcome(expectation(code="", status=STATUS_CODES[listed]), point(measured), "none")
    if measured in {"not_run", "unsupported"}:
        assert said == ""
    elif measured in SUCCESS:
        assert said == (AS_EXPECTED if listed in SUCCESS else UNEXPECTED_PASS)
    else:
        assert said == (AS_EXPECTED if listed == measured else UNEXPECTED_FAILURE)


@given(
    st.floats(0.1, 1e9),
    st.floats(0, 0.5),
    st.floats(0.01, 10),
    st.sampled_from(["up", "down", "none"]),
)
def test_numbers_are_compared_within_the_margin(
    value: float, margin: float, ratio: float, direction: str
) -> None:
    said = outcome(expectation(value=value, margin=margin), point(value=value * ratio), direction)
    if abs(value * ratio - value) <= margin * value:
        assert said == AS_EXPECTED
    elif direction == ("up" if ratio > 1 else "down"):
        assert said == UNEXPECTED_PASS
    else:
        assert said == UNEXPECTED_FAILURE


def test_a_count_of_what_failed_is_neither() -> None:
    assert outcome(expectation(value=3.0), point("failed"), "down") == ""
