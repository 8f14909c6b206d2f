"""Unusual requests at the door: marks and accents, repetitions, empty names, runs asked for in odd ways."""

from __future__ import annotations

import errno
import json
import os
import threading
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from hud.accounts.keys import create_key
from hud.api import experiments
from hud.hosts import registration
from hud.ingest import ingest
from hud.models import Experiment, Host, IdempotencyKey, Import, Measurement, Run, Upload
from hud.runs import queue
from runner.formats.parameters import Parameters
from runner.schema.protocol import PROTOCOL
from tests.api.imports import process_imports
from tests.api.test_results_api import assert_problem, post
from tests.support.claims import cpu
from tests.support.records import as_lines, as_list, v3_record

pytestmark = pytest.mark.django_db
MARK = b"\xef\xbb\xbf"


@pytest.fixture
def key() -> str:
    return create_key(name="t", scopes=["upload", "read", "run", "admin"], who="t")[1]


@pytest.fixture
def own_data(settings: Any, tmp_path: Path) -> Path:
    settings.HUD_DATA = tmp_path / "data"
    return tmp_path / "data"


def start(client: Client, key: str, body: bytes | dict[str, Any], query: str = "") -> Any:
    return client.post(
        f"/api/v1/runs{query}",
        body if isinstance(body, bytes) else json.dumps(body),
        content_type="application/json",
        headers={"authorization": f"Bearer {key}"},
    )


@pytest.fixture
def cpu_host() -> Host:
    host = Host.objects.create(name="plain")
    registration.beat(host=host, protocol=PROTOCOL, sent_at=0, facts={}, labels={}, devices=[cpu("micro")])
    return host


def test_a_byte_order_mark_is_ignored(client: Client, key: str, cpu_host: Host) -> None:
    for body in (as_list(v3_record()), as_lines(v3_record(case="b"), v3_record(case="c"))):
        assert post(client, MARK + body, key).status_code == 201
        assert post(client, body, key).json()["stored"] == 0
    assert start(client, key, MARK + b'{"suite": "micro"}').status_code == 201
    assert post(client, as_list(v3_record(case="d")).decode().encode("utf-16"), key).json()["stored"] == 1
    assert_problem(post(client, b"\xff\xfe\x00", key), 400)


def test_names_are_kept_in_one_spelling(client: Client, key: str) -> None:
    composed, apart = (unicodedata.normalize(form, "modèle-é") for form in ("NFC", "NFD"))
    assert composed != apart
    for name in (composed, apart):
        assert post(client, as_list(v3_record(name, case=name)), key, f"?host={name}").status_code == 201
    assert Experiment.objects.get().case == composed
    assert {run.host_name for run in Run.objects.all()} == {composed}
    assert Measurement.objects.values("series").distinct().count() == 1


@pytest.mark.parametrize("name", ["", "  ", "\t"])
def test_names_are_not_empty(client: Client, key: str, name: str) -> None:
    good = v3_record(case="good")
    wrong = v3_record(case=name), v3_record(name), v3_record(benchmark={"name": name})
    for record, place in zip(wrong, ("/model/name", "/metric/name", "/benchmark/name"), strict=True):
        problem = assert_problem(post(client, as_list(good, record), key), 422)
        assert problem["errors"] == [{"pointer": f"/1{place}", "detail": "the name is empty"}]
    receipt = post(client, as_list(good, *wrong), key, "?partial=1").json()
    assert receipt["stored"] == 1
    assert [entry["reason"] for entry in receipt["skipped"]] == ["the name is empty"] * 3


