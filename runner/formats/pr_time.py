"""pr_time_benchmarks: `name,metric,value` without a header, and its expected results,
`name,metric,expected,noise margin`, whose values are targets.

Source: `benchmarks/dynamo/pr_time_benchmarks`, append_results and check_results.py. Between the expected
results stand blank lines, against merge conflicts.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.formats import Placed
from runner.formats.errors import BadUpload, Fault
from runner.formats.table import Row, not_a_number, number, rows
from runner.records import Benchmark, Metric, Model, Record


def matches(body: bytes, filename: str) -> bool:  # noqa: ARG001 — the columns say it
    try:
        first = next(rows(body), None)
    except BadUpload:
        return False
    return first is not None and _fits(first)


def _fits(row: Row) -> bool:
    return (
        len(row.cells) in {3, 4}
        and all(row.cells[:2])
        and all(number(cell) is not None for cell in row.cells[2:])
    )


def read(body: bytes, filename: str) -> Iterator[Placed]:  # noqa: ARG001
    lines = list(rows(body))
    if not lines or not _fits(lines[0]):
        raise BadUpload(
            "this is no file of pr_time_benchmarks",
            [
                Fault(
                    "",
                    "name,metric,value or name,metric,expected,noise margin",
                    lines[0].line if lines else None,
                )
            ],
        )
    expected = all(len(row.cells) == 4 for row in lines)
    for row in lines:
        if len(row.cells) not in {3, 4} or not all(row.cells[:2]):
            detail = "a row has a name, a metric and a value"
            yield Placed(None, "", row.line, fault=Fault("", detail, row.line))
        elif number(row.cells[2]) is None:
            yield not_a_number(row, "expected" if expected else "value", row.cells[2])
        elif expected and number(row.cells[3]) is None:
            yield not_a_number(row, "noise_margin", row.cells[3])
        else:
            yield Placed(_record(row, expected=expected), "", row.line)


def _record(row: Row, *, expected: bool) -> Record:
    name, metric, text = row.cells[:3]
    value = number(text)
    assert value is not None
    said = (
        Metric(metric, None, value, {"noise_margin": number(row.cells[3])})
        if expected
        else Metric(metric, [value])
    )
    return Record(Benchmark("pr_time_benchmarks", extra_info={}), Model(name), said)
