"""Numbers as people read them, and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MARKUP = re.compile(r"[\\`*\[\]<>|#~_]")


def number(value: Any, unit: str = "") -> str:
    """Return a value with its unit, '–' for none."""
    if value is None:
        return "–"
    text = f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3e}"
    return f"{text} {unit}".strip()


def percent(ratio: float | None) -> str:
    """Return a relative change as ``+3.1 %``, '' for none."""
    if ratio is None:
        return ""
    text = f"{100 * ratio:+.1f} %".replace("-", "−")
    return "0.0 %" if text[1:] == "0.0 %" else text


def safe(text: object) -> str:
    """Return text that stays inside a cell of a Markdown table and is no markup."""
    return " ".join(_MARKUP.sub(r"\\\g<0>", str(text)).split())


def link(text: object, address: str) -> str:
    return f"[{safe(text)}]({address})"


def table(heads: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines of a table. `heads` are joined by `|`, those of numbers end with `:`."""
    names = heads.split("|")
    rule = "|".join("--:" if name.endswith(":") else "---" for name in names)
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(name.rstrip(':') for name in names)} |", f"|{rule}|", *lines]


def title_of(item: Mapping[str, Any]) -> str:
    """Return the name of an item's experiment: case with its parameters, backend, dtype, mode, arch."""
    knobs = ", ".join(f"{name}={value}" for name, value in sorted((item.get("knobs") or {}).items()))
    case = f"{item['suite']} {item['case']}" + (f"[{knobs}]" if knobs else "")
    more = (item[name] for name in ("backend", "dtype", "mode", "arch"))
    return " ".join(filter(None, [case, *more]))
