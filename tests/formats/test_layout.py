"""A small format is a declaration: columns or keys, and what they hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hud.ingest.parse import RecordParser
from runner.formats import FORMATS, reasons
from runner.formats.errors import BadUpload
from runner.formats.format import LocatedRecord
from runner.formats.layout import Layout, Quantity
from runner.formats.parameters import Parameters
from tests.support.observed import observe, skips

LAYOUT = Layout(
    "MyBench",
    case="kernel",
    quantities={"time (us)": Quantity("my_time", "us", "down", target="goal"), "GB/s": Quantity("my_rate")},
    suite="mine",
    backend=lambda entry: entry.get("compiler", "").lower(),
    time="when",
    parameters={"D": "width"},
)
ROW = "mm,64,Inductor,bfloat16,cuda,abc123,2026-02-03T04:05:06Z,1.5,2,900"
HEAD = "kernel,width,compiler,dtype,device,commit,when,time (us),goal,GB/s"


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, "mine", LAYOUT.of_tables("mine"))


def test_each_column_comes_to_its_place() -> None:
    time, rate = observe(f"{HEAD}\n{ROW}\n").measurements
    assert (time.suite, time.case, time.knobs) == ("mine", "mm", {"D": "64"})
    assert (time.dtype, time.backend, time.device) == ("bfloat16", "inductor", "cuda")
    assert (time.metric, time.samples, time.target) == ("my_time", [1.5], 2.0)
    assert (time.unit, time.direction) == ("µs", "down")
    assert (rate.metric, rate.samples, rate.target) == ("my_rate", [900.0], None)
    assert (time.run.commit, str(time.run.order_time)) == ("abc123", "2026-02-03 04:05:06+00:00")


def test_what_is_no_number_is_reported_with_its_place() -> None:
    row = ROW.replace("1.5,2,900", "fast,2,")
    parser = observe(f"{HEAD}\n{ROW}\n{row}\n{row.replace('mm', '', 1)}\n{ROW},more\nmm,64\n")
    assert [(fault.pointer, fault.line) for fault in parser.faults] == [
        ("/time (us)", 3), ("/kernel", 4), ("", 5),
    ]  # fmt: skip
    assert skips(parser) == [(3, reasons.EMPTY_CELL), (6, reasons.SHORT_ROW)]


def test_a_table_without_the_columns_is_refused() -> None:
    with pytest.raises(BadUpload):
        observe("kernel,width\nmm,64\n", format="mine")


@pytest.mark.parametrize(("margin", "values", "target"), [(None, [1.5], None), (0.1, None, 1.5)])
def test_values_with_a_margin_are_expected_ones(margin: float | None, values: Any, target: Any) -> None:
    layout = Layout("MyBench", case="kernel", quantities={"ms": Quantity("my_time")}, margin="within")
    (item,) = layout.records({"kernel": "mm", "ms": 1.5, "within": margin}, "")
    assert isinstance(item, LocatedRecord)
    assert (item.record.metric.benchmark_values, item.record.metric.target_value) == (values, target)


def test_json_objects_have_pointers() -> None:
    layout = Layout("MyBench", case="kernel", quantities={"ms": Quantity("my_time")})
    mine = layout.of_json("mine", {})
    body = json.dumps([{"kernel": "mm", "ms": 2}, 3, {"kernel": "mv", "ms": None}, {"kernel": "x", "ms": []}])
    parser = RecordParser(Parameters())
    for item in mine.read(body.encode(), ""):
        parser.add(item)
    assert [item.samples for item in parser.measurements] == [[2.0]]
    assert [(fault.pointer, fault.detail) for fault in parser.faults] == [("/1", "no result of mine")]
    assert [entry["pointer"] for entry in parser.receipt.skipped] == ["/2/ms", "/3/ms"]
