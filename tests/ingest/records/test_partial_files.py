"""Files that are not whole: what they hold is stored and marked, and decides nothing."""

from __future__ import annotations

import html
import json
import random
from typing import Any

import pytest
from django.test import Client

from hud.ingest import ingest
from hud.ingest.receipt import Receipt
from hud.judging.judge import process_pending
from hud.models import Point, Run
from hud.points import nights
from runner.formats.parameters import Parameters
from tests.support.observed import SAMPLES, deciding_values, observe

_HEADER = "dev,name,batch_size,speedup,abs_latency,graph_breaks,compilation_latency\n"
_ROW = "cuda,dcgan,32,1.446073,1.712091,6,9.586513\n"
_NAME = "inductor_with_cudagraphs_torchbench_float32_inference_cuda_performance.csv"


def _qualities(body: str, name: str = "results.csv") -> set[tuple[str, str | None]]:
    parser = observe(body, name)
    assert not parser.faults
    return {(item.case, item.quality) for item in parser.measurements}


def test_a_row_that_is_cut_off_is_left_out_and_its_file_is_partial() -> None:
    assert _qualities(_HEADER + _ROW + "cuda,alexnet,128,1.5,11") == {("dcgan", "partial")}
    assert _qualities(_HEADER + _ROW) == {("dcgan", None)}


def test_a_row_without_a_line_end_may_go_on() -> None:
    cut = _HEADER + _ROW + "cuda,alexnet,128,1.5,11.3205,3.3,1"
    assert _qualities(cut) == {("dcgan", None), ("alexnet", "partial")}
    assert _qualities(cut.replace("\n", "\r\n")) == {("dcgan", None), ("alexnet", "partial")}


def test_a_column_that_stands_twice_makes_a_file_partial() -> None:
    body = "dev,name,batch_size,speedup,speedup\ncuda,dcgan,32,0.897273,657.7\n"
    assert _qualities(body) == {("dcgan", "partial")}


def _line(value: float) -> str:
    record: dict[str, Any] = {
        "benchmark": {"name": "mine"},
        "model": {"name": f"case {value}"},
        "metric": {"name": "latency_ms", "benchmark_values": [value]},
    }
    return json.dumps(record)


def test_a_line_of_json_that_is_cut_off_makes_a_file_partial() -> None:
    whole = f"{_line(1)}\n{_line(2)}"
    assert _qualities(whole, "") == {("case 1", None), ("case 2", None)}
    assert _qualities(whole[:-3], "") == {("case 1", "partial")}
    followed = observe(f"{_line(1)}\n{_line(2)[:-3]}\n{_line(3)}\n")  # an error, and no end
    assert [fault.line for fault in followed.faults] == [2]


_SAMPLES = sorted(path.name for path in SAMPLES.iterdir() if path.suffix not in {".md", ".sql", ".xz"})


@pytest.mark.parametrize("path", _SAMPLES)
def test_a_sample_that_is_cut_anywhere_has_no_other_value_that_decides(path: str) -> None:
    body = (SAMPLES / path).read_bytes()
    whole = deciding_values(body, path)
    assert whole is not None
    inside = [cut for cut in range(1, len(body)) if body[cut - 1 : cut] != b"\n"]  # of a line
    for cut in random.Random(path).sample(inside, k=20):
        read = deciding_values(body[:cut], path) or set()
        assert read <= whole, (path, cut)


@pytest.mark.django_db
def test_a_partial_file_is_stored_and_is_no_night_and_no_improvement(client: Client) -> None:
    def night(day: int, body: str) -> Receipt:
        given = {"commit": f"{day:040x}", "run_time": f"2026-11-{day:02}T08:00:00Z", "arch": "h200"}
        return ingest(body.encode(), Parameters(filename=_NAME, stream="nightly", **given))

    for day in range(1, 13):
        night(day, _HEADER + _ROW + _ROW.replace("dcgan", "alexnet"))
    process_pending()
    better = _ROW.replace("1.446073", "2.946073")
    receipt = night(13, _HEADER + better + better.replace("dcgan", "alexnet")[:20])
    process_pending()
    assert receipt.stored == 4
    assert receipt.warnings
    run = Run.objects.get(pk__in=receipt.run_ids)
    assert (run.rerun, bool(run.reason)) == (True, True)
    points = Point.objects.filter(run=run).select_related("series__metric")
    assert {point.verdict for point in points if point.series.metric.name == "speedup"} == {"inconclusive"}
    assert "improved" not in {point.verdict for point in points}
    assert [one.time.day for one in nights.read(run.stream)] == list(range(1, 13))
    page = client.get(f"/runs/{run.pk}/")
    assert run.reason in html.unescape(page.content.decode())
