"""False discovery control: how many of a night's findings may be shown together."""

from __future__ import annotations

from collections.abc import Sequence


def discoveries(p_values: Sequence[float], share: float = 0.05) -> list[bool]:
    """Return which findings stand if at most `share` of them may be false on average (Benjamini-Hochberg)."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    last = 0
    for rank, place in enumerate(order, start=1):
        if p_values[place] <= share * rank / len(p_values):
            last = rank
    kept = set(order[:last])
    return [place in kept for place in range(len(p_values))]
