"""Reasons why a number may not decide: a code beside a value, which stays as it was measured.

A value with a code is in no geometric mean, level or verdict. Files in other systems' formats do not know it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

# The worst first.
QUALITIES: Mapping[str, str] = MappingProxyType({
    "busy_cpu": "other processes used the processors that it was measured on",
    "throttled": "the card was slowed while it was measured",
    "imprecise": "the ratio is not known to ±10 % (one standard error)",
    "disagrees": "ratio of medians and median of ratios are more than 3 standard errors apart",
})  # fmt: skip
MOST_ERROR = 0.10  # standard error of a ratio that may decide
MOST_APART = 3.0  # standard errors between both estimates of a ratio


def worst(codes: Iterable[str | None]) -> str:
    """Return the worst of these codes, '' without any; what is unknown counts as the least."""
    order = {code: place for place, code in enumerate(QUALITIES)}
    return min(filter(None, codes), key=lambda code: order.get(code, len(order)), default="")


def quality_words(code: str | None) -> str:
    """Return a code in words; '' for a value that may decide."""
    return QUALITIES.get(code, code) if code else ""


@dataclass(frozen=True)
class MeasurementWarning:
    """A warning beside a value in words, and the code of its quality if it may not decide."""

    text: str = ""
    quality: str = ""

    def facts(self) -> dict[str, str]:
        """Return what a record says of it."""
        named = {"warning": self.text, "quality": self.quality}
        return {name: text for name, text in named.items() if text}


NONE = MeasurementWarning()


def joined(warnings: Iterable[MeasurementWarning]) -> MeasurementWarning:
    """Return all texts, each once, and the worst quality."""
    found = list(warnings)
    texts = dict.fromkeys(one.text for one in found if one.text)
    return MeasurementWarning("; ".join(texts), worst(one.quality for one in found))
