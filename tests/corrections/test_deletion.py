"""A run or an upload goes with everything that only it has, and nothing else; its file can come again."""

from __future__ import annotations

import threading
import uuid
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from hud.accounts.keys import create_key
from hud.corrections.deletion import delete
from hud.ingest import import_jobs, ingest
from hud.judging.judge import judge_series, process_pending
from hud.models import (
    Artifact,
    Audit,
    Compilation,
    Expectation,
    Experiment,
    IdempotencyKey,
    Import,
    Measurement,
    Point,
    Run,
    Series,
    Stream,
    Task,
    UnjudgedRun,
    Upload,
)
from hud.problems import Problem
from hud.runs import logs
from runner.formats.parameters import Parameters
from tests.ingest.test_export import exported
from tests.support.factories import create_experiment, create_measurement, create_run, create_task
from tests.support.judgements import telling_points
from tests.support.records import as_list, v3_record
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db
DAY = 86_400
COUNTED: dict[str, Any] = {
    "runs": Run,
    "uploads": Upload,
    "measurements": Measurement,
    "compilations": Compilation,
    "points": Point,
    "series": Series,
    "experiments": Experiment,
    "tasks": Task,
    "artifacts": Artifact,
    "expectations": Expectation,
}


def upload(value: float, day: int, *, case: str = "layer_norm", **given: Any) -> Upload:
    body = as_list(v3_record(values=[value], case=case, timestamp=1_700_000_000 + day * DAY))
    ingest(body, Parameters(driver="580.1"), **given)
    return Upload.objects.latest("pk")


def rows() -> dict[str, int]:
    return {name: kind.objects.count() for name, kind in COUNTED.items()}


def blocks_another() -> bool:
    mine = "pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {mine}")
        return bool(cursor.fetchone()[0])


def everything() -> dict[str, list[Any]]:
    """Return all rows of all tables but the audit, to see that nothing changes."""
    kinds = [kind for kind in apps.get_app_config("hud").get_models() if kind is not Audit]
    return {kind.__name__: sorted(map(repr, kind._default_manager.values_list())) for kind in kinds}


def history() -> list[Upload]:
    """Ten equal days, and a slower eleventh that is judged so."""
    found = [upload(2500 if day < 10 else 2000, day) for day in range(11)]
    while process_pending():
        pass
    assert telling_points().count() == 1
    return found


@pytest.fixture
def own_data(settings: Any, tmp_path: Path) -> Path:
    settings.HUD_DATA = tmp_path
    return tmp_path


@pytest.mark.parametrize("by", ["run", "upload"])
def test_a_dry_run_says_what_goes_and_changes_nothing(by: str) -> None:
    history()
    lonely = upload(1, 20, case="only here")
    create_measurement(create_experiment(case="other"))
    before, counts = everything(), rows()

    subject = lonely.runs.get() if by == "run" else lonely
    said = delete(subject, who="t", dry_run=True)
    assert everything() == before
    assert not Audit.objects.filter(action__endswith=".delete").exists()
    done = delete(subject, who="t")
    assert said == done
    assert (done.runs, done.uploads, done.measurements, done.series, done.experiments) == (1, 1, 1, 1, 1)
    after = rows()
    assert {name: counts[name] - after[name] for name in COUNTED} == {
        name: getattr(done, name) for name in COUNTED
    }
    row = Audit.objects.get(action=f"{by}.delete")
    gone = {"run_ids": list(lonely.receipt["run_ids"]), "upload_ids": [lonely.pk]}
    assert (row.who, row.detail) == ("t", done.to_json() | gone)
    assert not Experiment.objects.filter(case="only here").exists()


def test_later_points_are_judged_again_without_the_deleted_ones() -> None:
    uploads = history()
    upload(2000, 11)
    process_pending()
    process_pending()
    late = Point.objects.get(order_time=Measurement.objects.order_by("order_time").last().order_time)  # type: ignore[union-attr]
    assert (late.verdict, late.level_points) == ("regressed", 10)
    for one in uploads[:3]:
        assert delete(one, who="t").series_judged_again == 1
    process_pending()
    late.refresh_from_db()
    assert late.level_points == 7
    delete(uploads[10].runs.get(), who="t")
    process_pending()
    assert telling_points().get().level_points == 7


def test_the_same_file_can_be_uploaded_again_under_the_same_key() -> None:
    key, _secret = create_key(name="k", scopes=["upload"], who="t")
    body, given = as_list(v3_record(timestamp=1_700_000_000)), Parameters()
    partial = Parameters(partial="1")

    def send() -> list[int]:
        receipts = [
            ingest(body, given, key=key, idempotency_key="one"),
            ingest(body, partial, key=key, idempotency_key="two"),
        ]
        return [receipt.stored for receipt in receipts]

    assert send() == [1, 0]
    delete(Upload.objects.order_by("pk")[0], who="t")
    assert not IdempotencyKey.objects.exists()
    assert send() == [1, 0]
    delete(Run.objects.get(), who="t")
    assert not Upload.objects.exists()
    assert send() == [1, 0]


