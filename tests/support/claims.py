"""Runs that are asked for, and hosts that take their tasks: the product's own calls, as plain functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from django.db import connection
from django.utils import timezone

from hud.hosts import registration
from hud.models import Accelerator, Experiment, Host, Run, Task
from hud.runs import requests, tasks
from hud.runs.matching import ResourceRequest
from hud.runs.requests import RunOptions
from runner.schema.protocol import PROTOCOL
from runner.schema.tasks import Replication, Selection, plan


def cpu(*suites: str, name: str = "cpu") -> Accelerator:
    """A processor as its host describes it."""
    catalog = {"suites": suites, "pythons": ("default",)}
    return Accelerator(name=name, device="cpu", device_name="x86_64", arch="cpu-x86_64", catalog=catalog)


def attach(name: str, **labels: str) -> Accelerator:
    """The only accelerator of a new host, which said so in a beat."""
    host = Host.objects.create(name=name)
    registration.beat(
        host=host,
        protocol=PROTOCOL,
        sent_at=timezone.now().timestamp(),
        facts={},
        labels=labels,
        devices=[cpu("micro", "ceilings")],
    )
    return Accelerator.objects.select_related("host").get(host=host)


def request(cases: tuple[str, ...] = ("layer_norm",), **over: Any) -> Run:
    """A run of cases of `micro` on any host's processor."""
    specs = over.pop("specs", None) or plan(Selection("micro", cases=cases, device="cpu"))
    return requests.request_run(specs, options(**{"device": "cpu", "run_class": "night", **over}), title="t")


def options(**given: Any) -> RunOptions:
    """Options of a run: `Replication`, `RunOptions`, everything else is asked of the accelerator."""

    def take(*names: str) -> dict[str, Any]:
        return {name: given.pop(name) for name in names if name in given}

    replication = Replication(**take("repeats", "compilations", "draws", "pairs", "caches"))
    own = take("pinned", "candidate_options", "run_class", "commit", "pull_request", "branch")
    resources = ResourceRequest(**{"device": "", **given})
    return RunOptions(resources, who="me", replication=replication, **own)


def rerun(experiment: Experiment, *, knobs: Any = MappingProxyType({}), **given: Any) -> Run:
    return requests.request_rerun(experiment, options(**{"device": "cpu", **given}), knobs=knobs)


def claim(accelerator: Accelerator, nonce: str = "n") -> Task:
    claimed = tasks.claim(accelerator=accelerator, nonce=nonce)
    assert claimed
    return claimed


def end(task: Task, accelerator: Accelerator, status: str = "ok", **over: str) -> Task:
    assert task.token
    words = {"code": "", "reason": "", **over}
    return tasks.finish(uid=task.uid, token=task.token, host=accelerator.host, status=status, **words)


def expire(task: Task) -> None:
    """Its lease has ended a second ago."""
    Task.objects.filter(pk=task.pk).update(lease_until=timezone.now() - timedelta(seconds=1))


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    """Does it in a thread with a connection of its own, which is closed."""

    def run() -> None:
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread
