"""The page of streams: viewers read, operators act, and a refusal says what to do first."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.test import Client

from hud.accounts.roles import Role
from hud.ingest import ingest
from hud.models import OPERATORS_OWN, ApiKey, Audit, Run, Schedule, Stream
from hud.points.streams import listed, with_results
from runner.formats.parameters import Parameters
from tests.support.factories import create_run, create_task, create_user
from tests.support.records import as_list, v3_record

pytestmark = pytest.mark.django_db


def upload(stream: str, *cases: str) -> None:
    ingest(as_list(*(v3_record(case=case) for case in cases)), Parameters(stream=stream))


def stream(name: str) -> Stream:
    return Stream.objects.get(name=name)


@pytest.fixture
def operator(client: Client) -> User:
    user = create_user(role=Role.OPERATOR)
    client.force_login(user)
    return user


def act(client: Client, which: str, action: str, **form: str) -> str:
    """Post a form, and return the level of the message that it leads to."""
    answer = client.post(f"/streams/{which}/{action}", form)
    assert answer.status_code == 302, answer.content
    assert answer["Location"].startswith("/streams/")
    message: str = list(get_messages(answer.wsgi_request))[-1].level_tag
    return message


def test_the_list_says_what_each_stream_has(client: Client) -> None:
    owner = create_user("mara", Role.UPLOADER)
    upload("one", "a", "b")
    upload("two", "a")
    running = create_run("running", stream=stream("two"), device="cuda")
    create_task(running)
    Stream.objects.filter(name="two").update(owner=owner, title="Mara's", reference=stream("one"))
    Stream.objects.create(name="old", archived="2026-11-20T00:00:00Z", aliases=["older"])
    rows = {row["name"]: row for row in client.get("/streams.json").json()["items"]}
    one, two, old = rows["one"], rows["two"], rows["old"]
    assert (one["experiments"], one["series"], one["runs"], one["front"]) == (2, 2, 1, True)
    assert (two["owner"], two["title"], two["reference"], two["front"]) == ("mara", "Mara's", "one", False)
    assert (two["experiments"], two["runs"], two["newest_night_complete"]) == (1, 2, False)
    assert one["newest_night"] == str(stream("one").runs.get().order_time.date())
    assert (old["archived"], old["aliases"], old["newest"], old["newest_night"]) == (
        True,
        ["older"],
        None,
        "",
    )
    assert list(rows)[-1] == "old", "archived ones are last"
    page = client.get("/streams/").content.decode()
    for row in rows.values():
        assert f'href="/?stream={row["name"]}"' in page
    lines = client.get("/streams.csv").content.decode().splitlines()
    assert lines[0].split(",") == list(one)
    assert len(lines) == 1 + len(rows)


@pytest.mark.parametrize("role", ["", Role.VIEWER, Role.UPLOADER, Role.OPERATOR])
def test_only_operators_change_streams(client: Client, role: str) -> None:
    upload("one", "a")
    upload("two", "a")
    if role:
        client.force_login(create_user(role=Role(role)))
    may = role == Role.OPERATOR
    page = client.get("/streams/?change=two").content.decode()
    assert ("/streams/two/change" in page, "?change=two#change" in page) == (may, may)
    for action in ("change", "front", "archive", "open", "merge", "delete"):
        answer = client.post(f"/streams/two/{action}", {"name": "three", "into": "one", "sure": "on"})
        refused = answer.status_code == 403 or answer.get("Location", "").startswith("/login/")
        assert refused != may, action
        if may:
            break
    assert Stream.objects.filter(name="two").exists() != may
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(create_user("eve"))
    assert strict.post("/streams/one/archive").status_code == 403


def test_an_operator_changes_a_stream(client: Client, operator: User) -> None:
    upload("one", "a")
    upload("latpop", "a")
    form = {"name": "laptop", "title": "Olga's", "reference": "one"}
    assert act(client, "latpop", "change", **form) == "success"
    laptop = stream("laptop")
    assert (laptop.title, laptop.reference, laptop.aliases) == ("Olga's", stream("one"), ["latpop"])
    assert act(client, "latpop", "change", **{**form, "reference": ""}) == "success", "by the old name"
    assert stream("laptop").reference is None
    assert act(client, "laptop", "front") == "success"
    assert stream("laptop").is_front
    assert act(client, "one", "archive") == "success"
    assert stream("one").archived
    assert act(client, "one", "open") == "success"
    assert not stream("one").archived
    assert {(row.who, row.action) for row in Audit.objects.filter(subject__startswith="stream ")} == {
        (operator.username, "stream.change")
    }


def test_a_refusal_says_what_to_do_and_changes_nothing(client: Client, operator: User) -> None:
    upload("one", "a")
    upload("two", "a")
    before = list(Stream.objects.order_by("pk").values())
    for name, action, form in (
        ("one", "archive", {}),
        ("one", "merge", {"into": "two", "sure": "on"}),
        ("one", "delete", {"sure": "on"}),
        ("two", "delete", {"sure": "on"}),
        ("two", "delete", {}),
        ("two", "merge", {"into": "one"}),
        ("two", "merge", {"into": "two", "sure": "on"}),
        ("two", "merge", {"into": "nothing", "sure": "on"}),
        ("two", "change", {"name": "Two"}),
        ("two", "change", {"name": "one"}),
        ("two", "change", {"name": ""}),
        ("two", "change", {"name": "two", "reference": "two"}),
        ("two", "change", {"name": "two", "reference": "nothing"}),
    ):
        assert act(client, name, action, **form) == "error", (name, action, form)
        assert list(Stream.objects.order_by("pk").values()) == before
    for address in ("/streams/nothing/front", "/streams/one/shred"):
        assert client.post(address).status_code == 404
    assert client.get("/streams/?change=nothing%00").status_code == 200
    assert not Audit.objects.filter(action__startswith="stream").exists()


@pytest.mark.parametrize("name", OPERATORS_OWN)
def test_the_form_of_a_stream_of_every_installation_keeps_its_name(
    client: Client, operator: User, name: str
) -> None:
    upload("one", "a")
    Stream.objects.get_or_create(name=name)
    assert act(client, name, "change", name="other", title="T") == "success"
    assert stream(name).title == "T"
    page = client.get(f"/streams/?change={name}").content.decode()
    assert f"/streams/{name}/merge" not in page


def test_merging_and_deleting(client: Client, operator: User) -> None:
    upload("one", "a")
    upload("two", "a", "b")
    Stream.objects.create(name="empty")
    assert act(client, "two", "merge", into="one", sure="on") == "success"
    assert act(client, "empty", "delete", sure="on") == "success"
    (row,) = [row for row in client.get("/streams.json").json()["items"] if row["series"]]
    assert (row["name"], row["experiments"], row["runs"], row["aliases"]) == ("one", 2, 2, ["two"])
    old, new = (client.get(f"/suites.json?stream={name}").json() for name in ("two", "one"))
    assert old == new, "links under the old name go on"


def test_a_run_without_results_is_neither_the_newest_result_nor_a_night(client: Client) -> None:
    upload("one", "a")
    measured = stream("one").runs.get()
    Run.objects.filter(pk=measured.pk).update(
        order_time=measured.order_time - timedelta(days=3), created=measured.created - timedelta(days=2)
    )
    measured.refresh_from_db()
    create_run("cancelled", stream=stream("one"), commit="c" * 40)
    (row,) = [row for row in client.get("/streams.json").json()["items"] if row["name"] == "one"]
    assert datetime.fromisoformat(row["newest"]) == measured.created
    assert row["newest_night"] == str(measured.order_time.date())
    assert [(one.name, one.newest) for one in with_results(listed())] == [("one", measured.created)]


def test_only_a_stream_without_contents_offers_to_be_deleted(client: Client, operator: User) -> None:
    upload("one", "a")
    upload("two", "a")
    Stream.objects.create(name="empty")
    offered = [
        name
        for name in ("one", "two", "empty")
        if f"/streams/{name}/delete" in client.get(f"/streams/?change={name}").content.decode()
    ]
    assert offered == ["empty"]


def test_a_night_is_shown_by_its_day(client: Client) -> None:
    for hour in (1, 9):  # both without a commit
        given = Parameters(stream="one", run_id=f"{hour}", run_time=f"2026-11-20T{hour:02}:00:00Z")
        ingest(as_list(v3_record(values=[float(hour)])), given)
    (row,) = [row for row in client.get("/streams.json").json()["items"] if row["name"] == "one"]
    assert row["newest_night"] == "night:2026-11-20T09:00"
    page = client.get("/streams/").content.decode()
    assert "20 Nov" in page
    assert "night:2026" not in page


def test_names_and_titles_are_only_text(client: Client, operator: User) -> None:
    attack = '"><script>alert(1)</script>'
    upload("one", "a")
    act(client, "one", "change", name="one", title=attack)
    for address in ("/streams/", "/streams/?change=one"):
        assert attack not in client.get(address).content.decode()
    (row,) = [row for row in client.get("/streams.json").json()["items"] if row["name"] == "one"]
    assert row["title"] == attack
    page: Any = json.loads(client.get("/streams.json").content)
    assert page


def test_a_key_whose_stream_is_somebody_elses_is_refused_on_the_page(client: Client) -> None:
    Stream.objects.create(name="laptop", owner=create_user("mara", Role.UPLOADER))
    client.force_login(create_user("olga", Role.UPLOADER))
    form = {"name": "laptop", "scopes": ["upload"], "days": ""}
    for more, status in (({}, 403), ({"stream": "laptop"}, 403), ({"stream": "A b"}, 422)):
        assert client.post("/keys/create", {**form, **more}).status_code == status
    assert not ApiKey.objects.exists()
    assert client.post("/keys/create", {**form, "stream": "olgas"}).status_code == 200
    assert ApiKey.objects.get().stream == stream("olgas")


def test_the_admin_form_of_schedules_has_the_stream(client: Client) -> None:
    client.force_login(create_user(role=Role.ADMIN))
    own = Stream.objects.create(name="own")
    form = {"name": "s", "cron": "0 4 * * *", "time_zone": "UTC", "suite": "micro", "repeats": "1"}
    answer = client.post("/admin/hud/schedule/add/", {**form, "labels": "{}", "stream": str(own.pk)})
    assert answer.status_code == 302, answer.content
    assert Schedule.objects.get(name="s").stream == own
