"""Template filters for times of kernels, and for changes with their sign."""

from django import template

from hud.tables import formatting
from hud.tables.formatting import NONE
from hud.tables.kernels import KernelTable, short_name

register = template.Library()
register.filter(short_name)
for _formatting in (
    formatting.milliseconds,
    formatting.plain_count,
    formatting.share,
    formatting.thousandths,
):
    register.filter(_formatting)


@register.filter
def in_unit(us: float | None, table: KernelTable) -> str:
    """Format µs in the unit of a table: ms with 4 digits, µs with 2."""
    return NONE if us is None else f"{us / table.scale:.{_digits(table)}f}".replace("-", "−")


@register.filter
def signed_in_unit(us: float | None, table: KernelTable) -> str:
    """Like `in_unit`, with the sign of a change; nothing is ``0`` and never ``−0.0000``."""
    return NONE if us is None else signed(us / table.scale, _digits(table))


@register.filter
def signed_part(us: float | None, table: KernelTable) -> str:
    """Format a change as a part of the baseline's busy time."""
    base_us = table.attribution.base.busy_us
    return signed_share(us / base_us if us is not None and base_us else None)


@register.filter
def signed_share(share: float | None) -> str:
    """Format a part of 1 as ``+204 %``, small ones as ``−1.6 %``."""
    return "" if share is None else f"{signed(100 * share, 0 if abs(share) >= 0.1 else 1)} %"


@register.filter
def signed_seconds(seconds: float | None) -> str:
    return NONE if seconds is None else signed(seconds, 2)


@register.filter
def seconds(value_s: float | None) -> str:
    return NONE if value_s is None else f"{value_s:.2f}"


@register.filter
def short_config(config: str) -> str:
    """Format a configuration of Triton: ``XBLOCK=4 R0_BLOCK=4096 num_warps=8`` → ``4 × 4096, 8 warps``."""
    said = dict(part.partition("=")[::2] for part in config.split())
    blocks = " × ".join(said[name] for name in said if name.endswith("BLOCK"))
    if not blocks or "num_warps" not in said:
        return config
    rest = [f"{name}={said[name]}" for name in said if not name.endswith("BLOCK") and name != "num_warps"]
    return ", ".join([blocks, f"{said['num_warps']} warps", *rest])


def signed(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if not any(char in "123456789" for char in text) else text


def _digits(table: KernelTable) -> int:
    return 4 if table.unit == "ms" else 2
