"""Numbers that a card cannot have measured: a status, and no verdict; honest ones are left alone."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from hud.accounts.keys import create_key
from hud.ingest import ingest
from hud.models import Compilation
from hud.models.points import Point
from runner.formats.parameters import Parameters
from runner.schema.compilations import kernels_in
from runner.schema.devices import arch_key, impossible_reason, peaks
from runner.schema.metrics import metric_info
from runner.schema.statistics import median
from tests.support.compilations import compiled, kernel
from tests.support.factories import create_experiment, create_measurement

SAMPLES = Path(__file__).parents[2] / "hud" / "samples"
READ_GBPS = 4600.0  # of an H200, measured
BYTES = 2 * 4096 * 4096 * 2  # of layer_norm at D=4096: read and written once


def own_records() -> Iterator[dict[str, Any]]:
    for path in sorted(SAMPLES.glob("*/*.json*")):
        if path.name not in ("manifest.json", "kernel_code.json.gz"):
            data = path.read_bytes()
            text = gzip.decompress(data) if path.suffix == ".gz" else data
            try:
                values = json.loads(text)
            except ValueError:
                values = [json.loads(line) for line in text.splitlines() if line.strip()]
            yield from (
                one for one in values if isinstance(one, dict) and isinstance(one.get("metric"), dict)
            )


def test_no_honest_number_is_impossible() -> None:
    """Bandwidths of stored records, and the kernels of stored compilations with their bytes."""
    seen = 0
    for record in own_records():
        metric, info = record["metric"], record["benchmark"].get("extra_info") or {}
        own = metric.get("extra_info") or {}
        arch = arch_key(str(info.get("arch") or (record.get("runners") or [{}])[0].get("gpu_info") or ""))
        about, values = metric_info(metric["name"]), metric.get("benchmark_values") or []
        if about.unit == "GB/s" and values and peaks(arch):
            seen += 1
            assert not impossible_reason(arch, about, median(values), own.get("moved_bytes"), READ_GBPS)
        for one in kernels_in([record]):
            if one.get("bytes") and one.get("time_us"):
                seen += 1
                each_ms, moved = (one[name] / one.get("calls", 1) for name in ("time_us", "bytes"))
                busy = metric_info("gpu_busy_ms")
                assert not impossible_reason(arch, busy, each_ms / 1e3, moved, READ_GBPS), one
    assert seen > 1000


@pytest.mark.parametrize(
    ("arch", "metric", "value", "moved", "is_impossible"),
    [
        ("h200", "device_latency_ms", 0.0165, BYTES, False),
        ("h200", "device_latency_ms", 0.005, BYTES, True),
        ("h200", "compiled_latency_ms", 0.0, BYTES, True),
        ("h200", "device_latency_ms", 0.0008, 4 * 2**20, False),  # fits the L2 cache
        ("h200", "device_latency_ms", 0.0003, 4 * 2**20, True),
        ("h200", "device_latency_ms", 0.001, None, False),
        ("h200", "eager_compile_ms", 0.0, BYTES, False),
        ("h200", "device_bandwidth_gbps", 4900.0, 2**34, True),
        ("h200", "device_bandwidth_gbps", 4200.0, 2**34, False),
        ("h200", "memory_bandwidth(GB/s)", 5300.0, None, False),
        ("h200", "memory_bandwidth(GB/s)", 50_000.0, None, True),
        ("cpu-x86_64", "device_bandwidth_gbps", 50_000.0, BYTES, False),
    ],
)
def test_what_fits_the_l2_cache_comes_from_there_and_the_rest_from_memory(
    arch: str, metric: str, value: float, moved: int | None, is_impossible: bool
) -> None:
    why = impossible_reason(arch, metric_info(metric), value, moved, READ_GBPS)
    assert bool(why) == is_impossible


def record(value: float, metric: str, **info: Any) -> dict[str, Any]:
    return {
        "benchmark": {
            "name": "gpt-fast",
            "mode": "inference",
            "dtype": "bfloat16",
            "extra_info": {"device": "cuda"},
        },
        "model": {"name": "gemv", "backend": "compile", "origins": ["micro"]},
        "metric": {"name": metric, "benchmark_values": [value], "extra_info": info},
    }


@pytest.mark.django_db
def test_an_upload_keeps_the_number_and_nothing_is_judged_by_it() -> None:
    key = create_key(name="ci", scopes=["upload"], who="t")[0]
    ceiling = create_experiment(suite="ceilings", case="copy", arch="h200", knobs={})
    create_measurement(ceiling, metric="device_bandwidth_gbps", value=4190.0)
    records = [
        record(60_000.0, "memory_bandwidth(GB/s)"),
        record(4.45, "bandwidth_tbs", unit="TB/s", moved_bytes=2**34),
        record(0.004, "device_latency_ms", moved_bytes=BYTES),
        record(0.018, "compiled_latency_ms", moved_bytes=BYTES),
    ]
    about = {"arch": "h200", "stream": "lab", "suite": "micro"}
    ingest(orjson.dumps(records), Parameters.parse(about), key=key)
    stored = {
        row.series.metric.name: (row.status, row.quality, row.value)
        for row in Point.objects.filter(series__stream__name="lab").select_related("series__metric")
    }
    assert stored["memory_bandwidth(GB/s)"] == ("impossible", "impossible", 60_000.0)
    assert stored["device_latency_ms"] == ("impossible", "impossible", 0.004)
    assert stored["compiled_latency_ms"] == ("ok", None, 0.018)


def upload(*records: dict[str, Any]) -> dict[str, str]:
    """Upload records; return the status of each metric, of other cases than gemv after the case."""
    key = create_key(name="ci", scopes=["upload"], who="t")[0]
    parameters = Parameters.parse({"arch": "h200", "stream": "lab", "suite": "micro"})
    ingest(orjson.dumps(records), parameters, key=key)
    rows = Point.objects.filter(series__stream__name="lab").select_related(
        "series__metric", "series__experiment"
    )
    assert all(row.quality == (None if row.status == "ok" else "impossible") for row in rows)
    heads = ((row, row.series.experiment.case) for row in rows)
    return {
        ("" if case == "gemv" else f"{case} ") + row.series.metric.name: row.status for row, case in heads
    }


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("time_clock", "ratio_clock", "status"),
    [
        ("", "", "impossible"),
        ("a", "", "impossible"),
        ("", "b", "impossible"),
        ("a", "a", "impossible"),
        ("a", "b", "ok"),
    ],
)
def test_a_speedup_beside_an_impossible_time_decides_only_by_a_clock_of_its_own(
    time_clock: str, ratio_clock: str, status: str
) -> None:
    found = upload(
        record(3.0, "speedup", clock=ratio_clock),
        record(8000.0, "device_bandwidth_gbps", clock=ratio_clock),
        record(3.0, "Speed-up of ours", unit="x", direction="up", clock=ratio_clock),
        record(0.004, "device_latency_ms", moved_bytes=BYTES, clock=time_clock),
        record(0.018, "compiled_latency_ms", moved_bytes=BYTES),
        record(1.5, "cold_compile_s"),
        record(1.5, "dynamo_peak_mem"),
        record(2.0, "graph_breaks"),
        {**(other := record(3.0, "speedup")), "model": {**other["model"], "name": "other"}},
    )
    assert found.pop("device_latency_ms") == "impossible"
    ratios = {found.pop(name) for name in ("speedup", "device_bandwidth_gbps", "Speed-up of ours")}
    assert (ratios, {*found.values()}) == ({status}, {"ok"})
    assert len(found) == 5


@pytest.mark.django_db
@pytest.mark.parametrize(("time_us", "status"), [(16.5, "ok"), (5.0, "impossible"), (0.0, "impossible")])
def test_the_sum_of_impossible_kernels_is_impossible_and_judges_none(time_us: float, status: str) -> None:
    fast = kernel("norm", 2 * time_us, bytes=2 * BYTES, calls=2.0)
    slow = kernel("other", 100.0, bytes=BYTES)
    found = upload(
        record(2.0, "kernel_count", compiled=compiled(fast, slow).to_json()),
        record(0.1 + time_us / 500, "gpu_busy_ms"),
        record(0.1 + time_us / 500, "device_latency_ms"),
        record(3.0, "speedup"),
        record(0.2, "compiled_latency_ms"),
    )
    assert (found.pop("kernel_count"), found.pop("compiled_latency_ms")) == ("ok", "ok")
    assert {*found.values()} == {status}
    stored = Compilation.objects.get()
    assert stored.times_us[0] == pytest.approx(2 * time_us)
    assert (stored.impossible, stored.uncounted) == ((False, True) if status == "ok" else (True, False))


@pytest.mark.django_db
def test_what_one_team_uploads_as_a_ceiling_says_nothing_of_another_s_results() -> None:
    reading = record(1.0, "device_bandwidth_gbps")
    reading["benchmark"]["name"] = reading["model"]["origins"][0] = "ceilings"
    reading["model"]["name"] = "copy"
    honest = record(0.0165, "device_latency_ms", moved_bytes=BYTES)
    for stream, uploads in (("theirs", (reading, honest)), ("lab", (honest,))):
        key = create_key(name=stream, scopes=["upload"], who="t")[0]
        for each in uploads:
            suite = each["benchmark"]["name"]
            about = {"arch": "h200", "stream": stream, "suite": "micro" if each is honest else suite}
            ingest(orjson.dumps([each]), Parameters.parse(about), key=key)
    statuses = Point.objects.filter(series__experiment__suite="micro").values_list(
        "series__stream__name", "status_code"
    )
    assert {stream: bool(status) for stream, status in statuses} == {"lab": False, "theirs": True}
