"""Delete and rename in parts what is large: the same comes out, uploads come between, and nothing is
lost where a process dies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, transaction
from django.test import Client

from hud.accounts.keys import create_key
from hud.accounts.roles import Role
from hud.corrections import background, deletion, renaming, streams
from hud.corrections.deletion import Deletion
from hud.corrections.streams import StreamChanges
from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.models import (
    Alias,
    Audit,
    Correction,
    Experiment,
    Measurement,
    Point,
    Run,
    Series,
    Stream,
    Upload,
)
from hud.problems import Problem
from runner.formats.parameters import Parameters
from tests.corrections.test_deletion import blocks_another, everything
from tests.support.factories import create_user
from tests.support.records import as_list, v3_record
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db
CASES = 10
DAY = 86_400


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "LARGE", CASES - 1)
    monkeypatch.setattr(background, "PART", 3)


def upload(day: int = 0, *, suite: str = "", cases: int = CASES, **more: Any) -> Upload:
    """Upload a run with a value of each case."""
    records = [
        v3_record(case=f"case_{n}", timestamp=1_700_000_000 + day * DAY, values=[1.0 + n], **more)
        for n in range(cases)
    ]
    for record in records if suite else ():
        record["benchmark"]["name"] = suite
    ingest(as_list(*records), Parameters())
    return Upload.objects.latest("pk")


def upload_to(stream: str, day: int, cases: int = CASES) -> None:
    records = [
        v3_record(case=f"case_{n}", timestamp=1_700_000_000 + day * DAY, values=[1.0 + n])
        for n in range(cases)
    ]
    ingest(as_list(*records), Parameters(stream=stream))


def parts() -> int:
    """Do all parts that are left; return how many."""
    return next(count for count in range(1000) if not background.run_part())


def left() -> dict[str, set[Any]]:
    points = Point.objects.values_list("run", "series__experiment__case", "value", "verdict_code")
    return {
        "points": set(points),
        "measurements": set(Measurement.objects.values_list("run", "series", "value")),
        "experiments": set(Experiment.objects.values_list("case", flat=True)),
        "waiting": set(Series.objects.exclude(touched_at=None).values_list("pk", flat=True)),
    }


def test_a_large_run_is_deleted_in_parts_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    upload(1, cases=CASES // 2)  # stay, and are judged again
    gone = upload()
    process_pending(10**6), process_pending(10**6)
    run = gone.runs.get()
    expected = deletion.delete(run, who="olga", dry_run=True)
    asked = background.delete(run, who="olga")
    assert isinstance(asked, Correction)
    assert Point.objects.filter(run=run).count() == CASES
    assert parts() > CASES // 3
    asked.refresh_from_db()
    assert (asked.state, asked.done_rows, asked.rows) == ("done", CASES, CASES)
    assert Deletion(**asked.counts) == expected
    assert not Run.objects.filter(pk=run.pk).exists()
    assert not Upload.objects.filter(pk=gone.pk).exists()
    assert Audit.objects.get(action="run.delete").detail["points"] == CASES
    in_parts = left()
    again = upload()
    process_pending(10**6), process_pending(10**6)
    deletion.delete(again.runs.get(), who="olga")
    assert {**left(), "measurements": in_parts["measurements"]} == in_parts


def test_a_large_upload_is_deleted_in_parts() -> None:
    gone, stays = upload(), upload(1)
    asked = background.delete(gone, who="olga")
    assert isinstance(asked, Correction)
    assert background.delete(gone, who="olga") == asked, "asked for twice"
    parts()
    assert list(Upload.objects.all()) == [stays]
    assert Point.objects.count() == CASES


def test_the_same_file_comes_in_again_meanwhile() -> None:
    for row in (upload(), upload(1).runs.get()):
        background.delete(row, who="olga")
        background.run_part()
    again = [upload().pk, upload(1).pk]
    parts()
    assert sorted(Upload.objects.values_list("pk", flat=True)) == again
    assert Point.objects.count() == Measurement.objects.count() == 2 * CASES


def test_a_part_that_dies_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    run = upload().runs.get()
    asked = background.delete(run, who="olga")
    assert isinstance(asked, Correction)
    background.run_part()
    asked.refresh_from_db()
    before = left(), asked.counts

    def fail(*_args: Any, **_more: Any) -> int:
        raise OperationalError("the database is away")

    with monkeypatch.context() as dying:
        dying.setattr(deletion, "judge_again", fail)
        with pytest.raises(OperationalError):
            background.run_part()
    asked.refresh_from_db()
    assert (left(), asked.counts) == before
    call_command("imports", "--once")
    asked.refresh_from_db()
    assert (asked.state, asked.done_rows) == ("done", CASES)
    assert not Point.objects.exists()


def test_an_error_of_ours_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run = upload().runs.get()
    asked = background.delete(run, who="olga")
    assert isinstance(asked, Correction)
    monkeypatch.setattr(deletion, "judge_again", lambda: 1 / 0)
    assert parts() == 1
    asked.refresh_from_db()
    assert asked.state == "failed"
    assert Point.objects.count() == CASES


def test_a_suite_is_renamed_in_parts() -> None:
    upload(suite="old"), upload(1, suite="new", cases=CASES // 2)
    expected = background.rename(kind="suite", old="old", new="new", who="olga", dry_run=True)
    assert str(expected).startswith(f"{CASES} experiments")
    asked = background.rename(kind="suite", old="old", new="new", who="olga")
    assert isinstance(asked, Correction)
    background.run_part()
    assert Alias.objects.get(kind="suite").new == "new"
    upload(2, suite="old")
    assert parts() > 1
    asked.refresh_from_db()
    assert (asked.state, asked.counts["experiments"]) == ("done", CASES)
    assert asked.counts["merged_experiments"] >= CASES // 2
    assert set(Experiment.objects.values_list("suite", flat=True)) == {"new"}
    assert Experiment.objects.count() == CASES
    assert Point.objects.count() == Measurement.objects.count() == 2 * CASES + CASES // 2


def test_a_stream_is_merged_in_parts_as_at_once() -> None:
    """Merge streams that share an upload, while another one comes to the stream that goes."""

    def filled(name: str) -> tuple[Stream, Stream]:
        for side, day in (("old", 1), ("new", 2)):
            upload_to(f"{name}-{side}", 0)
            upload_to(f"{name}-{side}", day, cases=CASES // 2)
        return Stream.objects.get(name=f"{name}-old"), Stream.objects.get(name=f"{name}-new")

    upload_to("front", 9)
    streams.merge(*filled("once"), who="olga")
    old, new = filled("parts")
    process_pending(10**6), process_pending(10**6)
    asked = background.merge(old, new, who="olga")
    assert isinstance(asked, Correction)
    background.run_part()
    upload_to("parts-old", 3)
    assert parts() > CASES // 3
    upload_to("once-old", 3)
    process_pending(10**6), process_pending(10**6)
    asked.refresh_from_db()
    assert (asked.state, asked.done_rows, asked.counts["dropped_uploads"]) == ("done", CASES, 1)
    seen = [
        {
            *Point.objects.filter(
                series__stream__name=f"{name}-new", run__stream__name=f"{name}-new"
            ).values_list("series__experiment", "value", "order_time", "verdict_code")
        }
        for name in ("once", "parts")
    ]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 3 * CASES
    assert not Stream.objects.filter(name__endswith="-old").exists()
    assert Audit.objects.filter(action="stream.merge", subject="stream parts-old into parts-new").exists()


def test_pages_and_api_say_how_far_it_is(client: Client) -> None:
    client.force_login(create_user())
    run = upload().runs.get()
    _key, secret = create_key(name="k", scopes=["run", "upload"], who="t")
    headers = {"authorization": f"Bearer {secret}"}
    would = client.delete(f"/api/v1/runs/{run.pk}?dry_run=true", headers=headers).json()
    counts = {"runs": 1, "uploads": 1, "points": CASES, "measurements": CASES}
    assert client.get(f"/runs/{run.pk}/delete").context["counts"] == counts
    assert {name: would[name] for name in counts} == counts
    answer = client.delete(f"/api/v1/runs/{run.pk}", headers=headers)
    assert answer.status_code == HTTPStatus.ACCEPTED
    assert answer["Location"] == answer.json()["links"]["self"]
    assert client.get(answer["Location"], headers=headers).json()["state"] == "queued"
    page = client.post(f"/runs/{run.pk}/delete", follow=True)
    assert "data-poll" in page.content.decode()
    assert page.redirect_chain[-1][0] in client.get(f"/runs/{run.pk}/").content.decode()
    background.run_part()
    progress = client.get(answer["Location"], headers=headers).json()
    assert progress["state"] == "running"
    assert 0 < progress["done_rows"] < progress["rows"] == CASES
    parts()
    assert client.get(answer["Location"], headers=headers).json()["state"] == "done"
    assert client.get(page.redirect_chain[-1][0])["X-Poll"] == "stop"


def test_a_dry_run_counts_what_goes_with_one_of_two_uploads_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for cases in (range(CASES), range(CASES - 1, CASES + 2)):
        records = [v3_record(case=f"case_{n}", timestamp=1_700_000_000) for n in cases]
        ingest(as_list(*records), Parameters(run_id="night 1"))
    first, second = Upload.objects.order_by("pk")
    assert first.runs.get().points == CASES + 2
    for row in (first, first.runs.get(), second):
        would = background.delete(row, who="olga", dry_run=True)
        with monkeypatch.context() as at_once:
            at_once.setattr(background, "LARGE", 10**6)
            does = background.delete(row, who="olga", dry_run=True)
        assert isinstance(would, Deletion)
        assert isinstance(does, Deletion)
        names = "runs", "uploads", "points", "measurements"
        assert [getattr(would, name) for name in names] == [getattr(does, name) for name in names]


def test_what_comes_in_meanwhile_counts_as_work_too() -> None:
    (stream,) = filled("old")
    asked = in_background(background.delete(stream.runs.get(), who="olga"))
    Correction.objects.filter(pk=asked.pk).update(rows=1)
    parts()
    asked.refresh_from_db()
    assert asked.rows == asked.done_rows == CASES


def filled(*names: str) -> list[Stream]:
    """Return streams that are too large to be merged at once; another one is the front stream."""
    for day, name in enumerate(("front", *names)):
        upload_to(name, day)
    return [Stream.objects.get(name=name) for name in names]


def in_background(done: Any) -> Correction:
    assert isinstance(done, Correction)
    return done


def rename_of(old: str, new: str, kind: str = "suite") -> Any:
    return background.rename(kind=kind, old=old, new=new, who="olga")


@pytest.mark.parametrize("begun", [False, True])
def test_what_would_take_away_a_stream_of_a_merge_is_refused(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    old, new, third = filled("old", "new", "third")
    asked = in_background(background.merge(old, new, who="olga"))
    if begun:
        background.run_part()
    refused: list[Callable[[], Any]] = [
        lambda: background.merge(new, old, who="olga"),
        lambda: background.merge(old, new, who="olga"),
        lambda: background.merge(old, third, who="olga"),
        lambda: background.merge(new, third, who="olga"),
        lambda: background.merge(third, old, who="olga"),
        lambda: streams.change(old, StreamChanges(name="x"), who="olga"),
        lambda: streams.change(new, StreamChanges(name="x"), who="olga"),
        lambda: streams.change(old, StreamChanges(archived=True), who="olga"),
        lambda: streams.change(old, StreamChanges(front=True), who="olga"),
        lambda: streams.delete(new, who="olga"),
    ]
    for large in (CASES - 1, 10**6):  # in the background, and at once
        monkeypatch.setattr(background, "LARGE", large)
        for act in refused:
            with pytest.raises(Problem) as error:
                act()
            assert (error.value.status, error.value.extra) == (409, {"correction": asked.pk})
    monkeypatch.setattr(background, "LARGE", CASES - 1)
    assert streams.change(old, StreamChanges(name="old", title="Old"), who="olga").title == "Old"
    background.merge(third, new, who="olga")
    parts()
    assert {row.state for row in Correction.objects.all()} == {"done"}
    assert not Stream.objects.filter(name__in=["old", "third"]).exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("second", ["merge", "rename", "archive", "cancel"])
def test_of_two_at_the_same_time_one_is_refused(second: str) -> None:
    old, new = filled("old", "new")
    acts: dict[str, Callable[[], Any]] = {
        "merge": lambda: background.merge(new, old, who="ada"),
        "rename": lambda: streams.change(old, StreamChanges(name="x"), who="ada"),
        "archive": lambda: streams.change(old, StreamChanges(archived=True), who="ada"),
        "cancel": lambda: background.cancel(Correction.objects.get(), who="ada"),
    }
    if second == "cancel":  # while the first part is done
        background.merge(old, new, who="olga")
    refused: list[int] = []

    def ask() -> None:
        try:
            acts[second]()
        except Problem as error:
            refused.append(error.status)
        finally:
            connection.close()

    thread = threading.Thread(target=ask)
    with transaction.atomic():
        if second == "cancel":
            background.run_part()
        else:
            background.merge(old, new, who="olga")
        thread.start()
        wait_for(blocks_another, "the second one to wait")
    thread.join(30)
    assert refused == [409]
    parts()
    assert [row.state for row in Correction.objects.all()] == ["done"]
    assert Stream.objects.get(name="new").aliases == ["old"]


def test_a_renaming_in_the_background_is_not_turned_round() -> None:
    upload(suite="old"), upload(1, suite="few", cases=2)
    asked = in_background(rename_of("old", "few"))
    for old, new in (("few", "old"), ("old", "third"), ("few", "third")):
        with pytest.raises(Problem) as error:
            rename_of(old, new)
        assert error.value.extra == {"correction": asked.pk}
    rename_of("case_0", "case", kind="case")
    parts()
    assert set(Experiment.objects.values_list("suite", flat=True)) == {"few"}


@pytest.mark.parametrize("kind", [Run, Upload])
def test_a_cancelled_deletion_leaves_all_as_it_was(kind: type[Run | Upload]) -> None:
    gone = upload(run_id="night 1")
    before = everything()
    row = gone if kind is Upload else gone.runs.get()
    asked = in_background(background.delete(row, who="olga"))
    background.cancel(asked, who="ada")
    after = everything()
    asked.refresh_from_db()
    assert asked.state == "cancelled"
    assert {**after, "Correction": []} == {**before, "Correction": []}
    entry = Audit.objects.latest("pk")
    assert (entry.who, entry.action, entry.subject) == ("ada", f"{asked.action}.cancel", asked.subject)
    assert not background.run_part()
    assert upload(run_id="night 1") == gone
    with pytest.raises(Problem):
        background.finish(asked)


def test_what_came_in_again_meanwhile_stays_beside_a_cancelled_deletion() -> None:
    gone = upload(run_id="night 1")
    asked = in_background(background.delete(gone, who="olga"))
    again = upload(run_id="night 1")
    background.cancel(asked, who="olga")
    assert set(Upload.objects.all()) == {gone, again}
    assert upload(run_id="night 1") == again
    assert Point.objects.count() == 2 * CASES


def test_a_cancelled_renaming_gives_the_names_back() -> None:
    upload(suite="old")
    Alias.objects.create(kind="case", suite="old", old="x", new="case_0", who="t")
    Alias.objects.create(kind="suite", old="new", new="other", who="t")
    before = renaming.aliases()
    asked = in_background(rename_of("old", "new"))
    assert renaming.aliases() != before
    background.cancel(asked, who="olga")
    assert renaming.aliases() == before
    upload(1, suite="old")
    assert set(Experiment.objects.values_list("suite", flat=True)) == {"old"}


def test_what_has_begun_or_ended_is_not_cancelled() -> None:
    old, new = filled("old", "new")
    asked = in_background(background.merge(old, new, who="olga"))
    background.cancel(asked, who="olga")
    turned = in_background(background.merge(new, old, who="olga"))
    background.run_part()
    for row in (asked, turned):
        with pytest.raises(Problem) as error:
            background.cancel(row, who="olga")
        assert error.value.status == HTTPStatus.CONFLICT
    parts()
    assert sorted(row.state for row in Correction.objects.all()) == ["cancelled", "done"]


def test_who_may_ask_for_a_correction_may_cancel_it(client: Client) -> None:
    """With the scopes of its kind, on its page and over the API."""
    upload(suite="named")
    run, (old, new) = upload().runs.get(), filled("old", "new")
    asked = {
        "run": in_background(background.delete(run, who="olga")),
        "rules": in_background(background.merge(old, new, who="olga")),
        "admin": in_background(rename_of("named", "other")),
    }
    _key, secret = create_key(name="k", scopes=["upload"], who="t")
    for row in asked.values():
        answer = client.delete(f"/api/v1/corrections/{row.pk}", headers={"authorization": f"Bearer {secret}"})
        assert answer.status_code == HTTPStatus.FORBIDDEN
    client.force_login(create_user("uli", Role.UPLOADER))
    for row in asked.values():
        address = f"/corrections/{row.pk}/"
        assert f"{address}cancel" not in client.get(address).content.decode()
        assert client.post(f"{address}cancel").status_code == HTTPStatus.FORBIDDEN
    client.force_login(create_user("ada", Role.ADMIN))
    address = f"/corrections/{asked['run'].pk}/"
    assert f"{address}cancel" in client.get(address).content.decode()
    assert "cancelled" in client.post(f"{address}cancel", follow=True).content.decode()
    for scope in ("rules", "admin"):
        _key, secret = create_key(name=scope, scopes=["upload", scope], who="t")
        answer = client.delete(
            f"/api/v1/corrections/{asked[scope].pk}", headers={"authorization": f"Bearer {secret}"}
        )
        assert (answer.status_code, answer.json()["state"]) == (HTTPStatus.OK, "cancelled")
        assert client.post(f"/corrections/{asked[scope].pk}/cancel").status_code == HTTPStatus.FOUND
    assert not background.run_part()


def test_the_page_of_streams_leads_to_the_merge_that_waits(client: Client) -> None:
    old, new = filled("old", "new")
    asked = in_background(background.merge(old, new, who="olga"))
    client.force_login(create_user())
    answer = client.post(f"/streams/{new.name}/merge", {"into": old.name, "sure": "on"})
    assert (answer.status_code, answer["Location"]) == (HTTPStatus.FOUND, f"/corrections/{asked.pk}/")


def test_a_dry_run_of_a_large_deletion_counts_measurements() -> None:
    records = [v3_record(case=f"case_{n}", values=[1.0, 2.0]) for n in range(CASES)]
    ingest(as_list(*records, *records), Parameters())
    upload(1)
    run = Run.objects.earliest("pk")
    rows: list[Run | Upload] = [run, *Upload.objects.all()]
    for row in rows:
        expected = deletion.delete(row, who="olga", dry_run=True)
        done = background.delete(row, who="olga", dry_run=True)
        assert isinstance(done, Deletion)
        assert (done.points, done.measurements) == (expected.points, expected.measurements)
        assert done.measurements >= CASES
