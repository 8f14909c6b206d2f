"""What was compiled arrives with its measurements, comes back as it was said, and goes with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hud.corrections.deletion import delete
from hud.corrections.renaming import rename
from hud.ingest import BadUpload, ingest
from hud.models import (
    BinaryList,
    Compilation,
    Experiment,
    Kernel,
    Measurement,
    Point,
    Run,
    Upload,
    kernels_of,
)
from runner.formats.parameters import Parameters
from runner.schema import compilations as schema
from runner.schema.compilations import MOST_LINES, Compiled, Note, digest
from tests.ingest.test_export import empty, exported
from tests.support.records import as_lines, as_list, compiled_record, v3_record

pytestmark = pytest.mark.django_db


def kernel(
    name: str, time_us: float | None = 12.5, config: str = "XBLOCK=1024 num_warps=4", **more: Any
) -> Any:
    choice = digest(name, config)
    given: dict[str, Any] = {"kind": "pointwise", "origins": ("aten.add", "aten.mul"), "bytes": 2**33, **more}
    return schema.Kernel(digest(name), choice, digest(choice), name, config=config, time_us=time_us, **given)


MM = kernel(
    "triton_tem_fused_mm_1",
    86.233,
    kind="template",
    flops=2**40,
    candidates=21,
    ranked=(("BLOCK_M=64", 86.1), ("aten", 90.5)),
    default="aten",
    calls=3.0,
)
FULL = Compiled(
    (
        kernel("triton_poi_fused_add_0", registers=40, spills=0, skipped=(("XBLOCK=8", 64),)),
        MM,
        kernel("convolution", None, kind="library", config="", bytes=None),
    ),
    busy_us=98.7,
    gaps_us=0.5,
    overlap_us=0.0,
    graph_breaks=(Note("Unsupported: é builtin print", "model.py:12", 2),),
    recompiles=(Note("L['x'].size()[0] == 8"),),
    cudagraph_skips=(Note("mutated inputs", "model.py:3"),),
    phases_s={"inductor_compile": 1.25},
    caches={"fxgraph": (1, 2)},
    blind={"choices": "AttributeError: 'CachingAutotuner' object has no attribute 'launchers'"},
)
OTHER = Compiled((kernel("triton_poi_fused_add_0", 13.0, "XBLOCK=512 num_warps=8"), MM), busy_us=99.2)


def run_of(*compilations: Compiled | None, **over: Any) -> bytes:
    """The lines of a run with these compilations, each with a latency beside."""
    return as_lines(
        *(
            record
            for number, one in enumerate(compilations)
            for record in (
                compiled_record(None, number, metric="device_latency_ms", values=[1.0 + number], **over),
                compiled_record(one, number, **over),
            )
        )
    )


def stored() -> list[tuple[int | None, str, Compiled]]:
    rows = list(Compilation.objects.order_by("run", "experiment", "repeat"))
    kernels = kernels_of(rows)
    return [(row.number, row.variant, row.compiled(kernels)) for row in rows]


def test_compilations_are_stored_as_they_were_said_and_exported_again() -> None:
    receipt = ingest(run_of(FULL, OTHER, FULL), Parameters())
    assert (receipt.stored, receipt.skipped, receipt.warnings) == (6, [], [])
    said = [(0, FULL.variant(), FULL), (1, OTHER.variant(), OTHER), (2, FULL.variant(), FULL)]
    assert stored() == said
    assert Kernel.objects.count() == 4, "each description once"
    rows = Measurement.objects.order_by("series", "repeat").values_list("repeat", "compilation")
    assert list(rows) == [(0, 0), (1, 1), (2, 2)] * 2
    body = exported()
    assert ingest(body, Parameters()).stored == 0
    assert stored() == said
    empty()
    assert not Compilation.objects.exists()
    assert ingest(body, Parameters()).stored == 6
    assert stored() == said


def _of_compilation(number: Any, value: float, **over: Any) -> dict[str, Any]:
    record = v3_record(values=[value], **over)
    record["metric"]["extra_info"] = {schema.COMPILATION: number}
    return record


@pytest.mark.parametrize(
    "times", [(None, None, None), (0, 0, 0), (0, 60, 120), (50, 7, 300)], ids=["none", "same", "later", "any"]
)
@pytest.mark.parametrize(
    "given", [{}, {"run_id": "r"}, {"commit": "abc1234"}], ids=["plain", "run", "commit"]
)
def test_records_that_name_only_their_compilation_are_several(
    times: tuple[int | None, ...], given: dict[str, str]
) -> None:
    said = [
        _of_compilation(number, value, case=case, timestamp=None if at is None else 1_700_000_000 + at)
        for case in ("a", "b")
        for number, (value, at) in enumerate(zip((1.0, 5.0, 2.0), times, strict=True))
    ]
    receipt = ingest(as_lines(*said), Parameters(**given))
    assert (receipt.stored, receipt.skipped, len(receipt.run_ids)) == (6, [], 1)
    points = Point.objects.values_list("value", "values", "compilations", "processes")
    assert list(points) == [(2.0, [1.0, 5.0, 2.0], 3, 3)] * 2
    again = ingest(as_lines(*said), Parameters(**given))
    assert (again.stored, again.duplicates) == (0, 6)
    assert Measurement.objects.count() == 6
    body = exported()
    empty()
    assert ingest(body, Parameters()).stored == 6
    assert list(points.all()) == [(2.0, [1.0, 5.0, 2.0], 3, 3)] * 2


def test_the_compilations_of_a_run_may_come_apart() -> None:
    first, second = (as_lines(_of_compilation(number, 1.0 + number)) for number in (0, 1))
    given = Parameters(run_id="r")
    assert [ingest(body, given).stored for body in (first, second, first + second)] == [1, 1, 0]
    point = Point.objects.get()
    assert (point.value, point.compilations) == (1.5, 2)


def test_processes_of_one_compilation_are_told_apart_by_their_process() -> None:
    said = [
        _of_compilation(number, value, runners=[{"name": "h", "extra_info": {"process": process}}])
        for process, (number, value) in enumerate([(0, 1.0), (1, 10.0), (0, 3.0)])
    ]
    assert ingest(as_lines(*said), Parameters()).stored == 3
    point = Point.objects.get()
    assert (point.value, point.values, point.processes) == (6.0, [2.0, 10.0], 3)


@pytest.mark.parametrize("number", [-1, 1.5, 1.0, "1", True, [1], 2**15])
def test_what_is_no_number_of_a_compilation_is_refused(number: Any) -> None:
    with pytest.raises(BadUpload) as refused:
        ingest(as_lines(_of_compilation(0, 1.0), _of_compilation(number, 2.0)), Parameters())
    assert [(fault.pointer, fault.line) for fault in refused.value.faults] == [
        ("/metric/extra_info/compilation", 2)
    ]
    assert not Measurement.objects.exists()


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        {"kernels": 5},
        {"kernels": [{"slot": "ab"}]},
        {"kernels": [{**kernel("k").__dict__, "slot": "NOT 16 HEX DIGITS"}]},
        {"kernels": [{**kernel("k").__dict__, "kind": "unheard of"}]},
        {"kernels": [{**kernel("k").__dict__, "time_us": -1.0}]},
        {"kernels": [{**kernel("k").__dict__, "time_us": 1e-300}]},
        {"kernels": [{**kernel("k").__dict__, "calls": 1e300}]},
        {"kernels": [{**kernel("k").__dict__, "calls": 1e-300}]},
        {"kernels": [{**kernel("k").__dict__, "flops": 2**63}]},
        {"kernels": [{**kernel("k").__dict__, "candidates": 2**40}]},
        {"kernels": [kernel("k").__dict__] * 2001},
        {"graph_breaks": [{"reason": "x", "count": -1}]},
        {"caches": {"fxgraph": [1]}},
        {"busy_us": "long"},
        {"busy_us": -1.0},
        {"gaps_us": -1.0},
        {"overlap_us": 1e300},
        {"phases_s": {"backend_compile": -1.0}},
    ],
)
def test_what_cannot_be_stored_of_a_compilation_costs_no_measurement(wrong: Any) -> None:
    record = compiled_record(None, 1)
    record["metric"]["extra_info"]["compiled"] = wrong
    receipt = ingest(as_list(record, compiled_record(FULL, 2)), Parameters())
    assert (receipt.stored, receipt.skipped) == (2, [])
    (warning,) = receipt.warnings
    assert warning.startswith("/0: ")
    assert [number for number, *_rest in stored()] == [2]


def test_long_texts_and_lists_are_cut_and_invisible_characters_left_out() -> None:
    long = kernel("x" * 5000, config="\u202eX=1 " * 500, origins=("aten.add",) * 900)
    notes = tuple(Note("why " * 1000, "a.py:1") for _ in range(900))
    ingest(as_list(compiled_record(Compiled((long,), graph_breaks=notes))), Parameters())
    ((_number, variant, found),) = stored()
    (kept,) = found.kernels
    assert variant == Compiled((long,)).variant()
    assert (len(kept.name), len(kept.config), len(kept.origins)) == (300, 500, 200)
    assert "\u202e" not in kept.config
    assert (len(found.graph_breaks), len(found.graph_breaks[0].reason)) == (200, 500)


def test_compilations_share_a_list_of_binaries_until_the_compiler_is_another() -> None:
    names = [f"kernel_{place}" for place in range(6)]
    old = [replace(kernel(name), binary=digest(name, "old")) for name in names]
    new = [replace(kernel(name), binary=digest(name, "new")) for name in names]
    for kernels in (old[:5], old, [*old[:4], *new[4:]], new, [*reversed(new), new[0]], old):
        ingest(run_of(Compiled(tuple(kernels)), timestamp=1.7e9 + len(stored())), Parameters())
    rows = [binaries for _number, _variant, one in stored() for binaries in [[k.binary for k in one.kernels]]]
    assert [len(binaries) for binaries in rows] == [5, 6, 6, 6, 7, 6]
    assert rows[3:] == [[k.binary for k in one] for one in (new, [*reversed(new), new[0]], old)]
    assert rows[:3] == [[k.binary for k in one] for one in (old[:5], old, [*old[:4], *new[4:]])]
    lists = list(Compilation.objects.order_by("run").values_list("binary_list", flat=True))
    assert [lists.index(one) for one in lists] == [0, 0, 0, 3, 3, 5]
    assert BinaryList.objects.order_by("pk").values_list("binaries__len", flat=True)[0] == 8


def test_compilations_share_a_list_of_lines_while_kernels_and_lines_are_the_same() -> None:
    lines = [(f"gpt2.py:{place} Block.forward", "gpt2.py:1 f") for place in range(6)]
    same = [replace(kernel(f"kernel_{place}"), lines=text) for place, text in enumerate(lines)]
    moved = [replace(one, lines=("gpt2.py:99 Block.forward",)) for one in same]
    unknown = [replace(one, lines=()) for one in same]
    chosen = [replace(one, config="XBLOCK=2", choice=digest(one.choice)) for one in same]
    kept = [same, chosen, moved, unknown, [*unknown[:5], same[5]], same]
    for kernels in kept:
        ingest(run_of(Compiled(tuple(kernels)), timestamp=1.7e9 + len(stored())), Parameters())
    found = [[one.lines for one in compiled.kernels] for _number, _variant, compiled in stored()]
    assert found == [[one.lines for one in kernels] for kernels in kept]
    lists = list(Compilation.objects.order_by("run").values_list("line_list", flat=True))
    assert [lists.index(one) for one in lists] == [0, 0, 2, 3, 4, 0]
    assert lists[3] is None
    long = replace(same[0], lines=("a  b " + "x" * 900,) * 20)
    ingest(run_of(Compiled((long,)), timestamp=1.75e9), Parameters())
    (cut,) = stored()[-1][2].kernels
    assert [len(line) for line in cut.lines] == [300] * MOST_LINES


def test_a_measurement_that_is_left_out_brings_no_compilation() -> None:
    ingest(as_list(compiled_record(None, 0, values=[7.0], timestamp=1.7e9)), Parameters(run_id="1"))
    other = compiled_record(FULL, 0, values=[9.0], timestamp=1.7e9)
    receipt = ingest(as_list(other), Parameters(run_id="1", partial="1"))
    assert [entry["reason"] for entry in receipt.skipped]
    assert not Compilation.objects.exists()


def test_compilations_go_with_their_run_or_upload() -> None:
    kept = ingest(run_of(FULL, case="gemv"), Parameters()).run_ids[0]
    run = Run.objects.get(pk=ingest(run_of(FULL, OTHER), Parameters()).run_ids[0])
    assert delete(run, who="ada", dry_run=True).compilations == 2
    assert Compilation.objects.count() == 3
    assert delete(run, who="ada").compilations == 2
    assert Compilation.objects.get().run_id == kept
    upload = Upload.objects.get()
    assert delete(upload, who="ada").compilations == 1
    assert not Compilation.objects.exists()
    assert not Experiment.objects.exists()


def test_compilations_move_to_the_experiment_that_theirs_is_merged_with() -> None:
    ingest(run_of(FULL, case="layer_nrom"), Parameters())
    ingest(run_of(OTHER), Parameters())
    rename(kind="case", old="layer_nrom", new="layer_norm", who="ada")
    assert [found for _number, _variant, found in stored()] == [FULL, OTHER]
    assert set(Compilation.objects.values_list("experiment__case", flat=True)) == {"layer_norm"}
