"""Fixtures for the tests of a run's pages."""

from __future__ import annotations

import pytest

from hud.models import Run
from tests.support.factories import GEMV, create_accelerator, create_experiment, create_run, create_task


@pytest.fixture
def running() -> Run:
    """One task done, one at work, one waiting."""
    accelerator = create_accelerator()
    run = create_run(
        "running", host=accelerator.host, device="cuda", arch="h200", experiment=create_experiment()
    )
    create_task(run, state="done", accelerator=accelerator, attempt=1)
    progress = {"phase": "measure", "done": 1, "total": 2, "label": "D=4096"}
    create_task(run, state="running", spec=GEMV, accelerator=accelerator, attempt=2, progress=progress)
    create_task(run)
    return run
