"""What the dashboard computes of compilations when their run is complete."""

from __future__ import annotations

from typing import Any

import pytest

from hud.corrections.deletion import delete
from hud.ingest import ingest
from hud.judging import judge
from hud.judging.compilations import process_pending
from hud.models import Compilation, Measurement, Point, Run, State
from runner.formats.parameters import Parameters
from runner.schema.compilations import Compiled, Kernel, digest
from tests.judging.choices.test_choices import COMPILATIONS
from tests.support.records import as_lines, compiled_record

pytestmark = pytest.mark.django_db


def compiled(place: int, *, factor: float = 1.0) -> Compiled:
    """One of the four compilations of a model, with all kernels slower by a factor."""
    kernels = []
    for slot, config, time_us in COMPILATIONS[place % 4]:
        choice = digest(slot, config)
        kernels.append(
            Kernel(digest(slot), choice, digest(choice), slot, "pointwise", config, time_us=factor * time_us)
        )
    return Compiled(tuple(kernels))


def night(day: int, *places: int, factor: float = 1.0, **given: str) -> int:
    """Upload a run with these compilations; return it."""
    found = enumerate(places)
    records = [compiled_record(compiled(place, factor=factor), number) for number, place in found]
    parameters = Parameters(run_time=f"2026-10-{day + 1:02}T03:00:00Z", **given)
    return ingest(as_lines(*records), parameters).run_ids[0]


def values(run: int, metric: str) -> list[Any]:
    rows = Measurement.objects.filter(run=run, series__metric__name=metric).order_by("repeat")
    return list(rows.values_list("repeat", "compilation", "value"))


def test_each_compilation_has_its_same_choice_time_and_a_run_its_variants() -> None:
    first, second = night(0, 0, 1, 2, 3), night(1, 3, 0, 0)
    slower = night(2, 0, 2, 3, factor=1.03)
    branch = night(3, 1, factor=1.03, branch="slow")
    while process_pending():
        pass
    assert values(first, "same_choice_ratio") == []
    assert values(first, "kernel_variants") == [(0, None, 4.0)]
    assert values(second, "kernel_variants") == [(0, None, 2.0)]
    ratios = values(second, "same_choice_ratio")
    assert [row[:2] for row in ratios] == [(0, 0), (1, 1), (2, 2)]
    assert [row[2] for row in ratios] == pytest.approx([1, 1, 1], abs=0.01)
    assert [row[2] for row in values(slower, "same_choice_ratio")] == pytest.approx([1.03] * 3, abs=0.01)
    assert [row[2] for row in values(branch, "same_choice_ratio")] == pytest.approx([1.03], abs=0.01)
    assert values(branch, "kernel_variants") == []
    ((_repeat, _number, regret),) = values(slower, "autotune_regret")
    assert 0.05 < regret < 0.3
    stored = Point.objects.get(run=slower, series__metric__name="autotune_regret")
    assert (stored.samples, stored.note, stored.spread is not None) == (10, None, True)
    before = Measurement.objects.count()
    Compilation.objects.update(uncounted=True)
    process_pending()
    assert Measurement.objects.count() == before


def test_slower_code_is_judged_by_its_same_choice_time() -> None:
    for day in range(10):
        night(day, day, day + 1, day + 2)
    slower = night(10, 0, 1, 2, factor=1.2)
    while process_pending() or judge.process_pending():
        pass
    row = Point.objects.get(run=slower, series__metric__name="same_choice_ratio")
    assert row.verdict == "regressed"
    assert delete(Run.objects.get(pk=slower), who="ada").measurements == 3 + 3 + 2


def test_a_run_that_goes_on_waits() -> None:
    run = night(0, 0, 1)
    Run.objects.filter(pk=run).update(state=State.RUNNING, finished=None)
    assert process_pending() == 0
    Run.objects.filter(pk=run).update(state=State.CANCELLED, finished="2026-11-01T00:00:00Z")
    assert process_pending() == 1
    assert process_pending() == 0
    assert values(run, "kernel_variants") == [(0, None, 2.0)]
