"""The API over HTTP: results, keys and scopes, problems with places, series, runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from django.test import Client, RequestFactory
from psycopg import Copy
from psycopg.errors import DiskFull

from hud.accounts.keys import create_key, revoke_key
from hud.api.results import body_of
from hud.ingest import import_jobs, ingest
from hud.models import Experiment, Measurement, Upload
from hud.problems import Problem
from runner.formats.errors import LARGER_FILES
from runner.schema.metrics import GPT_FAST_SIZES, mean_over
from tests.api.imports import process_imports
from tests.support.records import as_lines, as_list, v3_record

pytestmark = pytest.mark.django_db
RESULTS = "/api/v1/results"


@pytest.fixture
def key() -> str:
    return create_key(name="t", scopes=["upload", "read"], who="t")[1]


@pytest.fixture
def five(settings: Any) -> bytes:
    """Records, where a request may carry three."""
    settings.HUD_MAX_RECORDS = 3
    return as_lines(*(v3_record(case=f"c{number}") for number in range(5)))


def post(client: Client, body: bytes, key: str = "", query: str = "", **headers: str) -> Any:
    if key:
        headers["authorization"] = f"Bearer {key}"
    # the content type of `curl --data-binary`: it must not matter
    return client.post(
        RESULTS + query, data=body, content_type="application/x-www-form-urlencoded", headers=headers
    )


def assert_problem(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    return problem


def test_an_upload_gets_its_receipt_and_the_same_again_stores_nothing(client: Client, key: str) -> None:
    body = as_lines(v3_record(), v3_record("token_per_sec", [3]))
    first = post(client, body, key, "?filename=night.json")
    assert first.status_code == 201
    receipt = first.json()
    assert (receipt["stored"], receipt["duplicates"], receipt["skipped"]) == (2, 0, [])
    assert client.get(receipt["links"]["runs"]).status_code == 200
    second = post(client, body, key, "?filename=other.json")
    assert second.status_code == 200
    assert (second.json()["stored"], second.json()["duplicates"]) == (0, 2)
    assert second.json()["id"] == receipt["id"]
    assert Upload.objects.get().filename == "night.json"


def test_gzip_bodies_are_taken(client: Client, key: str) -> None:
    response = post(client, gzip.compress(as_list(v3_record())), key, **{"content-encoding": "gzip"})
    assert response.status_code == 201
    assert_problem(post(client, b"no gzip", key, **{"content-encoding": "gzip"}), 400)
    assert_problem(post(client, b"x", key, **{"content-encoding": "br"}), 415)
    packed = zstandard.compress(as_list(v3_record(case="zstd")))
    assert post(client, packed, key, **{"content-encoding": "zstd"}).status_code == 201
    assert post(client, packed, key).json()["duplicates"] == 1


def test_what_stores_nothing_is_no_success(client: Client, key: str) -> None:
    problem = assert_problem(post(client, b'{"kernels": {"softmax": 1.5}}', key), 422)
    assert "kernels" in problem["detail"]
    assert not Upload.objects.exists()


@pytest.mark.parametrize(
    ("body", "status", "pointer"),
    [
        (b"not json", 400, ""),
        (as_list(v3_record()).replace(b"2542.4", b"NaN"), 400, "/0/metric/benchmark_values/0"),
        (as_list(v3_record(values=[True])), 422, "/0/metric/benchmark_values/0"),
        (as_list(v3_record(values=["fast"])), 422, "/0/metric/benchmark_values/0"),
        (as_list(v3_record(model=[])), 422, "/0/model"),
    ],
)
def test_bad_bodies_are_problems_with_the_place(
    client: Client, key: str, body: bytes, status: int, pointer: str
) -> None:
    problem = assert_problem(post(client, body, key), status)
    assert problem["errors"][0]["pointer"] == pointer
    assert not Measurement.objects.exists()


def test_unknown_parameters_and_formats_are_named(client: Client, key: str) -> None:
    problem = assert_problem(post(client, as_list(v3_record()), key, "?comit=1"), 422)
    assert problem["errors"] == [{"pointer": "?comit", "detail": "no parameter is called 'comit'"}]
    assert_problem(post(client, as_list(v3_record()), key, "?format=xml"), 422)


def test_a_body_over_the_limit_is_413(client: Client, key: str, settings: Any) -> None:
    settings.HUD_MAX_BODY_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    assert LARGER_FILES in assert_problem(post(client, b" " * 101, key), 413)["detail"]
    packed = post(client, gzip.compress(b" " * 5000), key, **{"content-encoding": "gzip"})
    assert LARGER_FILES in assert_problem(packed, 413)["detail"]


def test_a_chunked_body_is_never_an_empty_success(client: Client, key: str) -> None:
    response = client.generic(
        "POST", RESULTS, b"", headers={"authorization": f"Bearer {key}", "transfer-encoding": "chunked"},
        CONTENT_LENGTH="",
    )  # fmt: skip
    assert_problem(response, 411)


def test_an_idempotency_key_gets_the_first_answer_again(client: Client, key: str) -> None:
    body = as_list(v3_record())
    first = post(client, body, key, **{"idempotency-key": "night-7"})
    again = post(client, body, key, **{"idempotency-key": "night-7"})
    assert (again.status_code, again.json()) == (first.status_code, first.json()) == (201, first.json())
    assert (first["Idempotent-Replayed"], again["Idempotent-Replayed"]) == ("false", "true")
    assert_problem(post(client, as_list(v3_record("x")), key, **{"idempotency-key": "night-7"}), 422)
    assert_problem(post(client, body, key, **{"idempotency-key": "x" * 201}), 422)
    assert Measurement.objects.count() == 1


def test_a_refused_upload_has_not_used_its_idempotency_key(client: Client, key: str) -> None:
    assert_problem(post(client, b"nonsense", key, **{"idempotency-key": "k"}), 400)
    assert post(client, as_list(v3_record()), key, **{"idempotency-key": "k"}).status_code == 201


def test_more_records_than_a_request_may_carry_become_an_import_job(
    client: Client, key: str, five: bytes, settings: Any
) -> None:
    answer = post(client, five, key, "?filename=big.jsonl")
    assert answer.status_code == 202
    assert not Measurement.objects.exists()
    where = answer["Location"]
    assert client.get(where).json()["state"] == "queued"
    assert post(client, five, key)["Location"] == where, "the same content is the same job"
    process_imports()
    job = client.get(where).json()
    assert (job["state"], job["receipt"]["stored"], job["done_records"]) == ("done", 5, 5)
    assert Measurement.objects.count() == 5
    assert not list((Path(settings.HUD_DATA) / "imports").iterdir())


def test_an_import_job_is_created_before_any_record_is_stored(
    client: Client, key: str, five: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hud.ingest.receive.RecordParser", None)
    for body in (five, as_list(*map(json.loads, five.splitlines()))):
        assert post(client, body, key).status_code == 202
    assert not Upload.objects.exists()


def test_an_import_job_is_refused_whole_with_its_faults(client: Client, key: str, five: bytes) -> None:
    where = post(client, five + as_lines(v3_record(values=["x"])), key)["Location"]
    process_imports()
    job = client.get(where).json()
    assert (job["state"], job["receipt"]) == ("failed", None)
    assert job["problem"]["errors"][0]["line"] == 6
    assert not Measurement.objects.exists()
    assert_problem(client.get("/api/v1/imports/00000000-0000-0000-0000-000000000000"), 404)


def test_a_dry_run_of_a_large_upload_does_not_stand_for_the_real_one(
    client: Client, key: str, five: bytes
) -> None:
    dry = post(client, five, key, "?dry_run=1")
    assert dry.json()["stored"] == 5
    assert not Measurement.objects.exists()
    post(client, five, key)
    process_imports()
    assert Measurement.objects.count() == 5


def test_an_import_that_fails_unexpectedly_blocks_no_other(
    client: Client, key: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HUD_MAX_RECORDS = 1
    first = post(client, as_lines(v3_record(), v3_record(case="b")), key)["Location"]
    second = post(client, as_lines(v3_record(case="c"), v3_record(case="d")), key)["Location"]
    broken = iter([RuntimeError("planted")])

    def ingest_once_broken(*words: Any, **more: Any) -> Any:
        for error in broken:
            raise error
        return ingest(*words, **more)

    monkeypatch.setattr(import_jobs, "ingest", ingest_once_broken)
    process_imports()
    assert client.get(first).json()["state"] == "failed"
    assert client.get(second).json()["state"] == "done"


def test_a_body_that_was_cut_off_is_refused() -> None:
    body = as_lines(v3_record())
    assert body_of(RequestFactory().post(RESULTS, body, content_type="text/plain")) == body
    request = RequestFactory().post(RESULTS, body, content_type="text/plain")
    request.META["CONTENT_LENGTH"] = str(len(body) + 1)
    with pytest.raises(Problem) as caught:
        body_of(request)
    assert caught.value.status == 400


def test_a_compressed_file_is_taken_whatever_its_headers_say(client: Client, key: str) -> None:
    assert post(client, gzip.compress(as_list(v3_record())), key).status_code == 201


@pytest.mark.parametrize("suite", ["a/b", "..", "line%0Abreak"])
def test_a_suite_name_that_no_url_can_hold_is_refused(client: Client, key: str, suite: str) -> None:
    record = v3_record()
    record["benchmark"]["name"] = "somebody else's"
    assert_problem(post(client, as_list(record), key, f"?suite={suite}"), 422)
    assert client.get("/").status_code == 200


def test_too_many_uploads_are_told_to_wait(client: Client, key: str, settings: Any) -> None:
    settings.HUD_UPLOADS_PER_MINUTE = 2
    answers = [post(client, as_list(v3_record()), key) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 200, 429]
    assert_problem(answers[2], 429)
    assert int(answers[2]["Retry-After"]) >= 1


def test_keys_and_scopes(client: Client, key: str) -> None:
    body = as_list(v3_record())
    assert_problem(post(client, body), 401)
    assert_problem(post(client, body, "hud_wrong"), 401)
    assert_problem(post(client, body, "ключ"), 401)
    reader = create_key(name="r", scopes=["read"], who="t")[1]
    assert_problem(post(client, body, reader), 403)
    revoked, secret = create_key(name="x", scopes=["upload"], who="t")
    revoke_key(key=revoked, who="t")
    assert_problem(post(client, body, secret), 401)
    host_key = create_key(name="h", scopes=["host"], who="t")[1]
    assert_problem(post(client, body, host_key), 403)
    assert not Upload.objects.exists()


def test_reading_needs_a_key_where_it_is_not_public(client: Client, key: str, settings: Any) -> None:
    settings.HUD_PUBLIC_READ = False
    assert_problem(client.get("/api/v1/experiments"), 401)
    assert client.get("/api/v1/experiments", headers={"authorization": f"Bearer {key}"}).status_code == 200
    uploader = create_key(name="u", scopes=["upload"], who="t")[1]
    assert_problem(client.get("/api/v1/experiments", headers={"authorization": f"Bearer {uploader}"}), 403)


def test_a_series_has_its_target_and_etag(client: Client, key: str) -> None:
    post(client, as_list(v3_record(values=[2500, 2600, 2550])), key, "?run_time=2026-11-21T07:52:00Z")
    (item,) = client.get("/api/v1/experiments?suite=micro&case=layer_norm").json()["items"]
    assert (item["arch"], item["knobs"]) == ("h200", mean_over(GPT_FAST_SIZES))
    url = f"/api/v1/series/{item['id']}/memory_bandwidth(GB/s)"
    response = client.get(url)
    (point,) = response.json()["points"]
    assert (point["value"], point["n"]) == (2550.0, 3)
    assert (point["target"], point["target_arch"], point["target_met"]) == (950.0, "a100-40gb", None)
    assert (response.json()["unit"], response.json()["direction"]) == ("GB/s", "up")
    assert point["time"] == "2026-11-21T07:52:00+00:00"
    for known in (response["ETag"], "W/" + response["ETag"], "*"):
        assert client.get(url, headers={"if-none-match": known}).status_code == 304
    post(client, as_list(v3_record(values=[1])), key)
    assert client.get(url, headers={"if-none-match": response["ETag"]}).status_code == 200
    assert_problem(client.get(f"/api/v1/series/{item['id']}/nothing"), 404)
    assert_problem(client.get("/api/v1/series/999999999999/x"), 404)


def test_a_series_is_filtered_by_branch(client: Client, key: str) -> None:
    for value, branch in enumerate(("", "refs/heads/main", "refs/heads/slow")):
        time = f"2026-11-2{value}T07:52:00Z"
        post(
            client,
            as_list(v3_record(values=[value])),
            key,
            f"?commit=a{value}&run_time={time}&branch={branch}",
        )
    url = f"/api/v1/series/{Experiment.objects.get().pk}/memory_bandwidth(GB/s)"

    def points(query: str) -> list[tuple[str, str]]:
        found = client.get(url + query).json()["points"]
        return [(point["commit"], point["branch"]) for point in found]

    assert points("") == [("a0", "main"), ("a1", "main"), ("a2", "slow")]
    assert points("?branch=main") == [("a0", "main"), ("a1", "main")]
    assert points("?branch=refs/heads/slow") == [("a2", "slow")]
    assert points("?branch=none") == []
    assert client.get(url)["ETag"] != client.get(f"{url}?branch=slow")["ETag"]
    assert client.get(f"{url}?from=2026-01-01").status_code == 200, "unknown parameters are ignored"
    exported = client.get("/api/v1/export?format=json&branch=main").getvalue()
    assert [row["commit"] for row in json.loads(exported)["items"]] == ["a0", "a1"]


def test_experiments_come_in_pages(client: Client) -> None:
    Experiment.objects.bulk_create(Experiment(suite="s", case=f"c{number}") for number in range(5))
    first = client.get("/api/v1/experiments?suite=s&limit=3").json()
    second = client.get(f"/api/v1/experiments?suite=s&limit=3&cursor={first['next']}").json()
    cases = [item["case"] for item in first["items"] + second["items"]]
    assert cases == [f"c{number}" for number in range(5)]
    assert second["next"] is None
    assert_problem(client.get("/api/v1/experiments?limit=0"), 422)


def test_refused_runs_over_the_api_have_a_reason(client: Client) -> None:
    key = create_key(name="r", scopes=["run"], who="t")[1]

    def start(**body: Any) -> Any:
        return client.post(
            "/api/v1/runs",
            json.dumps(body),
            content_type="application/json",
            headers={"authorization": f"Bearer {key}"},
        )

    assert "no experiment has the id 77" in assert_problem(start(experiment=77), 404)["detail"]
    assert "no host is attached" in assert_problem(start(suite="micro"), 422)["detail"]
    assert "no suite is called 'x; rm'" in assert_problem(start(suite="x; rm"), 422)["detail"]
    assert "no host is called 'nobody'" in assert_problem(start(suite="micro", host="nobody"), 422)["detail"]
    assert_problem(start(suite="micro", repeats=10**6), 422)
    assert_problem(start(suite="micro", command="rm -rf /"), 422)
    assert_problem(client.get("/api/v1/runs/5"), 404)
    assert_problem(client.post("/api/v1/runs/5/cancel", headers={"authorization": f"Bearer {key}"}), 404)


def test_nothing_under_the_api_answers_with_a_page(client: Client) -> None:
    assert_problem(client.get("/api/v1/nothing/here"), 404)
    assert client.get("/api/v1/openapi.json").json()["openapi"].startswith("3.1")


def test_a_key_that_has_sent_its_bytes_of_the_day_is_told_so(client: Client, key: str, settings: Any) -> None:
    body = as_list(v3_record())
    settings.HUD_UPLOAD_BYTES_PER_DAY = 2 * len(body)
    assert [post(client, body, key).status_code for _ in range(2)] == [201, 200]
    answer = post(client, body, key)
    assert assert_problem(answer, 429)["code"] == "quota"
    assert 0 < int(answer["Retry-After"]) <= 86_400
    other = create_key(name="o", scopes=["upload"], who="t")[1]
    assert post(client, body, other).status_code == 200


def test_a_disk_that_is_full_within_a_copy_is_told_as_such(
    client: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_row(*_words: Any) -> None:
        raise DiskFull("could not extend file")

    monkeypatch.setattr(Copy, "write_row", write_row)
    assert_problem(post(client, as_list(v3_record()), key), 507)


def test_a_receipt_lists_a_thousand_skipped_records_and_counts_all(client: Client, key: str) -> None:
    for number, query in enumerate(("", "?partial=1")):
        receipt = post(client, as_lines(*[{}] * 1500, v3_record(case=f"c{number}")), key, query).json()
        assert (receipt["stored"], receipt["skipped_total"], len(receipt["skipped"])) == (1, 1500, 1000)
        assert receipt["skipped"][999]["line"] == 1000


def test_an_uploader_deletes_no_row_of_others_that_brought_the_same_results(client: Client) -> None:
    """Each has them in a stream of its own."""
    operator = create_key(name="ops", scopes=["upload", "run", "read"], who="t")[1]
    assert post(client, as_list(v3_record(timestamp=1_700_000_000)), operator).status_code == 201
    export = client.get("/api/v1/export?format=v3", headers={"authorization": f"Bearer {operator}"})
    body = b"".join(export)
    names = ("ada", "bob", "cyd")
    keys = [create_key(name=name, scopes=["upload", "read"], who="t")[1] for name in names]
    sent = [post(client, body, key, f"?stream={name}") for name, key in zip(names, keys, strict=True)]
    ids = [answer.json()["id"] for answer in sent]
    before = set(Upload.objects.values_list("pk", flat=True))
    answer = client.delete(f"/api/v1/uploads/{ids[0]}", headers={"authorization": f"Bearer {keys[0]}"})
    assert (answer.status_code, answer.json()["uploads"], answer.json()["measurements"]) == (200, 1, 1)
    assert before - set(Upload.objects.values_list("pk", flat=True)) == {ids[0]}
    for pk, secret in zip(ids[1:], keys[1:], strict=True):
        address = f"/api/v1/uploads/{pk}?dry_run=1"
        assert client.delete(address, headers={"authorization": f"Bearer {secret}"}).status_code == 200
    assert Measurement.objects.count() == 3
