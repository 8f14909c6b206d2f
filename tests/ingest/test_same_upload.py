"""Which uploads are the same: line ends make no other one, another night does."""

from __future__ import annotations

import pytest

from hud.ingest import ingest
from hud.models import Measurement, Run, Upload
from runner.formats.parameters import Parameters
from tests.support.records import as_lines, v3_record

pytestmark = pytest.mark.django_db
CSV = (
    b"dev,name,batch_size,speedup,abs_latency\n"
    b"cuda,resnet18,16,1.500000,2.000000\ncuda,dlrm,16,1.250000,3.000000\n"
)
JSON = as_lines(v3_record(), v3_record("token_per_sec", [5]))
CHANGES = {
    "CRLF": lambda body: body.replace(b"\n", b"\r\n"),
    "CRLF without the last": lambda body: body.rstrip().replace(b"\n", b"\r\n"),
    "no last": lambda body: body.rstrip(),
    "another last": lambda body: body + b"\n",
    "blank lines": lambda body: body + b"\r\n\r\n",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("body", [CSV, JSON], ids=["csv", "json"])
def test_other_line_ends_are_the_same_upload(body: bytes, change: str) -> None:
    first = ingest(body, Parameters(filename="a"))
    again = ingest(CHANGES[change](body), Parameters(filename="b"))
    assert (again.id, again.stored, again.duplicates) == (first.id, 0, first.stored)
    assert Upload.objects.count() == 1


def test_the_lines_of_a_file_that_grew_may_end_otherwise() -> None:
    given = Parameters(filename="speedup_inductor.csv", commit="c1")
    ingest(CSV.replace(b"\n", b"\r\n"), given)
    more = CSV + b"cuda,alexnet,16,1.125000,4.000000\n"
    receipt = ingest(more, Parameters(filename="speedup_inductor.csv", commit="c2"))
    assert (receipt.stored, receipt.duplicates) == (2, 4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"run_id": "1-1"}, {"run_id": "1-2"}),
        ({"run_time": "2026-01-01T03:00:00Z"}, {"run_time": "2026-01-02T03:00:00Z"}),
        ({"commit": "a"}, {"commit": "b"}),
        ({}, {"run_id": "1"}),
        ({"commit": "a", "run_id": "1"}, {"commit": "a", "run_id": "2"}),
    ],
)
@pytest.mark.parametrize("body", [CSV, JSON], ids=["csv", "json"])
def test_equal_bytes_of_another_night_are_points_of_their_own(
    body: bytes, one: dict[str, str], other: dict[str, str]
) -> None:
    first = ingest(body, Parameters(filename="speedup_inductor.csv", **one))
    second = ingest(body, Parameters(filename="speedup_inductor.csv", **other))
    assert second.stored == first.stored
    assert Measurement.objects.count() == 2 * first.stored
    assert Run.objects.count() == 2
    again = ingest(body, Parameters(filename="speedup_inductor.csv", **other))
    assert (again.stored, again.duplicates) == (0, first.stored)


@pytest.mark.parametrize(
    "given", [{}, {"run_id": "1"}, {"run_time": "2026-01-01T03:00:00Z"}, {"commit": "a"}], ids=str
)
def test_where_nothing_tells_nights_apart_the_receipt_says_what_to_give(given: dict[str, str]) -> None:
    first = ingest(CSV, Parameters(**given))
    again = ingest(CSV, Parameters(**given))
    (warning,) = [text for text in again.warnings if text not in first.warnings] or [""]
    assert all(name in warning for name in ("run_id", "run_time", "commit")) != bool(given)


def test_a_record_that_says_its_run_tells_nights_apart() -> None:
    for record in (v3_record(workflow_id=7), v3_record(head_sha="a"), v3_record(timestamp=1.7e9)):
        body = as_lines(record)
        assert ingest(body, Parameters()).warnings == ingest(body, Parameters()).warnings
