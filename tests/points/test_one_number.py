"""One run's value is one number, wherever it is read: points.md's first check from outside."""

from __future__ import annotations

import csv
import io
import random
import re
from typing import Any

import pytest
from django.test import Client

from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.models import Experiment, Point, Run, SeriesState
from runner.formats.parameters import Parameters
from runner.schema.statistics import median
from tests.support.records import as_lines

pytestmark = pytest.mark.django_db
CASES = ("BertForMaskedLM", "AlbertForMaskedLM", "DistillGPT2")


def record(case: str, repeat: int, compilation: int, value: float | None, day: int) -> dict[str, Any]:
    said = {"compilation": compilation, "status": "ok" if value is not None else "crashed"}
    return {
        "benchmark": {
            "name": "Compiler HUD huggingface",
            "mode": "inference",
            "dtype": "bfloat16",
            "extra_info": {"device": "cuda", "arch": "NVIDIA H200"},
        },
        "model": {"name": case, "backend": "inductor", "origins": ["huggingface"]},
        "metric": {
            "name": "device_speedup",
            "benchmark_values": [] if value is None else [value],
            "extra_info": said,
        },
        "runners": [
            {"name": "h1", "type": "NVIDIA H200", "extra_info": {"process": repeat, "driver": "580.1"}}
        ],
        "head_sha": f"{day:040x}",
        "timestamp": 1_790_000_000 + day * 86_400,
    }


def night(chance: random.Random, day: int) -> dict[str, float | None]:
    """Upload a night of random repeats × compilations, some failed; return what each case's value is."""
    records, expected = [], {}
    for case in CASES:
        by_compilation: dict[int, list[float | None]] = {}
        for repeat in range(chance.randrange(1, 7)):
            compilation = repeat if repeat < 3 else chance.randrange(3)
            value = None if chance.random() < 0.25 else chance.uniform(0.5, 4)
            by_compilation.setdefault(compilation, []).append(value)
            records.append(record(case, repeat, compilation, value, day))
        measured = [[value for value in own if value is not None] for own in by_compilation.values()]
        medians = [median(own) for own in measured if own]
        has_value = bool(medians) and 2 * len(medians) >= len(measured)
        expected[case] = median(medians) if has_value else None
    ingest(as_lines(*records), Parameters(stream="nightly", run_id=f"night {day}"))
    return expected


@pytest.mark.parametrize("seed", range(5))
def test_every_reader_of_a_run_shows_one_number(client: Client, seed: int) -> None:
    chance = random.Random(seed)
    for day in range(3):
        expected = night(chance, day)
    while process_pending():
        pass
    last, newest = Run.objects.order_by("-order_time")[:2][::-1]

    def items(address: str) -> list[dict[str, Any]]:
        answer: dict[str, Any] = client.get(address, {"stream": "nightly"}).json()
        rows: list[dict[str, Any]] = answer["items"]
        return rows

    of_run = {row["case"]: row["value"] for row in items(f"/runs/{newest.pk}.json")}
    of_suite = {row["case"]: row["value"] for row in items("/suites/huggingface.json")}
    compilers = client.get("/compilers.json", {"stream": "nightly"}).json()
    of_compilers = {row["case"]: row["head_value"] for row in compilers["cases"]}
    sides = {"base": f"run:{last.pk}", "head": f"run:{newest.pk}", "stream": "nightly", "show": "all"}
    of_compare = {row["case"]: row["head"] for row in client.get("/compare.json", sides).json()["items"]}
    wide = client.get("/suites/huggingface.csv", {"stream": "nightly"}).content.decode()
    of_csv = {row["case"]: row["value"] for row in csv.DictReader(io.StringIO(wide))}
    for case, value in expected.items():
        experiment = Experiment.objects.get(case=case)
        point = Point.objects.get(run=newest, series__experiment=experiment)
        assert point.value == pytest.approx(value) if value is not None else point.value is None
        series = client.get(f"/api/v1/series/{experiment.pk}/device_speedup", {"stream": "nightly"}).json()
        page = client.get(f"/experiments/{experiment.pk}.json", {"stream": "nightly"}).json()
        shown = {
            "API": next(one["value"] for one in series["points"] if one["run"] == newest.pk),
            "experiment": next(row["value"] for row in page["items"] if row["run"] == newest.pk),
            "run": of_run[case],
            "suite": of_suite[case],
            "compilers": of_compilers.get(case),
            "compare": of_compare.get(case, point.value if value is None else None),
        }
        assert shown == dict.fromkeys(shown, point.value)
        assert of_csv[case] == ("" if value is None else repr(point.value))
        if value is not None:
            chart = client.get(f"/experiments/{experiment.pk}/", {"stream": "nightly"}).content.decode()
            assert re.search(rf"{value:.3f}", chart)
            state = SeriesState.objects.get(series=point.series)
            assert state.recent[-1] == point.value
