"""Pages from a streaming replica, and what is left of the site while the primary is away."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection

from hud.accounts.keys import create_key
from hud.server import embedded
from tests.conftest import POSTGRES_MAJOR
from tests.support.records import as_list, v3_record
from tests.support.servers import ROOT, EmbeddedServer, Hud, RedisServer, quick_postgres
from tests.support.waiting import wait_for

PASSWORD = "a long enough password"
AHEAD = "FFFFFFFF/FFFFFFFF"  # of every position in the primary's log


class Database(EmbeddedServer):
    """PostgreSQL with the files of another one: a primary, or with `follows` its replica."""

    def __init__(self, folder: Path, source: str, *, follows: bool) -> None:
        self.folder, self._name = folder, connection.settings_dict["NAME"]
        folder.mkdir()
        tool = next(path for path in embedded.postgres_tools("pg_basebackup") if path.exists())
        command = [str(tool), "--dbname", source, "--pgdata", str(folder / "pg"), "--checkpoint=fast"]
        subprocess.run([*command, *(["--write-recovery-conf"] if follows else [])], check=True)
        with (folder / "pg" / "postgresql.auto.conf").open("a") as file:
            file.write("log_statement = 'all'\nwal_retrieve_retry_interval = '100ms'\n")
        super().__init__(self._server_of, folder / "log")
        self.start()

    def _server_of(self) -> embedded.Server:
        server = quick_postgres(self.folder, POSTGRES_MAJOR)
        return replace(
            server, command=[*server.command, "--unix_socket_permissions=0777", "--synchronous_commit=on"]
        )

    def start(self) -> None:
        super().start()
        self.url = f"postgresql://hud@/{self._name}?host={embedded.run_folder(self.folder)}"

    def statements(self) -> str:
        return (self.folder / "log").read_text()

    def is_fed(self) -> bool:
        with psycopg.connect(self.url) as database:
            return bool(database.execute("SELECT count(*) FROM pg_stat_wal_receiver").fetchall()[0][0])


class Client:
    """Requests that say what was answered, and which database was read."""

    def __init__(self, hud: Hud, **databases: Database) -> None:
        self._hud, self._databases = hud, databases
        self.key = create_key(name="k", scopes=["read", "upload"], who="t")[1]
        self.cookies = ""

    def ask(
        self, address: str, *, body: bytes | None = None, key: bool = False, method: str = ""
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self.key}"} if key else {"Cookie": self.cookies}
        if body is not None and not key:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        client = http.client.HTTPConnection("127.0.0.1", self._hud.port, timeout=60)
        client.request(method or ("GET" if body is None else "POST"), address, body, headers)
        answer = client.getresponse()
        self.text = answer.read().decode()
        client.close()
        return answer

    def upload(self, commit: str) -> http.client.HTTPResponse:
        body = as_list(v3_record(case="a"), v3_record(case="b"))
        return self.ask(f"/api/v1/results?commit={commit}", body=body, key=True)

    def reads(self, address: str, *, key: bool = False) -> set[str]:
        """Return the databases that statements over runs reached."""
        before = {name: each.statements().count("hud_run") for name, each in self._databases.items()}
        assert self.ask(address, key=key).status == 200
        return {
            name
            for name, count in before.items()
            if self._databases[name].statements().count("hud_run") > count
        }

    def log_in(self) -> None:
        self.ask("/login/")
        token = self.text.partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
        self.cookies = f"csrftoken={token}"
        form = f"username=anna&password={PASSWORD.replace(' ', '+')}&csrfmiddlewaretoken={token}".encode()
        answer = self.ask("/login/", body=form)
        assert answer.status == 302
        given = [text.partition(";")[0] for text in answer.headers.get_all("Set-Cookie") or ()]
        self.cookies = "; ".join(given)


@pytest.fixture
def site(
    data: Path, hud_process: Hud, redis_server: RedisServer
) -> Iterator[tuple[Client, Database, Database]]:
    """The web over a primary and its replica, which begin as copies of the tests' own database."""
    User.objects.create_superuser("anna", password=PASSWORD)
    settings = connection.settings_dict
    own = f"postgresql://hud@/{settings['NAME']}?host={settings['HOST']}"
    with (data / "pg" / "pg_hba.conf").open("a") as file:
        file.write("local replication all trust\n")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_reload_conf()")
    with ExitStack() as stack:
        key = create_key(name="k", scopes=["read", "upload"], who="t")[1]
        folder = Path(tempfile.mkdtemp(prefix="hud-tests-", dir="/tmp"))  # short, and open to both servers
        folder.chmod(0o711)
        stack.callback(shutil.rmtree, folder)
        primary = Database(folder / "first", own, follows=False)
        stack.callback(primary.stop)
        replica = Database(folder / "second", primary.url, follows=True)
        stack.callback(replica.stop)
        web = Hud(data, primary.url)
        stack.callback(web.stop)
        web.start(DATABASE_REPLICA_URL=replica.url, HUD_UPLOADS_PER_MINUTE="1e9")
        client = Client(web, primary=primary, replica=replica)
        client.key = key
        wait_for(replica.is_fed, "the replica")
        yield client, primary, replica


