"""Ingestion of result files: bytes → records → measurements → rows → receipt.

HTTP, the command line and the runner's delivery all call `ingest` or `deliver`.
"""

from __future__ import annotations

from hud.ingest.receive import (
    KeyInUse,
    KeyMisused,
    Receipt,
    TooManyRecords,
    deliver,
    inflate,
    ingest,
)
from runner.formats.errors import BadUpload, OtherSuite

__all__ = [
    "BadUpload",
    "KeyInUse",
    "KeyMisused",
    "OtherSuite",
    "Receipt",
    "TooManyRecords",
    "deliver",
    "inflate",
    "ingest",
]
