"""Real servers for the tests: started on demand, killed and restarted at will, gone at the end."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from django.db import connection

from hud.server import embedded
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parent.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def nobody_else_asks() -> bool:
    """True when no other session of the database is in a statement or a transaction."""
    with connection.cursor() as cursor:
        cursor.execute(
            """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'"""
        )
        return bool(cursor.fetchone()[0] == 0)


def quick_postgres(data: Path, major: int = 18) -> embedded.Server:
    """PostgreSQL that may lose everything when the machine stops."""
    server = embedded.postgres(data, major=major)
    quick = ("--fsync=off", "--synchronous_commit=off", "--full_page_writes=off", "--shared_buffers=128MB")
    # a vacuum would note that tables are empty which the transaction of a test fills, and plans become slow
    steady = "--autovacuum=off"
    return replace(server, command=[*server.command, *quick, steady])


class EmbeddedServer:
    """PostgreSQL or Redis below a folder."""

    def __init__(self, make: Callable[[], embedded.Server], log: Path) -> None:
        self._make = make
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._server = self._make()
        self._process = embedded.start(self._server, self._log)

    def stop(self) -> None:
        if self._process:
            embedded.stop(self._server, self._process)
            self._process = None

    def kill(self) -> None:
        """kill -9; what was not on the disk is lost."""
        assert self._process
        self._process.kill()
        self._process.wait()
        self._process = None


class MigratedCluster:
    """PostgreSQL's files after the migrations, which the first worker of a session makes and the others copy.
    To migrate takes seconds of each."""

    def __init__(self, session: Path) -> None:
        self._shared = session / "pg"
        self._lock = session / "pg.lock"
        self._held: int | None = None

    def fetch(self, cluster: Path) -> None:
        """Copy the files, once they are there. The first one gets none, and is to `store` its own."""
        lock = os.open(self._lock, os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)  # released with its process, so that the next one makes them
        if self._shared.exists():
            shutil.copytree(self._shared, cluster)
            os.close(lock)
        else:
            self._held = lock

    @property
    def missing(self) -> bool:
        return self._held is not None

    def store(self, cluster: Path) -> None:
        """Store the files of a server that is stopped."""
        assert self._held is not None
        draft = self._shared.with_name("pg.new")
        shutil.copytree(cluster, draft)
        draft.rename(self._shared)
        os.close(self._held)
        self._held = None


class RedisServer(EmbeddedServer):
    """The Redis that settings.REDIS_URL names. A test may take it away; it is back before the next one."""

    def __init__(self, data: Path) -> None:
        super().__init__(lambda: embedded.redis(data), data / "redis.log")
        self._folder = data / "redis"

    @property
    def running(self) -> bool:
        return self._process is not None

    def wipe(self) -> None:
        """Kills it and deletes everything it had on the disk."""
        self.kill()
        shutil.rmtree(self._folder)


class Hud:
    """The web application under gunicorn, over the tests' database."""

    def __init__(self, data: Path, database_url: str, checkout: Path = ROOT) -> None:
        self.port = free_port()
        self.database_url = database_url
        self._checkout = checkout
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = data / f"web-{self.port}.log"
        self._environment = {
            **os.environ,
            "DATABASE_URL": database_url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PORT": str(self.port),
            "WEB_CONCURRENCY": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **variables: str) -> None:
        """Starts it and waits for its answer; `variables` are added to its environment."""
        command = [sys.executable, "-m", "gunicorn", "-c", "python:hud.server.gunicorn_conf", "hud.wsgi"]
        environment = {**self._environment, **variables}
        self._process = start_process(command, self._log, environment, self._checkout)
        wait_for(self._answers, f"the web; its log: {self._log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        if self._process:
            end_process(self._process, signal.SIGTERM)
            self._process = None

    def kill(self) -> None:
        """kill -9 of the master; its workers die with it."""
        assert self._process
        end_process(self._process, signal.SIGKILL)
        self._process = None

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        """Of the master."""
        assert self._process
        return self._process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, f"the web ended: {self.log()[-4000:]}"
        try:
            urllib.request.urlopen(f"{self.url}/healthz", timeout=10).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True


def start_process(
    command: list[str], log: Path, environment: Mapping[str, str], checkout: Path = ROOT
) -> subprocess.Popen[bytes]:
    """Start a process of the project that ends with the tests, however they end."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [*embedded.dies_with_parent("KILL"), *command],
            cwd=checkout,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def end_process(process: subprocess.Popen[bytes], number: signal.Signals, timeout_s: float = 30) -> int:
    """Signals a process and waits for its end; returns its exit status."""
    process.send_signal(number)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