def test_repeated_parameters_are_refused(client: Client, key: str) -> None:
    body = as_list(v3_record())
    assert (
        "'partial' is said twice"
        in assert_problem(post(client, body, key, "?partial=1&partial=0"), 422)["detail"]
    )
    many = assert_problem(post(client, as_list(v3_record(values=[1] * 100_001)), key), 422)
    assert many["errors"] == [{"pointer": "/0/metric/benchmark_values", "detail": "more than 100000 values"}]
    columns = [f"c{number}" for number in range(1500)]
    wide = f"dev,name,batch_size,speedup,{','.join(columns)}\ncuda,a,1,1{',1' * 1500}\n"
    assert post(client, wide.encode(), key).json()["stored"] == 1501


def test_a_run_is_not_requested_with_a_parameter_that_is_not_known(
    client: Client, key: str, cpu_host: Host
) -> None:
    problem = assert_problem(start(client, key, {"suite": "micro"}, "?dryrun=1"), 422)
    assert [error["pointer"] for error in problem["errors"]] == ["?dryrun"]
    assert not Run.objects.exists()
    assert start(client, key, {"suite": "micro"}).status_code == 201


def test_a_dry_run_makes_nothing(client: Client, key: str) -> None:
    answer = post(client, as_list(v3_record()), key, "?dry_run=1")
    assert (answer.status_code, answer.json()["stored"], answer.json()["id"]) == (200, 1, None)
    assert not Upload.objects.exists()
    assert post(client, as_list(v3_record()), key).status_code == 201


def test_a_complete_upload_after_a_partial_one_is_no_success(client: Client, key: str) -> None:
    body = as_list(v3_record(case="good"), v3_record(case="bad", values=["fast"]))
    assert post(client, body, key, "?partial=1").status_code == 201
    problem = assert_problem(post(client, body, key), 422)
    assert problem["errors"][0]["pointer"] == "/1/metric/benchmark_values/0"
    assert post(client, body, key, "?partial=1").json()["duplicates"] == 1
    good = as_list(v3_record(case="good"))
    assert post(client, good, key, "?partial=1").status_code == 201
    again = post(client, good, key)
    assert (again.status_code, again.json()["duplicates"]) == (200, 1)


def test_an_import_job_answers_to_its_idempotency_key(
    client: Client, key: str, settings: Any, own_data: Path
) -> None:
    settings.HUD_MAX_RECORDS = 2
    large = as_list(*(v3_record(case=f"c{number}") for number in range(5)))
    other = as_list(*(v3_record(case=f"d{number}") for number in range(5)))
    mine = {"idempotency-key": "night 17"}
    first = post(client, large, key, **mine)
    assert first.status_code == 202
    assert post(client, large, key, **mine)["Location"] == first["Location"]
    assert_problem(post(client, other, key, **mine), 422)
    assert_problem(post(client, as_list(v3_record()), key, **mine), 422)
    assert Import.objects.count() == IdempotencyKey.objects.count() == 1
    assert process_imports() == 1
    after = post(client, large, key, **mine)
    assert (after.status_code, after["Location"]) == (202, first["Location"])
    assert after.json()["receipt"]["stored"] == 5
    small = {"idempotency-key": "night 18"}
    assert post(client, as_list(v3_record()), key, **small).status_code == 201
    assert_problem(post(client, other, key, **small), 422)
    assert not Import.objects.exclude(state="done").exists()


def test_queued_data_is_private_to_its_owner(client: Client, key: str, settings: Any, own_data: Path) -> None:
    settings.HUD_MAX_RECORDS = 1
    before = os.umask(0o022)
    try:
        assert post(client, as_list(v3_record(), v3_record(case="b")), key).status_code == 202
    finally:
        os.umask(before)
    folder = own_data / "imports"
    (body,) = folder.iterdir()
    assert [oct(path.stat().st_mode)[-3:] for path in (own_data, folder, body)] == ["700", "700", "600"]


def test_a_suite_runs_where_there_is_only_a_cpu(client: Client, key: str, cpu_host: Host) -> None:
    answer = start(client, key, {"suite": "micro", "cases": ["layer_norm"]})
    assert answer.status_code == 201, answer.content
    assert Run.objects.get(pk=answer.json()["id"]).request.device == "cpu"
    refused = assert_problem(start(client, key, {"suite": "micro", "device": "cuda"}), 422)
    assert "cuda" in refused["detail"]


