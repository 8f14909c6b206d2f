"""Results out again: what is exported and uploaded anew gives the same rows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from hud.accounts.keys import create_key, find_key
from hud.ingest import BadUpload, ingest, parquet
from hud.ingest.export import csv_cell, export
from hud.models import ApiKey, Environment, Experiment, Measurement, Run, Stream, Upload
from hud.models.streams import adhoc
from runner.formats.parameters import Parameters
from runner.formats.scalars import invisible_in
from runner.schema.metrics import metric_info
from tests.support.factories import create_experiment, create_measurement, create_run
from tests.support.records import as_lines, as_list, v3_record

SAMPLES = Path(__file__).resolve().parent.parent.parent / "hud" / "samples"
pytestmark = pytest.mark.django_db


def snapshot() -> list[Any]:
    """Every measurement with all that identifies it, without numbers that the database gave."""
    rows = Measurement.objects.select_related("run", "environment", "series__metric", "series__experiment")
    return sorted(
        [
            [
                [getattr(row.series.experiment, name) for name in Experiment.IDENTITY],
                row.series.metric.name,
                [str(row.run.uid), row.run.source, row.run.external_id, row.run.host_name, row.run.commit],
                [row.run.order_time.isoformat(), row.run.order_time_source, row.run.branch, row.run.repo],
                row.environment.fingerprint,
                [row.value, row.samples, row.target, row.spread, row.n, row.status],
                [row.repeat, row.side, row.compilation],
                [row.target_arch, row.code, row.note],
            ]
            for row in rows
        ],
        key=str,
    )


def empty() -> None:
    Run.objects.all().delete()
    Upload.objects.all().delete()
    Experiment.objects.all().delete()
    Environment.objects.all().delete()


def exported(**filters: Any) -> bytes:
    return b"".join(export("v3", filters))


@pytest.mark.parametrize(
    "folders",
    [("pytorch-h200", "runner-h200", "xla-cpu"), pytest.param(("",), marks=pytest.mark.soak, id="all")],
)
def test_the_samples_come_back_as_the_same_rows(folders: tuple[str, ...]) -> None:
    call_command("ingest", *(str(SAMPLES / name) for name in folders))
    before, body = snapshot(), exported()
    again = ingest(body, Parameters())
    assert (again.stored, again.duplicates, again.skipped) == (0, len(before), [])
    empty()
    receipt = ingest(body, Parameters())
    assert (receipt.stored, receipt.duplicates, receipt.skipped) == (len(before), 0, [])
    assert snapshot() == before
    assert exported().count(b"\n") == len(before)


def test_the_reason_of_a_status_is_kept_shown_and_comes_back(client: Client) -> None:
    reason = "torch_xla has had no XRT since 2.1:\nPJRT took its place"
    shown = " ".join(reason.split())
    record = v3_record("per_iter_time", [], case="resnet18")
    record["benchmark"]["name"] = "Compiler HUD xla"
    record["model"]["origins"] = ["xla"]
    record["metric"] = {
        "name": "per_iter_time",
        "extra_info": {"status": "unsupported", "code": "no_xrt", "reason": reason},
    }
    long = v3_record("speedup", [1.5], case="longest")
    long["metric"]["extra_info"] = {"warning": "hot " * 200, "compilation": 2}
    run = ingest(as_lines(record, long), Parameters()).run_ids[0]
    before, body = snapshot(), exported()
    said = {
        json.loads(line)["model"]["name"]: json.loads(line)["metric"]["extra_info"]
        for line in body.splitlines()
    }
    assert said["resnet18"]["reason"] == shown
    assert "warning" not in said["resnet18"]
    assert said["longest"]["compilation"] == 2
    assert said["longest"]["warning"] == ("hot " * 75).strip()
    experiment = Experiment.objects.get(case="resnet18")
    for address in (f"/runs/{run}/", f"/experiments/{experiment.pk}/"):
        assert f'<span class="reason">{shown}</span>' in client.get(address).content.decode()
    assert f'title="unsupported: {shown}"' in client.get("/suites/xla/").content.decode()
    for address in (f"/runs/{run}.json", "/suites/xla.json"):
        (row,) = (row for row in client.get(address).json()["items"] if row["case"] == "resnet18")
        assert (row["reason"], row["warning"], row["verdict"]) == (shown, None, "not_run")
    assert shown.encode() in b"".join(export("csv", {"suite": "xla"}))
    empty()
    ingest(body, Parameters())
    assert snapshot() == before


class RoundTrip(TestCase):
    """Any accepted payload exported and uploaded anew gives identical rows."""

    names = (
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
        .filter(lambda name: not invisible_in(name))
        .filter(str.strip)
    )
    scalars = st.one_of(
        st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False)
    )
    records = st.builds(
        lambda case, metric, values, target, info, host, sha: (
            v3_record(
                metric,
                values,
                case=case,
                runners=[{"name": host, "type": "NVIDIA H200", "extra_info": {"driver": "580"}}],
                dependencies={"torch": {"version": "2.11", "sha": sha}, "timm": {"version": "1.0"}},
                head_sha=sha,
                benchmark={"name": "somebody else's", "mode": None, "dtype": "int8", "extra_info": info},
            )
            | {"metric": {"name": metric, "benchmark_values": values, "target_value": target}}
        ),
        names,
        names.filter(lambda name: metric_info(name).signed),  # values may be below zero
        st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=5),
        st.none() | st.floats(-1e300, 1e300),
        st.dictionaries(names, scalars | names, max_size=4),
        names,
        st.text("0123456789abcdef", min_size=1, max_size=40),
    )

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(records, min_size=1, max_size=5))
    def test_any_accepted_payload_survives(self, records: list[dict[str, Any]]) -> None:
        ingest(as_lines(*records), Parameters())
        before, body = snapshot(), exported()
        empty()
        ingest(body, Parameters())
        assert snapshot() == before
        empty()

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(records, min_size=2, max_size=4), st.randoms())
    def test_the_order_of_uploads_does_not_matter(self, records: list[dict[str, Any]], random: Any) -> None:
        bodies = [as_list(record) for record in records]

        def rows_after(order: list[bytes]) -> list[Any]:
            empty()
            for body in order:
                ingest(body, Parameters(run_time="2026-01-01"))
            rows = ([row[0], row[1], row[2][1:], *row[3:]] for row in snapshot())  # without run ids
            return sorted(rows, key=str)

        forward = rows_after(bodies)
        random.shuffle(bodies)
        assert str(rows_after(bodies)) == str(forward)
        empty()


def test_csv_and_json_are_flat_and_formulas_are_inert(client: Client) -> None:
    ingest(as_list(v3_record(case="=HYPERLINK(1)"), v3_record(case="b", values=[1, 2])), Parameters())
    answer = client.get("/api/v1/export?format=csv")
    rows = list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))  # type: ignore[attr-defined]
    assert {row["case"] for row in rows} == {"'=HYPERLINK(1)", "b"}
    assert rows[0]["unit"] == "GB/s"
    answer = client.get("/api/v1/export?format=json&case=b")
    (item,) = json.loads(b"".join(answer.streaming_content))["items"]  # type: ignore[attr-defined]
    assert (item["value"], item["samples"], item["arch"]) == (1.5, [1.0, 2.0], "h200")


@pytest.mark.parametrize(
    "filters",
    [{}, {"stream": "lab"}, {"suite": "micro", "metric": "speedup"}, {"host": "a"}, {"suite": "x"}],
)
def test_parquet_has_the_rows_of_the_csv(filters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_CSV_BYTES", 300)  # several batches
    lab = Stream.objects.create(name="lab")
    of_ab = create_run(base_interpreter="old", interpreter="new", host_name="a")
    for side, value in enumerate((1.5, None)):
        create_measurement(value=value, run=of_ab, side=side, repeat=3, draw=7, note="slow", code="oom")
    knobs = create_experiment(knobs={"D": 1024}, dynamic=True)
    for number in range(3):
        run = create_run(stream=lab, commit=f"abc{number}", branch="fast")
        create_measurement(knobs, value=float(number), run=run, target=2.0, note="warm", compilation=number)
        create_measurement(value=1.0, run=run, metric="speedup", samples=[1.0, 1.1])
        create_measurement(value=None, run=run, metric="accuracy", status="timed_out", note="an hour")
    body = io.BytesIO(b"".join(export("parquet", filters)))
    flat = pyarrow.parquet.read_table(body).to_pylist()
    texts = [
        {name: "" if cell is None else str(csv_cell(cell)) for name, cell in row.items()} for row in flat
    ]
    rows = list(csv.DictReader(io.StringIO(b"".join(export("csv", filters)).decode())))
    assert sorted(texts, key=str) == sorted(rows, key=str)
    assert bool(rows) == (filters != {"suite": "x"})


def test_filters_narrow_and_unknown_ones_are_refused(client: Client) -> None:
    ingest(as_list(v3_record(), v3_record(case="b")), Parameters())
    body = b"".join(client.get("/api/v1/export?case=b").streaming_content)  # type: ignore[attr-defined]
    assert body.count(b"\n") == 1
    assert client.get("/api/v1/export?format=xml").status_code == 422
    assert client.get("/api/v1/export?drop=table").status_code == 422
    for room in ("export", "experiments"):
        answer = client.get(f"/api/v1/{room}?case=b&case=layer_norm")
        assert answer.status_code == 422
        assert answer.json()["errors"] == [
            {"pointer": "?case", "detail": "the filter 'case' is said twice; it takes one value"}
        ]


def test_an_upload_repeats_a_runner_s_own_run_but_adds_nothing_to_it() -> None:
    ingest(as_list(v3_record()), Parameters())
    Run.objects.update(upload=None)
    record = json.loads(exported())
    assert ingest(as_list(record), Parameters()).duplicates == 1
    record["benchmark"]["extra_info"]["hud"]["metric"] = record["metric"]["name"] = "forged"
    receipt = ingest(as_list(record), Parameters(partial="1"))
    assert (receipt.stored, receipt.duplicates) == (0, 0)
    assert "adds nothing" in receipt.skipped[0]["reason"]
    assert Measurement.objects.count() == 1


def test_a_run_that_its_uid_names_takes_only_what_its_own_key_or_an_operator_s_adds() -> None:
    keys = {name: made_key(name, ["upload"]) for name in ("owner", "other")} | {
        "run": made_key("run", ["run"])
    }
    ingest(as_list(v3_record()), Parameters(), key=keys["owner"])
    record = json.loads(exported())
    assert ingest(as_list(record), Parameters(), key=keys["other"]).duplicates == 1

    def add(metric: str, name: str) -> int:
        record["benchmark"]["extra_info"]["hud"]["metric"] = record["metric"]["name"] = metric
        return ingest(as_list(record), Parameters(partial="1"), key=keys[name]).stored

    assert add("forged", "other") == 0
    assert add("mine", "owner") == 1
    assert add("an operator's", "run") == 1
    assert Run.objects.count() == 1


def made_key(name: str, scopes: list[str]) -> ApiKey:
    secret = create_key(name=name, scopes=scopes, who="t", stream=adhoc())[1]
    key = find_key(secret)
    assert key
    return key


@pytest.mark.parametrize("wrong", [{"uid": "x"}, {"at": "never"}, {"at_source": "guess"}])
def test_an_export_that_was_tampered_with_is_refused(wrong: dict[str, str]) -> None:
    ingest(as_list(v3_record()), Parameters())
    record = json.loads(exported())
    record["benchmark"]["extra_info"]["hud"]["run"].update(wrong)
    with pytest.raises(BadUpload) as caught:
        ingest(as_list(record), Parameters())
    assert "/benchmark/extra_info/hud/run/" in caught.value.faults[0].pointer


def test_a_wide_export_has_a_line_for_each_run_and_a_column_for_each_metric(client: Client) -> None:
    experiment, run = create_experiment(knobs={"D": 1024}), create_run(commit="abc", branch="main")
    for process, value in enumerate((90.0, 100.0)):
        create_measurement(experiment, metric="speedup", value=value, run=run, repeat=process)
    create_measurement(experiment, metric="speedup", value=None, status="oom", run=run, repeat=2)
    create_measurement(experiment, metric="=1+1", value=1.5, run=run)
    create_measurement(experiment, metric="speedup", value=None, status="oom", run=create_run(commit="def"))
    create_measurement(experiment, metric="speedup", run=create_run(base_interpreter="old"))
    create_measurement(create_experiment(suite="timm", case="resnet"), metric="accuracy")
    answer = client.get("/api/v1/export?format=csv&layout=wide&suite=micro")
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert [(row["commit"], row["speedup"], row["'=1+1"]) for row in rows] == [
        ("abc", "95.0", "1.5"),
        ("def", "", ""),
    ]
    assert {row["stream"] for row in rows} == {"import"}
    assert (rows[0]["suite"], rows[0]["knobs"]) == ("micro", '{"D":1024}')
    assert "accuracy" not in rows[0]
    empty_table = client.get("/api/v1/export?format=csv&layout=wide&suite=none").getvalue().decode()
    assert empty_table.splitlines() == [empty_table.strip()]
    assert empty_table.startswith("suite,case,")


def test_an_export_is_of_a_stream_and_the_wide_one_says_what_the_points_say(client: Client) -> None:
    experiment, laptop = create_experiment(), Stream.objects.create(name="laptop")
    run = create_run(stream=laptop)
    for repeat, (number, value) in enumerate(((0, 1.0), (1, 10.0), (0, 3.0), (2, None))):
        status = "oom" if value is None else "ok"
        create_measurement(experiment, run=run, repeat=repeat, compilation=number, value=value, status=status)
    create_measurement(experiment, value=7.0)
    create_measurement(experiment, value=8.0, run=create_run(stream=laptop, retry_of=run))
    wide = "/api/v1/export?format=csv&layout=wide&suite=micro&stream=laptop"
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(wide)
        rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
    assert not [query for query in queries if "hud_measurement" in query["sql"]]
    assert [(row["stream"], row["rerun"], row["device_bandwidth_gbps"]) for row in rows] == [
        ("laptop", "False", "6.0"),
        ("laptop", "True", "8.0"),
    ]
    flat = json.loads(client.get("/api/v1/export?format=json&stream=laptop").getvalue())["items"]
    assert [(row["stream"], row["value"]) for row in flat] == [("laptop", one) for one in (1, 10, 3, None, 8)]
    assert client.get("/api/v1/export?stream=nobody").status_code == 404


def test_an_export_of_an_experiment_finds_its_runs_by_its_points() -> None:
    mine, other = create_experiment(), create_experiment(case="other")
    for _ in range(3):
        run = create_run()
        create_measurement(mine, run=run)
        create_measurement(mine, metric="speedup", run=run, repeat=1)
        create_measurement(other, run=run)
    compared = create_run(base_interpreter="old")
    for side in (0, 1):
        create_measurement(mine, run=compared, side=side)
    with CaptureQueriesContext(connection) as queries:
        records = exported(experiment=mine.pk).splitlines()
    everything = exported().splitlines()
    assert len(records) == 8
    assert records == [line for line in everything if b'"name":"other"' not in line]
    (statement,) = [query["sql"] for query in queries if "hud_measurement" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + statement.partition("FOR ")[2])
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Seq Scan on hud_measurement" not in plan


@pytest.mark.parametrize(
    "query", ["format=v3&suite=micro", "suite=micro", "format=json&suite=micro", "format=csv"]
)
def test_a_wide_export_is_a_csv_of_one_suite(client: Client, query: str) -> None:
    assert client.get(f"/api/v1/export?layout=wide&{query}").status_code == 422
