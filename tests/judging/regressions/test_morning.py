"""Find a slow model and a broken graph the same night, with their causes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hud.ingest import ingest
from hud.judging.judge import process_pending
from hud.judging.regressions import read
from hud.models import IMPORT, Regression, Stream
from runner.formats.parameters import Parameters
from runner.schema.compilations import Compiled, Note
from tests.support.records import as_lines, compiled_record, v3_record

pytestmark = pytest.mark.django_db
START = datetime(2026, 9, 1, 3, tzinfo=UTC)


def upload(day: int, *records: object) -> None:
    ingest(as_lines(*records), Parameters(driver="580.1", run_time=(START + timedelta(days=day)).isoformat()))
    while process_pending():
        pass


def test_one_of_sixty_models_that_is_twice_as_slow_leads_the_list_the_same_night() -> None:
    for day in range(8):
        records = []
        for model in range(60):
            noise = 1 + 0.01 * ((3 * model + 5 * day) % 7 - 3) / 3
            value = 5.0 * noise * (2.0 if (day, model) == (7, 17) else 1.0)
            records.append(v3_record("compiled_latency_ms", [value], case=f"model_{model:02}"))
        upload(day, *records)
    causes = read.waiting(read.Scope(Stream.objects.get(name=IMPORT)))
    assert [cause.first.series.experiment.case for cause in causes] == ["model_17"]
    assert causes[0].first.change == pytest.approx(1.0, abs=0.05)


def test_a_new_graph_break_is_told_the_same_night_with_its_reason() -> None:
    note = Note("Tensor.item() on a traced value", "model.py:12")
    for day in range(6):
        notes = (note,) if day == 5 else ()
        upload(
            day,
            compiled_record(Compiled(graph_breaks=notes), 0),
            compiled_record(None, 0, metric="graph_breaks", values=[float(len(notes))]),
        )
    one = Regression.objects.get(series__metric__name="graph_breaks")
    assert one.state == "open"
    assert note.reason in one.cause
    assert note.place in one.cause