def test_a_run_request_is_validated(client: Client, key: str, cpu_host: Host) -> None:
    ingest(as_list(v3_record()), Parameters())
    experiment = Experiment.objects.get().pk
    assert "say what to run" in assert_problem(start(client, key, {}), 422)["detail"]
    both = assert_problem(start(client, key, {"suite": "micro", "experiment": experiment}), 422)
    assert [error["pointer"] for error in both["errors"]] == ["/suite"]
    assert_problem(start(client, key, {"experiment": experiment, "cases": ["gemv"]}), 422)
    for wrong in ({"repeats": True}, {"repeats": "2"}, {"repeats": 2.0}, {"experiment": True}):
        assert_problem(start(client, key, {"suite": "micro", **wrong}), 422)
    for odd in (b"null", b"[]", b'"micro"', b"7", b"", b"{"):
        assert start(client, key, odd).status_code in {400, 422}
    assert not Run.objects.filter(state="queued").exists()


@pytest.mark.parametrize(("number", "statuses"), [(errno.ENOSPC, (507, 503)), (errno.EPERM, (500, 500))])
def test_a_full_disk_passes_and_another_error_of_files_does_not(
    client: Client, monkeypatch: pytest.MonkeyPatch, number: int, statuses: tuple[int, int]
) -> None:
    def fail(*_given: Any, **_named: Any) -> None:
        raise OSError(number, "of the test")

    client.raise_request_exception = False
    monkeypatch.setattr(queue, "read", fail)
    answers = [client.get(path) for path in ("/api/v1/queue", "/hosts/")]
    assert tuple(answer.status_code for answer in answers) == statuses
    assert all(("Retry-After" in answer) is (number == errno.ENOSPC) for answer in answers)


def test_exports_that_are_refused_keep_no_other_from_starting(client: Client) -> None:
    for _ in range(3):
        assert client.get("/api/v1/export?stream=nobodys").status_code == 404
    assert b"".join(client.get("/api/v1/export")) == b""


def test_exports_at_once_are_few(client: Client, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    post(client, as_list(v3_record()), key)
    for _ in range(3):  # each gives its place back
        assert b"layer_norm" in b"".join(client.get("/api/v1/export"))
    busy = threading.BoundedSemaphore(1)
    monkeypatch.setattr(experiments, "_EXPORTS", busy)
    with busy:
        answer = client.get("/api/v1/export")
        assert_problem(answer, 503)
        assert answer["Retry-After"] == "5"
    assert client.get("/api/v1/export").status_code == 200


def test_the_same_content_with_a_more_telling_file_name_is_another_upload(client: Client, key: str) -> None:
    body = b"dev,name,batch_size,accuracy\ncuda,zzA,4,pass\n"
    for suite, dtype in (("huggingface", "amp"), ("torchbench", "bfloat16")):
        name = f"inductor_{suite}_{dtype}_training_cuda_accuracy.csv"
        assert post(client, body, key, f"?filename={name}").json()["stored"] == 1
    assert post(client, body, key, f"?filename=copies/{name}").json()["duplicates"] == 1
    assert set(Experiment.objects.values_list("suite", "dtype")) == {
        ("huggingface", "amp"),
        ("torchbench", "bfloat16"),
    }


def test_an_idempotency_key_stands_for_partial_and_dry_too(client: Client, key: str) -> None:
    same = {"idempotency-key": "k"}
    body = as_list(v3_record(case="good"), v3_record(case="bad", values=["x"]))
    assert post(client, body, key, "?partial=1", **same).status_code == 201
    assert post(client, body, key, **same).status_code == 422
    assert post(client, body, key, "?partial=1&dry_run=1", **same).status_code == 422
