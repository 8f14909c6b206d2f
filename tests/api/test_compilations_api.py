"""Compilations over the API: every one of a point, the kernels of a variant, series in pages."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from hud.api import series
from hud.ingest import ingest
from hud.models import Experiment, Stream
from runner.formats.parameters import Parameters
from runner.schema.compilations import Compiled, Kernel, digest
from tests.support.factories import create_experiment, create_measurement, create_run, create_verdict
from tests.support.records import as_lines, compiled_record

pytestmark = pytest.mark.django_db
START = datetime(2026, 11, 1, tzinfo=timezone.utc)


def compiled(config: str, time_us: float) -> Compiled:
    """A compilation of one kernel with this configuration."""
    slot = digest("gather_gemv")
    choice = digest(slot, config)
    kernel = Kernel(slot, choice, digest(choice), "triton_red_fused_0", "reduction", config, time_us=time_us)
    return Compiled((kernel,), busy_us=time_us)


FAST, SLOW = compiled("R0_BLOCK=1024", 5.8), compiled("R0_BLOCK=2048", 9.3)


def run_of(*found: tuple[Compiled | None, list[float]], named: bool = True) -> int:
    """Upload a run of these compilations with the samples of their bandwidth; return it."""
    records = []
    for number, (one, samples) in enumerate(found):
        said = [compiled_record(one, number), compiled_record(None, number, metric="gbps", values=samples)]
        for record in said if named else ():
            record["metric"]["extra_info"]["compilation"] = number
        for record in () if named else said:
            record["metric"]["extra_info"].pop("compilation")
        records += said
    return ingest(as_lines(*records), Parameters(run_time=START.isoformat())).run_ids[0]


def series_of(client: Client, query: str = "", metric: str = "gbps") -> Any:
    return client.get(f"/api/v1/series/{Experiment.objects.get().pk}/{metric}{query}").json()


def test_a_point_is_the_median_of_its_compilations_and_has_all_of_them(client: Client) -> None:
    run = run_of((FAST, [2872.0, 2873.0, 2890.0]), (SLOW, [1807.0]), (FAST, [2859.0, 2854.0]))
    (point,) = series_of(client)["points"]
    assert (point["run"], point["value"], point["n"], point["level"]) == (run, 2856.5, 6, None)
    fast, slow = FAST.variant(), SLOW.variant()
    assert point["compilations"] == [
        {"variant": fast, "value": 2873.0, "n": 3},
        {"variant": slow, "value": 1807.0, "n": 1},
        {"variant": fast, "value": 2856.5, "n": 2},
    ]
    assert client.get(f"/experiments/{Experiment.objects.get().pk}.json?metric=gbps").json()


def test_a_failed_compilation_stands_beside_the_others_and_one_alone_has_its_samples(client: Client) -> None:
    run, experiment = create_run(), create_experiment()
    for repeat, value in enumerate((1.0, None, 3.0)):
        status = "ok" if value else "crashed"
        create_measurement(experiment, value=value, status=status, run=run, repeat=repeat)
    create_measurement(experiment, metric="speedup", samples=[1.0, 2.0, 6.0], run=run)
    (point,) = series_of(client, metric="device_bandwidth_gbps")["points"]
    assert (point["value"], point["status"], point["stream"]) == (2.0, "crashed", "import")
    assert [(one["value"], one["n"]) for one in point["compilations"]] == [(1.0, 1), (3.0, 1)]
    (point,) = series_of(client, metric="speedup")["points"]
    assert point["compilations"] == [{"variant": None, "value": 2.0, "n": 3}]


def test_a_series_is_of_one_stream_and_says_what_was_judged(client: Client) -> None:
    experiment = create_experiment()
    laptop = Stream.objects.create(name="laptop")
    measured = create_measurement(experiment, value=1.0, run=create_run(order_time=START))
    create_measurement(experiment, value=9.0, run=create_run(order_time=START, stream=laptop), judged=False)
    create_measurement(experiment, value=5.0, run=create_run(order_time=START, retry_of=measured.run))
    judged = {"level": 2.0, "change": -0.5, "noise": 0.25}
    create_verdict(measured, "regressed", **judged)
    names = ("value", "verdict", "rerun", *judged)
    address = f"/api/v1/series/{experiment.pk}/device_bandwidth_gbps"
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(f"{address}?stream=import")
    assert not [query for query in queries if "hud_measurement" in query["sql"]]
    assert [tuple(point[name] for name in names) for point in answer.json()["points"]] == [
        (1.0, "regressed", False, 2.0, -0.5, 0.25),
        (5.0, "unchanged", True, None, None, None),
    ]
    (foreign,) = client.get(f"{address}?stream=laptop").json()["points"]
    assert (foreign["stream"], foreign["value"], foreign["verdict"]) == ("laptop", 9.0, None)
    assert client.get(address).content == answer.content, "the front stream's"
    assert client.get(f"{address}?stream=nobody").status_code == 404
    assert client.get(f"{address}?stream=%00").status_code == 404
    create_verdict(measured, "unchanged")
    again = client.get(f"{address}?stream=import", headers={"If-None-Match": answer["ETag"]})
    assert again.status_code == 200, "judged anew"
    again = client.get(f"{address}?stream=import", headers={"If-None-Match": again["ETag"]})
    assert again.status_code == 304
    only_there = create_experiment(case="only there")
    create_measurement(only_there, run=create_run(stream=laptop))
    (point,) = client.get(f"/api/v1/series/{only_there.pk}/device_bandwidth_gbps").json()["points"]
    assert point["stream"] == "laptop"
    listed = client.get("/api/v1/experiments?stream=laptop").json()["items"]
    assert [one["id"] for one in listed] == [experiment.pk, only_there.pk]
    assert [one["id"] for one in client.get("/api/v1/experiments?stream=import").json()["items"]] == [
        experiment.pk
    ]


def test_processes_that_name_no_compilation_count_as_one_each(client: Client) -> None:
    run_of((None, [3.0]), (None, [1.0]), named=False)
    (point,) = series_of(client)["points"]
    assert point["value"] == 2.0
    assert [(one["variant"], one["value"]) for one in point["compilations"]] == [(None, 3.0), (None, 1.0)]


def test_processes_over_the_caches_of_one_compilation_count_as_one(client: Client) -> None:
    run, experiment = create_run(), create_experiment()
    for repeat, (number, value) in enumerate(((0, 1.0), (1, 10.0), (0, 3.0))):
        create_measurement(run=run, experiment=experiment, value=value, repeat=repeat, compilation=number)
    (point,) = series_of(client, metric="device_bandwidth_gbps")["points"]
    assert point["value"] == 6.0
    assert [one["value"] for one in point["compilations"]] == [2.0, 10.0]


def test_a_variant_has_its_kernels(client: Client) -> None:
    run = run_of((FAST, [1.0]), (SLOW, [1.0]), (FAST, [1.0]))
    found = client.get(f"/api/v1/variants/{FAST.variant()}").json()
    assert (found["variant"], found["compilations"], found["run"]) == (FAST.variant(), 2, run)
    (kernel,) = found["kernels"]
    assert (kernel["config"], kernel["time_us"]) == ("R0_BLOCK=1024", 5.8)
    assert kernel["binary"] == FAST.kernels[0].binary
    for unknown, status in (("0123456789abcdef", 404), ("x" * 500, 422), ("%00", 422), ("ab%0a", 422)):
        assert client.get(f"/api/v1/variants/{unknown}").status_code == status


def test_a_series_comes_in_pages_that_never_split_a_run(client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(series, "MAX_POINTS", 2)
    experiment = create_experiment()
    for day in range(5):
        run = create_run(order_time=START + timedelta(days=day // 2), branch="")
        for repeat in range(3):
            create_measurement(run=run, experiment=experiment, value=day + repeat / 10, repeat=repeat)
    pages, cursor = [], ""
    while cursor is not None:
        page = series_of(client, f"?cursor={cursor}", "device_bandwidth_gbps")
        pages.append([point["value"] for point in page["points"]])
        cursor = page["next"]
    assert pages == [[3.1, 4.1], [1.1, 2.1], [0.1]]
    days = series_of(client, "?from=2026-11-02&to=2026-11-02", "device_bandwidth_gbps")
    assert [point["value"] for point in days["points"]] == [2.1, 3.1]
    assert days["next"] is None
    for wrong in ("x", "2026-11-02_1_2", "2026-11-02T00:00:00Z_1_2_99999999999", "2026-11-02_1_2_0"):
        answer = client.get(f"/api/v1/series/{experiment.pk}/device_bandwidth_gbps?cursor={wrong}")
        assert answer.status_code == 422
