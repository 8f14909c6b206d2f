"""Import jobs in processes of their own: a bad one ends visibly, and takes nothing else with it."""

from __future__ import annotations

import os
import resource
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from hud.accounts.audit import client_address
from hud.accounts.keys import create_key
from hud.files import files
from hud.ingest import import_jobs
from hud.ingest.import_jobs import next_job, process_next
from hud.models import ApiKey, Audit, Heartbeat, Import, Measurement
from runner.formats.parameters import Parameters
from tests.api.test_results_api import post
from tests.support.records import as_lines, v3_record

MIB = 2**20
transactional = pytest.mark.django_db(transaction=True)


def submit(number: int = 0, key: ApiKey | None = None) -> Import:
    body = as_lines(v3_record(case=f"c{number}"), v3_record(case=f"d{number}"))
    return import_jobs.submit(body, Parameters(), key=key)


@transactional
@pytest.mark.parametrize("mib", [8, pytest.param(31, marks=pytest.mark.soak)])
def test_millions_of_empty_records_fail_within_limits_and_hold_up_no_other(
    client: Client, settings: Any, mib: int
) -> None:
    settings.HUD_IMPORT_MEMORY_MIB = 150
    settings.HUD_MAX_IMPORT_RECORDS = 100_000
    key = create_key(name="t", scopes=["upload", "read"], who="t")[1]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = post(client, b"[" + b"{}," * (mib * MIB // 3) + b"{}]", key)
    assert answer.status_code == 202
    held_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert held_kib < 300 * 1024, "the request holds its body a few times, not millions of objects"
    address = client_address.set("192.0.2.9")
    good = submit()
    client_address.reset(address)
    call_command("imports", "--once")
    job = client.get(answer["Location"]).json()
    assert (job["state"], job["receipt"]) == ("failed", None)
    assert "100000" in job["problem"]["detail"], "and not for want of memory"
    good.refresh_from_db()
    assert good.state == Import.State.DONE
    assert Measurement.objects.count() == 2
    assert Audit.objects.get(action="upload").address == "192.0.2.9"
    assert not files.exists(import_jobs.body_name(good))
    assert Heartbeat.objects.filter(name="imports").exists()


@transactional
def test_an_import_that_needs_too_much_memory_is_failed_at_once(settings: Any) -> None:
    settings.HUD_IMPORT_MEMORY_MIB = 100
    # one value of a format that is read as a whole
    body = b'{"fingerprint": "", "task": {}, "outcome": {}, "records": [' + b"[]," * (9 * MIB) + b"[]]}"
    job = import_jobs.submit(body, Parameters(format="ours"))
    assert process_next(beat=lambda: None, stopped=lambda: False)
    job.refresh_from_db()
    assert (job.state, job.attempts) == (Import.State.FAILED, 1)
    assert job.problem
    assert "100 MiB" in job.problem["detail"]


@transactional
def test_an_import_whose_processes_die_is_tried_three_times_and_after_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The child dies as one does that the kernel kills."""
    job = submit()
    real = import_jobs.process

    def die(processed: Import) -> None:
        if processed == job:
            os.kill(os.getpid(), signal.SIGKILL)
        real(processed)

    monkeypatch.setattr(import_jobs, "process", die)
    assert process_next(beat=lambda: None, stopped=lambda: False)
    other = submit(1)
    call_command("imports", "--once")
    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.state, job.attempts) == (Import.State.FAILED, 3)
    assert other.state == Import.State.DONE
    assert other.started
    assert job.started
    assert other.started < job.started
    assert not files.exists(import_jobs.body_name(job))


@transactional
def test_a_supervisor_that_is_stopped_costs_no_attempt_and_an_overlong_import_fails(
    settings: Any,
) -> None:
    job = submit()
    stop = threading.Event()
    stop.set()
    assert process_next(beat=lambda: None, stopped=stop.is_set)
    job.refresh_from_db()
    assert (job.state, job.attempts) == (Import.State.RUNNING, 0)
    settings.HUD_IMPORT_S = 0.001
    assert process_next(beat=lambda: None, stopped=lambda: False)
    job.refresh_from_db()
    assert (job.state, job.attempts) == (Import.State.FAILED, 1)
    assert not Measurement.objects.exists()


@pytest.mark.django_db
def test_keys_take_turns_and_the_newest_import_of_a_key_does_not_wait_for_all_older_ones(
    settings: Any, tmp_path: Path
) -> None:
    settings.HUD_DATA = tmp_path
    backfill, nightly = (create_key(name=name, scopes=["upload"], who="t")[0] for name in ("b", "n"))
    old = [submit(number, backfill) for number in range(6)]
    today = submit(100, nightly)
    turns = []
    for minute in range(4):
        job = next_job()
        assert job
        turns.append(job)
        Import.objects.filter(pk=job.pk).update(
            state=Import.State.DONE, started=timezone.now() + timedelta(minutes=minute)
        )
    assert turns[:2] == [old[0], today]
    assert turns[2:] == [old[5], old[1]]
