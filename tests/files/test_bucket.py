"""Two nodes without a common folder: files lie in a bucket of S3, here of moto's server."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from moto import settings as moto_settings
from moto.core.model_instances import reset_model_data
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from hud import retention
from hud.accounts.keys import create_key
from hud.corrections.deletion import delete
from hud.files import files, names_in
from hud.hosts import heartbeats
from hud.ingest import import_jobs
from hud.models import Heartbeat, Import, Measurement, Run, Task
from hud.problems import passing_problem
from hud.runs import logs
from runner.client.connection import Connection
from runner.formats.parameters import Parameters
from runner.host.client import Hud as Host
from tests.support.claims import attach, request
from tests.support.records import as_lines, v3_record
from tests.support.servers import Hud

pytestmark = pytest.mark.django_db(transaction=True)
LARGE = 10  # records of an upload whose body waits as a file
FILES = "s3://hud-files/of/tests"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="hud-files")
    yield server
    server.stop()
    s3_backends.reset()
    reset_model_data()


@pytest.fixture
def bucket(server: ThreadedMotoServer, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUD_FILES", FILES)
    use_bucket(settings, FILES)


def use_bucket(settings: Any, name: str) -> None:
    settings.HUD_FILES = name
    settings.STORAGES = {**settings.STORAGES, "default": {"BACKEND": "hud.files.bucket.Bucket"}}


@pytest.fixture
def nodes(
    bucket: None, hud_process: Hud, redis_server: object, tmp_path: Path, settings: Any
) -> Iterator[list[Hud]]:
    second = Hud(tmp_path, hud_process.database_url)
    hud_process.start(HUD_MAX_RECORDS=str(LARGE - 1))
    second.start(**of_its_own(tmp_path))
    yield [hud_process, second]
    second.stop()


def of_its_own(folder: Path) -> dict[str, str]:
    """Return the variables of a node that shares no folder with the tests."""
    return {"DJANGO_SETTINGS_MODULE": "hud.settings", "HUD_DATA": str(folder), "HUD_PUBLIC_READ": "1"}


def test_what_one_node_stores_the_other_reads_and_retention_deletes(
    nodes: list[Hud], monkeypatch: pytest.MonkeyPatch
) -> None:
    accelerator = attach("h1")
    run = request()
    first, second = (
        Host(node.url, create_key(name=node.url, scopes=["host"], who="t", host=accelerator.host)[1])
        for node in nodes
    )
    key = create_key(name="k", scopes=["upload", "read"], who="t")[1]
    reader = Connection(nodes[1].url, key)
    lease = first.claim(accelerator.pk, "n")
    assert lease
    log = b""
    for piece, host in ((b"one\n", first), (b"two\n", second), (b"three\n", first)):
        assert host.log(lease, len(log), piece) == len(log) + len(piece)
        log += piece
        for start in (0, 2, len(log)):
            with urllib.request.urlopen(f"{nodes[1].url}/api/v1/runs/{run.pk}/log?start={start}") as answer:
                assert answer.read() == log[start:]
    content = bytes(range(256)) * 10_000
    first.artifact(lease, "trace", content)
    listed = reader.call("GET", f"/api/v1/runs/{run.pk}/artifacts")
    with urllib.request.urlopen(nodes[1].url + listed["items"][0]["url"]) as answer:
        assert (answer.read(), answer.headers["Content-Length"]) == (content, str(len(content)))

    body = as_lines(*(v3_record(case=f"c{number}") for number in range(LARGE)))
    Connection(nodes[0].url, key).call("POST", "/api/v1/results", body)
    job = Import.objects.get()
    assert names_in("imports") == [import_jobs.body_name(job)]
    call_command("imports", "--once")
    assert (Measurement.objects.count(), names_in("imports")) == (LARGE, [])

    task = Task.objects.get(accelerator=accelerator)
    folders = [f"{kind}/{run.pk}" for kind in ("artifacts", "tasklogs")]
    assert [len(names_in(folder)) for folder in folders] == [1, 1]
    files.append(logs.log_name(task, 0), 0, b"of an attempt before")
    long_ago = timezone.now() - timedelta(days=1000)
    Task.objects.filter(pk=task.pk).update(state="done", finished=long_ago)
    monkeypatch.setattr(retention, "_ORPHAN_AGE", timedelta(0))
    assert {"artifacts", "task logs"} <= dict(retention.batches()).keys()
    assert [names_in(folder) for folder in folders] == [[], []]


def test_files_grow_are_read_in_part_and_go_with_their_run(bucket: None) -> None:
    accelerator = attach("h1")
    run = request()
    assert files.identity == files.identity
    task = Task.objects.get(run=run)
    Task.objects.filter(pk=task.pk).update(accelerator=accelerator, attempt=1)
    task.refresh_from_db()
    name = logs.log_name(task)
    large = bytes(range(256)) * 2**15  # the server itself copies it
    log = b""
    for start, piece in ((0, b"x" * 100), (50, large), (50 + len(large), b"end"), (10, b"anew")):
        files.append(name, start, piece)
        log = log[:start] + piece
        assert files.read(name) == log
        assert files.read(name, start, 3) == log[start : start + 3]
        assert files.read(name, len(log), 3) == b""
    with pytest.raises(FileNotFoundError):
        files.read("tasklogs/none")
    assert files.size(name) == len(log)
    Run.objects.filter(pk=run.pk).update(state="done", finished=timezone.now())
    delete(Run.objects.get(pk=run.pk), who="t")
    assert names_in(f"tasklogs/{run.pk}") == []


def test_a_node_with_other_files_or_none_refuses_to_start(
    bucket: None, hud_process: Hud, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeats.join()
    boto3.client("s3").create_bucket(Bucket="another")
    other = "is not what another node"
    with pytest.raises(AssertionError, match=rf"the web ended(?s:.)*HUD_FILES=s3://another {other}"):
        hud_process.start(**of_its_own(tmp_path), HUD_FILES="s3://another")
    for name, words in (
        ("s3://hud-files/other", other),
        ("s3://no-such-bucket", "cannot be used:.*does not exist"),
    ):
        use_bucket(settings, name)
        with pytest.raises(heartbeats.CannotStart, match=f"{name} {words}"):
            heartbeats.join()
    settings.HUD_FILES = ""
    settings.STORAGES = {**settings.STORAGES, "default": {"BACKEND": "hud.files.folder.Folder"}}
    with pytest.raises(heartbeats.CannotStart, match=f"HUD_DATA=.* {other}"):
        heartbeats.join()
    monkeypatch.setattr(moto_settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)  # from now on a key needs rights
    use_bucket(settings, FILES)
    with pytest.raises(heartbeats.CannotStart, match=f"{FILES} cannot be used:"):
        heartbeats.join()


def test_without_its_bucket_a_node_is_not_ready_and_an_import_waits(bucket: None, client: Client) -> None:
    heartbeats.join()
    job = import_jobs.submit(as_lines(v3_record()), Parameters())
    assert client.get("/readyz").json()["components"]["data_folder"] == "ok"
    boto3.resource("s3").Bucket("hud-files").objects.all().delete()
    boto3.client("s3").delete_bucket(Bucket="hud-files")
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["components"]["data_folder"][:17]) == (
        503,
        "HUD_FILES=" + FILES[:7],
    )
    with pytest.raises(OSError, match="NoSuchBucket") as raised:
        import_jobs.process(job)
    problem = passing_problem(raised.value)
    assert problem
    assert problem.status == 503
    job.refresh_from_db()
    assert job.state == "queued"
    heartbeats.beat("tick")
    assert Heartbeat.objects.filter(name="tick").exists()
