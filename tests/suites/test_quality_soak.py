"""Which values of the CPU suites may decide: while every core is busy, and on an idle machine.

`pytest -m soak -n 0 -s tests/suites/test_quality_soak.py`; the idle half is skipped where others use the CPU.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.measure.timing.call_time import ENOUGH
from runner.schema.metrics import metric_info
from runner.schema.records import MOST_APART, MOST_ERROR
from runner.schema.statistics import block_standard_error
from tests.support.servers import ROOT

pytestmark = [pytest.mark.soak, pytest.mark.alone]
SUITES = (
    "micro --case layer_norm --case gemv --case gather_gemv --case mlp_layer_norm_gelu",
    "gpt_fast --case toy-llama",
    "operators --case aten.add.Tensor --case aten.mm.default --dtype float32 --opt max_samples=4",
)
_BUSY_PERCENT = 15  # of all processors: more, and the machine is not idle
Records = list[dict[str, Any]]


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep every core busy with a process of its own."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(len(os.sched_getaffinity(0)))
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def measured(folder: Path) -> Records:
    """Return the timings with a value that the suites measure on the CPU."""
    records: Records = []
    for number, words in enumerate(SUITES):
        path = folder / f"{number}.json"
        command = [sys.executable, "-m", "runner", "run", *words.split(), "--device", "cpu"]
        subprocess.run([*command, "--output", str(path)], cwd=ROOT, check=True)
        records += [one for line in path.read_text().splitlines() for one in json.loads(line)["records"]]
    return [
        record
        for record in records
        if record["metric"]["benchmark_values"] and metric_info(record["metric"]["name"]).kind == "timing"
    ]


def quality_of(record: dict[str, Any]) -> str:
    return str(record["metric"]["extra_info"].get("quality") or "")


def share_deciding(records: Records) -> float:
    deciding = sum(not quality_of(record) for record in records)
    print(f"\n{deciding} of {len(records)} values may decide: {deciding / len(records):.1%}")
    return deciding / len(records)


def beyond_limits(records: Records) -> list[str]:
    """Return the values that decide although their own samples say that they must not: a ratio known to no
    better than 10 %, or whose two estimates are more than 3 standard errors apart."""
    samples: dict[str, dict[str, Any]] = {}
    for record in records:
        case = json.dumps([record["model"]["name"], record["benchmark"]], sort_keys=True)
        samples.setdefault(case, {})[record["metric"]["name"]] = record
    wrong = []
    for case, by_metric in samples.items():
        if not {"speedup", "eager_latency_ms", "compiled_latency_ms"} <= by_metric.keys():
            continue
        eager, compiled = (
            by_metric[name]["metric"]["benchmark_values"]
            for name in ("eager_latency_ms", "compiled_latency_ms")
        )
        if len(eager) != len(compiled) or len(eager) < 20:
            continue
        ratios = [math.log(a / b) for a, b in zip(eager, compiled, strict=True)]
        error = block_standard_error(ratios)
        ratio = math.log(statistics.median(eager) / statistics.median(compiled))
        apart = abs(ratio - statistics.median(ratios))
        said = by_metric["speedup"]["metric"]["extra_info"].get("log_ratio_standard_error", error)
        is_wrong = said > MOST_ERROR or error > 2 * MOST_ERROR or apart > max(MOST_APART * said, ENOUGH)
        if is_wrong and not quality_of(by_metric["speedup"]):
            wrong.append(f"{case}: ±{error:.1%}, estimates {apart:.1%} apart")
    return wrong


def test_with_every_core_busy_no_value_beyond_the_limits_decides(tmp_path: Path) -> None:
    with busy_cores():
        records = measured(tmp_path)
    share_deciding(records)
    assert not beyond_limits(records)


def test_on_an_idle_machine_nearly_all_values_decide(tmp_path: Path) -> None:
    if (used := psutil.cpu_percent(5)) > _BUSY_PERCENT:
        pytest.skip(f"the machine is not idle: others use {used:.0f} % of its processors")
    records = measured(tmp_path)
    assert share_deciding(records) >= 0.95
    assert not beyond_limits(records)
