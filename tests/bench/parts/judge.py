"""Verdicts after an upload: what `manage.py judge` does in the background."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.bench.application import Application
from tests.bench.figures import Figure
from tests.bench.records import body

_RECORDS = 800
_NIGHTS = 30


def judge(application: Application) -> Iterator[Figure]:
    """Every series of an upload of 800, each with a history of 30 nights and more."""
    from hud.judging.judge import process_pending
    from tests.bench.rows import grow

    application.upload(body(-1, records=_RECORDS), "commit=judge0&commit_date=2023-01-01")
    grow(_NIGHTS * _RECORDS)
    while process_pending():
        pass
    application.upload(body(-2, records=_RECORDS), "commit=judge1&commit_date=2026-02-01")
    before_s = time.process_time()
    judged = 0
    while done := process_pending():
        judged += done
    cpu_ms = (time.process_time() - before_s) * 1000
    yield Figure("judge", "app CPU per touched series", cpu_ms / max(judged, 1), "ms", 5)
