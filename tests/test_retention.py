"""Retention removes old data, each row before its file, keeps the rest, and finds files without a row."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.utils import timezone

from hud import retention
from hud.accounts import audit
from hud.accounts.keys import create_key
from hud.files.folder import Folder
from hud.hosts import heartbeats
from hud.management.commands import tick
from hud.models import (
    Artifact,
    Audit,
    Heartbeat,
    IdempotencyKey,
    Import,
    KeptValue,
    KernelBinary,
    KernelCode,
    LimitUse,
    Task,
)
from hud.runs import logs
from hud.server import worker_account
from tests.support.factories import create_run

pytestmark = pytest.mark.django_db
OLD = timedelta(days=1000)


@pytest.fixture
def own_data(settings: Any, tmp_path: Path) -> Path:
    settings.HUD_DATA = tmp_path
    return tmp_path


def write(path: Path, content: bytes = b"x" * 1000, *, age: timedelta = timedelta()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    moment = time.time() - age.total_seconds()
    os.utime(path, (moment, moment))
    return path


def finished_task(position: int, age: timedelta) -> tuple[Task, list[Path]]:
    """A task with the logs of two attempts, and an artifact."""
    run = create_run()
    task = Task.objects.create(
        run=run,
        position=position,
        spec={},
        state="done",
        attempt=2,
        log_bytes=1000,
        finished=timezone.now() - age,
    )
    artifact = Artifact.objects.create(
        task=task, kind="trace", path=f"artifacts/{run.pk}/{uuid.uuid4()}", size_bytes=1000, sha256="0"
    )
    names = [logs.log_name(task, 1), logs.log_name(task, 2), artifact.path]
    return task, [write(settings.HUD_DATA / name, age=age) for name in names]


def plant(own_data: Path) -> tuple[list[Path], list[Path]]:
    """Return the files that go and those that stay, each with rows of their age."""
    stay: list[Path] = []
    go: list[Path] = []
    for number, (age, files) in enumerate(((timedelta(days=2), stay), (OLD, go))):
        files.extend(finished_task(number, age)[1])
        moment = timezone.now() - age
        key = create_key(name="k", scopes=["read"], who="t")[0]
        IdempotencyKey.objects.create(key=key, text="t", content_key="c", receipt={}, created=moment)
        job = Import.objects.create(content_key=f"c{number}", state="done", finished=moment)
        Import.objects.filter(pk=job.pk).update(created=moment)
        KeptValue.objects.create(digest=f"{number}", value=b"", at=moment)
        LimitUse.objects.create(name="n", caller=key.pk, used=1, at=moment)
        Session.objects.create(
            session_key=f"s{number}", session_data="", expire_date=moment + timedelta(days=10)
        )
        code = KernelCode.objects.create(digest=uuid.uuid4(), text="", delivered=moment)
        KernelBinary.objects.create(binary=f"{number:016}", code=code)
        audit.note(who="me", action="test", subject=f"{number}")
        Audit.objects.filter(subject=f"{number}").update(at=moment)
    waiting = Import.objects.create(content_key="w")
    stay += [
        write(own_data / "imports" / str(waiting.uid), age=OLD),
        write(own_data / "artifacts" / "1" / "just written"),
    ]
    go += [
        write(own_data / "imports" / str(uuid.uuid4()), age=OLD),
        write(own_data / "artifacts" / "1" / str(uuid.uuid4()), age=OLD),
        write(own_data / "tasklogs" / "999999" / f"{uuid.uuid4()}-1.log", age=OLD),
    ]
    return stay, go


def counts() -> list[int]:
    of_test = LimitUse.objects.filter(name="n"), Audit.objects.filter(action="test")
    models = (Artifact, IdempotencyKey, Session, KernelBinary, KeptValue, *of_test)
    return [model.count() if hasattr(model, "count") else model.objects.count() for model in models]


def assert_pruned(stay: list[Path], go: list[Path]) -> None:
    assert counts() == [1] * 7
    assert Import.objects.count() == 2
    assert sorted(Task.objects.values_list("log_bytes", flat=True)) == [0, 1000]
    assert [path for path in stay if not path.exists()] == []
    assert [path for path in go if path.exists()] == []


def test_a_dry_run_prints_what_prune_then_removes(own_data: Path) -> None:
    stay, go = plant(own_data)
    printed = StringIO()
    call_command("prune", "--dry-run", stdout=printed)
    assert all(path.exists() for path in stay + go)
    assert counts() == [2] * 7
    said = {line[:18].strip(): line[18:].split() for line in printed.getvalue().splitlines()}
    assert said["artifacts"][:2] == said["task logs"][:2] == ["1", "1000"]
    assert said["orphan files"][:2] == ["3", "3000"]
    others = said.keys() - {"orphan files", "archived samples"}
    assert {said[name][0] for name in others} == {"1"}
    call_command("prune", stdout=StringIO())
    assert_pruned(stay, go)


def test_tick_prunes_in_batches(own_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH", 1)
    monkeypatch.setattr(tick, "_PRUNE_S", 0)
    stay, go = plant(own_data)
    command = tick.Command()
    command.batches, command.prune_at = retention.batches(), 0.0
    rounds = 0
    while not command.prune_at:
        command.prune()
        rounds += 1
    assert rounds > 10
    assert_pruned(stay, go)


def test_after_a_jump_of_the_clock_nothing_is_pruned_for_a_day(own_data: Path) -> None:
    stay, go = plant(own_data)
    command = tick.Command()
    heartbeats.beat("tick")
    for days, put_off in ((1, False), (400, True)):
        Heartbeat.objects.update(last=timezone.now() - timedelta(days=days))
        command.batches, command.prune_at = retention.batches(), 0.0
        command.put_off_pruning_after_a_gap()
        assert bool(command.prune_at) is put_off
    command.prune()
    assert all(path.exists() for path in stay + go)


@pytest.mark.parametrize("days", [-1, 13, 400])
def test_sessions_that_a_clock_that_was_ahead_made_end(own_data: Path, days: int) -> None:
    Session.objects.create(session_key="s", expire_date=timezone.now() + timedelta(days=days))
    call_command("prune", stdout=StringIO())
    assert Session.objects.exists() is (days == 13)


@pytest.mark.parametrize("dies_at", ["before the rows", "after the rows"])
def test_a_crash_leaves_no_row_without_its_file(
    own_data: Path, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    _task, files = finished_task(0, OLD)

    def crash(*_words: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    def prune_until_crash(owner: Any, name: str, instead: Callable[..., None]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, instead)
            with pytest.raises(KeyboardInterrupt):
                list(retention.batches())

    if dies_at == "after the rows":
        prune_until_crash(Folder, "delete", crash)
        assert all(path.exists() for path in files)
        assert Task.objects.get().log_bytes == 0
    else:
        prune_until_crash(retention, "Rows", crash)
        assert Task.objects.get().log_bytes == 1000
    list(retention.batches())
    assert not any(path.exists() for path in files)
    assert not Artifact.objects.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has an agent with an account of its own")
def test_a_link_that_benchmark_code_put_among_the_deliveries_is_not_followed(own_data: Path) -> None:
    kept = write(own_data / "other" / "1" / "outcome.json", age=OLD)
    os.utime(kept.parent, (0, 0))
    (own_data / "agent").mkdir()
    (own_data / "agent" / "refused").symlink_to(own_data / "other")
    os.chown(own_data / "agent", worker_account.uid_of(own_data), worker_account.GROUP)
    call_command("prune", stdout=StringIO())
    assert kept.exists()
