"""Backup and restore: one snapshot under uploads, the same rows and files elsewhere, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from hud.accounts.keys import create_key
from hud.ingest import import_jobs, ingest
from hud.models import ArchivedMonth, Artifact, Import, KeptValue, Task
from hud.runs import logs
from hud.server import backup, embedded, up
from runner.formats.parameters import Parameters
from tests.server.up import Up
from tests.support.claims import attach, claim, end, in_thread, request
from tests.support.factories import create_measurement, create_run
from tests.support.records import as_lines, v3_record
from tests.support.servers import ROOT, EmbeddedServer
from tests.support.waiting import wait_for

RECORDS = 5
SECRETS = {"secret_key": "s" * 60, "operator.json": "{}", "host.json": '{"name": "h"}'}
RUN_COMMAND = (
    "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'hud.settings'; "
    "from django.core.management import execute_from_command_line as run; run(['manage.py', {!r}, {!r}])"
)
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site(settings: Any, tmp_path: Path) -> backup.Installation:
    """The tests' database with a data folder of its own, where a machine has its account."""
    settings.HUD_DATA = embedded.make_folder(tmp_path / "data")
    for name, text in SECRETS.items():
        embedded.write_private(settings.HUD_DATA / name, text)
    return backup.Installation(settings.HUD_DATA, connection.settings_dict)


@pytest.fixture
def elsewhere() -> Iterator[Up]:
    """Another installation, with a database of its own, that was never started."""
    folder = Path(tempfile.mkdtemp(prefix="hud-", dir="/tmp"))
    yield Up(folder)
    shutil.rmtree(folder)


def submit(name: str) -> Import:
    return import_jobs.submit(as_lines(v3_record(case=name)), Parameters())


def keep_files(task: Task, log: bytes, content: bytes) -> Artifact:
    lease: dict[str, Any] = {"uid": task.uid, "token": task.token, "host": task.accelerator.host}  # type: ignore[union-attr]
    task.refresh_from_db()
    logs.append(**lease, offset=task.log_bytes, data=log)
    return logs.keep_artifact(**lease, kind="trace", data=content, sha256="")


def upload(number: int) -> None:
    records = [v3_record(case=f"c{number}-{place}") for place in range(RECORDS)]
    ingest(as_lines(*records), Parameters())


@contextmanager
def uploads() -> Iterator[list[int]]:
    """Upload in a thread for as long as the block lasts; yield the numbers of those that are stored."""
    stop, stored = threading.Event(), list[int]()

    def work() -> None:
        while not stop.is_set():
            upload(len(stored))
            stored.append(len(stored))

    thread = in_thread(work)
    try:
        yield stored
    finally:
        stop.set()
        thread.join()


def read_manifest(directory: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return manifest


def restore(installation: Up, directory: Path) -> tuple[int, str]:
    done = installation.again(code=RUN_COMMAND.format("restore", str(directory)))
    return done.returncode, done.stderr


def test_a_backup_under_uploads_is_restored_elsewhere(
    site: backup.Installation, elsewhere: Up, tmp_path: Path
) -> None:
    """One story, because the other installation starts a server for each part."""
    accelerator = attach("h1")
    create_key(name="host h1", scopes=["host"], who="t", host=accelerator.host)
    request()
    artifact = keep_files(claim(accelerator), b"line\n", b"content")
    job = submit("queued")
    KeptValue.objects.create(digest="by versions of rows", value=b"")
    first, second = tmp_path / "first", tmp_path / "second"
    with uploads() as stored:
        wait_for(lambda: len(stored) > 2, "uploads before the backup")
        call_command("backup", str(first))
        after = len(stored)
        wait_for(lambda: len(stored) > after, "uploads after the backup")

    manifest = read_manifest(first)
    for path in (first, *first.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    tables = {name: table["rows"] for name, table in manifest["tables"].items()}
    assert 3 <= tables["public.hud_upload"] <= after + 1
    assert tables["public.hud_point"] == RECORDS * tables["public.hud_upload"]
    assert tables["public.hud_apikey"] == 1
    names = {artifact.path, f"imports/{job.uid}", *SECRETS}
    assert names < {name.removeprefix("files/") for name in manifest["files"]}
    assert len(manifest["files"]) == len(names) + 2, "the log and the dump"
    assert not list(site.data.rglob(backup._HELD))

    wrong = {**manifest, "tables": {**manifest["tables"], "public.hud_run": {"rows": 0, "digest": ""}}}
    (first / "manifest.json").write_text(json.dumps(wrong))
    code, reason = restore(elsewhere, first)
    assert (code, "public.hud_run" in reason) == (1, True)
    (first / "manifest.json").write_text(json.dumps(manifest))
    assert restore(elsewhere, first)[0] == 0, "nothing had stayed of the one that did not agree"
    code, reason = restore(elsewhere, first)
    assert (code, "is not empty" in reason) == (1, True)

    restored = backup.Installation(elsewhere.data, embedded.database_settings(elsewhere.data))
    with embedded.running([embedded.postgres(elsewhere.data)], elsewhere.folder):
        again = backup.write(second, restored)
        with embedded.connect(restored.database) as other:
            rows = other.execute("SELECT digest FROM hud_apikey ORDER BY 1").fetchall()
    assert manifest["tables"].pop("public.hud_keptvalue")["rows"] == 1
    assert again["tables"].pop("public.hud_keptvalue")["rows"] == 0, "other rows have such versions here"
    assert again["tables"] == manifest["tables"]
    dump = {"database.dump": None}
    assert {**again["files"], **dump} == {**manifest["files"], **dump}
    with connection.cursor() as cursor:
        cursor.execute("SELECT digest FROM hud_apikey ORDER BY 1")
        assert rows == cursor.fetchall()
    for name in ("secret_key", artifact.path, f"imports/{job.uid}"):
        content = (elsewhere.data / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == manifest["files"][f"files/{name}"]["sha256"]
        assert stat.S_IMODE((elsewhere.data / name).stat().st_mode) == 0o600


def test_files_are_those_of_the_snapshot(
    site: backup.Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What goes, grows and comes after the snapshot has begun is in the backup as it was then."""
    accelerator = attach("h1")
    request()
    task, job = claim(accelerator), submit("queued")
    artifact = keep_files(task, b"before\n", b"content")
    lost = Artifact.objects.create(task=task, kind="old", path="artifacts/1/x", size_bytes=3, sha256="")
    write_snapshot = backup._write_snapshot

    def later(*arguments: Any) -> dict[str, Any]:
        import_jobs.process(job)
        keep_files(task, b"after\n", b"new")
        (site.data / artifact.path).unlink()
        artifact.delete()
        return write_snapshot(*arguments)

    monkeypatch.setattr(backup, "_write_snapshot", later)
    manifest = backup.write(tmp_path / "b", site)

    assert not (site.data / import_jobs.body_name(job)).exists()
    files = tmp_path / "b" / "files"
    assert (files / artifact.path).read_bytes() == b"content"
    assert (files / "imports" / str(job.uid)).read_bytes() == as_lines(v3_record(case="queued"))
    assert [path.read_bytes() for path in files.glob("tasklogs/*/*")] == [b"before\n"]
    assert len(list(files.glob("artifacts/*/*"))) == 1
    assert manifest["missing"] == [lost.path]
    assert manifest["tables"]["public.hud_artifact"]["rows"] == 2
    assert manifest["tables"]["public.hud_upload"]["rows"] == 0


def test_the_archive_is_in_the_backup(site: backup.Installation, tmp_path: Path) -> None:
    create_measurement(samples=[1.0, 2.0], run=create_run(order_time=datetime(2025, 3, 1, tzinfo=UTC)))
    call_command("archive")
    month = ArchivedMonth.objects.get()
    samples = (site.data / month.file("samples")).read_bytes()
    (site.data / month.file("points")).unlink()
    manifest = backup.write(tmp_path / "b", site)
    assert (tmp_path / "b/files" / month.file("samples")).read_bytes() == samples
    assert manifest["missing"] == [month.file("points")]


def test_a_task_that_has_ended_keeps_its_logs(site: backup.Installation, tmp_path: Path) -> None:
    accelerator = attach("h1")
    request()
    task = claim(accelerator)
    keep_files(task, b"line\n", b"content")
    earlier = site.data / logs.log_name(task, 0)
    earlier.write_bytes(b"attempt 0")
    end(task, accelerator)
    manifest = backup.write(tmp_path / "b", site)
    contents = {path.read_bytes() for path in (tmp_path / "b/files/tasklogs").rglob("*.log")}
    assert contents == {b"line\n", b"attempt 0"}
    assert manifest["missing"] == []


@pytest.mark.parametrize("name", ["database.dump", "files/secret_key", "files/extra", "manifest.json"])
def test_a_backup_that_was_changed_is_refused(site: backup.Installation, tmp_path: Path, name: str) -> None:
    directory = tmp_path / "b"
    backup.write(directory, site)
    path = directory / name
    content = path.read_bytes() if path.exists() else b"?"
    path.write_bytes(b"" if name == "manifest.json" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(backup.BackupError):
        backup.restore(directory, backup.Installation(tmp_path / "elsewhere", {}))
    assert not (tmp_path / "elsewhere").exists()


def test_a_backup_of_newer_code_is_refused(site: backup.Installation, tmp_path: Path) -> None:
    directory = tmp_path / "b"
    manifest = backup.write(directory, site)
    manifest["migrations"].append("9999_later")
    (directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(backup.BackupError, match="9999_later"):
        backup.restore(directory, site)


def test_a_database_in_use_is_refused(site: backup.Installation, tmp_path: Path) -> None:
    directory = tmp_path / "b"
    backup.write(directory, site)
    with connection.cursor() as cursor:  # the tests' own session
        cursor.execute("SELECT 1")
    with pytest.raises(backup.BackupError, match="in use"):
        backup.restore(directory, site)


@pytest.mark.parametrize("rows", [{}, {"public.hud_run": {"rows": 1, "digest": "0"}}])
def test_a_dump_without_its_rows_is_no_backup(
    site: backup.Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rows: dict[str, Any]
) -> None:
    upload(1)
    monkeypatch.setattr(backup, "_rows_of_dump", lambda *_: rows)
    with pytest.raises(CommandError, match=r"public\."):
        call_command("backup", str(tmp_path / "b"))
    assert not (tmp_path / "b").exists()
    assert not list(site.data.rglob(backup._HELD))


def test_a_dump_that_ends_early_cannot_be_read(site: backup.Installation, tmp_path: Path) -> None:
    upload(1)
    manifest = backup.write(tmp_path / "b", site)
    dump = tmp_path / "b" / "database.dump"
    dump.write_bytes(dump.read_bytes()[:-2000])
    with pytest.raises(backup.BackupError):
        backup._verify("dump", manifest["tables"], backup._rows_of_dump(dump.parent, manifest["postgres"]))


def test_a_folder_with_files_is_refused(site: backup.Installation, tmp_path: Path) -> None:
    directory = embedded.make_folder(tmp_path / "b")
    (directory / "kept").touch()
    with pytest.raises(CommandError):
        call_command("backup", str(directory))
    assert (directory / "kept").exists()


def test_only_one_backup_at_a_time(site: backup.Installation, tmp_path: Path) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [backup.ADVISORY_LOCK])
        try:
            with pytest.raises(backup.BackupError, match="another"):
                backup.write(tmp_path / "b", site)
        finally:
            cursor.execute("SELECT pg_advisory_unlock_all()")


def test_a_database_of_the_oldest_version_is_backed_up(
    site: backup.Installation, postgres_server: EmbeddedServer, tmp_path: Path
) -> None:
    """`make up` backs up tables that are older than the code."""
    sample = ROOT / "tests" / "samples" / "hud-ce40439.sql"
    old = backup.Installation(site.data, {**site.database, "NAME": "hud_backup_old"})
    with embedded.connect({**site.database, "NAME": "hud"}) as server:
        server.autocommit = True
        server.execute("CREATE DATABASE hud_backup_old")
        try:
            with embedded.connect(old.database) as other:
                other.execute(sample.read_bytes())
            assert backup.missing_migrations(old)[0] == "0003_repeat_and_side"
            manifest = backup.write(tmp_path / "b", old)
        finally:
            server.execute("DROP DATABASE hud_backup_old WITH (FORCE)")
    assert manifest["migrations"] == ["0001_initial", "0002_values_of_xla"]
    assert manifest["tables"]["public.hud_audit"]["rows"] == 9


# ---- before a migration


@pytest.fixture
def options(site: backup.Installation, monkeypatch: pytest.MonkeyPatch) -> up.Options:
    """Options of a `make up` over the tests' database, whose code has one more migration."""
    monkeypatch.setattr(embedded, "database_settings", lambda _data: site.database)
    monkeypatch.setattr(backup, "MIGRATIONS", [*backup.MIGRATIONS, "9998_next", "9999_later"])
    return up.Options(site.data, "127.0.0.1", 8000, demo=False)


def test_a_backup_is_made_before_a_migration_of_runs(site: backup.Installation, options: up.Options) -> None:
    assert backup.missing_migrations(site) == [], "there are no runs to lose"
    create_run()
    assert backup.missing_migrations(site) == ["9998_next", "9999_later"]
    up.back_up_before_migration(options)
    (directory,) = (site.data / "backups").iterdir()
    assert directory.name.endswith("Z-before-9998_next")
    assert read_manifest(directory)["tables"]["public.hud_run"]["rows"] == 1
    assert backup._read(directory)


def test_no_backup_without_room_or_beside_a_server_of_its_own(
    site: backup.Installation,
    options: up.Options,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    create_run()
    with monkeypatch.context() as patch:
        patch.setenv("DATABASE_URL", "postgresql://elsewhere/hud")
        up.back_up_before_migration(options)
    assert capsys.readouterr().out == ""
    free = backup.needed_bytes(site) - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(0, 0, free))
    up.back_up_before_migration(options)
    assert "9998_next" in capsys.readouterr().out
    assert not (site.data / "backups").exists()


def test_no_migration_after_a_backup_that_failed(
    options: up.Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prepare` backs up before it migrates."""
    create_run()
    commands: list[str] = []

    def manage(_options: up.Options, command: str, *_arguments: str) -> str:
        commands.append(command)
        return ""

    monkeypatch.setattr(embedded, "servers", lambda _data: [])
    monkeypatch.setattr(embedded, "running", lambda *_: nullcontext())
    monkeypatch.setattr(up, "_manage", manage)
    monkeypatch.setattr(up, "_collect_static", lambda _options: None)

    def fail(*_arguments: Any) -> None:
        raise psycopg.OperationalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(backup, "write", fail)
        with pytest.raises(up.UpError):
            up.prepare(options)
    assert commands == []
    up.prepare(options)
    assert commands[0] == "upgrade"
    assert len(list((options.data / "backups").iterdir())) == 1
