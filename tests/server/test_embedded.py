"""The embedded servers: they start anywhere, keep what they were given, and leave nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from hud.server import embedded, worker_account
from runner.schema import accounts
from tests.support.waiting import wait_for


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder with a short path, as pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="hud-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def _made_cluster() -> Iterator[Path]:
    data = Path(tempfile.mkdtemp(prefix="hud-", dir="/tmp"))
    embedded.postgres(data)
    yield data / "pg"
    shutil.rmtree(data)


@pytest.fixture
def cluster(folder: Path, _made_cluster: Path) -> None:
    """PostgreSQL's files in the data folder, for tests of what follows. To make them takes a second."""
    shutil.copytree(_made_cluster, folder / "pg")


@pytest.fixture(autouse=True)
def _no_outside_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


def connect(data: Path) -> psycopg.Connection[Any]:
    settings = embedded.database_settings(data)
    return psycopg.connect(
        host=settings["HOST"],
        port=settings["PORT"],
        user=settings["USER"],
        dbname=settings["NAME"],
        autocommit=True,
    )


def talk_to_redis(data: Path, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        url = urlsplit(embedded.redis_url(data, embedded.secret_key(data, required=False)))
        connection.connect(url.path)
        for said in (f"AUTH {url.username} {url.password}".encode(), line):
            connection.sendall(said + b"\r\n")
            answer = connection.recv(1024)
        return answer


@pytest.mark.parametrize("major", [16, 18])
def test_postgres_survives_kill_with_every_acknowledged_row(folder: Path, major: int) -> None:
    server = embedded.postgres(folder, major=major)
    process = embedded.start(server, folder / "log")
    with closing(connect(folder)) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('größer')")
        assert connection.info.server_version // 10_000 == major
    process.kill()
    process.wait()

    server = embedded.postgres(folder)  # the cluster's own version counts from now on
    process = wait_for(lambda: _started(server, folder), "the killed server's children to go")
    with closing(connect(folder)) as connection:
        assert connection.execute("SELECT word FROM kept").fetchall() == [("größer",)]
    embedded.stop(server, process)
    assert process.returncode == 0


def _started(server: embedded.Server, folder: Path) -> subprocess.Popen[bytes] | None:
    try:
        return embedded.start(server, folder / "log")
    except embedded.EmbeddedError:
        return None


def test_redis_keeps_what_was_queued_when_it_is_killed(folder: Path) -> None:
    server = embedded.redis(folder)
    process = embedded.start(server, folder / "log")
    assert talk_to_redis(folder, b"RPUSH queue one two") == b":2\r\n"
    process.kill()
    process.wait()

    process = embedded.start(server, folder / "log")
    assert talk_to_redis(folder, b"LLEN queue") == b":2\r\n"
    embedded.stop(server, process)


def test_servers_are_for_their_owner_alone(folder: Path) -> None:
    with embedded.running(embedded.servers(folder), folder / "logs"):
        run = embedded.run_folder(folder)
        assert not run.stat().st_mode & 0o067, "a group may enter, where root has given Redis an account"
        assert stat.S_IMODE((run / ".s.PGSQL.5432").stat().st_mode) == 0o700
        assert not (run / "redis" / "redis.sock").stat().st_mode & 0o007
        assert not [line for line in _listening_addresses() if line.endswith(":1538")]  # 5432: no TCP


def _listening_addresses() -> list[str]:
    return [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]


def test_a_half_made_cluster_is_made_again(folder: Path) -> None:
    (folder / "pg.new").mkdir()
    (folder / "pg.new" / "PG_VERSION").write_text("18\n")
    with embedded.running([embedded.postgres(folder)], folder), closing(connect(folder)) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("left_by", ["a stranger", "a zombie", "a dead server"])
def test_locks_of_a_killed_server_never_block_a_start(folder: Path, left_by: str) -> None:
    locks = [folder / "pg" / "postmaster.pid", folder / "run" / ".s.PGSQL.5432.lock"]
    server = embedded.start(embedded.postgres(folder), folder / "log")
    left = {lock: lock.read_text() for lock in locks}
    server.kill()
    server.wait()
    with subprocess.Popen(["sleep", "600"]) as other, ExitStack() as stack:
        stack.callback(other.kill)
        number = {"a dead server": server.pid}.get(left_by, other.pid)
        if left_by == "a zombie":
            other.kill()
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        for lock, text in left.items():
            lock.write_text(text.replace(str(server.pid), str(number), 1))
        with embedded.running([embedded.postgres(folder)], folder), closing(connect(folder)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.usefixtures("cluster")
def test_a_living_server_keeps_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "PREDECESSOR_S", 0)
    with embedded.running(embedded.servers(folder), folder / "logs"):
        for server in (embedded.postgres, embedded.redis):
            with pytest.raises(embedded.EmbeddedError, match="already running"):
                server(folder)
        with closing(connect(folder)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.usefixtures("cluster")
def test_a_start_waits_for_servers_that_are_ending(folder: Path) -> None:
    """A Redis that ends late would take away the socket of its successor."""
    needed = embedded.servers(folder)
    with ExitStack() as stack:
        for server in needed:
            process = embedded.start(server, folder / "log")
            stack.callback(embedded.stop, server, process)
            # told to end while it cannot, and goes on a moment after the next start has begun
            process.send_signal(signal.SIGSTOP)
            process.send_signal(server.stop_signal)
            later = threading.Timer(0.3, process.send_signal, [signal.SIGCONT])
            later.start()
            stack.callback(later.join)
        with embedded.running(embedded.servers(folder), folder / "logs"):
            assert all(process.answers() for process in needed)


@pytest.mark.usefixtures("cluster")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give away")
@pytest.mark.parametrize("without", ["nothing", "setpriv"])
def test_root_s_postgres_has_an_account_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    """Also where root started it before, as earlier releases did; without setpriv it has a namespace."""
    before = embedded.postgres(folder)
    embedded.stop(before, embedded.start(before, folder / "log"))
    for path in ((folder / "pg"), *(folder / "pg").rglob("*"), embedded.run_folder(folder)):
        os.chown(path, 0, 0)
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == without else which(name))
    server = embedded.postgres(folder)
    process = embedded.start(server, folder / "log")
    try:
        expected = worker_account.uid_of(folder, "postgres") if without == "nothing" else 0
        assert set(psutil.Process(process.pid).uids()) == {expected}
        assert (folder / "pg").stat().st_uid == expected
        assert not (folder / "pg").stat().st_mode & 0o077
        with closing(connect(folder)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        embedded.stop(server, process)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can note whose they are")
def test_no_two_installations_share_an_account(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the machine has at most 150 of them, also where their paths have the same checksum."""
    monkeypatch.setattr(accounts, "_NOTES", folder / "notes")
    installations = [embedded.make_folder(folder / str(number)) for number in range(149)]
    first_uids = {path: accounts.first_uid(path) for path in installations}
    assert len(set(first_uids.values())) == 149
    assert {path: accounts.first_uid(path) for path in installations} == first_uids
    free = {*range(60580, 61180, 4)} - {*first_uids.values()} | {first_uids[installations[7]]}
    installations[7].rmdir()
    assert {accounts.first_uid(embedded.make_folder(folder / name)) for name in ("moved", "another")} == free
    assert accounts.first_uid(embedded.make_folder(folder / "one too many")) in first_uids.values()
    kinds: tuple[worker_account.Account, ...] = ("agent", "redis", "postgres", "benchmarks")
    assert len({worker_account.uid_of(installations[0], kind) for kind in kinds}) == 4
    assert worker_account.GROUP not in {first_uid + 3 for first_uid in first_uids.values()}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_an_installation_reads_nothing_of_another(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither agent of two whose paths have the same checksum reads the other's key."""
    monkeypatch.setattr(accounts, "_NOTES", folder / "notes")
    monkeypatch.setattr(zlib, "crc32", lambda _path: 7)
    folder.chmod(0o711)
    for name in ("one", "other"):
        data = embedded.make_folder(folder / name)
        assert worker_account.prepare(data, data / "run") == ""
        (data / "agent" / "registration.json").touch(mode=0o600)
        worker_account.give(worker_account.uid_of(data), data / "agent" / "registration.json")
        data.chmod(0o755)
    for name in ("one", "other"):
        command = ["cat", *(str(folder / each / "agent" / "registration.json") for each in ("one", "other"))]
        done = subprocess.run(
            [*worker_account.prefix(folder / name), *command], capture_output=True, text=True, check=False
        )
        assert done.stderr.count("Permission denied") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_each_accelerator_of_an_installation_has_an_account(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent, which is not root, prepares and shares the home of each."""
    monkeypatch.setattr(accounts, "_NOTES", folder / "notes")
    monkeypatch.setattr(worker_account, "_accelerators", lambda: 6)
    folder.chmod(0o711)
    data = embedded.make_folder(folder / "data")
    assert worker_account.prepare(data, data / "run") == ""
    code = "import os, sys; from pathlib import Path; from runner.system import account"
    code += "; print(account.prepare(Path(sys.argv[1]), ['/bin/true'], 6), os.environ[account.UID])"
    done = subprocess.run(
        [*worker_account.prefix(data), sys.executable, "-c", code, data / "agent"],
        env=worker_account.environment(data), capture_output=True, text=True, check=False,
    )  # fmt: skip
    uids = [int(uid) for uid in done.stdout.strip().split(",")]
    assert len({*uids, *range(accounts.first_uid(data), accounts.first_uid(data) + 4)}) == 9, done
    assert [accounts.home_of(data / "agent", slot).stat().st_gid for slot in range(6)] == uids


@pytest.mark.usefixtures("cluster")
def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    server = embedded.postgres(folder)
    (folder / "pg" / "postgresql.conf").write_text("nonsense = 1\n")
    with pytest.raises(embedded.EmbeddedError, match="nonsense"):
        embedded.start(server, folder / "log")


@pytest.mark.parametrize("name", ["a" * 90, "with space", "with,comma"])
def test_sockets_move_if_the_path_is_unusable(folder: Path, name: str) -> None:
    run = embedded.run_folder(folder / name)
    assert run != folder / name / "run"
    assert len(os.fsencode(run)) <= embedded.MAX_SOCKET_FOLDER_BYTES
    assert run == embedded.run_folder(folder / name)
    with embedded.running(embedded.servers(folder / name), folder / "logs"), closing(connect(folder / name)):
        pass
    shutil.rmtree(run)


def test_urls_replace_the_embedded_servers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:p%40ss@db.example:6543/hud?sslmode=require")
    monkeypatch.setenv("REDIS_URL", "redis://queue.example:6380/3")
    settings = embedded.database_settings(folder)
    assert (settings["HOST"], settings["PORT"], settings["NAME"]) == ("db.example", 6543, "hud")
    assert (settings["USER"], settings["PASSWORD"]) == ("me", "p@ss")
    assert settings["OPTIONS"]["sslmode"] == "require"
    assert embedded.redis_url(folder, "secret") == "redis://queue.example:6380/3"
    assert embedded.servers(folder) == []


@pytest.mark.parametrize("url", ["sqlite:///db.sqlite3", "mysql://me@db/hud", "postgresql://me@db:port/hud"])
def test_other_databases_are_refused(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(ValueError, match="DATABASE_URL"):
        embedded.database_settings(folder)


def test_the_secret_key_is_made_once_and_kept_private(folder: Path) -> None:
    key = embedded.secret_key(folder, required=False)
    assert len(key) >= 50
    assert embedded.secret_key(folder, required=False) == key
    assert stat.S_IMODE((folder / "secret_key").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["secret_key"]
    with pytest.raises(ValueError, match="SECRET_KEY"):
        embedded.secret_key(folder, required=True)


@pytest.mark.parametrize(
    ("version", "chosen"),
    [("Redis server v=7.0.15 sha=0", True), ("Valkey server v=8.1.4 sha=0", True),
     ("Redis server v=6.0.16 sha=0", False), ("something else", False)],
)  # fmt: skip
def test_a_newer_redis_of_the_path_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, chosen: bool
) -> None:
    binary = tmp_path / "redis-server"
    binary.write_text(f"#!/bin/sh\necho '{version}'\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found, warning = embedded.redis_binary()
    assert (found == str(binary)) is chosen
    assert bool(warning) is not chosen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_root_s_redis_has_an_account_of_its_own(folder: Path) -> None:
    """Also where root started it before, as earlier releases did."""
    (embedded.make_folder(folder / "redis") / "appendonly.aof").touch()
    private = embedded.make_folder(folder / "private")
    server = embedded.redis(folder)
    process = embedded.start(server, folder / "redis.log")
    try:
        users = psutil.Process(process.pid).uids()
        assert set(users) == {worker_account.uid_of(folder, "redis")}
        assert users.real not in {0, worker_account.uid_of(folder)}
        assert talk_to_redis(folder, b"RPUSH queue one") == b":1\r\n"
        assert b"Permission denied" in talk_to_redis(folder, f"CONFIG SET dir {private}".encode())
    finally:
        embedded.stop(server, process)


def test_redis_takes_no_long_texts(folder: Path) -> None:
    server = embedded.redis(folder)
    process = embedded.start(server, folder / "redis.log")
    try:
        assert talk_to_redis(folder, b"SETRANGE x 1048576 y").startswith(b"-ERR")
        assert talk_to_redis(folder, b"SETRANGE x 10 y") == b":11\r\n"
    finally:
        embedded.stop(server, process)
