"""The page of a model: all its experiments in a stream, what moved, the trend, and where it is worst."""

from __future__ import annotations

import re
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.utils import timezone

from hud.corrections.renaming import rename
from hud.models import KnownFailure, Stream
from tests.support.factories import (
    create_experiment,
    create_measurement,
    create_regression,
    create_run,
    create_verdict,
)
from tests.support.pages import html_of, page_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.support.servers import Hud

ADDRESS = "/models/huggingface/T5Small/"
NIGHTS = 6


def measure(stream: str = "nightly", **over: Any) -> Any:
    """Store six nights of a speedup; the last one is `value`."""
    value, metric = over.pop("value", 2.4), over.pop("metric", "device_speedup")
    moved = over.pop("moved", value)
    one = create_experiment(**{"suite": "huggingface", "case": "T5Small", "knobs": {}, **over})
    to = Stream.objects.get_or_create(name=stream)[0]
    newest = None
    for night in range(NIGHTS):
        at = timezone.now().replace(hour=2) - timedelta(days=NIGHTS - night)
        run = create_run(order_time=at, stream=to, commit=f"{night:040x}")
        newest = create_measurement(one, metric=metric, run=run, value=moved if night == NIGHTS - 1 else value)
    return newest


@pytest.fixture
def model(db: None) -> None:
    """Two arches, modes and types with three backends, of which one is worse and one better."""
    for arch in ("h200", "b200"):
        for backend in ("inductor_cudagraphs", "max_autotune", "eager"):
            measure(arch=arch, backend=backend)
        measure(arch=arch, backend="max_autotune", mode="training", dtype="amp", value=1.7)
    worse = measure(arch="a100", backend="max_autotune", value=2.459, moved=2.164)
    create_verdict(worse, "regressed", change=-0.12, noise=0.004, factor=-30, level=2.459)
    create_regression(worse, before=2.459, change=-0.12)
    better = measure(arch="a100", backend="eager", value=1.0, moved=1.2)
    create_verdict(better, "improved", change=0.2, noise=0.004, factor=50, level=1.0)
    measure(arch="h200", backend="max_autotune", metric="cold_compile_s", value=71.4)
    measure(arch="h200", backend="eager", metric="cold_compile_s", value=2.1)


def test_look(client: Client, model: None) -> None:
    text = page_of(client, ADDRESS)
    print(text)
