"""Backups of an installation: one snapshot of its database, and the files that the snapshot names.

A backup is a folder with `database.dump` (of pg_dump), `files/` (a part of `HUD_DATA`), and last
`manifest.json`: migrations, rows and digest of each table, and sha256 of each file. Nothing here needs Django
or its models, since `make up` backs up tables that are older than the code.
"""

import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from hud.server import embedded

MANIFEST, DUMP, FILES = "manifest.json", "database.dump", "files"
MIGRATIONS = sorted(path.stem for path in (Path(__file__).parents[1] / "migrations").glob("[0-9]*.py"))
ADVISORY_LOCK = 7_014_009
_HELD = ".backup"  # folder of links; one that a killed backup left is removed by the next
_PATTERNS = {  # the longest kept first
    "archive": "[0-9]*/*.parquet",
    "artifacts": "[0-9]*/*",
    "tasklogs": "[0-9]*/*.log",
    "imports": "*-*",
}
_NAMED_FILES = """
    SELECT path, size_bytes, true FROM public.hud_artifact
    UNION ALL
    SELECT format('tasklogs/%s/%s-%s.log', run_id, uid, number),
        CASE WHEN number = attempt THEN log_bytes END, number = attempt AND log_bytes > 0
    FROM public.hud_task, generate_series(0, attempt) number
    UNION ALL
    SELECT 'imports/' || uid, NULL, true FROM public.hud_import WHERE finished IS NULL
"""
_ARCHIVED_FILES = """
    UNION ALL SELECT format('%s-%s.parquet', path, kind), NULL, true
    FROM public.hud_archivedmonth, unnest(ARRAY['points', 'samples']) kind
"""
_KEPT = "public.hud_keptvalue"
_TABLES = """
    SELECT pg_class.oid::regclass::text FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relkind = '{}' AND relpersistence <> 't' AND nspname !~ '^(pg_|information_schema$)' ORDER BY 1
"""
_WITH_ROWS, _PARTITIONED = "r", "p"
# What `migrate`, `bootstrap` and the programs of `make up` store by themselves
_EMPTY_INSTALLATION = re.compile(
    r"public\.(auth_.*|django_.*|hud_(accelerator|apikey|audit|heartbeat|host|limituse|metric|schedule|stream|turn))"
)


class BackupError(RuntimeError):
    """A backup cannot be written or restored. The message says why."""


FAILURES = (BackupError, embedded.EmbeddedError, OSError, psycopg.Error)


@dataclass(frozen=True)
class Installation:
    data: Path
    database: Mapping[str, Any]  # as in Django's DATABASES


