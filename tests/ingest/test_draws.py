"""Processes that were pinned to a draw of the autotuner: stored as such, and in no point."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hud.ingest import deliveries, ingest
from hud.judging import compilations as counting
from hud.judging.compare import ab_runs
from hud.models import Compilation, Kernel, Measurement, Run, SidePoint
from hud.points import write
from runner.formats.parameters import Parameters
from runner.schema.compilations import Compiled
from runner.schema.draws import is_candidate, pinned_repeat
from runner.schema.suite import TaskSpec
from tests.ingest.test_compilations import kernel
from tests.ingest.test_export import empty, exported
from tests.support.claims import attach, claim, request
from tests.support.records import as_lines, as_list, compiled_record, task_record

pytestmark = pytest.mark.django_db

OFFERED = ("XBLOCK=1024 num_warps=4", "XBLOCK=512 num_warps=8")
POINTWISE = kernel("triton_poi_0", 2500.0, offered=OFFERED)
FOUND = Compiled((POINTWISE, kernel("mm", 2500.0, kind="library", config="")))
LATENCY = {("base", None): 1.0, ("new", None): 1.1, ("base", "base"): 1.01, ("new", "base"): 1.05}
LATENCY |= {("base", "new"): 1.02, ("new", "new"): 1.06}


def pair(number: int, side: str, **more: Any) -> dict[str, Any]:
    said = {"number": number, "side": side, "base": "stable", "new": "nightly", **more}
    return {"name": "h1", "type": "NVIDIA H200", "extra_info": {"driver": "580.159.04", "pair": said}}


def records(number: int) -> list[dict[str, Any]]:
    """Both free processes of a pair, both sides at each draw, and one of these once more."""
    found = []
    for (side, owner), value in LATENCY.items():
        places = [{}] if owner is None else [{"draw": owner, "round": 0}]
        if (side, owner) == ("new", "new"):
            places.append({"draw": owner, "round": 0, "repeated": True})
        for place in places:
            runners = [pair(number, side, **place)]
            unpinned = (FOUND.kernels[1].slot,) if owner else ()
            latency = [value + number]
            found.append(
                compiled_record(None, number, metric="device_latency_ms", values=latency, runners=runners)
            )
            compiled = replace(FOUND, unpinned=unpinned)
            found.append(compiled_record(compiled, number, runners=runners))
    return found


def places() -> list[tuple[int, int, int | None]]:
    rows = Measurement.objects.filter(series__metric__name="device_latency_ms").order_by("repeat", "side")
    return list(rows.values_list("repeat", "side", "draw"))


def test_an_uploaded_comparison_keeps_its_draws_and_is_exported_with_them() -> None:
    receipt = ingest(as_lines(*records(0), *records(1)), Parameters())
    assert (receipt.stored, receipt.skipped, receipt.warnings) == (28, [], [])
    stored = places()
    free = [(number, side, None) for number in (0, 1) for side in (0, 1)]
    pinned = [
        (pinned_repeat(draw, 0, repeated=repeated), side, draw)
        for draw in range(4)
        for repeated, side in ((False, 0), (False, 1), (True, 1))
        if not repeated or draw % 2
    ]
    assert stored == [*free, *pinned]
    of_draws = Compilation.objects.order_by("repeat", "side").values_list("repeat", "side", "draw")
    assert list(of_draws) == stored
    left = [(row.draw is None, row.unpinned) for row in Compilation.objects.all()]
    assert left.count((True, None)) == 4
    assert left.count((False, [FOUND.kernels[1].slot])) == 10
    compared = SidePoint.objects.filter(series__metric__name="device_latency_ms").order_by("side")
    assert [(point.processes, point.value) for point in compared] == [(2, 1.5), (2, pytest.approx(1.6))]
    run = Run.objects.get()
    lines = [line for line in ab_runs.read(run)[0] if line.metric.name == "device_latency_ms"]
    assert [(line.base, line.head) for line in lines] == [([1.0, 2.0], [1.1, 2.1])]
    body = exported()
    assert ingest(body, Parameters()).stored == 0
    empty()
    assert ingest(body, Parameters()).stored == 28
    assert places() == stored
    assert list(of_draws.all()) == stored


def test_a_process_at_a_candidate_is_stored_and_exported_as_such() -> None:
    places = [{}, {"draw": "base", "round": 0}, {"draw": "base", "round": 0, "candidate": 3}]
    runners = [[pair(1, side, **place)] for side in ("base", "new") for place in places]
    assert ingest(as_lines(*(compiled_record(FOUND, 1, runners=one) for one in runners)), Parameters()).stored
    stored = list(Compilation.objects.order_by("repeat", "side").values_list("repeat", "side", "draw"))
    assert [place for place in stored if is_candidate(place[0])] == [(5203, 0, 2), (5203, 1, 2)]
    body = exported()
    empty()
    ingest(body, Parameters())
    rows = Compilation.objects.order_by("repeat", "side").values_list("repeat", "side", "draw")
    assert list(rows) == stored


def test_choices_that_were_forced_count_for_no_history() -> None:
    ingest(as_lines(*records(0)), Parameters())
    Run.objects.update(state="succeeded")
    assert {row.uncounted == (row.draw is None) for row in Compilation.objects.all()} == {True}
    counting.process_pending()
    assert not Compilation.objects.filter(uncounted=True).exists()
    ratios = Measurement.objects.filter(series__metric__name="same_choice_ratio")
    assert not ratios.filter(repeat__gte=1000).exists()


@pytest.mark.parametrize("wrong", [{"draw": "left"}, {"draw": "new", "round": 99}])
def test_a_draw_that_no_comparison_has_is_refused(wrong: dict[str, Any]) -> None:
    record = compiled_record(None, metric="device_latency_ms", runners=[pair(0, "new", **wrong)])
    receipt = ingest(as_list(record, compiled_record(None, metric="speedup")), Parameters(partial="1"))
    assert receipt.stored == 1
    (entry,) = receipt.skipped
    assert entry["pointer"].endswith("/runners/0/extra_info/pair")


def test_a_host_delivers_the_draws_of_its_task_alone() -> None:
    accelerator = attach("host")
    options = {"epilogue_fusion": False}
    run = request(candidate_options=options, draws=3, repeats=2)
    assert [(task.repeat, task.caches) for task in run.tasks.order_by("position")] == [
        (number, "pinned") for number in range(3)
    ]
    task = claim(accelerator)
    assert task.token
    spec = TaskSpec.from_json(task.spec)

    def record(number: int, side: str, **place: Any) -> dict[str, Any]:
        return task_record(spec, runners=[pair(number, side, **place)])

    body = as_lines(
        record(0, "base"),
        record(0, "new", draw="base", round=1),
        record(1, "new", draw="base", round=0),  # of another pair than the task's
    )
    receipt = deliveries.take_results(uid=task.uid, token=task.token, host=accelerator.host, body=body)
    assert (receipt.stored, len(receipt.skipped)) == (2, 1)
    stored = Measurement.objects.filter(run=run).order_by("repeat")
    assert list(stored.values_list("repeat", "side", "draw")) == [
        (0, 0, None),
        (pinned_repeat(0, 1, repeated=False), 1, 0),
    ]


def test_what_could_be_chosen_is_stored_once_for_a_kernel() -> None:
    without = replace(FOUND.kernels[0], offered=())
    for number, one in enumerate((FOUND.kernels[0], without, FOUND.kernels[0])):
        ingest(as_list(compiled_record(Compiled((one,)), timestamp=1.7e9 + number)), Parameters())
    assert sorted(Kernel.objects.values_list("offered", flat=True)) == [[], list(OFFERED)]
    described = Kernel.objects.get(offered=[])
    assert described.digest.hex == "547e86b252169944dd9645fb7abe3f97", (
        "as before there were lists of candidates"
    )


def test_a_side_of_a_comparison_has_one_point_whatever_times_its_records_have() -> None:
    ingest(as_lines(*records(0), *records(1)), Parameters())
    timed = [json.loads(line) for line in exported().splitlines()]
    empty()
    for number, record in enumerate(timed):
        record["timestamp"] = 1.78e9 + number
    assert ingest(as_lines(*timed), Parameters()).stored == 28
    compared = SidePoint.objects.filter(series__metric__name="device_latency_ms").order_by("side")
    assert [(point.processes, point.value) for point in compared] == [(2, 1.5), (2, pytest.approx(1.6))]
    assert write.rebuild(dry_run=True)[1] == 0


def test_candidates_too_many_to_be_stored_are_unknown() -> None:
    """Two lists that differ only in what is cut off would look alike."""
    for number, offered in enumerate(([f"XBLOCK={place}" for place in range(201)], ["X" * 501])):
        one = replace(FOUND.kernels[0], offered=tuple(offered))
        ingest(as_list(compiled_record(Compiled((one,)), timestamp=1.7e9 + number)), Parameters())
    assert list(Kernel.objects.values_list("offered", flat=True)) == [[], []]
