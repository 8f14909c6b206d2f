"""Attribution: what changed between two sides, kernel by kernel."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.judging.kernels.attribution import attribute, note_changes, phase_changes
from runner.schema.compilations import Compiled, Kernel, Note
from tests.support.compilations import compiled, kernel, mobilenet

NAMES = ("mm", "add", "relu", "layer_norm")
CONFIGS = ("XBLOCK=64", "XBLOCK=128")

KERNELS = st.builds(
    kernel,
    st.sampled_from(NAMES),
    st.floats(1.0, 1000.0),
    config=st.sampled_from(CONFIGS),
    code=st.sampled_from(("", "new")),
    calls=st.integers(1, 5).map(float),
)
SIDES = st.lists(
    st.lists(KERNELS, max_size=6, unique_by=lambda one: one.slot).map(lambda found: compiled(*found)),
    min_size=1,
    max_size=4,
)


def causes(base: list[Kernel], head: list[Kernel], **options: bool) -> dict[str, str]:
    found = attribute([compiled(*base)], [compiled(*head)], **options)
    return {one.kernel.name: one.cause for one in found.changes}


def test_each_kernel_has_the_cause_that_its_three_keys_tell() -> None:
    base = [kernel("same"), kernel("slow"), kernel("fast"), kernel("drawn"), kernel("code"), kernel("gone")]
    head = [
        kernel("same", 10.2),  # within 0.3 µs a call
        kernel("slow", 10.4),
        kernel("fast", 9.6),
        kernel("drawn", 14.0, config="XBLOCK=1"),
        kernel("code", 10.0, code="new"),
        kernel("new"),
    ]
    assert causes(base, head) == {
        "same": "unchanged",
        "slow": "slower",
        "fast": "faster",
        "drawn": "choice",
        "code": "code",
        "gone": "vanished",
        "new": "appeared",
    }
    found = attribute([compiled(*base)], [compiled(*head)])
    assert {one.kernel.name for one in found.changes if one.beyond_noise} == {
        "slow",
        "fast",
        "drawn",
        "gone",
        "new",
    }
    assert found.by_cause["choice"] == pytest.approx(4.0)


def test_work_that_fusion_moves_is_one_group_and_not_a_loss_and_a_gain() -> None:
    shared = ("aten.mm",)
    base = [
        kernel("mm_gelu", 30.0, origins=("aten.mm", "aten.gelu")),
        kernel("gone"),
        kernel("rest", origins=shared),
    ]
    head = [
        kernel("mm", 22.0, origins=("aten.mm",)),
        kernel("gelu", 11.0, origins=("aten.gelu",)),
        kernel("rest", origins=shared),
    ]
    found = attribute([compiled(*base)], [compiled(*head)])
    assert {one.kernel.name: one.group for one in found.changes if one.cause == "moved"} == {
        "mm_gelu": 1,
        "mm": 1,
        "gelu": 1,
    }
    assert found.groups == {1: (1, 2)}
    assert found.by_cause == {"moved": pytest.approx(3.0), "vanished": pytest.approx(-10.0), "unchanged": 0.0}
    assert found.adds_up


def test_gaps_and_overhead_of_calls_stand_apart_from_kernels() -> None:
    kernels = [kernel("mm", 100.0), kernel("add", 50.0)]
    graphs, none = compiled(*kernels, gaps_us=3.0), compiled(*kernels, gaps_us=90.0)
    found = attribute([graphs], [none], base_call_us=160.0, head_call_us=300.0)
    assert found.busy_change_us == 0.0
    assert found.gaps_change_us == pytest.approx(87.0)
    assert found.overhead_change_us == pytest.approx(53.0)
    assert {one.cause for one in found.changes} == {"unchanged"}


def test_another_card_is_no_change_of_a_kernel() -> None:
    base = [kernel(f"k{place}", 100.0 + place) for place in range(12)]
    head = [replace(one, time_us=(one.time_us or 0) * 1.013) for one in base]
    head[3] = replace(head[3], time_us=150.0)
    found = attribute([compiled(*base)], [compiled(*head)], same_card=False)
    assert [one.kernel.name for one in found.changes if one.cause == "slower"] == ["k3"]
    assert found.card_ratio == pytest.approx(1.013)
    assert "slower" in causes(base, head).values()
    assert set(causes(base[:2], head[:2], same_card=False).values()) == {
        "unchanged"
    }  # too few tell the offset


def test_compilations_that_drew_several_choices_are_compared_at_equal_ones() -> None:
    """The code of both choices became 10 % slower, and the slow choice came more often."""
    fast, slow = kernel("mm", 100.0, config="A"), kernel("mm", 200.0, config="B")
    base = [compiled(fast), compiled(fast), compiled(slow)]
    newer = [
        replace(one, time_us=(one.time_us or 0) * 1.1, binary=f"{one.binary[:-1]}!") for one in (fast, slow)
    ]
    head = [compiled(newer[0]), compiled(newer[1]), compiled(newer[1])]
    found = attribute(base, head)
    assert found.by_cause["code"] == pytest.approx((10.0 + 20.0) / 3)
    assert found.by_cause["choice"] == pytest.approx((220.0 - 100.0) / 3)
    assert found.busy_change_us == pytest.approx(550.0 / 3 - 400.0 / 3)
    assert found.adds_up


def test_kernels_without_times_still_tell_what_is_new() -> None:
    base, head = compiled(kernel("mm", None)), compiled(kernel("mm", None, code="new"), kernel("add", None))
    found = attribute([replace(base, busy_us=None)], [replace(head, busy_us=None)])
    assert {one.kernel.name: one.cause for one in found.changes} == {"mm": "code", "add": "appeared"}
    assert found.busy_change_us is None
    assert found.adds_up is None


@settings(max_examples=200, deadline=None)
@given(SIDES, SIDES)
def test_the_causes_add_up_to_the_change_of_the_kernels(base: list[Compiled], head: list[Compiled]) -> None:
    found = attribute(base, head)
    kernels = (found.head.kernels_us or 0.0) - (found.base.kernels_us or 0.0)
    assert sum(found.by_cause.values()) == pytest.approx(kernels, abs=1e-6)
    back = attribute(head, base)
    assert sum(back.by_cause.values()) == pytest.approx(-kernels, abs=1e-6)
    same = attribute(base, base)
    assert {one.cause for one in same.changes} <= {"unchanged"}
    assert not any(one.beyond_noise for one in same.changes)


def test_in_a_measured_model_other_choices_explain_the_difference() -> None:
    """Other choices explain 90 to 110 % of each difference past 1 %, equal ones at most 0.3 % of it all."""
    for base, head in itertools.combinations(mobilenet(), 2):
        found = attribute([base], [head])
        assert found.adds_up
        assert base.busy_us
        assert found.busy_change_us is not None
        alike = sum(change for cause, change in found.by_cause.items() if cause != "choice")
        assert abs(alike) <= 0.003 * base.busy_us
        if abs(found.busy_change_us) > 0.01 * base.busy_us:
            share = found.share(found.by_cause["choice"])
            assert share is not None
            assert 0.9 <= share <= 1.1
        flipped = [one for one in found.changes if one.cause == "choice"]
        assert 6 <= len(flipped) <= 12


def test_reasons_are_compared_as_means_over_compilations() -> None:
    item, call = Note("Tensor.item()", "model.py:12", 2), Note("call to print", "model.py:30")
    base = [Compiled(graph_breaks=(item,)), Compiled(graph_breaks=(item, call))]
    head = [Compiled(graph_breaks=(call,), recompiles=(Note("size mismatch at index 0"),))]
    found = {(one.kind, one.reason): (one.base, one.head) for one in note_changes(base, head)}
    assert found == {
        ("graph break", "Tensor.item()"): (2.0, 0.0),
        ("recompile", "size mismatch at index 0"): (0.0, 1.0),
        ("graph break", "call to print"): (0.5, 1.0),
    }
    assert not note_changes(base, base)


def test_phases_nest_and_their_parts_do_not() -> None:
    phases_s = {
        "_compile.compile_inner": 8.0,
        "bytecode_tracing": 1.0,
        "create_aot_dispatcher_function": 5.0,
        "compile_fx.<locals>.fw_compiler_base": 4.0,
        "GraphLowering.codegen": 2.0,
    }
    slower = {**phases_s, "GraphLowering.codegen": 5.0}
    found = phase_changes([Compiled(phases_s=phases_s)], [Compiled(phases_s=slower)], totals_s=(10.0, 13.0))
    assert {one.name: (one.base_s, one.change_s) for one in found} == {
        "Dynamo tracing": (1.0, 0.0),
        "AOT autograd": (1.0, 0.0),
        "Code generation": (2.0, 3.0),
        "Other": (6.0, 0.0),
    }
