"""What says that it is ok and has no value is no result, at whichever door it comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.formats import reasons
from tests.support.observed import observe, skips
from tests.support.records import v3_record


def metric(name: str, values: Any = (), **extra: Any) -> dict[str, Any]:
    return {"name": name, "benchmark_values": values if values is None else list(values), "extra_info": extra}


NOTHING = [
    metric("speedup"),
    metric("speedup", None),
    metric("speedup", None, status="ok"),
    metric("speedup", status="ok", code="fine"),
    metric("speedup", status="ok", code="timeout"),
    metric("speedup", benchmark_values=["pass"]),
    metric("speedup", benchmark_values=["whatever"]),
    metric("speedup", benchmark_values=[None]),
    metric("device_20th", status="ok", code="fine"),  # of a family of names
    metric("accuracy", benchmark_values=[""]),
    metric("accuracy", benchmark_values=" "),
    metric("accuracy", status="ok"),
    metric("nobody_knows_it", status="ok"),
]
SYSTEMS = ("TorchInductor", "PyTorch gpt-fast benchmark", "TorchCache Benchmark", "Compiler HUD micro", "odd")


@pytest.mark.parametrize("said", NOTHING, ids=json.dumps)
def test_ok_without_a_value_is_left_out_with_its_reason(said: dict[str, Any]) -> None:
    named = ({"benchmark": {"name": name, "mode": "inference"}, "metric": said} for name in SYSTEMS)
    records = [{**v3_record(), **one} for one in named]
    observer = observe("\n".join(map(json.dumps, records)))
    assert not observer.measurements
    assert not observer.faults
    assert skips(observer) == [(number, reasons.NO_VALUES) for number in range(1, len(SYSTEMS) + 1)]
    task = {"fingerprint": "0", "task": {}, "outcome": {}, "records": records}
    assert [reason for _line, reason in skips(observe(json.dumps(task)))] == [reasons.NO_VALUES] * len(
        SYSTEMS
    )


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        (metric("accuracy", benchmark_values=["pass"]), "ok", "pass"),
        (metric("accuracy", status="ok", code="pass"), "ok", "pass"),
        (metric("speedup", benchmark_values=["timeout"]), "timed_out", "timeout"),
        (metric("speedup", status="failed", reason="it broke"), "failed", None),
        (metric("scheduler", benchmark_values=["fifo"]), "ok", "fifo"),  # a word may be a value
    ],
    ids=json.dumps,
)
def test_an_outcome_in_a_word_is_a_result(said: dict[str, Any], status: str, code: str | None) -> None:
    (item,) = observe(json.dumps({**v3_record(), "metric": said})).measurements
    assert (item.status, item.code, item.samples) == (status, code, [])
