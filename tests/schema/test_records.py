"""The record and the environment, to JSON and back."""

from __future__ import annotations

import dataclasses
import json

from runner.schema.records import STATUSES, Benchmark, Environment, Metric, Model, Record

FULL = Environment(
    torch="2.11.0+cu130",
    torch_git="70d99e998b49",
    triton="3.6.0",
    cuda="13.0",
    driver="580.159.04",
    gpu="NVIDIA H200",
    gpu_uuid="GPU-1",
    gpu_memory_bytes=150109880320,
    python="3.12.3",
    cpu="Xeon",
    cpu_count=16,
    compiler="g++ 13.3.0",
    os="Ubuntu 24.04",
    packages={"numpy": "2.5.2", "timm": "1.0.31"},
    variables={"OMP_NUM_THREADS": "16"},
)


def record(**fields: object) -> Record:
    return Record(Benchmark("b"), Model("m"), Metric("x", [1.0]), **fields)  # type: ignore[arg-type]


def test_what_a_record_does_not_say_is_not_written() -> None:
    assert record().to_json() == {
        "benchmark": {"name": "b"},
        "model": {"name": "m"},
        "metric": {"name": "x", "benchmark_values": [1.0]},
    }


def test_a_knob_that_is_false_or_zero_is_written() -> None:
    said = Record(
        Benchmark("b", extra_info={"dynamic": False, "n": 0, "text": ""}), Model("m"), Metric("x")
    ).to_json()
    assert said["benchmark"]["extra_info"] == {"dynamic": False, "n": 0, "text": ""}


def test_an_environment_survives_the_record() -> None:
    there = json.loads(json.dumps(record(**FULL.to_record_fields("h200-a")).to_json()))
    back = Environment.from_record(
        Record(
            Benchmark("b"),
            Model("m"),
            Metric("x"),
            runners=there["runners"],
            dependencies=there["dependencies"],
        )
    )
    assert back == FULL
    assert back.fingerprint() == FULL.fingerprint()


def test_an_empty_environment_survives_too() -> None:
    assert Environment.from_record(record(**Environment().to_record_fields("h"))) == Environment()


def test_every_field_is_part_of_the_fingerprint() -> None:
    seen = {FULL.fingerprint()}
    for field in dataclasses.fields(Environment):
        empty = getattr(Environment(), field.name)
        seen.add(dataclasses.replace(FULL, **{field.name: empty}).fingerprint())
    assert len(seen) == 1 + len(dataclasses.fields(Environment))


def test_facts_of_the_wrong_type_are_not_believed() -> None:
    said = [{"gpu_info": 5, "cpu_count": True, "extra_info": {"variables": ["x"], "gpu_memory_bytes": "a"}}]
    found = Environment.from_record(record(runners=said, dependencies={"torch": "2.6", "numpy": {}}))
    assert (found.gpu, found.cpu_count, found.variables, found.gpu_memory_bytes) == ("5", 0, {}, 0)
    assert (found.torch, found.packages) == ("", {"numpy": ""})


def test_ok_comes_first_among_the_statuses() -> None:
    assert STATUSES[0] == "ok"
    assert len(set(STATUSES)) == len(STATUSES)