def test_an_ended_import_of_the_same_file_goes_too(own_data: Path) -> None:
    body = as_list(v3_record(timestamp=1_700_000_000))
    first = import_jobs.submit(body, Parameters())
    import_jobs.process(first)
    delete(Upload.objects.get(), who="t")
    second = import_jobs.submit(body, Parameters())
    import_jobs.process(second)
    second.refresh_from_db()
    assert first.pk != second.pk
    assert second.receipt
    assert second.receipt["stored"] == 1
    assert Import.objects.count() == 1


def test_the_idempotency_key_of_a_deleted_import_is_free_again(own_data: Path) -> None:
    key, _secret = create_key(name="k", scopes=["upload"], who="t")
    first, second, other = (as_list(v3_record(case=case, timestamp=1_700_000_000)) for case in "abc")

    def send(body: bytes, name: str) -> Import:
        job = import_jobs.submit(body, Parameters(), key=key, idempotency_key=name)
        import_jobs.process(job)
        return job

    send(first, "one")
    kept = send(second, "two")
    delete(Upload.objects.order_by("pk")[0], who="t")
    assert list(IdempotencyKey.objects.values_list("text", flat=True)) == ["two"]
    again = send(other, "one")
    assert send(other, "one") == again
    assert send(second, "two") == kept
    assert set(Import.objects.all()) == {kept, again}
    with pytest.raises(Problem):
        send(other, "two")


def test_a_run_in_two_uploads_stays_with_the_other_one() -> None:
    said: dict[str, Any] = {"workflow_id": 7, "job_id": 1, "timestamp": 1_700_000_000}
    for case in ("a", "b", "c"):
        ingest(as_list(v3_record(case=case, **said)), Parameters())
    first, second, third = Upload.objects.order_by("pk")
    run = Run.objects.get()
    done = delete(first, who="t")
    assert (done.runs, done.uploads, done.measurements) == (0, 1, 1)
    run.refresh_from_db()
    assert run.upload == second
    delete(third, who="t")
    assert set(Measurement.objects.values_list("series__experiment__case", flat=True)) == {"b"}
    assert UnjudgedRun.objects.filter(run=run).exists()
    delete(run, who="t")
    assert not any(rows().values())


def _exported_by(name: str, body: bytes) -> Upload:
    """An operator's upload to a stream that is not that of the export's run, which it repeats."""
    stream, _new = Stream.objects.get_or_create(name=name)
    key, _secret = create_key(name=name, scopes=["upload", "rules"], who="t", stream=stream)
    ingest(body, Parameters(), key=key, idempotency_key="one")
    return Upload.objects.latest("pk")


def test_only_its_own_row_goes_with_an_upload_of_duplicates() -> None:
    first = upload(1.5, 0)
    body = exported()
    ada, bob = (_exported_by(name, body) for name in ("ada", "bob"))
    assert (ada.receipt["stored"], bob.receipt["stored"], bob.receipt["duplicates"]) == (0, 0, 1)
    done = delete(ada, who="t")
    assert (done.runs, done.uploads, done.measurements) == (0, 1, 0)
    assert set(Upload.objects.values_list("pk", flat=True)) == {first.pk, bob.pk}
    assert Audit.objects.get(action="upload.delete").detail["upload_ids"] == [ada.pk]
    assert IdempotencyKey.objects.get().key.name == "bob"
    bob.refresh_from_db()
    assert not bob.content_key.startswith("outdated"), "what it names is still stored"


def test_an_upload_whose_values_went_with_another_stays_and_can_come_again() -> None:
    first = upload(1.5, 0)
    body = exported()
    bob = _exported_by("bob", body)
    done = delete(first, who="t")
    assert (done.runs, done.uploads, done.measurements) == (1, 1, 1)
    assert list(Upload.objects.values_list("pk", flat=True)) == [bob.pk]
    again = _exported_by("bob2", body)
    assert again.receipt["stored"] == 1
    delete(again, who="t")
    assert ingest(body, Parameters(), key=bob.key, idempotency_key="one").stored == 1
    assert delete(bob, who="t").uploads == 1
    assert Measurement.objects.count() == 1


@pytest.mark.parametrize("is_named", [True, False])
def test_an_upload_of_which_one_run_is_deleted_names_the_other_alone(is_named: bool) -> None:
    shared = v3_record(case="a", workflow_id=1)
    own = v3_record(case="b", workflow_id=2) if is_named else v3_record(case="b", head_sha="c0ffee")
    ingest(as_list(shared), Parameters())
    both = as_list(shared, own)
    assert ingest(both, Parameters()).duplicates == 1
    delete(Run.objects.earliest("pk"), who="t")
    receipt = ingest(both, Parameters())
    assert receipt.stored == is_named, "what is gone comes again, unless the rest would too"
    assert receipt.run_ids == list(Run.objects.order_by("pk").values_list("pk", flat=True))
    assert receipt.links["runs"] == f"/runs/{receipt.run_ids[0]}/"


