"""Units: conversions keep the meaning of a number, and spellings."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.schema.metrics import METRICS, canonical_unit, convert

# Size of each unit in those of one dimension, independent of the module's table.
SIZES = [
    {"ns": Fraction(1, 10**9), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": 1, "min": 60},
    {"B": 1, "kB": 1000, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    {"B/s": 1, "kB/s": 1000, "MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12, "GiB/s": 2**30},
    {"FLOP/s": 1, "GFLOP/s": 10**9, "TFLOP/s": 10**12, "PFLOP/s": 10**15},
    {"%": Fraction(1, 100), "ratio": 1},
    {"x": 1, "ratio": 1},
]
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)


@given(NUMBERS, st.data())
def test_a_converted_number_is_the_same_quantity(value: float, data: st.DataObject) -> None:
    sizes: dict[str, Any] = data.draw(st.sampled_from(SIZES))
    unit, to = (data.draw(st.sampled_from(sorted(sizes))) for _ in range(2))
    try:
        found = convert(value, unit, to)
    except ValueError:
        assert not 2.3e-308 < abs(Fraction(value) * sizes[unit] / sizes[to]) < 1.7e308
        return
    exact = Fraction(value) * sizes[unit] / sizes[to]
    assert abs(Fraction(found) - exact) <= abs(exact) / 2**51


@given(st.integers(-(10**15), 10**15), st.integers(0, 9))
def test_what_is_short_in_decimals_stays_short(digits: int, places: int) -> None:
    assert convert(digits / 10**places, "s", "ms") == float(f"{digits}e{3 - places}")
    assert convert(digits / 10**places, "µs", "ms") == float(f"{digits}e{-3 - places}")


@pytest.mark.parametrize(
    ("unit", "to"), [("s", "B"), ("B", "B/s"), ("%", "x"), ("ms", "count"), ("", "ms"), ("furlong", "s")]
)
def test_other_things_are_not_converted(unit: str, to: str) -> None:
    with pytest.raises(ValueError, match="cannot be converted"):
        convert(1.0, unit, to)


@pytest.mark.parametrize(
    ("said", "unit"),
    [
        *((word, "µs") for word in ("us", "µs", "\u03bcs", "usec", "Microseconds")),
        *((word, "s") for word in ("s", "sec", "seconds", "Seconds")),
        ("milliseconds", "ms"), ("KB", "kB"), ("KiB", "KiB"), ("mb", "MB"), ("Mb", "Mb"), ("Gbps", "Gbps"),
        ("GBps", "GB/s"), ("TFLOPS", "TFLOP/s"), ("percent", "%"), ("tokens/s", "token/s"), ("odd", "odd"),
    ],
)  # fmt: skip
def test_spellings(said: str, unit: str) -> None:
    assert canonical_unit(said) == unit


def test_the_registry_spells_its_units_so() -> None:
    assert all(canonical_unit(info.unit) == info.unit for info in METRICS.values())
