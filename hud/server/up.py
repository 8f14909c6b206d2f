"""`python -m hud.server.up`, which `make up` runs: set everything up and keep it running until Ctrl-C.

Order: servers, tables, first account and host, static files, samples; then web, background work and the agent
of this machine, under supervision (`hud/server/supervisor.py`). All files are written below `HUD_DATA`.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psycopg

from hud.server import backup, embedded, worker_account
from hud.server.processes import Program
from hud.server.supervisor import Supervisor

BASE = Path(__file__).resolve().parent.parent.parent
SAMPLES = BASE / "hud" / "samples"
_MANAGE = str(BASE / "manage.py")
READY_S = 60
KILLED_WEB_S = 10  # for the web of a killed `make up` to end; it finishes its requests
HOST_S = 20  # to wait for this machine to attach, so that a rerun clicked at once finds it
TAIL_LINES = 20
_CHECKED = "--skip-checks"  # `migrate` did them; they import every page, which takes each process a second


class UpError(RuntimeError):
    """`make up` cannot continue. The message says why and what to do."""


@dataclass(frozen=True)
class Options:
    data: Path
    bind: str  # address the web listens on
    port: int
    demo: bool  # whether to ingest the samples

    @property
    def address(self) -> str:
        """The address under which this machine reaches the web."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.bind, self.bind)  # noqa: S104 - compared  # nosec B104

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    def environment(self) -> dict[str, str]:
        own = {"HUD_DATA": str(self.data), "PORT": str(self.port), "BIND": self.bind}
        return {"HUD_PUBLIC_URL": self.url, **os.environ, **own}

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Options:
        """Return the options from `HUD_DATA`, `PORT`, `BIND` and `DEMO`. Raise UpError for a wrong value."""
        port, demo = environment.get("PORT") or "8000", environment.get("DEMO") or "1"
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise UpError(f"PORT is {port!r}; it must be a number from 1 to 65535")
        if demo not in {"0", "1"}:
            raise UpError(f"DEMO is {demo!r}; it must be 0 or 1")
        data = Path(environment.get("HUD_DATA") or BASE / "var").resolve()
        return cls(data, environment.get("BIND") or "127.0.0.1", int(port), demo == "1")


