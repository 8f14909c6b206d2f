"""Corrections: `replace=1` supersedes values of the same run."""

from __future__ import annotations

import pytest

from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.models import Audit, Measurement, Point, Run
from runner.formats.parameters import Parameters
from tests.support.records import as_lines, v3_record

pytestmark = pytest.mark.django_db


def upload(*values: float, replace: str = "", run_id: str = "night-1") -> list[str]:
    records = [v3_record(case=f"case {number}", values=[value]) for number, value in enumerate(values)]
    receipt = ingest(as_lines(*records), Parameters(run_id=run_id, replace=replace))
    return receipt.warnings


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


def test_without_replace_a_stored_value_stays() -> None:
    upload(1.0, 2.0)
    upload(1.5, 2.0)
    assert sorted(filter(None, Point.objects.values_list("value", flat=True))) == [1.0, 2.0]
    assert not Audit.objects.filter(action="upload.replace").exists()


def test_a_correction_of_no_stored_run_says_so() -> None:
    upload(1.0)
    assert upload(1.5, replace="1", run_id="night-2")
    assert sorted(filter(None, Point.objects.values_list("value", flat=True))) == [1.0, 1.5]
