"""Lists of expected results are stored as expectations: no run, no series, nothing that a page counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from hud.accounts.keys import create_key, with_owners
from hud.accounts.roles import Role
from hud.corrections.deletion import delete
from hud.corrections.renaming import rename
from hud.ingest import ingest
from hud.judging.regressions.known_failures import mark
from hud.models import (
    Expectation,
    Experiment,
    Measurement,
    Point,
    Run,
    Series,
    Stream,
    Target,
    UnjudgedRun,
    Upload,
)
from hud.problems import Problem
from runner.formats.parameters import Parameters
from tests.judging.regressions.test_known_failures import judge, record
from tests.support.factories import create_user
from tests.support.observed import SAMPLES
from tests.support.records import as_list

pytestmark = pytest.mark.django_db
LIST = b"name,accuracy,graph_breaks\ndlrm,fail_to_run,0\nresnet18,pass,2\n"
FILE = "ci_expected_accuracy/cuda13.0/inductor_torchbench_inference.csv"
START = datetime(2026, 10, 1, 3, tzinfo=UTC)
DATED: dict[str, Any] = {"stream": "nightly", "commit_date": "2026-09-01T00:00:00Z"}
OF_MEASUREMENTS = (Run, Series, Experiment, Measurement, Point, UnjudgedRun)
PAGES = (
    "/.json",
    "/compilers.json",
    "/suites.json",
    "/suites/torchbench.json",
    "/search.json?q=dlrm",
    "/regressions.json",
    "/runs.json",
)


def upload(body: bytes = LIST, filename: str = FILE, **given: str) -> Any:
    return ingest(body, Parameters.parse({"dtype": "bfloat16", **given, "filename": filename}))


def night(
    day: int, cases: dict[str, bool], stream: str = "nightly", backend: str = "inductor_cudagraphs"
) -> None:
    records = []
    for case, passes in cases.items():
        for metric in ("speedup", "accuracy"):
            made = record(case, metric, 1.5 if passes else None)
            made["timestamp"] = (START + timedelta(days=day)).timestamp()
            made["model"]["backend"] = backend
            records.append(made)
    ingest(as_list(*records), Parameters(driver="580.1", stream=stream))
    judge()


def json(path: str) -> Any:
    return Client().get(path).json()


def test_a_list_makes_expectations_alone() -> None:
    receipt = upload(commit="abc123", commit_date="2026-10-01T00:00:00Z", stream="nightly")
    assert (receipt.stored, receipt.run_ids, receipt.skipped, receipt.warnings) == (4, [], [], [])
    (subject,) = receipt.expectations
    assert subject == {
        "suite": "torchbench", "mode": "inference", "dtype": "bfloat16", "backend": "inductor",
        "device": "cuda", "dynamic": False, "count": 4, "unsaid": [],
    }  # fmt: skip
    assert receipt.links == {"stream": "/?stream=nightly"}
    assert not any(kind.objects.exists() for kind in OF_MEASUREMENTS)
    rows = Expectation.objects.order_by("case", "metric").values_list("case", "metric", "value", "code")
    assert list(rows) == [
        ("dlrm", "accuracy", None, "fail_to_run"),
        ("dlrm", "accuracy_graph_breaks", 0, ""),
        ("resnet18", "accuracy", None, "pass"),
        ("resnet18", "accuracy_graph_breaks", 2, ""),
    ]
    one = Expectation.objects.first()
    assert one
    assert (one.stream.name, one.commit, one.listed.year) == ("nightly", "abc123", 2026)


def test_the_same_list_again_is_a_duplicate_and_a_newer_one_replaces_nothing() -> None:
    upload()
    again = upload()
    assert (again.stored, again.duplicates) == (0, 4)
    assert upload(LIST.replace(b"fail_to_run", b"pass")).stored == 4
    assert Expectation.objects.count() == 8


def test_what_a_list_does_not_say_is_in_the_receipt() -> None:
    receipt = ingest(LIST, Parameters(filename="notes.csv"))
    assert receipt.expectations[0]["unsaid"] == ["mode", "dtype", "backend", "device"]
    assert len(receipt.warnings) == 1


def test_intels_list_has_a_subject_for_each_dtype() -> None:
    receipt = upload(
        (SAMPLES / "inductor_huggingface_inference.csv").read_bytes(), "inductor_huggingface_inference.csv"
    )
    assert {(one["device"], one["dtype"]): one["count"] for one in receipt.expectations} == {
        ("xpu", "float32"): 3, ("xpu", "bfloat16"): 2, ("xpu", "amp_float16"): 2,
    }  # fmt: skip


def test_expected_counts_and_times_have_a_margin() -> None:
    upload(b"add_loop_eager,compile_time_instruction_count,3000000,0.015\n", "expected_results.csv", dtype="")
    one = Expectation.objects.get()
    assert (one.suite, one.value, one.margin) == ("pr_time_benchmarks", 3_000_000, 0.015)
    assert not Target.objects.exists()


def test_another_stream_is_for_operators() -> None:
    owner = create_user("ulla", Role.UPLOADER)
    laptop = Stream.objects.create(name="laptop", owner=owner)
    create_key(name="laptop", scopes=["upload"], who="t", owner=owner, stream=laptop)
    key = with_owners("own.name = %(name)s", name="laptop")[0]
    given = Parameters.parse({"filename": FILE, "stream": "nightly"})
    with pytest.raises(Problem):
        ingest(LIST, given, key=key)
    assert ingest(LIST, Parameters(filename=FILE), key=key).stored == 4
    assert Expectation.objects.values_list("stream__name", flat=True).distinct().get() == "laptop"


def test_a_deleted_list_takes_its_expectations_along() -> None:
    upload()
    assert delete(Upload.objects.get(), who="t", dry_run=True).expectations == 4
    assert Expectation.objects.count() == 4
    delete(Upload.objects.get(), who="t")
    assert not Expectation.objects.exists()
    assert not Upload.objects.exists()


def test_a_renamed_case_keeps_its_expectation_and_mark() -> None:
    night(0, {"dlrm": False, "torchrec_dlrm": False})
    upload()
    mark(
        stream=Stream.objects.get(name="nightly"),
        experiment=Experiment.objects.get(case="dlrm"),
        reason="x",
        who="t",
    )
    rename(kind="case", old="dlrm", new="torchrec_dlrm", who="t")
    assert not Expectation.objects.filter(case="dlrm").exists()
    assert Stream.objects.get(name="nightly").known_failures.get().experiment.case == "torchrec_dlrm"


def test_a_list_of_another_device_changes_no_page() -> None:
    for day in range(4):
        night(day, {"dlrm": False, "resnet18": True})
    before = {page: json(page) for page in PAGES}
    upload(LIST, "xpu/inductor_torchbench_inference.csv", **DATED)
    assert {page: json(page) for page in PAGES} == before
    upload(**DATED)  # of this device: it adds what is expected, and changes no count
    after = {page: json(page) for page in PAGES}
    tables = {"/suites/torchbench.json": "items", "/compilers.json": "cases"}
    for page, table in tables.items():
        assert {row["expectation"] for row in after[page][table]} >= {"as_expected"}
        for row in (*before[page][table], *after[page][table]):
            row.pop("expectation")
            row.pop("known_failure", None)
    assert after == before


@pytest.mark.parametrize("backend", ["inductor_cudagraphs", "inductor_no_cudagraphs"])
def test_most_of_a_night_is_met_by_a_list_of_the_same_names(backend: str) -> None:
    cases = {f"model_{number}": number % 7 != 0 for number in range(50)}
    night(5, cases, backend=backend)
    words = {case: "pass" if passes else "fail_to_run" for case, passes in cases.items()}
    words["model_1"], words["model_7"] = "fail_accuracy", "pass"
    body = "name,accuracy\n" + "".join(f"{case},{word}\n" for case, word in words.items())
    upload(body.encode(), commit_date="2026-10-02T00:00:00Z", stream="nightly")
    rows = [
        one for one in json("/suites/torchbench.json?stream=nightly")["items"] if one["metric"] == "accuracy"
    ]
    said = {one["case"]: one["expectation"] for one in rows}
    assert len(said) == 50
    assert all(said.values())
    unexpected = {case: word for case, word in said.items() if word != "as_expected"}
    assert unexpected == {"model_1": "unexpected_pass", "model_7": "unexpected_failure"}
    (run,) = Run.objects.values_list("pk", flat=True)
    listed = json("/suites/torchbench.json?stream=nightly&expectation=unexpected")["items"]
    assert {one["case"] for one in listed} == set(unexpected)
    listed = json(f"/runs/{run}.json?show=unexpected")
    assert {one["case"] for one in listed["items"]} == set(unexpected)
    experiment = Experiment.objects.get(case="model_1").pk
    page = json(f"/experiments/{experiment}.json?stream=nightly&metric=accuracy")
    assert page["items"][-1]["expectation"] == "unexpected_pass"
    for path in ("/suites/torchbench/", f"/runs/{run}/", f"/experiments/{experiment}/", "/compilers/"):
        assert Client().get(f"{path}?stream=nightly&metric=accuracy").status_code == 200


def test_a_list_later_than_the_commit_says_nothing() -> None:
    night(5, {"resnet18": False})
    upload(commit_date="2026-10-20T00:00:00Z", stream="nightly")
    rows = json("/suites/torchbench.json?stream=nightly")["items"]
    assert {one["expectation"] for one in rows} == {None}