def test_pages_come_from_the_replica_and_changes_go_to_the_primary(
    site: tuple[Client, Database, Database],
) -> None:
    client, _primary, replica = site
    assert client.upload("aaaa1111").status == 201
    wait_for(
        lambda: client.ask("/runs/").status == 200 and "aaaa111" in client.text, "the run on the replica"
    )
    assert client.reads("/runs/") == {"replica"}
    assert client.reads("/api/v1/runs", key=True) == {"primary"}
    client.log_in()
    assert "written=" in client.cookies
    own = client.cookies
    client.cookies = own.replace("written=", f"written={AHEAD}; before=")
    assert client.reads("/runs/") == {"primary"}, "the replica lacks what this visitor wrote"
    assert "anna" in client.text, client.cookies
    client.cookies = own
    wait_for(lambda: client.reads("/runs/") == {"replica"}, "the session there")
    assert "anna" in client.text
    for odd in ("'; DROP TABLE hud_run; --", "0/0/0", "é"):
        client.cookies = f"written={odd}".encode().decode("latin-1")
        assert client.reads("/runs/") == {"replica"}
    replica.kill()
    client.cookies = ""
    assert client.reads("/runs/") == {"primary"}


def test_without_its_primary_the_site_shows_what_the_replica_has(
    site: tuple[Client, Database, Database],
) -> None:
    client, primary, replica = site
    client.log_in()
    stored = [f"{number}ccccccc" for number in range(10)]
    assert {client.upload(commit).status for commit in stored} == {201}
    wait_for(lambda: client.ask("/runs/").status == 200 and stored[-1][:7] in client.text, "the runs there")
    assert "its replica has" not in client.text
    primary.kill()
    answer = client.upload("bbbb2222")
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) > 0
    wait_for(lambda: client.ask("/runs/").status == 200 and "its replica has" in client.text, "the line")
    for page in (
        "/",
        "/runs/",
        "/suites/",
        "/compilers/",
        "/regressions/",
        "/streams/",
        "/hosts/",
        "/system/",
    ):
        assert client.ask(page).status == 200, page
        assert "its replica has" in client.text, page
        assert "anna" in client.text, page
    assert client.ask("/readyz").status == 200
    assert client.ask("/statusz").status == 503
    primary.start()
    wait_for(lambda: client.upload("bbbb2222").status == 201, "the primary")
    wait_for(replica.is_fed, "the replica")
    wait_for(lambda: client.ask("/runs/").status == 200 and "bbbb222" in client.text, "the newest run")
    assert "its replica has" not in client.text
    client.ask("/api/v1/runs?limit=100", key=True)
    assert {run["commit"][:8] for run in json.loads(client.text)["items"]} == {*stored, "bbbb2222"}


def replica_of(client: Client) -> dict[str, str]:
    """Return what `/statusz` says of the replica."""
    status = client.ask("/statusz").status
    part: dict[str, str] = json.loads(client.text)["parts"]["replica"]
    assert status == 503 or not part["problem"]
    return part


def shown(client: Client) -> str:
    """The problem of the replica on the page System."""
    assert client.ask("/system.json").status == 200
    parts = {part["name"]: part for part in json.loads(client.text)["items"]}
    return str(parts["replica"]["problem"])


def test_how_far_the_replica_is_behind_is_said(site: tuple[Client, Database, Database]) -> None:
    client, primary, replica = site
    client.log_in()
    fine = {"problem": "", "warning": ""}
    wait_for(lambda: replica_of(client) == fine, "the replica")
    with psycopg.connect(replica.url) as database:
        database.execute("SELECT pg_wal_replay_pause()")
    assert client.upload("aaaa1111").status == 201
    wait_for(lambda: " s behind" in replica_of(client)["warning"], "a warning")
    wait_for(lambda: " s behind" in replica_of(client)["problem"], "a problem")
    wait_for(lambda: " s behind" in shown(client), "the problem on the page")
    assert client.ask("/readyz").status == 200
    with psycopg.connect(replica.url) as database:
        database.execute("SELECT pg_wal_replay_resume()")
    wait_for(lambda: replica_of(client) == fine and not shown(client), "the replica's news")
    replica.kill()
    silent = wait_for(lambda: replica_of(client)["problem"], "that it does not answer")
    assert re.search(r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", silent)
    assert client.reads("/runs/") == {"primary"}
    replica.start()
    wait_for(lambda: replica_of(client) == fine, "the replica")
    primary.kill()
    wait_for(lambda: replica_of(client)["problem"], "that it hears nothing")
    assert client.ask("/readyz").status == 200


@pytest.fixture
def mute() -> Iterator[str]:
    """The URL of a server that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"postgresql://hud@127.0.0.1:{server.getsockname()[1]}/hud?connect_timeout=3600"


@pytest.mark.parametrize("kind", ["mute", "dead", "misspelt"])
def test_a_replica_that_never_answers_is_named_from_the_start_and_stops_nothing(
    hud_process: Hud, redis_server: RedisServer, mute: str, kind: str
) -> None:
    User.objects.create_superuser("anna", password=PASSWORD)
    url = {
        "mute": mute,
        "dead": "postgresql://hud@127.0.0.1:1/hud",
        "misspelt": hud_process.database_url.replace("?", "x?"),
    }[kind]
    hud_process.start(DATABASE_REPLICA_URL=url)
    client = Client(hud_process)
    client.log_in()
    problem = replica_of(client)["problem"]
    assert problem
    assert shown(client) == problem, "since the same moment"
    start = problem.partition(" since ")[0]
    assert hud_process.log().count(start) == 1
    assert client.ask("/readyz").status == 200
    assert client.ask("/system/").status == 200
    assert start in client.text
    out = subprocess.run(
        [sys.executable, "manage.py", "bootstrap", "--skip-checks"],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": hud_process.database_url,
            "DATABASE_REPLICA_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert out.count(start) == 1