def write(directory: Path, installation: Installation) -> dict[str, Any]:
    """Back up one snapshot, also while the installation works, and verify what was written.

    Return the manifest. Raise one of FAILURES, with nothing left in the folder.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BackupError(f"{directory} is not empty")
    embedded.make_folder(directory).chmod(0o700)
    try:
        with _connect(installation) as connection, _held_files(connection, installation.data):
            manifest = _write_snapshot(directory, installation.data, connection)
        _verify("the dump", manifest["tables"], _rows_of_dump(directory, manifest["postgres"]))
        _verify("the files", manifest["files"], _files(directory))
        embedded.write_private(directory / MANIFEST, json.dumps(manifest, indent=1))
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return manifest


def restore(directory: Path, installation: Installation) -> dict[str, Any]:
    """Bring a backup into an empty installation that nobody uses, and verify what was restored.

    Return the manifest. Raise one of FAILURES; the database then has no tables, or is as it was.
    """
    manifest = _read(directory)
    with _connect(installation) as connection:
        _check_target(connection, manifest)
        for name in manifest["files"]:
            path = Path(name)
            if path.parts[0] == FILES:
                target = installation.data / path.relative_to(FILES)
                _verify(str(target), manifest["files"][name], _copy(directory / path, target))
        _drop_tables(connection)
        arguments = ["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges"]
        tool = _tool("pg_restore", manifest["postgres"])
        _run(connection, [tool, *arguments, "--dbname", connection.info.dsn, str(directory / DUMP)])
        try:
            _verify("the restored database", manifest["tables"], _rows(connection))
        except BackupError:
            _drop_tables(connection)
            raise
        if _KEPT in manifest["tables"]:  # versions of rows, by which it is found, are of another database
            connection.execute(f"TRUNCATE {_KEPT}")
    return manifest


def missing_migrations(installation: Installation) -> list[str]:
    """Return the migrations of this code that the database lacks; none if it has no runs to lose."""
    with _connect(installation) as connection:
        has_table = "public.hud_run" in _tables(connection)
        if not (has_table and _value(connection, "SELECT EXISTS (SELECT FROM public.hud_run)")):
            return []
        applied = set(_migrations(connection))
    return [name for name in MIGRATIONS if name not in applied]


def needed_bytes(installation: Installation) -> int:
    """Return how much room a backup takes at most, roughly."""
    with _connect(installation) as connection:
        size = _value(connection, "SELECT pg_database_size(current_database())")
    files = itertools.chain.from_iterable(
        (installation.data / kind).glob(pattern) for kind, pattern in _PATTERNS.items()
    )
    return 2 * int(size) + sum(path.stat().st_size for path in files)


def summary(manifest: Mapping[str, Any]) -> str:
    """Return what a verified backup has, in words."""
    rows = sum(table["rows"] for table in manifest["tables"].values())
    size = sum(file["bytes"] for file in manifest["files"].values())
    return (
        f"{rows:,} rows of {len(manifest['tables'])} tables and {len(manifest['files']):,} files"
        f" ({size / 2**20:,.1f} MiB); counts and digests agree"
    )


# ---- writing


@contextmanager
def _held_files(connection: psycopg.Connection[Any], data: Path) -> Iterator[None]:
    """Begin the snapshot, and keep the content of its files for the block, whoever deletes them meanwhile.

    Links are made before and after the snapshot begins: bodies of imports live shortest, so they are linked
    last before and first after.
    """
    if not _value(connection, f"SELECT pg_try_advisory_lock({ADVISORY_LOCK})"):
        raise BackupError("another backup of this installation is being written")
    folders = [data / kind / _HELD for kind in _PATTERNS]
    try:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        _link_files(data, list(_PATTERNS))
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        with connection.transaction():
            connection.execute("SELECT 1")  # begins the snapshot
            _link_files(data, list(reversed(_PATTERNS)))
            yield
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _link_files(data: Path, kinds: Iterable[str]) -> None:
    for kind in kinds:
        for path in (data / kind).glob(_PATTERNS[kind]):
            link = data / kind / _HELD / path.relative_to(data / kind)
            embedded.make_folder(link.parent)
            with suppress(FileExistsError, FileNotFoundError):
                os.link(path, link)


def _write_snapshot(directory: Path, data: Path, connection: psycopg.Connection[Any]) -> dict[str, Any]:
    major = connection.info.server_version // 10_000
    missing = []
    here = not os.environ.get("HUD_FILES")  # else they are in a bucket, which keeps versions of its own
    has_archive = "public.hud_archivedmonth" in _tables(connection)  # code of before had none
    named_files = _NAMED_FILES + (_ARCHIVED_FILES if has_archive else "")
    for name, size_bytes, required in connection.execute(named_files).fetchall() if here else ():
        kind, _, rest = name.partition("/")
        try:
            copied = _copy(data / kind / _HELD / rest, directory / FILES / name, size_bytes)
        except FileNotFoundError:
            copied = {"bytes": -1}
        if required and copied["bytes"] < (size_bytes or 0):
            missing.append(name)
    for name in embedded.PRIVATE_FILES:
        with suppress(FileNotFoundError):
            _copy(data / name, directory / FILES / name)
    snapshot = _value(connection, "SELECT pg_export_snapshot()")
    arguments = ["--format=custom", "--compress=1", "--encoding=UTF8", "--no-owner", "--no-privileges"]
    arguments += ["--snapshot", snapshot, "--file", str(directory / DUMP), "--dbname", connection.info.dsn]
    _run(connection, [_tool("pg_dump", major), *arguments])
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "postgres": major,
        "migrations": _migrations(connection),
        "tables": _rows(connection),
        "files": _files(directory),
        "missing": missing,
    }


def _copy(source: Path, target: Path, size_bytes: int | None = None) -> dict[str, Any]:
    """Copy a file, or its beginning; return its entry in the manifest. All of them fit into memory."""
    with source.open("rb") as file:
        content = file.read(size_bytes)
    embedded.make_folder(target.parent)
    target.touch(mode=0o600)
    target.write_bytes(content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


# ---- reading


def _read(directory: Path) -> dict[str, Any]:
    """Return the manifest of a backup whose files are as they were written. Raise BackupError."""
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
    except (FileNotFoundError, ValueError):
        raise BackupError(f"{directory} is no complete backup: it has no readable {MANIFEST}") from None
    if newer := sorted(set(manifest["migrations"]) - set(MIGRATIONS)):
        raise BackupError(f"the backup is of newer code, with migration {newer[-1]}; restore it with that")
    _verify("the backup", manifest["files"], _files(directory))
    return manifest


def _check_target(connection: psycopg.Connection[Any], manifest: Mapping[str, Any]) -> None:
    """Raise BackupError if the database is older than the backup's, has rows that matter, or is in use."""
    major = connection.info.server_version // 10_000
    if major < manifest["postgres"]:
        raise BackupError(f"the backup is of PostgreSQL {manifest['postgres']}, and this server is {major}")
    for table in _tables(connection):
        has_rows = _value(connection, f"SELECT EXISTS (SELECT FROM {table})")  # noqa: S608  # nosec B608
        if has_rows and not _EMPTY_INSTALLATION.fullmatch(table):
            raise BackupError(f"the database is not empty: {table} has rows; restore into a new installation")
    others = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
    if _value(connection, others):
        raise BackupError("the database is in use; stop the web, tick, imports and judge first")


