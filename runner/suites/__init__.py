"""The suites. Adding one is a file here with its entry, and a file in `runner/suites/`."""

from __future__ import annotations

from runner.schema.suite import Case, Knob, Suite
from runner.suites import cache, ceilings, gpt_fast, huggingface, micro, operators, timm, torchbench, xla

__all__ = ["SUITES", "Case", "Knob", "Suite"]

SUITES: dict[str, Suite] = {
    entry.SUITE.name: entry.SUITE
    for entry in (huggingface, timm, torchbench, micro, operators, gpt_fast, cache, xla, ceilings)
}
