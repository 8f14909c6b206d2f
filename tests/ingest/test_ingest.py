"""The door: what is stored, what is refused and where the fault is, and that the same is stored once."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from hud.ingest import BadUpload, TooManyRecords, inflate, ingest
from hud.models import (
    Environment,
    Experiment,
    KernelBinary,
    KernelCode,
    Measurement,
    Point,
    Run,
    Series,
    Upload,
)
from runner.formats import reasons
from runner.formats.errors import MalformedUpload, UploadTooLarge
from runner.formats.parameters import Parameters
from runner.schema.metrics import GPT_FAST_SIZES, mean_over
from tests.support.records import as_lines, as_list, v3_record

PLACE = "/0/metric/benchmark_values/0"
SAMPLES = Path(__file__).resolve().parent.parent.parent / "hud" / "samples"
pytestmark = pytest.mark.django_db


def stored_rows() -> list[tuple[Any, ...]]:
    return sorted(
        Measurement.objects.values_list("series__experiment__case", "series__metric__name", "value"), key=str
    )


@pytest.mark.parametrize(
    "body",
    [
        as_list(v3_record(), v3_record("token_per_sec", [5])),
        as_lines(v3_record(), v3_record("token_per_sec", [5])),
        as_lines([v3_record()], [v3_record("token_per_sec", [5])]),
        as_lines(v3_record(), [v3_record("token_per_sec", [5])]),
        json.dumps([v3_record(), v3_record("token_per_sec", [5])], indent=2).encode(),
    ],
    ids=["list", "lines", "lines of lists", "mixed lines", "indented list"],
)
def test_every_container_stores_the_same_rows(body: bytes) -> None:
    receipt = ingest(body, Parameters())
    assert (receipt.stored, receipt.duplicates, receipt.skipped) == (2, 0, [])
    assert stored_rows() == [
        ("layer_norm", "memory_bandwidth(GB/s)", 2542.4),
        ("layer_norm", "token_per_sec", 5.0),
    ]


def test_a_single_object_is_stored() -> None:
    assert ingest(json.dumps(v3_record()).encode(), Parameters()).stored == 1


def test_gpt_fast_becomes_the_mean_of_the_micro_suite() -> None:
    ingest(as_list(v3_record(values=["2542.40"])), Parameters())
    experiment = Experiment.objects.get()
    assert (experiment.suite, experiment.case) == ("micro", "layer_norm")
    assert experiment.knobs == mean_over(GPT_FAST_SIZES)
    assert (experiment.backend, experiment.device, experiment.arch) == ("inductor", "cuda", "h200")
    measurement = Measurement.objects.get()
    assert measurement.value == 2542.40
    assert (measurement.target, measurement.target_arch) == (950.0, "a100-40gb")
    assert measurement.samples is None


def test_samples_are_kept_in_full_with_median_and_spread() -> None:
    ingest(as_list(v3_record(values=[1.0, 3.0, 2.0])), Parameters())
    measurement = Measurement.objects.get()
    assert (measurement.value, measurement.samples, measurement.n) == (2.0, [1.0, 3.0, 2.0], 3)
    assert measurement.spread == pytest.approx(1.4826 * 1 / 2)


def test_torchdynamo_names_say_cuda_graphs_and_the_kind_of_run() -> None:
    def record(metric: str, value: Any, *, accuracy: bool, **metric_fields: Any) -> dict[str, Any]:
        info = {"device": "cuda", "disable_cudagraphs": False, "accuracy": accuracy, "batch_size": None}
        return {
            "benchmark": {
                "name": "TorchInductor",
                "mode": "inference",
                "dtype": "bfloat16",
                "extra_info": info,
            },
            "model": {"name": "BertForMaskedLM", "backend": "inductor", "origins": ["timm_models"]},
            "metric": {"name": metric, "benchmark_values": value, **metric_fields},
        }

    ingest(
        as_lines(
            record("speedup", [0.0], accuracy=False),
            record("compilation_latency", [10.5], accuracy=True),
            record(
                "accuracy", None, accuracy=True, extra_info={"benchmark_values": ["eager_two_runs_differ"]}
            ),
        ),
        Parameters(arch="h200"),
    )
    experiment = Experiment.objects.get()
    assert (experiment.suite, experiment.backend) == ("timm", "inductor_cudagraphs")
    found = {
        item.series.metric.name: (item.value, item.status, item.code)
        for item in Measurement.objects.select_related("series__metric")
    }
    assert found["speedup"] == (None, 6, "value 0 written for a failure")
    assert found["accuracy"] == (None, 2, "eager_two_runs_differ")
    assert found["accuracy_compilation_latency"][0] == 10.5


def test_the_same_upload_again_stores_nothing_new() -> None:
    body = as_list(v3_record())
    first = ingest(body, Parameters())
    second = ingest(body, Parameters(filename="another-name.json"))
    assert (second.id, second.stored, second.duplicates) == (first.id, 0, 1)
    assert ingest(body, Parameters(commit="abc")).stored == 1, "other parameters are another upload"


def test_a_workflow_s_attempt_is_one_run_however_it_is_cut_into_files() -> None:
    ids: dict[str, Any] = {"workflow_id": 11, "job_id": 22, "run_attempt": 1, "head_sha": "abc"}
    first = ingest(as_list(v3_record(**ids)), Parameters())
    second = ingest(as_list(v3_record(**ids), v3_record("token_per_sec", [5], **ids)), Parameters())
    assert first.run_ids == second.run_ids
    assert (second.stored, second.duplicates) == (1, 1)


def test_several_commits_make_a_run_for_each() -> None:
    body = as_list(v3_record(head_sha="aaa"), v3_record(head_sha="bbb"))
    receipt = ingest(body, Parameters())
    assert len(receipt.run_ids) == 2
    assert sorted(Run.objects.values_list("commit", flat=True)) == ["aaa", "bbb"]


def test_the_commit_date_places_a_point_before_the_record_s_time() -> None:
    ingest(as_list(v3_record(timestamp=1_700_000_000)), Parameters(commit_date="2020-01-02T03:04:05Z"))
    run = Run.objects.get()
    assert (run.order_time.year, run.order_time_source) == (2020, "commit")


def test_a_record_without_metric_is_skipped_and_the_others_are_stored() -> None:
    record = v3_record()
    del record["metric"]
    receipt = ingest(as_lines(v3_record(), record), Parameters())
    assert receipt.stored == 1
    assert receipt.skipped == [{"pointer": "", "line": 2, "reason": reasons.NO_METRIC, "kind": "ignored"}]


def test_two_values_for_one_identity_are_not_silently_merged() -> None:
    receipt = ingest(as_list(v3_record(values=[1]), v3_record(values=[2])), Parameters())
    assert receipt.stored == 1
    assert receipt.skipped[0]["pointer"] == "/1"


def test_unknown_keys_and_strange_metadata_are_no_fault() -> None:
    record = v3_record(runners={"not": "a list"}, dependencies=[], inputs="x", whatever={"a": [True, None]})
    record["benchmark"]["extra_info"].update(flag=True, nothing=None, big=2**60)
    assert ingest(as_list(record), Parameters()).stored == 1


def test_target_zero_is_no_target_and_large_integers_keep_their_double() -> None:
    record = v3_record(values=[2**53 + 2])
    record["metric"]["target_value"] = 0
    ingest(as_list(record), Parameters())
    measurement = Measurement.objects.get()
    assert (measurement.target, measurement.value) == (None, float(2**53 + 2))


def test_a_metric_nobody_knows_has_no_direction() -> None:
    ingest(as_list(v3_record("quux")), Parameters())
    assert Series.objects.get().metric.direction == "none"


@pytest.mark.parametrize(
    "metric",
    ["memory_bandwidth(GB/s)", "abs_latency", "peak_rss_bytes", "compile_file", "xla_ExecuteTime_time_s"],
)
def test_what_cannot_be_below_zero_is_refused(metric: str) -> None:
    body = as_lines(v3_record(metric, [1.0, 0, -2.5]), v3_record("speedup", [0]))
    with pytest.raises(BadUpload) as caught:
        ingest(body, Parameters())
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.line) == ("/metric/benchmark_values/2", 1)
    assert fault.detail == f"-2.5 is below zero, which {metric} cannot be"
    receipt = ingest(body, Parameters(partial="1"))
    assert (receipt.stored, receipt.skipped[0]["reason"]) == (1, fault.detail)


@pytest.mark.parametrize(
    "metric",
    ["Speedup (%)", "compilation_latency", "compile_time_reduction", "inductor_ops.a.self_cpu_time_s", "x"],
)
def test_a_difference_may_be_below_zero(metric: str) -> None:
    assert ingest(as_list(v3_record(metric, [-0.5])), Parameters()).stored == 1


@pytest.mark.parametrize(
    ("body", "kind", "pointer", "line"),
    [
        (b"not json", MalformedUpload, "", None),
        (b"", MalformedUpload, "", None),
        (
            as_list(v3_record()).replace(b"2542.4", b"NaN"),
            MalformedUpload,
            "/0/metric/benchmark_values/0",
            None,
        ),
        (as_list(v3_record()).replace(b"2542.4", b"1e400"), BadUpload, "/0/metric/benchmark_values/0", None),
        (as_list(v3_record(values=[True])), BadUpload, "/0/metric/benchmark_values/0", None),
        (as_list(v3_record(values=["fast"])), BadUpload, "/0/metric/benchmark_values/0", None),
        (as_list(v3_record(values=["nan"])), BadUpload, "/0/metric/benchmark_values/0", None),
        (as_list(v3_record(values=[" 1_0 "])), BadUpload, "/0/metric/benchmark_values/0", None),
        (as_list(v3_record(), v3_record(model={"name": 5})), BadUpload, "/1/model/name", None),
        (as_lines(v3_record(), v3_record(values=[[1]])), BadUpload, "/metric/benchmark_values/0", 2),
        (as_lines(v3_record()) + b"{broken\n", MalformedUpload, "", 2),
        (as_list(v3_record(case="a\0b")), BadUpload, "", 1),
        (as_list(v3_record(case="x" * 201)), BadUpload, "/0", None),
        (as_list(v3_record(case="\ud800")), MalformedUpload, "", 1),
        (b"[" * 100_000, MalformedUpload, "", None),
        (b'"text"', MalformedUpload, "", None),
        (as_list(v3_record(values=["١٢"])), BadUpload, "/0/metric/benchmark_values/0", None),
        (
            as_list(
                v3_record() | {"metric": {"name": "a", "extra_info": {"benchmark_values": "[" * 100_000}}}
            ),
            BadUpload,
            "/0",
            None,
        ),
    ],
)
def test_bad_input_is_refused_with_its_place_and_stores_nothing(
    body: bytes, kind: type[BadUpload], pointer: str, line: int | None
) -> None:
    with pytest.raises(BadUpload) as caught:
        ingest(body, Parameters())
    assert isinstance(caught.value, kind)
    assert caught.value.faults
    assert caught.value.faults[0].pointer == pointer
    assert caught.value.faults[0].line == line
    assert not Upload.objects.exists()
    assert not Measurement.objects.exists()


def test_parameters_are_checked_with_their_names() -> None:
    with pytest.raises(BadUpload) as caught:
        Parameters.parse({"comit": "x", "run_time": "yesterday", "batch_size": "-1"})
    assert {fault.pointer for fault in caught.value.faults} == {"?comit", "?run_time", "?batch_size"}


def test_limits_of_size(settings: Any) -> None:
    with pytest.raises(TooManyRecords):
        ingest(as_list(v3_record(), v3_record("a")), Parameters(), max_records=1)
    settings.HUD_MAX_BODY_BYTES = 10
    with pytest.raises(UploadTooLarge):
        ingest(as_list(v3_record()), Parameters())


def test_gzip_is_inflated_within_bounds(settings: Any) -> None:
    body = as_list(v3_record())
    assert inflate(gzip.compress(body)) == body
    with pytest.raises(MalformedUpload):
        inflate(gzip.compress(body)[:-9])
    with pytest.raises(MalformedUpload):
        inflate(body)
    with pytest.raises(UploadTooLarge):
        inflate(gzip.compress(b"0" * 10_000_000))


def test_the_database_itself_refuses_nan_and_a_value_missing_without_status() -> None:
    ingest(as_list(v3_record(), v3_record(case="two", values=[1, 2])), Parameters())
    everywhere = ("value = 'NaN'", "target = '-Infinity'", "value = NULL")
    for table, wrongs in (
        ("hud_point", everywhere),
        ("hud_detailedmeasurement", (*everywhere, "samples = '{1,Infinity}'")),
    ):
        for wrong in wrongs:
            with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"UPDATE {table} SET {wrong}")


def test_shipped_samples_go_in_whole_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(SAMPLES / "pytorch-h200"), str(SAMPLES / "pytorch-h200-repeat")]
    call_command("ingest", *folders, "--json")
    receipts = json.loads(capsys.readouterr().out)
    stored = sum(receipt["stored"] for receipt in receipts)
    assert stored == Measurement.objects.count()
    assert Run.objects.count() == 2, "one run for each of the two sittings"
    assert "PyTorch's own benchmark scripts" in Run.objects.order_by("pk")[0].provenance
    assert {facts["torch"] for facts in Environment.objects.values_list("facts", flat=True)} == {
        "2.11.0+cu130"
    }
    call_command("ingest", *folders, "--json")
    again = json.loads(capsys.readouterr().out)
    assert sum(receipt["stored"] for receipt in again) == 0
    assert sum(receipt["duplicates"] for receipt in again) == stored + sum(
        receipt["duplicates"] for receipt in receipts
    )


def test_what_a_manifest_says_of_a_file_goes_before_what_it_says_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_bytes(as_list(v3_record(case="one")))
    (tmp_path / "two.json").write_bytes(as_list(v3_record(case="two")))
    said = {
        "provenance": "of the folder",
        "parameters": {"arch": "h200", "run_id": "folder"},
        "files": {"two.*": {"provenance": "of the file", "run_id": "file"}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(said))
    call_command("ingest", str(tmp_path))
    assert sorted(Run.objects.values_list("provenance", flat=True)) == ["of the file", "of the folder"]


def test_the_source_of_kernels_is_read_from_the_runners_artifacts(tmp_path: Path) -> None:
    path = tmp_path / "kernel_code-1.json.gz"
    texts = {"0123456789abcdef": "def kernel(): ...", "fedcba9876543210": "def kernel(): ...", "x": "no key"}
    path.write_bytes(gzip.compress(json.dumps(texts).encode()))
    for _again in range(2):
        call_command("ingest", str(path))
    assert dict(KernelBinary.objects.values_list("binary", "code__text")) == {
        binary: text for binary, text in texts.items() if binary != "x"
    }
    assert KernelCode.objects.count() == 1
    path.write_bytes(b"no JSON")
    with pytest.raises(SystemExit):
        call_command("ingest", str(path))


@pytest.mark.parametrize("container", ["lines", "list", "gzip"])
def test_a_file_over_the_limit_is_taken_in_by_pieces_with_one_receipt(
    tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str], container: str
) -> None:
    settings.HUD_MAX_BODY_BYTES = 2000
    records = [v3_record(case=f"c{number}") for number in range(40)]
    body = as_list(*records) if container == "list" else as_lines(*records)
    path = tmp_path / ("night.jsonl.gz" if container == "gzip" else "night.json")
    path.write_bytes(gzip.compress(body) if container == "gzip" else body)
    for stored, duplicates in ((40, 0), (0, 40)):
        call_command("ingest", str(path), "--json")
        (receipt,) = json.loads(capsys.readouterr().out)
        assert (receipt["stored"], receipt["duplicates"]) == (stored, duplicates)
    assert Run.objects.count() == 1
    path.write_bytes(as_lines(*records, v3_record(case="late", values=["x"])).replace(b"c39", b"c77"))
    if container == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(SystemExit):
        call_command("ingest", str(path), "--json")
    assert Measurement.objects.count() == 40, "all pieces or none"


def test_the_command_ends_with_1_where_something_was_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("nonsense")
    with pytest.raises(SystemExit) as caught:
        call_command("ingest", str(tmp_path))
    assert caught.value.code == 1
    with pytest.raises(SystemExit) as caught:
        call_command("ingest", str(tmp_path / "missing"))
    assert caught.value.code == 2


def test_partial_stores_the_good_part_and_names_the_rest() -> None:
    body = as_lines(v3_record(), v3_record(case="b", values=["fast"]), v3_record(case="c")) + b"{broken\n"
    with pytest.raises(BadUpload):
        ingest(body, Parameters())
    receipt = ingest(body, Parameters(partial="1"))
    assert receipt.stored == 2
    assert [(entry["line"], entry["pointer"]) for entry in receipt.skipped] == [
        (2, "/metric/benchmark_values/0"),
        (4, ""),
    ]
    assert receipt.skipped[0]["reason"] == "'fast' is not a number"


def test_a_dry_run_counts_and_stores_nothing() -> None:
    ingest(as_list(v3_record(workflow_id=1)), Parameters())
    body = as_list(v3_record(workflow_id=1), v3_record("token_per_sec", [5], workflow_id=1))
    receipt = ingest(body, Parameters(dry_run="1"))
    assert (receipt.stored, receipt.duplicates, receipt.id) == (1, 1, None)
    assert Measurement.objects.count() == 1
    assert ingest(body, Parameters()).stored == 1, "the dry run has not used the upload up"


@pytest.mark.parametrize("order", ["rounded first", "precise first"])
def test_of_the_same_value_in_two_precisions_the_more_precise_one_stays(order: str) -> None:
    rounded = as_list(v3_record(values=["1.101870"], workflow_id=1))
    precise = as_list(v3_record(values=[1.1018698381921996], workflow_id=1))
    bodies = [rounded, precise] if order == "rounded first" else [precise, rounded]
    ingest(bodies[0], Parameters())
    receipt = ingest(bodies[1], Parameters())
    assert (receipt.stored, receipt.duplicates, receipt.skipped) == (0, 1, [])
    assert Measurement.objects.get().value == 1.1018698381921996
    assert bool(receipt.warnings) == (order == "rounded first")


@pytest.mark.parametrize(("stored", "sent"), [(315, 315.49), (1.1, 1.1499), (2.5, 2.5000001)])
def test_a_coarse_or_whole_number_is_no_rounded_one(stored: float, sent: float) -> None:
    ingest(as_list(v3_record(values=[stored], workflow_id=1)), Parameters())
    with pytest.raises(BadUpload) as refused:
        ingest(as_list(v3_record(values=[sent], workflow_id=1)), Parameters())
    assert [reasons.kind_of(fault.detail) for fault in refused.value.faults] == [reasons.CONFLICT]
    assert Measurement.objects.get().value == stored


def test_another_value_for_a_stored_result_is_named_not_swallowed() -> None:
    ingest(as_list(v3_record(values=[1.5], workflow_id=1)), Parameters())
    receipt = ingest(as_list(v3_record(values=[2.5], workflow_id=1)), Parameters(partial="1"))
    assert (receipt.stored, receipt.duplicates) == (0, 0)
    assert receipt.skipped[0]["kind"] == reasons.CONFLICT
    assert Measurement.objects.get().value == 1.5


def test_a_large_upload_is_stored_in_pieces_and_still_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hud.ingest.receive._PIECE", 10)
    records = [v3_record(case=f"c{number}") for number in range(35)]
    with pytest.raises(BadUpload):
        ingest(as_lines(*records, v3_record(values=["x"])), Parameters())
    assert not Measurement.objects.exists()
    assert ingest(as_lines(*records), Parameters()).stored == 35


@pytest.mark.django_db(transaction=True)
def test_eight_clients_with_the_same_upload_store_it_once() -> None:
    body = as_lines(*(v3_record(case=f"case{number}") for number in range(50)))
    receipts, start = [], threading.Barrier(8)

    def post() -> None:
        try:
            start.wait(30)
            receipts.append(ingest(body, Parameters()))
        finally:
            connection.close()

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(receipt.stored for receipt in receipts) == [0] * 7 + [50]
    assert Measurement.objects.count() == 50


@pytest.mark.django_db(transaction=True)
def test_parallel_first_uploads_of_one_commit_all_succeed() -> None:
    receipts, start = [], threading.Barrier(6)

    def post(client: int) -> None:
        records = [v3_record(case=f"case{number}", head_sha="new") for number in range(client, client + 30)]
        try:
            start.wait(30)
            receipts.append(ingest(as_list(*records), Parameters(run_id="night-1", source="ci")))
        finally:
            connection.close()

    threads = [threading.Thread(target=post, args=(client,)) for client in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(receipts) == 6
    assert {tuple(receipt.run_ids) for receipt in receipts} == {tuple(receipts[0].run_ids)}
    assert Measurement.objects.count() == 35 == sum(receipt.stored for receipt in receipts)


@pytest.mark.parametrize("name", ["torch", "pytorch_version"])
def test_the_version_of_torch_among_the_settings_of_an_unknown_benchmark_is_its_build(name: str) -> None:
    records = [v3_record("latency", [1.0], timestamp=1_700_000_000 + 86_400 * day) for day in (0, 1)]
    for day, record in enumerate(records):
        more = {name: f"2.10.0.dev2026110{day + 1}"}
        record["benchmark"] |= {"name": "acme", "extra_info": {"device": "cuda", "arch": "a100", **more}}
        ingest(as_list(record), Parameters())
    assert Series.objects.count() == 1
    builds = Point.objects.order_by("order_time").values_list("environment__facts__torch", flat=True)
    assert [*builds] == ["2.10.0.dev20261101", "2.10.0.dev20261102"]