def _drop_tables(connection: psycopg.Connection[Any]) -> None:
    if tables := [*_tables(connection), *_tables(connection, _PARTITIONED)]:
        connection.execute(f"DROP TABLE {', '.join(tables)} CASCADE")


def _rows_of_dump(directory: Path, major: int) -> dict[str, Any]:
    """Return rows and digest of each table of a dump, which is read completely."""
    command = [_tool("pg_restore", major), "--data-only", "--file", "-", str(directory / DUMP)]
    tables, line = {}, b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        lines = process.stdout or iter(())
        for line in lines:
            if header := re.match(rb"COPY (\S+) \(.*FROM stdin;", line):
                tables[header[1].decode()] = _digest(itertools.takewhile(lambda row: row != b"\\.\n", lines))
    if process.returncode:
        raise BackupError(f"the dump cannot be read: {line.decode(errors='replace').strip()}")
    return tables


def _rows(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return rows and digest of each table, from the text that pg_dump writes for them."""
    tables = {}
    for table in _tables(connection):
        with connection.cursor().copy(f"COPY {table} TO STDOUT") as rows:
            tables[table] = _digest(map(bytes, rows))
    return tables


def _digest(lines: Iterable[bytes]) -> dict[str, Any]:
    """Return the number of rows, and a digest that does not depend on their order."""
    rows = total = 0
    for line in lines:
        rows += 1
        total += int.from_bytes(hashlib.md5(line, usedforsecurity=False).digest())
    return {"rows": rows, "digest": f"{total % 2**128:032x}"}


def _files(directory: Path) -> dict[str, Any]:
    """Return bytes and sha256 of each file of a backup, other than its manifest."""
    entries = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_file() and name != MANIFEST:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            entries[name] = {"bytes": path.stat().st_size, "sha256": digest}
    return entries


def _verify(what: str, expected: Mapping[str, Any], actual: Mapping[str, Any]) -> None:
    different = sorted(name for name in {*expected, *actual} if expected.get(name) != actual.get(name))
    if different:
        names = ", ".join(different[:5])
        raise BackupError(f"{what} and the manifest disagree in {len(different)}: {names}")


# ---- the database


def _connect(installation: Installation) -> psycopg.Connection[Any]:
    """Connect with the settings on which the text of values and names depends."""
    connection = embedded.connect(installation.database)
    connection.autocommit = True
    connection.execute("SET search_path = ''; SET TimeZone = 'UTC'; SET DateStyle = ISO")
    return connection


def _value(connection: psycopg.Connection[Any], query: str) -> Any:
    """Return the only value of a query."""
    row = connection.execute(query).fetchone()
    return row and row[0]


def _tables(connection: psycopg.Connection[Any], kind: str = _WITH_ROWS) -> list[str]:
    return [name for (name,) in connection.execute(_TABLES.format(kind))]


def _migrations(connection: psycopg.Connection[Any]) -> list[str]:
    rows = connection.execute("SELECT name FROM public.django_migrations WHERE app = 'hud' ORDER BY name")
    return [name for (name,) in rows]


def _tool(name: str, major: int) -> str:
    """Return the oldest pg_dump or pg_restore here that knows servers of this version. Raise BackupError."""
    usable: dict[int, str] = {}
    installed = shutil.which(name)
    for path in ([Path(installed)] if installed else []) + embedded.postgres_tools(name):
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        if (number := re.search(r"\) (\d+)", version)) and int(number[1]) >= major:
            usable[int(number[1])] = str(path)
    if not usable:
        raise BackupError(f"no {name} of PostgreSQL {major} or newer: install postgresql-client-{major}")
    return usable[min(usable)]


def _run(connection: psycopg.Connection[Any], command: list[str]) -> None:
    """Run a tool with the connection's password. Raise BackupError with the end of what it says."""
    environment = {**os.environ, "PGPASSWORD": connection.info.password, "PGTZ": "UTC"}
    done = subprocess.run(command, env=environment, umask=0o077, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise BackupError(f"{Path(command[0]).name} failed: {reason}")
