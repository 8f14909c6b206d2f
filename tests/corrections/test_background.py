"""Delete and rename in parts what is large: the same comes out, uploads come between, and nothing is
lost where a process dies."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError
from django.test import Client

from hud.accounts.keys import create_key
from hud.corrections import background, deletion, streams
from hud.corrections.deletion import Deletion
from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.models import Alias, Audit, Correction, Experiment, Measurement, Point, Run, Series, Stream, Upload
from runner.formats.parameters import Parameters
from tests.support.factories import create_user
from tests.support.records import as_list, v3_record

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
    assert client.get(f"/runs/{run.pk}/delete").context["counts"] == {"points": CASES, "measurements": CASES}
    answer = client.delete(f"/api/v1/runs/{run.pk}", headers=headers)
    assert answer.status_code == HTTPStatus.ACCEPTED
    assert answer["Location"] == answer.json()["links"]["self"]
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
