"""The page that takes a file: what is found in it, the receipt, and whose it is."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from hud.accounts.roles import Role
from hud.models import ApiKey, Audit, Experiment, Import, Measurement, Run, Stream, Upload
from tests.support.factories import create_user

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from tests.support.servers import Hud

pytestmark = pytest.mark.django_db
_RECORD = {
    "benchmark": {"name": "TorchInductor", "mode": "inference", "dtype": "bfloat16"},
    "model": {"name": "T5Small", "backend": "inductor"},
    "metric": {"name": "speedup", "benchmark_values": [1.5]},
}
_BODY = json.dumps([_RECORD, {**_RECORD, "metric": {"name": "joules", "benchmark_values": [3.0]}}]).encode()


@pytest.fixture
def person(client: Client) -> Client:
    client.force_login(create_user("dev", role=Role.UPLOADER))
    return client


def send(client: Client, body: bytes = _BODY, name: str = "results.json", **fields: str) -> Any:
    return client.post("/uploads/new/", {"file": SimpleUploadedFile(name, body), **fields})


def test_a_look_shows_what_would_be_stored_and_stores_nothing(person: Client) -> None:
    answer = send(person, arch="h200", suite="huggingface", commit="abc123")
    assert answer.status_code == 200
    outcome = answer.context["outcome"]
    assert (outcome.format, outcome.receipt.stored) == ("v3", 2)
    assert [(run.commit, run.stream.name) for run in outcome.runs] == [("abc123", "dev")]
    assert {(row.suite, row.direction, row.arch) for row in outcome.metrics} == {
        ("huggingface", "up", "h200"),
        ("huggingface", "none", "h200"),
    }
    for kind in (Run, Upload, Experiment, Measurement, ApiKey):
        assert not kind.objects.exists(), kind
    assert not Audit.objects.filter(action="upload").exists()


def test_it_stores_as_the_person_and_again_stores_nothing(person: Client) -> None:
    answer = send(person, do="store")
    outcome = answer.context["outcome"]
    run = Run.objects.select_related("stream__owner", "upload").get()
    assert run.stream.owner
    assert run.upload
    assert f'href="/runs/{run.pk}/?stream=dev"' in answer.content.decode()
    assert (run.stream.name, run.stream.owner.username, run.upload.filename) == ("dev", "dev", "results.json")
    assert outcome.receipt.stored == Measurement.objects.count() == 2
    entry = Audit.objects.get(action="upload")
    assert "dev" in entry.who
    again = send(person, gzip.compress(_BODY), do="store").context["outcome"]
    assert (again.receipt.stored, again.receipt.duplicates) == (0, 2)
    assert Run.objects.count() == 1
    assert ApiKey.objects.get(owner__username="dev").scopes == ["upload"]


@pytest.mark.parametrize(
    ("body", "fields", "status"),
    [
        (b"", {}, 400),
        (b"nothing that anybody knows", {}, 422),
        (b"[{", {}, 400),
        (_BODY, {"commit": "not a commit"}, 422),
        (_BODY, {"format": "nonsense"}, 422),
        (_BODY, {"stream": "nightly"}, 403),
        (
            json.dumps([{**_RECORD, "metric": {"name": "speedup", "benchmark_values": ["x"]}}]).encode(),
            {},
            422,
        ),
    ],
)
def test_a_bad_file_is_answered_in_words(
    person: Client, body: bytes, fields: dict[str, str], status: int
) -> None:
    answer = send(person, body, do="store", **fields)
    assert answer.status_code in {status, 422}
    assert answer.context["outcome"].problem
    assert 'role="alert"' in answer.content.decode()
    assert not Run.objects.exists()


def test_without_a_file_it_says_so(person: Client) -> None:
    answer = person.post("/uploads/new/", {"do": "store"})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.content.decode()


def test_sizes_are_bounded(person: Client, settings: Any) -> None:
    settings.HUD_MAX_BODY_BYTES = 1000
    for body in (b" " * 1001, gzip.compress(b" " * 100_000)):
        assert send(person, body).context["outcome"].problem
    settings.HUD_MAX_BODY_BYTES, settings.HUD_MAX_RECORDS = 10**6, 1
    assert send(person).context["outcome"].problem
    assert not Import.objects.exists()
    assert send(person, do="store").context["outcome"].job == Import.objects.get()


def test_only_uploaders_upload(client: Client) -> None:
    assert client.get("/uploads/new/")["Location"].startswith("/login/")
    client.force_login(create_user("reader", role=Role.VIEWER))
    assert client.get("/uploads/new/").status_code == 403
    assert send(client, do="store").status_code == 403
    assert not ApiKey.objects.exists()


def test_a_stream_of_somebody_else_is_refused(person: Client) -> None:
    Stream.objects.create(name="theirs", owner=create_user("other", role=Role.UPLOADER))
    assert send(person, do="store", stream="theirs").status_code == 403
    assert not Run.objects.exists()


@pytest.mark.parametrize("name", ["nightly", "theirs", "import"])
def test_whose_login_is_the_name_of_anothers_stream_has_an_own_one(client: Client, name: str) -> None:
    Stream.objects.create(name="theirs", owner=create_user("other"))
    user = create_user(name, role=Role.UPLOADER)
    client.force_login(user)
    assert send(client, do="store").status_code == 200
    assert Run.objects.get().stream.owner == user


@pytest.mark.browser
def test_a_chosen_file_is_looked_at_and_stored_without_choosing_it_again(
    live_hud: Hud, page: Page, tmp_path: Path
) -> None:
    create_user()
    (tmp_path / "results.json").write_bytes(_BODY)
    page.goto(f"{live_hud.url}/login/?next=/uploads/new/")
    page.fill("[name=username]", "olga")
    page.fill("[name=password]", "open sesame")
    page.keyboard.press("Enter")
    page.set_input_files("[name=file]", tmp_path / "results.json")
    page.locator("#outcome table").wait_for()
    assert not Run.objects.exists()
    page.get_by_role("button", name="Store", exact=True).click()
    page.locator("#outcome a[href^='/runs/']").wait_for()
    assert Upload.objects.get().filename == "results.json"
    page.reload()
    page.evaluate(
        """(text) => {
            const clipboardData = new DataTransfer();
            clipboardData.setData("text", text);
            document.body.dispatchEvent(new ClipboardEvent("paste", {bubbles: true, clipboardData}));
        }""",
        _BODY.decode(),
    )
    page.locator("#outcome table").wait_for()
    assert "pasted.txt" in page.inner_text("#outcome"), "what is pasted is looked at too"
