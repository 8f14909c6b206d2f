"""Streams over the API: the list, changes by operators, and uploads that name a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.ingest import ingest
from hud.models import IMPORT, OPERATORS_OWN, ApiKey, Import, Stream, Upload
from hud.runs.streams import of_new_key
from runner.formats.parameters import Parameters
from tests.api.imports import process_imports
from tests.support.factories import create_experiment, create_measurement, create_user
from tests.support.records import as_lines, as_list, v3_record

pytestmark = pytest.mark.django_db
BODY = as_list(v3_record())


def secret_of(name: str, *scopes: str, **given: Any) -> str:
    stream = of_new_key(name, "", scopes=scopes, owner=given.get("owner"), is_operator=True)
    return create_key(name=name, scopes=list(scopes), who="t", stream=stream, **given)[1]


def call(client: Client, method: str, address: str, key: str, body: Any = None) -> Any:
    kind = "application/json" if method == "put" or isinstance(body, dict) else "application/octet-stream"
    content = body if body is not None else b""
    return getattr(client, method)(
        f"/api/v1/{address}", content, content_type=kind, headers={"authorization": f"Bearer {key}"}
    )


def put(client: Client, key: str, which: str, /, **changes: Any) -> Any:
    return call(client, "put", f"streams/{which}", key, changes)


def post(client: Client, key: str, query: str = "", body: bytes = BODY) -> Any:
    return call(client, "post", f"results{query}", key, body)


def streams(client: Client, key: str) -> dict[str, Any]:
    answer = client.get("/api/v1/streams", headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.content
    return {row["name"]: row for row in answer.json()["items"]}


def test_the_list_has_the_front_stream_newest_nights_and_subjects(client: Client) -> None:
    reader = secret_of("r", "read")
    ingest(as_list(v3_record()), Parameters(stream="one", commit="abc1234"))
    create_measurement(create_experiment(arch="b200"), metric="device_speedup")
    Stream.objects.filter(name="one").update(is_front=True)
    rows = streams(client, reader)
    assert [name for name, row in rows.items() if row["front"]] == ["one"]
    night = rows["one"]["newest_night"]
    assert (night["commit"], night["complete"]) == ("abc1234", True)
    assert rows["one"]["subjects"] == [{"arch": "h200", "mode": "inference", "dtype": "bfloat16"}]
    assert [subject["arch"] for subject in rows[IMPORT]["subjects"]] == ["b200"]
    assert (rows["nightly"]["newest_night"], rows["nightly"]["subjects"]) == (None, [])


def test_an_operator_changes_a_stream(client: Client) -> None:
    key = secret_of("ops", "rules", "read")
    for name in ("one", "two"):
        ingest(BODY, Parameters(stream=name))
    answer = put(client, key, "two", name="zwei", title="T é 夜 🌙", reference="one", front=True)
    assert answer.status_code == 200, answer.content
    row = answer.json()
    assert (row["name"], row["title"], row["reference"], row["front"], row["aliases"]) == (
        "zwei", "T é 夜 🌙", "one", True, ["two"],
    )  # fmt: skip
    assert row == streams(client, key)["zwei"]
    assert put(client, key, "two", reference=None).json()["reference"] == "", "by the old name"
    assert put(client, key, "zwei").json()["title"] == "T é 夜 🌙", "what is left out stays"
    assert put(client, key, "one", archived=True).json()["archived"]
    assert not put(client, key, "one", archived=False).json()["archived"]


@pytest.mark.parametrize(
    ("name", "changes", "status"),
    [
        ("one", {"archived": True}, 409),
        ("two", {"front": True, "archived": True}, 409),
        ("two", {"name": "one"}, 409),
        ("two", {"reference": "two"}, 409),
        ("nightly", {"name": "nights"}, 409),
        ("two", {"name": "Two"}, 422),
        ("two", {"name": ""}, 422),
        ("two", {"reference": "nothing"}, 422),
        ("two", {"title": "x" * 201}, 422),
        ("two", {"title": "\0"}, 400),
        ("two", {"title": "nightly \u202etsaf"}, 422),
        ("two", {"title": "night\u200bly"}, 422),
        ("two", {"title": "two\nlines"}, 422),
        ("two", {"title": "a\u2028b"}, 422),
        ("two", {"title": "\x1b[31mred"}, 422),
        ("two", {"archived": "yes"}, 422),
        ("two", {"colour": "red"}, 422),
        ("nothing", {"title": "x"}, 404),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    client: Client, name: str, changes: dict[str, Any], status: int
) -> None:
    key = secret_of("ops", "rules", "read")
    for one in ("one", "two"):
        ingest(BODY, Parameters(stream=one))
    Stream.objects.get_or_create(name="nightly")
    before = list(Stream.objects.order_by("pk").values())
    answer = put(client, key, name, **changes)
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json()["detail"]
    assert list(Stream.objects.order_by("pk").values()) == before


def test_a_key_needs_the_scope_of_operators(client: Client) -> None:
    ingest(BODY, Parameters(stream="one"))
    for scopes in (["read"], ["upload"], ["run", "hosts", "accept"]):
        assert put(client, secret_of("k", *scopes), "one", title="x").status_code == 403
    assert put(client, secret_of("a", "admin"), "one", title="x").status_code == 200


def test_uploads_name_a_stream_and_the_receipt_leads_there(client: Client) -> None:
    key = secret_of("ci", "upload", "read")
    assert post(client, key).json()["links"]["stream"] == "/?stream=ci"
    other = post(client, key, "?stream=ci-main")
    assert (other.status_code, other.json()["links"]["stream"]) == (201, "/?stream=ci-main")
    assert post(client, key, "?stream=ci-main").status_code == 200
    assert list(Upload.objects.order_by("pk").values_list("stream__name", flat=True)) == ["ci", "ci-main"]


@pytest.mark.parametrize("large", [False, True])
def test_a_stream_that_a_key_may_not_write_is_refused_by_name(
    client: Client, settings: Any, large: bool
) -> None:
    settings.HUD_MAX_RECORDS = 1 if large else 1000
    body = as_lines(v3_record(case="a"), v3_record(case="b"))
    mara = create_user("mara", Role.UPLOADER)
    secret_of("laptop", "upload", owner=mara)
    key = secret_of("ci", "upload", "read")
    for name in ("laptop", *OPERATORS_OWN):
        answer = post(client, key, f"?stream={name}", body)
        assert answer.status_code == 403
        assert name in answer.json()["detail"]
    for name in ("Laptop", "a b", "-", "x" * 61):
        answer = post(client, key, f"?stream={name}", body)
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["pointer"] == "?stream"
    Stream.objects.filter(name="ci").update(archived="2026-11-20T00:00:00Z")
    for query in ("", "?stream=ci"):
        answer = post(client, key, query, body)
        assert (answer.status_code, "archived" in answer.json()["detail"]) == (403, True)
    assert not Upload.objects.exists()
    assert not Import.objects.exists()
    operator = secret_of("ops", "upload", "rules")
    assert post(client, operator, "?stream=laptop", body).status_code in {201, 202}


def test_an_import_job_writes_where_it_was_allowed_to(client: Client, settings: Any) -> None:
    settings.HUD_MAX_RECORDS = 1
    body = as_lines(v3_record(case="a"), v3_record(case="b"))
    owner = create_user("mara", Role.UPLOADER)
    key = secret_of("ci", "upload", "read", owner=owner)
    assert post(client, key, "?stream=own", body).status_code == 202
    Stream.objects.filter(name="own").update(name="renamed", aliases=["own"])
    assert post(client, key, "", body).status_code == 202
    owner.delete()
    assert not ApiKey.objects.exists()
    assert process_imports() == 2
    assert set(Upload.objects.values_list("stream__name", flat=True)) == {"renamed", "ci"}
    assert set(Import.objects.values_list("state", flat=True)) == {"done"}


def test_a_stream_that_was_archived_meanwhile_fails_the_import_job(client: Client, settings: Any) -> None:
    settings.HUD_MAX_RECORDS = 1
    key = secret_of("ci", "upload", "read")
    body = as_lines(v3_record(case="a"), v3_record(case="b"))
    job = post(client, key, "", body).json()
    Stream.objects.filter(name="ci").update(archived="2026-11-20T00:00:00Z")
    assert process_imports() == 1
    answer = client.get(job["links"]["self"], headers={"authorization": f"Bearer {key}"}).json()
    assert answer["state"] == "failed"
    assert "archived" in answer["problem"]["detail"]


def test_the_command_line_takes_a_stream_and_a_manifest_too(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(BODY)
    call_command("ingest", str(tmp_path / "r.json"), "--stream", "given")
    (tmp_path / "manifest.json").write_text('{"parameters": {"stream": "folder"}}')
    call_command("ingest", str(tmp_path))
    call_command("ingest", str(tmp_path), "--stream", "wins")
    streams_of = Upload.objects.order_by("pk").values_list("stream__name", flat=True)
    assert list(streams_of) == ["given", "folder", "wins"]
    Stream.objects.filter(name="given").update(archived="2026-11-20T00:00:00Z")
    with pytest.raises(SystemExit) as end:
        call_command("ingest", str(tmp_path / "r.json"), "--stream", "given")
    assert end.value.code == 1


def test_the_document_of_the_api_says_which_names_there_can_be(client: Client) -> None:
    document = client.get("/api/v1/openapi.json").json()
    parameters = document["paths"]["/api/v1/results"]["post"]["parameters"]
    (stream,) = [one for one in parameters if one["name"] == "stream"]
    assert all(one.get("description") for one in parameters if one["in"] == "query")
    assert stream["schema"]["pattern"] == "^[a-z0-9][a-z0-9._-]{0,59}$"
    for schema in ("RunIn", "ScheduleIn", "StreamIn"):
        name = "name" if schema == "StreamIn" else "stream"
        assert "pattern" in str(document["components"]["schemas"][schema]["properties"][name])
