"""Streams are renamed, archived, merged and deleted, and nothing that belongs to them is lost."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from hud.accounts.keys import create_key, with_owners
from hud.corrections.streams import (
    StreamChanges,
    change,
    delete,
    merge,
)
from hud.ingest import import_jobs, ingest
from hud.ingest.export import export
from hud.ingest.runs import changing_references
from hud.judging.judge import process_pending
from hud.judging.regressions import events
from hud.models import (
    NIGHTLY,
    OPERATORS_OWN,
    Audit,
    Cause,
    Expectation,
    Import,
    KnownFailure,
    Measurement,
    Point,
    Regression,
    Run,
    Schedule,
    Series,
    Stream,
    Upload,
)
from hud.points import write as points
from hud.points.streams import front
from hud.problems import Problem
from hud.runs import streams
from runner.formats.parameters import Parameters
from tests.corrections.test_deletion import blocks_another
from tests.support.factories import create_user
from tests.support.records import as_list, v3_record
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db
DAY = 86_400


def upload(stream: str, value: float, day: int, case: str = "layer_norm", **given: str) -> Upload:
    body = as_list(v3_record(values=[value], case=case, timestamp=1_700_000_000 + day * DAY))
    receipt = ingest(body, Parameters(driver="580.1", stream=stream, **given))
    assert receipt.id
    return Upload.objects.get(pk=receipt.id)


def judge() -> None:
    while process_pending():
        pass


def stream(name: str) -> Stream:
    return Stream.objects.get(name=name)


def make(name: str, **fields: Any) -> Stream:
    return Stream.objects.get_or_create(name=name, defaults=fields)[0]


def test_a_renamed_stream_keeps_its_results_and_takes_those_under_the_old_name() -> None:
    upload("latpop", 2500, 0)
    make("other")
    changed = change(stream("latpop"), StreamChanges(name="laptop", title="Olga's"), who="ada")
    assert (changed.name, changed.title, changed.aliases) == ("laptop", "Olga's", ["latpop"])
    upload("latpop", 2500, 1)
    upload("laptop", 2500, 2)
    assert Series.objects.get().point_set.count() == 3
    row = Audit.objects.get(action="stream.change")
    assert (row.who, row.subject, row.detail) == (
        "ada", "stream latpop", {"name": "laptop", "title": "Olga's"},
    )  # fmt: skip
    for taken in ("other", NIGHTLY):
        with pytest.raises(Problem):
            change(changed, StreamChanges(name=taken), who="ada")
    with pytest.raises(Problem):
        change(changed, StreamChanges(name="Lap top"), who="ada")
    with pytest.raises(Problem):
        change(stream("other"), StreamChanges(name="latpop"), who="ada")
    back = change(changed, StreamChanges(name="latpop"), who="ada")
    assert (back.name, back.aliases) == ("latpop", ["laptop"])


@pytest.mark.parametrize("name", OPERATORS_OWN)
def test_the_streams_of_every_installation_keep_their_names(name: str) -> None:
    upload("mine", 2500, 0)
    change(stream("mine"), StreamChanges(front=True), who="t")
    own = make(name)
    with pytest.raises(Problem):
        change(own, StreamChanges(name="x"), who="t")
    for act in (lambda: merge(own, stream("mine"), who="t"), lambda: delete(own, who="t")):
        with pytest.raises(Problem):
            act()
    assert change(own, StreamChanges(archived=True), who="t").archived
    assert not change(own, StreamChanges(archived=False), who="t").archived


def test_the_front_stream_is_neither_archived_merged_nor_deleted() -> None:
    upload("one", 2500, 0)
    upload("two", 2500, 0)
    assert front() == stream("one"), "by default"
    for chosen in ("one", "two"):
        change(stream(chosen), StreamChanges(front=True), who="t")
        assert [one.name for one in Stream.objects.filter(is_front=True)] == [chosen]
        other = stream("two" if chosen == "one" else "one")
        for act in (
            lambda: change(stream(chosen), StreamChanges(archived=True), who="t"),  # noqa: B023
            lambda: merge(stream(chosen), other, who="t"),  # noqa: B023
            lambda: delete(stream(chosen), who="t"),  # noqa: B023
        ):
            with pytest.raises(Problem, match="front"):
                act()
    change(stream("two"), StreamChanges(front=False), who="t")
    assert front() == stream("one")
    with pytest.raises(Problem, match="front"):
        change(stream("one"), StreamChanges(archived=True), who="t")
    assert change(stream("two"), StreamChanges(archived=True), who="t").archived
    with pytest.raises(Problem, match="archived"):
        change(stream("two"), StreamChanges(front=True), who="t")
    assert change(stream("two"), StreamChanges(front=True, archived=False), who="t").is_front


def test_a_reference_is_never_the_stream_itself_nor_part_of_a_circle() -> None:
    rng = random.Random(3)
    names = [f"s{number}" for number in range(6)]
    for name in names:
        make(name)
    refused = 0
    for _ in range(60):
        name, reference = rng.choice(names), rng.choice([*names, ""])
        try:
            change(stream(name), StreamChanges(reference=reference), who="t")
        except Problem:
            refused += 1
        links = dict(Stream.objects.values_list("name", "reference__name"))
        for start in names:
            seen, here = set(), start
            while here:
                assert here not in seen, links
                seen.add(here)
                here = links[here]
    assert refused > 5
    with pytest.raises(Problem):
        change(stream("s0"), StreamChanges(reference="nothing"), who="t")


def test_a_new_reference_judges_what_has_no_level_of_its_own() -> None:
    for day in range(12):
        upload(NIGHTLY, 2500, day)
    upload("laptop", 2000, 20)
    change(stream("laptop"), StreamChanges(reference=""), who="t")
    judge()
    point = Point.objects.get(series__stream__name="laptop")
    assert (point.verdict, point.level_stream) == ("new", None)
    change(stream("laptop"), StreamChanges(reference=NIGHTLY), who="t")
    judge()
    point.refresh_from_db()
    assert (point.verdict, point.level_stream) == ("regressed", stream(NIGHTLY))
    assert not Regression.objects.exists()
    change(stream("laptop"), StreamChanges(reference=""), who="t")
    judge()
    point.refresh_from_db()
    assert (point.verdict, point.level_stream) == ("new", None)


def everything_of(name: str) -> list[Any]:
    rows = Point.objects.filter(series__stream__name=name).select_related("series__experiment")
    return sorted(
        (
            row.series.experiment.case, row.order_time.isoformat(), row.value, row.verdict, row.change,
            row.level, row.level_points, row.verdict_reason,
        )
        for row in rows
    )  # fmt: skip


def test_merged_streams_are_as_if_they_had_always_been_one() -> None:
    """The same uploads into two streams that are merged, and into one: the same points, verdicts, levels."""
    rng = random.Random(7)
    for day in range(30):
        value = (2500 if day < 20 else 2000) + rng.random() * 4
        for case in ("layer_norm", "gemv") if day % 3 else ("layer_norm", "softmax"):
            upload("old" if day % 2 else "new", value, day, case)
            upload("always", value, day, case)
    upload("old", 7, 3, "only")
    upload("always", 7, 3, "only")
    judge()
    Stream.objects.filter(name="always").update(is_front=True)
    done = merge(stream("old"), stream("new"), who="ada")
    judge()
    assert everything_of("new") == everything_of("always")
    assert (done.runs, done.series, done.joined_series) == (31, 1, 3)
    assert Point.objects.filter(series__stream__name="new").count() == 61
    assert points.rebuild(dry_run=True)[1] == 0
    assert stream("new").aliases == ["old"]
    upload("old", 2000, 40)
    assert not Stream.objects.filter(name="old").exists()
    assert set(Regression.objects.values_list("series__stream__name", flat=True)) == {"new", "always"}
    row = Audit.objects.get(action="stream.merge")
    assert (row.who, row.subject) == ("ada", "stream old into new")


def test_a_merge_takes_along_all_that_belongs_to_a_stream() -> None:
    upload("front", 2500, 0)
    for day in range(24):
        for name in ("old", "new"):
            upload(name, 2500 if day < 20 else 2000, day, run_id=f"{name}{day}")
    judge()
    kept = Regression.objects.get(series__stream__name="new")
    moved = Regression.objects.get(series__stream__name="old")
    events.assign(regression=moved, owner=create_user("mara"), who="mara")
    old, new = stream("old"), stream("new")
    key = create_key(name="k", scopes=["upload"], who="t", stream=old)[0]
    schedule = Schedule.objects.create(name="s", cron="0 4 * * *", suite="micro", stream=old)
    cause = Cause.objects.create(stream=old, night=timezone.now(), title="torch")
    experiment = Series.objects.filter(stream=old).get().experiment
    for one in (old, new):
        KnownFailure.objects.create(stream=one, experiment=experiment, reason=one.name, author="t")
    listed = Expectation.objects.create(
        stream=old,
        upload=old.uploads.earliest("pk"),
        suite="micro",
        case="x",
        metric="speedup",
        listed=timezone.now(),
    )
    job = Import.objects.create(stream=old, content_key="c", state=Import.State.DONE, finished=timezone.now())
    judged = make("judged", reference=old)
    Stream.objects.filter(pk=new.pk).update(reference=judged)
    runs = set(Run.objects.filter(stream__in=[old, new]).values_list("pk", flat=True))
    measurements = Measurement.objects.count()
    merge(old, new, who="t")
    for row in (key, schedule, cause, listed, job):
        row.refresh_from_db()
        assert row.stream == new, row
    assert KnownFailure.objects.get(stream=new).reason == "new"
    assert set(Run.objects.filter(stream=new).values_list("pk", flat=True)) == runs
    assert Measurement.objects.count() == measurements
    assert not Upload.objects.exclude(stream__name__in=["new", "front"]).exists()
    judged.refresh_from_db()
    assert judged.reference is None, "new is judged against it, so it would be a circle"
    judge()
    kept.refresh_from_db()
    assert kept.owner
    assert list(Regression.objects.filter(series__stream=new)) == [kept]


def test_streams_that_referred_to_a_merged_one_refer_to_the_other() -> None:
    upload("front", 2500, 0)
    for day in range(12):
        upload("old", 2500, day)
    upload("new", 2500, 13)
    judge()
    change(make("laptop"), StreamChanges(reference="old"), who="t")
    upload("laptop", 2000, 20)
    judge()
    point = Point.objects.get(series__stream__name="laptop")
    assert point.level_stream == stream("old")
    merge(stream("old"), stream("new"), who="t")
    point.refresh_from_db()
    assert point.level_stream == stream("new")
    judge()
    point.refresh_from_db()
    assert (point.verdict, point.level_stream, stream("laptop").reference) == (
        "regressed", stream("new"), stream("new"),
    )  # fmt: skip


def test_what_both_have_is_there_once_or_has_to_be_decided() -> None:
    upload("front", 2500, 0)
    for name in ("old", "new"):
        upload(name, 2500, 0)
        upload(name, 2500, 1, run_id="night 1")
    done = merge(stream("old"), stream("new"), who="t")
    assert (done.dropped_uploads, Point.objects.filter(series__stream__name="new").count()) == (2, 2)
    first, second = upload("a", 2500, 0, run_id="9"), upload("b", 2600, 0, run_id="9")
    with pytest.raises(Problem, match=str(first.runs.get().pk)):
        merge(stream("a"), stream("b"), who="t")
    assert (first.runs.get().stream.name, second.runs.get().stream.name) == ("a", "b")
    assert Point.objects.filter(series__stream__name__in=["a", "b"]).count() == 2


def test_a_stream_is_not_merged_while_something_is_imported_into_it() -> None:
    upload("front", 2500, 0)
    Import.objects.create(stream=make("a"), content_key="c")
    for act in (lambda: merge(stream("a"), stream("front"), who="t"), lambda: delete(stream("a"), who="t")):
        with pytest.raises(Problem, match="import"):
            act()
    with pytest.raises(Problem):
        merge(stream("front"), stream("front"), who="t")


def test_an_upload_that_only_repeated_another_stream_s_results_goes_with_its_stream() -> None:
    upload("front", 2500, 0)
    body = b"".join(export("v3", {}))  # of runs that their uids name
    receipt = ingest(body, Parameters())
    assert (receipt.stored, receipt.duplicates) == (0, 1)
    assert "front" in receipt.warnings[-1]
    Stream.objects.filter(name="import").update(name="copy")
    delete(stream("copy"), who="t")
    assert Upload.objects.get().stream.name == "front"
    assert Audit.objects.filter(action="upload.delete", subject=f"upload {receipt.id}").exists()
    counts = b"add_loop_eager,compile_time_instruction_count,3000000000,0.1\n"
    lists = ingest(counts, Parameters(format="pr_time", filename="expected_results.csv", stream="list"))
    with pytest.raises(Problem, match="expected results"):
        delete(stream("list"), who="t")
    assert Upload.objects.get(stream__name="list").receipt["id"] == lists.id


def test_only_an_empty_stream_is_deleted() -> None:
    upload("front", 2500, 0)
    upload("full", 2500, 0)
    with pytest.raises(Problem, match="runs"):
        delete(stream("full"), who="t")
    make("scheduled")
    Schedule.objects.create(name="s", cron="0 4 * * *", suite="micro", stream=stream("scheduled"))
    with pytest.raises(Problem, match="schedules"):
        delete(stream("scheduled"), who="t")
    empty = make("empty")
    key = create_key(name="k", scopes=["upload"], who="t", stream=empty)[0]
    with pytest.raises(Problem, match="keys"):
        delete(empty, who="t")
    type(key).objects.update(revoked=timezone.now())
    Stream.objects.filter(name="front").update(reference=empty)
    delete(empty, who="ada")
    assert not Stream.objects.filter(name="empty").exists()
    assert with_owners("own.id = %(pk)s", pk=key.pk)[0].stream is None
    assert stream("front").reference is None
    assert Audit.objects.get(action="stream.delete").who == "ada"
    with pytest.raises(Problem, match="deleted"):
        delete(empty, who="t")
    assert streams.named("empty").first() is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("accept", [ingest, import_jobs.submit])
@pytest.mark.parametrize("named", ["", "old"])
def test_what_arrives_while_its_stream_is_merged_goes_to_the_other(accept: Any, named: str) -> None:
    """It was let in with a key of the stream that is gone when its turn comes."""
    upload("front", 2500, 0)
    old, new = make("old"), make("new")
    made = create_key(name="k", scopes=["upload"], who="t", stream=old)[0]
    key = with_owners("own.id = %(pk)s", pk=made.pk)[0]
    failures: list[BaseException] = []

    def arrive() -> None:
        try:
            accept(as_list(v3_record()), Parameters(stream=named), key=key)
        except BaseException as error:  # noqa: BLE001 — told below
            failures.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=arrive)
    with changing_references():
        thread.start()
        wait_for(blocks_another, "the upload to wait")
        merge(old, new, who="t")
    thread.join(30)
    assert not failures
    assert (Upload if accept is ingest else Import).objects.filter(stream=new).count() == 1
