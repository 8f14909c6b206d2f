"""The one function that makes a point of a run's processes, beside an independent reading of the rule."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.schema.points import Process, point_of
from runner.schema.statistics import severity

STATUSES = st.sampled_from(["ok", "crashed", "oom", "cannot_tell", "not_run"])


@st.composite
def runs(draw: st.DrawFn) -> list[Process]:
    """Compilations × repeats as `--compilations` and `--repeats` make them, some of which failed."""
    processes = []
    for repeat in range(draw(st.integers(1, 8))):
        status = draw(STATUSES)
        value = draw(st.floats(0.1, 100)) if status in {"ok", "cannot_tell"} else None
        compilation = draw(st.none() | st.integers(0, 3))
        variant = draw(st.none() | st.sampled_from(["a", "b"]))
        processes.append(Process(repeat, compilation, value, 0.01, 1, status, variant=variant))
    return processes


@given(runs())
def test_the_value_is_the_median_over_compilations_of_each_ones_median(processes: list[Process]) -> None:
    keys = {(each.compilation, each.repeat if each.compilation is None else None) for each in processes}
    medians = []
    for compilation, repeat in keys:
        own = [
            each.value
            for each in processes
            if each.value is not None
            and each.compilation == compilation
            and (compilation is not None or each.repeat == repeat)
        ]
        medians += [statistics.median(own)] if own else []
    point = point_of(processes)
    assert point.compilations == len(keys)
    assert (point.processes, point.samples) == (len(processes), len(processes))
    if 2 * len(medians) >= len(keys) and medians:
        assert point.value == pytest.approx(statistics.median(medians))
    else:
        assert point.value is None
    assert point.status == max((each.status for each in processes), key=severity)


def test_three_compilations_of_which_one_ran_three_times_count_as_three() -> None:
    """Five processes as `--compilations 3 --repeats 3` makes them: compilation 0 has repeats 0, 3 and 4."""
    numbers = [(0, 0, 1.0), (1, 1, 2.0), (2, 2, 2.0), (3, 0, 1.0), (4, 0, 1.0)]
    point = point_of([Process(repeat, own, value, None, 1, "ok") for repeat, own, value in numbers])
    assert (point.value, point.values, point.compilations) == (2.0, [1.0, 2.0, 2.0], 3)
    assert point.counts == [3, 1, 1]


def test_a_point_needs_half_of_its_compilations_and_has_the_status_of_the_worst() -> None:
    def run_of(*values: float | None) -> list[Process]:
        return [
            Process(number, number, value, None, 1, "oom" if value is None else "ok", note=f"note {number}")
            for number, value in enumerate(values)
        ]

    half = point_of(run_of(1.0, None))
    assert (half.value, half.values, half.status) == (1.0, [1.0, None], "oom")
    assert "note 1" in str(half.note)
    assert "note 0" not in str(half.note)
    assert point_of(run_of(1.0, None, None)).value is None


def test_the_spread_is_over_compilations_where_there_are_several() -> None:
    within = [Process(number, 0, 1.0, spread, 9, "ok") for number, spread in enumerate((0.1, 0.2, 0.3))]
    assert point_of(within).spread == 0.2
    over = [Process(number, number, value, 0.9, 9, "ok") for number, value in enumerate((1.0, 1.1, 1.2))]
    assert point_of(over).spread == pytest.approx(0.1 * 1.4826 / 1.1)


def test_a_single_process_is_its_point() -> None:
    only = Process(2, None, 3.0, 0.1, 5, "ok", "code", "note", 9.0, "a100", "variant")
    point = point_of([only])
    assert point.values is None
    assert point.variants == ["variant"]
    assert (point.value, point.spread, point.samples, point.target, point.target_arch) == (
        3.0,
        0.1,
        5,
        9.0,
        "a100",
    )
    assert point_of([only._replace(variant=None)]).variants is None


def test_a_point_of_several_has_an_entry_for_each_compilation() -> None:
    several = [
        Process(0, 0, 1.0, 0.1, 5, "ok", variant="a"),
        Process(1, 1, 1.2, 0.3, 4, "oom", "code", None, 9.0, "a100", None),
        Process(2, 1, None, None, 0, "ok", target=None),
    ]
    point = point_of(several)
    assert (point.values, point.counts, point.variants) == ([1.0, 1.2], [5, 4], ["a", None])
    assert (point.status, point.code, point.target, point.target_arch) == ("oom", "code", 9.0, "a100")
    assert point.spread == pytest.approx(0.1 * 1.4826 / 1.1)  # of two compilations
    plain = point_of([each._replace(variant=None, target=None) for each in several])
    assert (plain.variants, plain.target) == (None, None)
    repeats = point_of([Process(number, 3, 1.0 + number, 0.1, 2, "ok") for number in range(2)])
    assert (repeats.values, repeats.counts, repeats.compilations, repeats.value) == (None, None, 1, 1.5)


@pytest.mark.parametrize(
    ("values", "notes", "expected"),
    [
        ((1.0, 1.0), ("same", "same"), "same"),
        ((1.0, 1.0), (None, None), None),
        ((None, None), ("a", "b"), "a; b"),
        ((1.0, None), (None, None), "1 of 2 processes gave no number"),
        ((1.0, 1.0, None, None), ("a", None, "b", None), "2 of 4 processes gave no number; a; b"),
        ((1.0,) * 3, ("a", "b", "c"), "a; b; c"),
        ((1.0,) * 5, tuple("abcde"), "a; b; c; and 2 more like these"),
    ],
)
def test_notes_of_the_worst_processes_are_joined(
    values: tuple[float | None, ...], notes: tuple[str | None, ...], expected: str | None
) -> None:
    both = enumerate(zip(values, notes, strict=True))
    assert (
        point_of([Process(n, n, value, None, 1, "ok", note=note) for n, (value, note) in both]).note
        == expected
    )
