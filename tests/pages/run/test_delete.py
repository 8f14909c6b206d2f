"""Deleting by page and by API: who may, what the confirmation says, what it answers."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.ingest import ingest
from hud.models import ApiKey, Audit, Experiment, Measurement, Run, UnjudgedRun, Upload
from hud.runs import tasks
from runner.formats.parameters import Parameters
from tests.support.factories import create_measurement, create_run, create_user
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db
API = "/api/v1"


@pytest.fixture
def una() -> User:
    return create_user("una", Role.UPLOADER)


def key_of(user: User, *scopes: str) -> tuple[ApiKey, dict[str, Any]]:
    key, secret = create_key(name="k", scopes=list(scopes), who="t", owner=user)
    return key, {"headers": {"authorization": f"Bearer {secret}"}}


def upload(
    key: ApiKey | None, *, day: int = 0, case: str = "layer_norm", stream: str = "", **over: Any
) -> Upload:
    record = v3_record(case=case, timestamp=1_700_000_000 + day * 86_400, **over)
    ingest(as_list(record), Parameters(stream=stream), key=key)
    return Upload.objects.latest("pk")


def status(client: Client, address: str) -> tuple[int, int]:
    """Return what the confirmation and the deletion answer."""
    return client.get(address).status_code, client.post(address).status_code


def test_an_operator_sees_what_goes_and_deletes_it(client: Client) -> None:
    client.force_login(create_user())
    one, other = upload(None), upload(None, day=1)
    run = one.runs.get()
    address = f"/runs/{run.pk}/delete"
    assert address in client.get(f"/runs/{run.pk}/").content.decode()
    page = client.get(address)
    assert page.context["counts"] == {
        "runs": 1, "uploads": 1, "measurements": 1, "points": 1, "series_judged_again": 1
    }  # fmt: skip
    assert Run.objects.count() == 2
    assert client.post(address).status_code == HTTPStatus.FOUND
    assert set(Run.objects.values_list("upload", flat=True)) == {other.pk}
    assert status(client, address) == (404, 404)
    address = f"/uploads/{other.pk}/delete"
    assert address in client.get(f"/runs/{other.runs.get().pk}/").content.decode()
    assert status(client, address) == (200, 302)
    assert not Measurement.objects.exists()
    noted = Audit.objects.filter(who="olga", action__endswith=".delete")
    assert set(noted.values_list("subject", flat=True)) == {f"run {run.pk}", f"upload {other.pk}"}


def test_an_active_run_stays(client: Client) -> None:
    client.force_login(create_user())
    run = create_run("running")
    address = f"/runs/{run.pk}/delete"
    assert address not in client.get(f"/runs/{run.pk}/").content.decode()
    assert status(client, address) == (302, 302)
    assert Run.objects.filter(pk=run.pk).exists()


def test_an_uploader_deletes_own_uploads_for_a_day(client: Client, una: User) -> None:
    own, _headers = key_of(una, "upload")
    others, _headers = key_of(create_user("ulf", Role.UPLOADER), "upload")
    mine, late, foreign, nobodys = [upload(key, day=day) for day, key in enumerate((own, own, others, None))]
    Upload.objects.filter(pk=late.pk).update(created=timezone.now() - timedelta(hours=25))
    client.force_login(una)
    for one in (late, foreign, nobodys):
        run = one.runs.get()
        for address in (f"/runs/{run.pk}/delete", f"/uploads/{one.pk}/delete"):
            assert status(client, address) == (403, 403)
            assert address not in client.get(f"/runs/{run.pk}/").content.decode()
    assert f"/uploads/{mine.pk}/delete" in client.get(f"/runs/{mine.runs.get().pk}/").content.decode()
    assert status(client, f"/uploads/{mine.pk}/delete") == (200, 302)
    assert set(Upload.objects.all()) == {late, foreign, nobodys}


def test_an_uploader_deletes_no_run_with_measurements_of_others(client: Client, una: User) -> None:
    said: dict[str, Any] = {"workflow_id": 7, "job_id": 1}
    mine = upload(key_of(una, "upload")[0], case="a", **said)
    upload(None, case="b", stream=mine.stream.name, **said)
    run, hosts = Run.objects.get(), create_measurement().run
    client.force_login(una)
    assert status(client, f"/runs/{run.pk}/delete") == (403, 403)
    assert status(client, f"/runs/{hosts.pk}/delete") == (403, 403)
    assert status(client, f"/uploads/{mine.pk}/delete") == (200, 302)
    assert Run.objects.filter(pk=run.pk).exists()


@pytest.mark.parametrize("role", ["", Role.VIEWER])
def test_a_reader_deletes_nothing(client: Client, role: str, una: User) -> None:
    found = upload(key_of(una, "upload")[0])
    run = found.runs.get()
    if role:
        client.force_login(create_user("vera", Role.VIEWER))
    expected = (403, 403) if role else (302, 302)  # to the login
    addresses = (f"/runs/{run.pk}/delete", f"/uploads/{found.pk}/delete")
    page = client.get(f"/runs/{run.pk}/").content.decode()
    for address in addresses:
        assert status(client, address) == expected
        assert address not in page
    assert Run.objects.filter(pk=run.pk).exists()


def test_the_api(client: Client) -> None:
    olga = create_user()
    _key, full = key_of(olga, "upload", "run")
    one, other = upload(None), upload(None, day=1)
    run = one.runs.get()
    said = client.delete(f"{API}/runs/{run.pk}?dry_run=1", **full)
    assert Run.objects.count() == 2
    done = client.delete(f"{API}/runs/{run.pk}", **full)
    assert said.status_code == done.status_code == HTTPStatus.OK
    assert said.json() == done.json()
    assert (done.json()["measurements"], done.json()["points"], done.json()["verdicts"]) == (1, 1, 1)
    assert client.delete(f"{API}/runs/{run.pk}", **full).status_code == HTTPStatus.NOT_FOUND
    assert client.delete(f"{API}/uploads/{other.pk}?dry_run=1", **full).json()["uploads"] == 1
    assert client.delete(f"{API}/uploads/{other.pk}", **full).json()["uploads"] == 1
    assert not Upload.objects.exists()
    active = create_run("queued")
    assert client.delete(f"{API}/runs/{active.pk}", **full).status_code == HTTPStatus.CONFLICT
    who = Audit.objects.get(action="run.delete").who
    assert who.startswith("olga, key ")


def test_the_api_lets_a_key_delete_what_its_owner_uploaded(client: Client, una: User) -> None:
    sent, _headers = key_of(una, "upload")
    _key, second = key_of(una, "upload", "read")
    _key, others = key_of(create_user("ulf", Role.UPLOADER), "upload")
    _key, runs_only = key_of(create_user(), "run", "read")
    mine, late = upload(sent), upload(sent, day=1)
    Upload.objects.filter(pk=late.pk).update(created=timezone.now() - timedelta(hours=25))
    for address in (f"{API}/uploads/{mine.pk}", f"{API}/runs/{mine.runs.get().pk}"):
        for headers in (others, runs_only):
            assert client.delete(address, **headers).status_code == HTTPStatus.FORBIDDEN
        assert client.delete(address).status_code == HTTPStatus.UNAUTHORIZED
    assert client.delete(f"{API}/uploads/{late.pk}", **second).status_code == HTTPStatus.FORBIDDEN
    assert client.delete(f"{API}/runs/{mine.runs.get().pk}", **second).status_code == HTTPStatus.OK
    assert set(Upload.objects.all()) == {late}


def test_a_key_without_an_owner_deletes_its_own_uploads(client: Client) -> None:
    secrets = {}
    for name in ("one", "two"):
        key, secrets[name] = create_key(name=name, scopes=["upload"], who="t")
        if name == "one":
            found = upload(key)
    for name, answer in (("two", HTTPStatus.FORBIDDEN), ("one", HTTPStatus.OK)):
        headers = {"authorization": f"Bearer {secrets[name]}"}
        assert client.delete(f"{API}/uploads/{found.pk}", headers=headers).status_code == answer


def test_what_is_deleted_while_a_row_refers_to_it_is_no_error_of_ours(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loses_the_race(*, run: Run, who: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        UnjudgedRun.objects.create(run_id=run.pk + 1)

    monkeypatch.setattr(tasks, "cancel", loses_the_race)
    client.raise_request_exception = False
    run = create_run("queued")
    client.force_login(create_user())
    key = key_of(create_user("otto"), "run")[1]
    for address, more in ((f"{API}/runs/{run.pk}/cancel", key), (f"/runs/{run.pk}/cancel", {})):
        with transaction.atomic():
            answer = client.post(address, **more)
            transaction.set_rollback(True)
        assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert int(answer["Retry-After"]) > 0


def test_an_admin_renames_after_a_look(client: Client) -> None:
    upload(None, case="layer_nrom")
    client.force_login(create_user("ada", Role.ADMIN))
    asked = {"kind": "case", "old": "layer_nrom", "new": "layer_norm", "suite": ""}
    assert "1" in client.post("/rename/", asked).content.decode()
    assert Experiment.objects.get().case == "layer_nrom"
    assert client.post("/rename/", {**asked, "confirmed": "1"}).status_code == HTTPStatus.FOUND
    assert Experiment.objects.get().case == "layer_norm"
    assert Audit.objects.get(action="rename.case").who == "ada"
    again = client.post("/rename/", {**asked, "confirmed": "1"})
    assert "no experiment has the case layer_nrom" in again.content.decode()