def main() -> int:
    os.umask(0o077)  # uploads and logs are private to this user
    try:
        options = Options.read(os.environ)
        try:
            embedded.make_folder(options.data)
            (options.data / "up.lock").touch()
        except OSError as error:
            raise UpError(f"HUD_DATA={options.data} cannot be written: {error.strerror}") from None
        with only_one(options) as killed:
            check_port(options, patience_s=KILLED_WEB_S if killed else 0)
            for number in (signal.SIGTERM, signal.SIGHUP):  # like Ctrl-C: what `prepare` started is stopped
                signal.signal(number, signal.default_int_handler)
            prepare(options)
            return asyncio.run(serve(options))
    except (UpError, embedded.EmbeddedError) as error:
        sys.stderr.write(f"make up: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def say(text: str) -> None:
    if not text:
        return
    with suppress(OSError):  # the dashboard survives a closed terminal
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


@contextmanager
def only_one(options: Options) -> Iterator[bool]:
    """Hold the data folder's lock; yield whether its last holder was killed. Raise UpError if another holds
    it."""
    with (options.data / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UpError(
                f"already running on {options.data} ({lock.read().strip() or 'starting'}); "
                "stop it first, or give this one another HUD_DATA and PORT"
            ) from None
        lock.seek(0)
        killed = bool(lock.read())
        lock.truncate(0)
        lock.write(f"process {os.getpid()}, {options.url}\n")
        lock.flush()
        try:
            yield killed
        finally:
            lock.truncate(0)


def check_port(options: Options, *, patience_s: float) -> None:
    """Raise UpError if the web cannot listen on its port within this time."""
    deadline = time.monotonic() + patience_s
    family = socket.AF_INET6 if ":" in options.bind else socket.AF_INET
    while True:
        try:
            socket.create_server((options.bind, options.port), family=family).close()
        except OSError as error:
            if time.monotonic() >= deadline:
                detail = f"port {options.port} cannot be used: {error.strerror}"
                raise UpError(f"{detail}; choose another one: make up PORT=8001") from None
        else:
            return
        time.sleep(0.1)


def prepare(options: Options) -> None:
    """Update the database, first account, static files and samples, with the servers running meanwhile."""
    if os.environ.get("HUD_ENV") == "production" and "*" in os.environ.get("ALLOWED_HOSTS", ""):
        say("ALLOWED_HOSTS has *: any host name is accepted. Name the hosts of this site instead.")
    if not os.environ.get("REDIS_URL"):
        say(embedded.redis_binary()[1])
    embedded.make_folder(options.logs)
    log = options.logs / "setup.log"
    log.write_bytes(b"")
    with embedded.running(embedded.servers(options.data), options.logs):
        back_up_before_migration(options)
        say(_manage(options, "upgrade").strip())
        say(_manage(options, "bootstrap", _CHECKED, "--hud", options.url).strip())
        _collect_static(options)
        if options.demo:
            _ingest_samples(options)


def back_up_before_migration(options: Options) -> None:
    """Back up the embedded store if `migrate` will change it, and there is room. Raise UpError."""
    if os.environ.get("DATABASE_URL"):
        return
    installation = backup.Installation(options.data, embedded.database_settings(options.data))
    try:
        missing = backup.missing_migrations(installation)
        if not missing:
            return
        needed, free = backup.needed_bytes(installation), shutil.disk_usage(options.data).free
        room = f"up to {needed >> 20} MiB, {free >> 20} MiB are free"
        if needed > free:
            say(f"No backup before migration {missing[0]}, since there is no room for it: {room}.")
            return
        directory = options.data / "backups" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-before-{missing[0]}"
        say(f"Backing up before migration {missing[0]} ({room}) ...")
        manifest = backup.write(directory, installation)
    except backup.FAILURES as error:
        raise UpError(f"the backup before migration failed, and nothing has changed: {error}") from error
    say(f"Backup: {directory}, {backup.summary(manifest)}")
    say(f"To go back: HUD_DATA=NEW .venv/bin/python manage.py restore {directory}, then the code of before")


async def serve(options: Options) -> int:
    """Run the programs until a signal; return the exit status."""
    servers, agent = embedded.servers(options.data), _agent(options)
    supervisor = Supervisor(options.logs)
    try:
        supervisor.start(servers)
        for server in servers:
            if not await _until(server.answers, READY_S):
                raise UpError(f"{server.name} did not answer {_ending(options, server.name)}")
        started = time.time()
        web = ("-m", "gunicorn", "-c", "python:hud.server.gunicorn_conf", "hud.wsgi")
        supervisor.start([_python(options, "web", *web)])
        background = ("tick", "imports", "judge")
        supervisor.start([_python(options, name, _MANAGE, name, _CHECKED) for name in background])
        supervisor.start([agent])
        if not await _until(lambda: _overview_answers(options), READY_S):
            raise UpError(f"the overview did not answer {_ending(options, 'web')}")
        if not await _until(lambda: _host_is_attached(options, since=started), HOST_S):
            say(f"This machine has not attached itself yet; {options.logs / 'agent.log'} says why.")
        say(f"Ready: {options.url}")
        await asyncio.Event().wait()  # for a signal
    except asyncio.CancelledError:
        say("Stopping ...")
    finally:
        await supervisor.stop()
    return 0


async def _until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Return whether the condition came true within the limit."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if await asyncio.to_thread(condition):
            return True
        await asyncio.sleep(0.1)
    return False


def _ending(options: Options, name: str) -> str:
    log = options.logs / f"{name}.log"
    return f"within {READY_S} s; {log} ends with:\n{_tail(log)}"


def _overview_answers(options: Options) -> bool:
    """Return whether the overview has status 200, or 302 if reading needs a login."""
    connection = HTTPConnection(options.address, options.port, timeout=30)
    with closing(connection), suppress(OSError, HTTPException):
        connection.request("GET", "/", headers={"Host": "localhost"})
        return connection.getresponse().status in {200, 302}
    return False


def _host_is_attached(options: Options, *, since: float) -> bool:
    known = json.loads((options.data / "host.json").read_text())
    with suppress(psycopg.Error), embedded.connect(embedded.database_settings(options.data)) as connection:
        statement = (
            "SELECT detached_at IS NOT NULL OR last_beat >= to_timestamp(%s) FROM hud_host WHERE name = %s"
        )
        row = connection.execute(statement, [since, known["name"]]).fetchone()
        return bool(row and row[0])
    return False


def _python(options: Options, name: str, *arguments: str) -> Program:
    command = [*embedded.dies_with_parent("TERM"), sys.executable, *arguments]
    return Program(name, command, options.environment())


def _agent(options: Options) -> Program:
    """Return the agent of this machine. Root's has an account of its own where that is possible."""
    problem = worker_account.prepare(options.data, embedded.run_folder(options.data))
    if os.geteuid() == 0 and problem:
        say(
            "Benchmarks run as root, who can read every secret of this machine, since no other user works: "
            f"{problem}"
        )
    known = json.loads((options.data / "host.json").read_text())
    prefix = embedded.dies_with_parent("TERM") if problem else worker_account.prefix(options.data)
    command = [*prefix, sys.executable, "-m", "runner", "attach", "--stay"]
    command += ["--data", str(options.data / "agent"), "--name", known["name"]]
    environment = options.environment() if problem else worker_account.environment(options.data)
    environment |= {"HUD_URL": known["hud"], "HUD_KEY": known["key"]}
    return Program("agent", command, environment, stop_s=20)


def _manage(options: Options, *arguments: str) -> str:
    """Run a command of `manage.py`; return its output. Raise UpError with the end of its log."""
    log = options.logs / "setup.log"
    with log.open("ab") as file:
        done = subprocess.run(
            [sys.executable, _MANAGE, *arguments],
            env=options.environment(),
            stdout=subprocess.PIPE,
            stderr=file,
            check=False,
        )
        if done.returncode:  # otherwise not logged, since bootstrap prints a password
            file.write(done.stdout)
    if done.returncode:
        raise UpError(f"manage.py {arguments[0]} failed; {log} ends with:\n{_tail(log)}")
    return done.stdout.decode(errors="replace")


def _collect_static(options: Options) -> None:
    """Collect the static files if they changed; compressing plotly.js takes a while."""
    versions = [importlib.metadata.version(name) for name in ("Django", "plotly", "django-rq", "whitenoise")]
    stamp = _digest(BASE / "static", *versions)
    stamp_file = options.data / "static.stamp"
    if stamp_file.exists() and stamp_file.read_text() == stamp:
        return
    say("Collecting static files ...")
    _manage(options, "collectstatic", "--noinput", "--clear", "--verbosity=0")
    stamp_file.write_text(stamp)


def _ingest_samples(options: Options) -> None:
    """Ingest each folder of samples that this database has not seen."""
    stamp_file = options.data / "samples.json"
    database = os.environ.get("DATABASE_URL") or str((options.data / "pg" / "PG_VERSION").stat().st_mtime_ns)
    wanted = {path.parent.name: _digest(path.parent, database) for path in SAMPLES.glob("*/manifest.json")}
    seen: dict[str, str] = json.loads(stamp_file.read_text()) if stamp_file.exists() else {}
    new = sorted(name for name, digest in wanted.items() if seen.get(name) != digest)
    if not new:
        return
    say(f"Ingesting sample results: {', '.join(new)} ...")
    try:
        _manage(options, "ingest", _CHECKED, *(str(SAMPLES / name) for name in new))
    except UpError as error:  # the dashboard is useful without them
        say(str(error))
    else:
        stamp_file.write_text(json.dumps(wanted))


def _digest(folder: Path, *texts: str) -> str:
    """Return a digest of the names and contents of a folder's files, and of other texts."""
    digest = hashlib.sha256("\0".join(texts).encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"\0{path.relative_to(folder)}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else ["(nothing)"]
    return "\n".join(lines[-TAIL_LINES:])


if __name__ == "__main__":
    sys.exit(main())