def test_the_answer_to_an_idempotency_key_names_no_deleted_run() -> None:
    key, _secret = create_key(name="k", scopes=["upload"], who="t")
    body = as_list(*(v3_record(case=case, workflow_id=1, head_sha=case) for case in "ab"))
    ingest(body, Parameters(), key=key, idempotency_key="one")
    delete(Run.objects.earliest("pk"), who="t")
    again = ingest(body, Parameters(), key=key, idempotency_key="one")
    assert (again.replayed, again.run_ids) == (True, [Run.objects.get().pk])
    assert again.links["runs"] == f"/runs/{again.run_ids[0]}/"


def test_expectations_of_an_upload_go_with_it() -> None:
    body = b"add_loop_eager,compile_time_instruction_count,3000000000,0.1\n"
    receipt = ingest(body, Parameters(format="pr_time", filename="expected_results.csv"))
    assert receipt.stored
    found = Upload.objects.get()
    assert delete(found, who="t").expectations == receipt.stored
    assert not Expectation.objects.exists()
    assert not Upload.objects.exists()
    assert (
        ingest(body, Parameters(format="pr_time", filename="expected_results.csv")).stored == receipt.stored
    )


def test_a_hosts_run_goes_with_tasks_logs_and_artifacts(
    own_data: Path, django_capture_on_commit_callbacks: Any
) -> None:
    kept_files: list[Path] = []
    files: list[Path] = []
    runs = [create_run(), create_run()]
    for run in runs:
        task = create_task(run, state="done", attempt=1, log_bytes=5)
        path = own_data / "artifacts" / str(run.pk) / str(uuid.uuid4())
        Artifact.objects.create(
            task=task, kind="trace", path=str(path.relative_to(own_data)), size_bytes=7, sha256="0"
        )
        for file in (path, own_data / logs.log_name(task)):
            file.parent.mkdir(parents=True)
            file.write_bytes(b"x")
            (files if run == runs[0] else kept_files).append(file)
        create_measurement(run=run)
    retry = create_run(retry_of=runs[0])
    with django_capture_on_commit_callbacks(execute=True):
        delete(runs[0], who="t", dry_run=True)
    assert all(file.exists() for file in files)
    with django_capture_on_commit_callbacks(execute=True):
        done = delete(runs[0], who="t")
    assert (done.runs, done.tasks, done.artifacts, done.file_bytes) == (1, 1, 1, 12)
    assert not any(file.exists() for file in files)
    assert all(file.exists() for file in kept_files)
    retry.request.refresh_from_db()
    assert retry.request.retry_of is None


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_run_that_has_not_ended_is_refused(state: str) -> None:
    run = create_run(state)
    create_measurement(run=run)
    with pytest.raises(Problem):
        delete(run, who="t")
    with pytest.raises(CommandError):
        call_command("delete_run", str(run.pk))
    assert Measurement.objects.exists()


def test_the_commands() -> None:
    one, other = upload(1, 0), upload(2, 1)
    run, out = one.runs.get(), StringIO()
    call_command("delete_run", str(run.pk), "--dry-run", stdout=out)
    assert Run.objects.count() == 2
    call_command("delete_run", str(run.pk), stdout=out)
    call_command("delete_upload", str(other.pk), stdout=out)
    dry, wet, _upload = out.getvalue().splitlines()
    assert dry.partition(": ")[2] == wet.partition(": ")[2]
    assert not any(rows().values())
    for command, pk in (("delete_run", run.pk), ("delete_upload", other.pk)):
        with pytest.raises(CommandError):
            call_command(command, str(pk))


@pytest.mark.django_db(transaction=True)
def test_a_judge_at_work_and_a_deletion_wait_for_each_other() -> None:
    """The judge holds a series and will look up its run at commit: the deletion waits, no deadlock."""
    history()
    late = upload(2000, 20)
    series, run = Series.objects.get(), late.runs.get()
    Series.objects.update(touched_at=run.order_time)
    series.refresh_from_db()
    failures: list[BaseException] = []

    def delete_it() -> None:
        try:
            delete(late, who="t")
        except BaseException as error:  # noqa: BLE001 — told below
            failures.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=delete_it)
    with transaction.atomic():
        judge_series([series])
        assert Point.objects.filter(run=run).exists()
        thread.start()
        wait_for(blocks_another, "the deletion to wait")
    thread.join(30)
    assert not failures
    assert not Point.objects.filter(run_id=run.pk).exists()
    series.refresh_from_db()
    assert series.touched_at == run.order_time


@pytest.mark.django_db(transaction=True)
def test_an_upload_at_work_is_waited_for_and_after_a_while_not_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hud.ingest.runs._WAIT", "50ms")
    found = upload(1, 0)
    answers: list[Any] = []

    def delete_it() -> None:
        try:
            answers.append(delete(found, who="t"))
        except Problem as error:
            answers.append(error)
        finally:
            connection.close()

    with transaction.atomic():
        upload(2, 1)  # of the same series
        thread = threading.Thread(target=delete_it)
        thread.start()
        thread.join(30)
    assert isinstance(answers[0], Problem)
    delete_it()
    assert answers[1].measurements == 1
    assert answers[1].series == 0
