"""A number that may not decide: it is shown, pale, and is in no level, verdict, best, mean or pair."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.test import Client

from hud.ingest import ingest
from hud.ingest.export import export
from hud.judging.comparison import compare
from hud.judging.judge import process_pending
from hud.models import DetailedMeasurement, Experiment, Measurement, Point, Regression, Run, SeriesState
from hud.points.write import rebuild, unfold
from runner.formats.parameters import Parameters
from runner.schema.points import Process, point_of
from runner.schema.records import QUALITIES, worst_quality
from tests.support.factories import create_experiment, create_measurement, create_run
from tests.support.pages import page_of
from tests.support.records import as_lines

pytestmark = pytest.mark.django_db


def record(
    value: float, day: int, quality: str = "", case: str = "DistillGPT2", **run: Any
) -> dict[str, Any]:
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
            "benchmark_values": [value],
            "extra_info": {"status": "ok", **({"quality": quality} if quality else {})},
        },
        "runners": [{"name": "h1", "type": "NVIDIA H200", "extra_info": {"driver": "580.1", **run}}],
        "head_sha": f"{day:040x}",
        "timestamp": 1_790_000_000 + day * 86_400,
    }


def upload(*records: dict[str, Any], day: int) -> Run:
    ingest(as_lines(*records), Parameters(stream="nightly", run_id=f"night {day}"))
    return Run.objects.order_by("-order_time")[0]


def nights(count: int = 12) -> None:
    for day in range(count):
        upload(record(2.0 + day % 3 / 1000, day), day=day)


def judge() -> None:
    while process_pending():
        pass


def newest() -> Point:
    return Point.objects.order_by("-order_time")[0]


def test_the_worst_quality_of_a_run_s_processes_is_the_point_s() -> None:
    processes = [Process(number, 0, 1.0, 0.0, 1, "ok") for number in range(3)]
    assert point_of(processes).quality is None
    disagrees, busy = (processes[0]._replace(quality=name) for name in ("disagrees", "busy_cpu"))
    marked = [processes[0], disagrees, busy]
    assert point_of(marked).quality == "busy_cpu"
    assert point_of(marked).value == 1.0
    assert point_of(marked[1:2]).quality == "disagrees"
    assert worst_quality([None, "", "unknown"]) == "unknown"


@pytest.mark.parametrize("quality", QUALITIES)
def test_value_and_status_stay_and_nothing_is_decided(client: Client, quality: str) -> None:
    nights()
    judge()
    before = SeriesState.objects.get()
    run = upload(record(1.0, 12, quality), day=12)
    judge()
    point = newest()
    assert (point.value, point.status, point.quality) == (1.0, "ok", quality)
    assert (point.verdict, point.verdict_reason, point.change) == ("inconclusive", quality, None)
    after = SeriesState.objects.get()
    assert (after.points, after.recent, after.order_time) == (before.points, before.recent, before.order_time)
    assert not Regression.objects.exists()
    assert run.regressed == 0
    upload(record(2.001, 13), day=13)
    judge()
    assert (newest().verdict, newest().level_points) == ("unchanged", 12)


def test_an_unknown_word_is_no_quality_and_the_receipt_says_so() -> None:
    receipts = [
        ingest(as_lines(record(1.0, day, quality)), Parameters(run_id=f"night {day}"))
        for day, quality in enumerate(("", "busy_cpu", "wobbly"))
    ]
    assert newest().quality is None
    assert [len(receipt.warnings) for receipt in receipts] == [0, 0, 1]
    assert "wobbly" in receipts[-1].warnings[0]


def test_a_failure_is_one_whatever_else_went_on() -> None:
    nights()
    failed = record(1.0, 12, "busy_cpu")
    failed["metric"] |= {"benchmark_values": [], "extra_info": {"status": "crashed", "quality": "busy_cpu"}}
    upload(failed, day=12)
    judge()
    assert (newest().quality, newest().verdict) == (None, "failed")


def test_a_corrected_measurement_may_decide_again() -> None:
    nights()
    upload(record(2.0, 12, "busy_cpu"), day=12)
    unfold(Measurement.objects.filter(quality="busy_cpu").values_list("run_id", "series_id"))
    DetailedMeasurement.objects.filter(quality="busy_cpu").update(quality=None)
    assert rebuild()[1] == 1
    judge()
    assert newest().quality is None


def test_the_export_says_it_and_brings_it_back() -> None:
    upload(record(1.0, 0, "imprecise"), day=0)
    body = b"".join(export("v3", {}))
    assert b"imprecise" in body
    Run.objects.all().delete()
    ingest(body, Parameters())
    assert newest().quality == "imprecise"


def cases(day: int, quality: str, factor: float = 1.0) -> Run:
    good = [record((1.5 + number / 10) * factor, day, case=f"model_{number}") for number in range(4)]
    return upload(*good, record(9.0, day, quality, case="noisy"), day=day)


@pytest.fixture
def two_nights() -> tuple[Run, Run]:
    """The newest has a case that may not decide."""
    found = cases(0, ""), cases(7, "imprecise")
    judge()
    return found


def test_no_mean_has_it_and_pass_rates_count_it_beside(client: Client, two_nights: tuple[Run, Run]) -> None:
    row = next(one for one in client.get("/compilers.json").json()["items"] if one["column"] == "speedup")
    assert row["matched"] == 4
    assert row["head_value"] < 2
    assert (row["passed"], row["expected"], row["undecided"]) == (5, 5, 1)
    assert "1 inconclusive" in page_of(client, "/compilers/")
    shown = {one["case"]: one for one in client.get("/compilers.json").json()["cases"]}
    assert (shown["noisy"]["head_value"], shown["noisy"]["verdict"]) == (9.0, "inconclusive")
    assert shown["noisy"]["change"] is None
    suite = page_of(client, "/suites/huggingface/")
    assert "1 inconclusive" in suite
    assert 'class="value pale"' in suite
    assert "5 of 5" in " ".join(suite.split())
    mean = client.get("/suites/huggingface/").context["page"].totals.means["speedup"]
    assert mean == (pytest.approx(row["head_value"]), 4)


def test_a_comparison_leaves_it_open(client: Client, two_nights: tuple[Run, Run]) -> None:
    base, head = two_nights
    address = {"base": f"run:{base.pk}", "head": f"run:{head.pk}", "show": "all"}
    found = client.get("/compare.json", address).json()
    rows = {row["case"]: row for row in found["items"]}
    assert (rows["noisy"]["verdict"], rows["noisy"]["reason"]) == ("inconclusive", "imprecise")
    assert (rows["noisy"]["base"], rows["noisy"]["head"]) == (9.0, 9.0)
    (side,) = found["heads"]
    assert side["totals"]["means"]["speed"]["matched"] == 4
    assert side["totals"]["undecided"] == 1
    assert "1 inconclusive" in page_of(client, f"/compare/?base=run:{base.pk}&head=run:{head.pk}")


def test_the_best_is_one_that_may_decide(client: Client) -> None:
    nights()
    upload(record(99.0, 12, "imprecise"), day=12)
    judge()
    experiment = Experiment.objects.get()
    page = page_of(client, f"/experiments/{experiment.pk}/")
    assert "best 99" not in page
    assert "pale" in page
    items = client.get(f"/experiments/{experiment.pk}.json").json()["items"]
    assert {row["quality"] for row in items} == {None, "imprecise"}
    run = newest().run_id
    (row,) = client.get(f"/runs/{run}.json").json()["items"]
    assert (row["quality"], row["verdict"], row["verdict_reason"]) == (
        "imprecise",
        "inconclusive",
        "imprecise",
    )
    assert QUALITIES["imprecise"] in page_of(client, f"/runs/{run}/")


def test_the_overview_of_first_runs_that_may_not_decide_shows_them_pale_and_says_why(client: Client) -> None:
    of_micro = record(1.7, 3, "busy_cpu", case="layer_norm")
    of_micro["model"] |= {"origins": ["micro"]}
    of_micro["benchmark"] |= {"name": "Compiler HUD micro"}
    upload(record(1.3, 3, "busy_cpu"), of_micro, day=3)
    judge()
    text = " ".join(page_of(client, "/?stream=nightly").split())
    found = re.findall(r'class="pale" title="these values may not decide"> ?([0-9.]+)', text)
    assert sorted(found) == ["1.300", "1.700"]
    answer = client.get("/overview.json?stream=nightly").json()
    assert answer["unjudged"] == f"2 of 2 values may not decide, mostly: {QUALITIES['busy_cpu']}"
    assert answer["unjudged"] in html.unescape(text)
    (cell,) = (one for one in answer["table"] if one["column"] == "speedup")
    assert (cell["head_value"], cell["undecided_value"]) == (None, 1.3)
    of_micro["metric"] |= {"benchmark_values": [1.9], "extra_info": {"status": "ok"}}
    upload(record(1.3, 4, "busy_cpu"), {**of_micro, "head_sha": "4" * 40}, day=4)
    judge()
    assert "of 2 values may not decide" not in client.get("/overview.json?stream=nightly").json()["unjudged"]


def test_pairs_of_it_confirm_nothing(client: Client) -> None:
    run = create_run(base_interpreter="old", interpreter="new")
    experiment = create_experiment(suite="timm", knobs={})
    for pair in range(8):
        for side, value in ((0, 1.0), (1, 2.0 + pair / 1000)):
            quality = "busy_cpu" if pair > 3 else None
            create_measurement(
                experiment, metric="device_latency_ms", value=value, run=run, judged=False,
                repeat=pair, side=side, quality=quality,
            )  # fmt: skip
    (answer,) = compare([Run.objects.get(pk=run.pk)]).metrics
    assert (answer.count, answer.word) == (4, "inconclusive")
    (line,) = client.get(f"/runs/{run.pk}.json").json()["pairs"]
    assert (line["pairs"], line["verdict"]) == (4, "inconclusive")
    assert len([value for value in line["base_values"] if value]) == 8, "the values stay"
