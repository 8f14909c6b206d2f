"""Units of metrics: how they are spelled, and which numbers can be written in another one.

KB, MB and GB are powers of ten, KiB, MiB and GiB powers of two.
"""

from decimal import Decimal
from functools import lru_cache
from sys import float_info

_PREFIXES = ("", "k", "M", "G", "T", "P")
_BYTES = {f"{prefix}B": 1000**power for power, prefix in enumerate(_PREFIXES)} | {
    f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)
}
# By unit: what it measures, and how many of the smallest one it is. Not '%' and 'x': a speedup of 20 % is no
# factor of 0.2.
_UNITS: dict[str, tuple[str, int]] = {
    "ns": ("time", 1), "µs": ("time", 10**3), "ms": ("time", 10**6), "s": ("time", 10**9),
    "min": ("time", 60 * 10**9),
    "%": ("share", 1), "ratio": ("share", 100), "": ("share", 100),
    **{unit: ("bytes", size) for unit, size in _BYTES.items()},
    **{f"{unit}/s": ("bytes per time", size) for unit, size in _BYTES.items()},
    **{f"{prefix}FLOP/s": ("FLOP", 1000**power) for power, prefix in enumerate(_PREFIXES)},
}  # fmt: skip
_FACTORS = {"", "x", "ratio"}
# Other spellings, of which those of `_WORDS` may have capitals: Mb and Gbps are bits.
_SPELLINGS = {
    **{f"{prefix}FLOPS": f"{prefix}FLOP/s" for prefix in _PREFIXES},
    **{f"{prefix}FLOPs/s": f"{prefix}FLOP/s" for prefix in _PREFIXES},
    **{f"{prefix}Bps": f"{prefix}B/s" for prefix in _PREFIXES},
    "KB": "kB", "KB/s": "kB/s", "kb": "kB", "mb": "MB", "gb": "GB", "kib": "KiB", "mib": "MiB", "gib": "GiB",
    "μs": "µs",  # the Greek letter
}  # fmt: skip
_WORDS = {
    **dict.fromkeys(("nsec", "nanosecond", "nanoseconds"), "ns"),
    **dict.fromkeys(("us", "usec", "microsecond", "microseconds"), "µs"),
    **dict.fromkeys(("msec", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("mins", "minute", "minutes"), "min"),
    **dict.fromkeys(("byte", "bytes"), "B"),
    **dict.fromkeys(("percent", "pct"), "%"),
    **dict.fromkeys(("tokens/s", "tok/s", "tokens/sec", "token/sec", "tokens/second"), "token/s"),
    **dict.fromkeys(("requests/s", "req/s", "requests/sec", "requests/second"), "request/s"),
}


def canonical(unit: str) -> str:
    """Return the spelling under which a unit is stored; an unknown one stays as it is."""
    return _SPELLINGS.get(unit) or _WORDS.get(unit.lower(), unit)


def convert(value: float, unit: str, to: str) -> float:
    """Return a number in another unit, computed in decimals: 1.005 s are 1005 ms. Both units are canonical.
    Raise ValueError for those of different things."""
    numerator, denominator = _ratio(unit, to)
    if numerator == denominator:
        return value
    number = float(Decimal(repr(value)) * numerator / denominator)
    if value and not float_info.min <= abs(number) <= float_info.max:
        raise ValueError(f"{value:g} {unit} is too small or too large to be converted to {to}")
    return number


@lru_cache(maxsize=1024)
def _ratio(unit: str, to: str) -> tuple[int, int]:
    if unit == to or {unit, to} <= _FACTORS:
        return 1, 1
    (kind, numerator), (other, denominator) = _UNITS.get(unit, (unit, 1)), _UNITS.get(to, (to, 1))
    if kind != other:
        raise ValueError(f"{unit or 'a plain number'} cannot be converted to {to or 'a plain number'}")
    return numerator, denominator
