"""Corrections: `replace=1` supersedes values of the same run."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connections
from django.utils import timezone

from hud.corrections.deletion import delete
from hud.ingest import BadUpload, Receipt, ingest
from hud.judging.judge import process_pending
from hud.management.commands.ingest import Command
from hud.models import Audit, Correction, Measurement, Point, Run, Upload
from hud.problems import Problem
from runner.formats import reasons
from runner.formats.parameters import Parameters
from tests.support.records import as_lines, v3_record

pytestmark = pytest.mark.django_db


def receipt_of(*values: float, replace: str = "", run_id: str = "night-1") -> Receipt:
    records = [v3_record(case=f"case {number}", values=[value]) for number, value in enumerate(values)]
    return ingest(as_lines(*records), Parameters(run_id=run_id, replace=replace))


def upload(*values: float, replace: str = "", run_id: str = "night-1") -> list[str]:
    return receipt_of(*values, replace=replace, run_id=run_id).warnings


def test_a_correction_supersedes_the_value_of_its_run_and_the_audit_keeps_the_old_one() -> None:
    upload(1.0, 2.0)
    while process_pending():
        pass
    upload(1.5, 2.0, replace="1")
    assert sorted(filter(None, Point.objects.values_list("value", flat=True))) == [1.5, 2.0]
    assert Run.objects.count() == 1
    assert Measurement.objects.count() == 2
    (kept,) = Audit.objects.get(action="upload.replace").detail["values"]
    assert (kept["value"], kept["metric"]) == (1.0, "memory_bandwidth(GB/s)")
    changed = Point.objects.get(value=1.5)
    assert changed.verdict == "", "it is not judged yet"
    while process_pending():
        pass
    changed.refresh_from_db()
    assert changed.verdict == "new"


@pytest.mark.parametrize("action", ["rename", "stream.merge", "run.delete"])
def test_a_stored_run_waits_for_a_correction_that_moves_its_series(action: str) -> None:
    """Its stored values may be under another name or stream by then, and would be taken for new ones."""
    upload(1.0)
    stream = Run.objects.get().stream_id
    about = {"stream": 0, "into": stream} if action == "stream.merge" else {"id": 0}
    correction = Correction.objects.create(action=action, subject="it", rows=1, arguments=about)
    if action == "run.delete":
        assert not upload(2.0, replace="1", run_id="night-1")[1:]
    else:
        with pytest.raises(Problem) as refused:
            upload(2.0, replace="1")
        assert (refused.value.status, refused.value.extra["correction"]) == (503, correction.pk)
        assert Point.objects.get().value == 1.0
    upload(3.0, run_id="night-2")
    Correction.objects.update(finished=timezone.now())
    upload(4.0, replace="1")
    assert sorted(filter(None, Point.objects.values_list("value", flat=True))) == [3.0, 4.0]


def test_a_dry_run_does_not_say_that_it_was_done() -> None:
    upload(1.0)
    body = as_lines(v3_record(case="case 0", values=[1.5]))
    said = [
        next(words for words in ingest(body, parameters).warnings if "superseded" in words)
        for parameters in (
            Parameters(run_id="night-1", replace="1", dry_run="1"),
            Parameters(run_id="night-1", replace="1"),
        )
    ]
    assert ["would be" in words for words in said] == [True, False]
    assert ["were" in words for words in said] == [False, True]


def test_without_replace_a_stored_value_stays() -> None:
    upload(1.0, 2.0)
    upload(1.5, 2.0)
    assert sorted(filter(None, Point.objects.values_list("value", flat=True))) == [1.0, 2.0]
    assert not Audit.objects.filter(action="upload.replace").exists()


def test_a_correction_of_no_stored_run_says_so() -> None:
    upload(1.0)
    assert upload(1.5, replace="1", run_id="night-2")
    assert sorted(filter(None, Point.objects.values_list("value", flat=True))) == [1.0, 1.5]


def test_the_superseded_file_again_is_a_conflict_that_names_both_values_and_the_parameter() -> None:
    upload(1.245)
    upload(1.5, replace="1")
    with pytest.raises(BadUpload) as refused:
        upload(1.245)
    (fault,) = refused.value.faults
    assert reasons.kind_of(fault.detail) == reasons.CONFLICT
    assert all(words in fault.detail for words in ("1.245", "1.5", "replace=1"))
    assert Point.objects.get().value == 1.5
    assert Upload.objects.count() == 2


def test_of_a_file_that_is_superseded_in_part_the_rest_are_duplicates() -> None:
    upload(1.0, 2.0)
    upload(1.5, replace="1")
    for _ in range(2):
        receipt = receipt_of(1.0, 2.0)
        assert (receipt.stored, receipt.duplicates) == (0, 1)
        assert receipt.skipped_kinds == {reasons.CONFLICT: 1}


def test_a_replacement_that_is_repeated_supersedes_nothing_unless_another_value_came_between() -> None:
    upload(1.0)
    assert upload(1.5, replace="1")
    assert receipt_of(1.5, replace="1").warnings == []
    assert Audit.objects.filter(action="upload.replace").count() == 1
    upload(1.0, replace="1")
    assert upload(1.5, replace="1"), "the same bytes are a correction once more"
    assert Point.objects.get().value == 1.5
    assert receipt_of(1.5).duplicates == 1


def test_a_closed_run_s_conflict_does_not_suggest_to_replace() -> None:
    upload(1.0)
    Run.objects.update(upload=None)
    with pytest.raises(BadUpload) as refused:
        upload(1.5)
    assert "replace" not in refused.value.faults[0].detail


@pytest.mark.parametrize("words", [["--replace"], ["--replace", "1"], ["--replace=1"]])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_command_s_switches_need_no_value(
    words: list[str], is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "close_all", lambda: None)  # the test's own one goes on
    upload(1.0)
    path = tmp_path / "b.json"
    path.write_bytes(as_lines(v3_record(case="case 0", values=[1.5])))
    of_run = ["--run-id", "night-1"]
    dry = [word.replace("replace", "dry-run") for word in words]
    for options, value in ((words + dry, 1.0), (words, 1.5)):
        given = [*options, *of_run, str(path)] if is_first else [str(path), *of_run, *options]
        Command().run_from_argv(["manage.py", "ingest", *given])
        assert Point.objects.get().value == value


def test_the_command_prints_what_was_superseded(tmp_path: Path) -> None:
    upload(1.0)
    path, said = tmp_path / "b.json", StringIO()
    path.write_bytes(as_lines(v3_record(case="case 0", values=[1.5])))
    call_command(
        "ingest", str(path), "--run-id", "night-1", "--stream", "adhoc", "--replace", "1", stdout=said
    )
    warning = Upload.objects.latest("pk").receipt["warnings"][0]
    assert warning in said.getvalue()


def test_after_the_first_upload_is_deleted_its_file_is_stored_again() -> None:
    upload(1.0, 2.0)
    upload(1.5, replace="1")
    upload(1.0, 2.0)
    delete(Upload.objects.earliest("pk"), who="somebody")
    assert (receipt := receipt_of(1.0, 2.0)).stored == 1, receipt
    assert sorted(filter(None, Point.objects.values_list("value", flat=True))) == [1.5, 2.0]
