"""Add a suite, a metric and a format as CONTRIBUTING says: a folder or file, and one line or row each."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from hud.accounts.keys import create_key
from hud.hosts import registration
from hud.judging.judge import process_pending
from hud.models import Run
from tests.support.hosts import ANSWERS_FOR_TORCH, HostProcess
from tests.support.servers import ROOT, Hud, RedisServer
from tests.support.waiting import wait_for

HERE = Path(__file__).resolve().parent
ROW = "nap_ms,Length of a nap,ms,down,timing,3,0.05,detail,\n"


def insert(path: Path, before: str, line: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1, f"{path.name} has {before!r} {text.count(before)} times"
    path.write_text(text.replace(before, line + before))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the suite, the metric and the format added."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("hud", "templates", "static", "tests", "manage.py"):
        (root / name).symlink_to(ROOT / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "runner", root / "runner", ignore=ignored)
    shutil.copytree(HERE / "sleepy", root / "runner" / "suites" / "sleepy", ignore=ignored)
    insert(root / "runner" / "suites" / "__init__.py", "    CEILINGS,\n", '    "sleepy",\n')
    insert(root / "runner" / "schema" / "metrics.csv", "latency_us,Latency,", ROW)
    shutil.copy(HERE / "stopwatch.py", root / "runner" / "formats" / "readers")
    formats = root / "runner" / "formats" / "__init__.py"
    insert(formats, '    "torchdynamo.pr_time",\n', '    "readers.stopwatch",\n')
    return root


def python(checkout: Path, *arguments: str) -> str:
    answer = subprocess.run(
        [sys.executable, *arguments], cwd=checkout, capture_output=True, text=True, check=False, timeout=120
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


class Api:
    """Calls of one dashboard with one key; a page is one, too."""

    def __init__(self, url: str, *scopes: str) -> None:
        self._url = url
        _key, secret = create_key(name="test", scopes=list(scopes), who="test")
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def call(self, path: str, body: bytes | None = None) -> tuple[int, str]:
        request = urllib.request.Request(self._url + path, body, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture(scope="module")
def _web_of_checkout(checkout: Path, data: Path, django_db_setup: None) -> Iterator[Hud]:
    database = settings.DATABASES["default"]
    url = f"postgresql://hud@/{connection.settings_dict['NAME']}?host={database['HOST']}"
    hud = Hud(data, url, checkout)
    yield hud
    hud.stop()


@pytest.fixture
def hud(_web_of_checkout: Hud, transactional_db: None, redis_server: RedisServer) -> Hud:
    """The dashboard of that checkout, which the tests share."""
    if not _web_of_checkout.running:
        _web_of_checkout.start()
    return _web_of_checkout


@pytest.fixture(scope="module")
def nap(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of a nap of two milliseconds."""
    output = tmp_path_factory.mktemp("naps") / "naps.json"
    words = ["run", "sleepy", "--case", "nap[duration_ms=2]", "--device", "cpu", "--output", str(output)]
    assert "nap ms" in python(checkout, "-m", "runner", *words)
    (record,) = json.loads(output.read_text())["records"]
    return dict(record)


def test_the_command_lists_and_measures_the_suite(checkout: Path, nap: dict[str, Any]) -> None:
    assert "nap" in python(checkout, "-m", "runner", "list", "sleepy")
    assert nap["metric"]["name"] == "nap_ms"
    assert nap["metric"]["extra_info"]["unit"] == "ms"
    assert nap["benchmark"]["extra_info"]["knobs"] == {"duration_ms": 2}
    assert "unexpected" not in nap["metric"]["extra_info"]
    assert len(nap["metric"]["benchmark_values"]) == 20


def test_a_task_that_dies_leaves_the_row_that_the_suite_expects(checkout: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from runner.launch.launch import launch;"
        "from runner.schema.tasks import Selection, plan; import runner.suites;"
        "(task,) = plan(Selection('sleepy', 'cpu'));"
        f"end = launch(task, Path({str(tmp_path)!r}), command=[sys.executable, '-c', 'raise SystemExit(3)']);"
        "print(end.status, [(r['metric']['name'], r['metric']['extra_info']['status']) for r in end.records])"
    )
    assert python(checkout, "-c", code).strip() == "crashed [('nap_ms', 'crashed')]"


def faster_history(nap: dict[str, Any]) -> bytes:
    """Return the records of twelve earlier runs of the default nap, half as long as one of a millisecond."""
    lines = []
    for day in range(1, 13):
        earlier = copy.deepcopy(nap)
        earlier["benchmark"]["extra_info"]["knobs"] = {}
        earlier["metric"]["benchmark_values"] = [0.5 + 0.001 * (day % 3)] * 20
        lines.append(json.dumps({**earlier, "timestamp": nap["timestamp"] - 86_400 * day}))
    return "\n".join(lines).encode()


def test_a_host_measures_it_and_its_page_shows_the_verdict(
    checkout: Path, hud: Hud, nap: dict[str, Any], tmp_path: Path
) -> None:
    call_command("bootstrap")
    api = Api(hud.url, "run", "read", "upload")
    words = ["attach", "--hud", hud.url, "--token", registration.create_token(who="test"), "--name", "bed"]
    words += ["--data", str(tmp_path / "data"), "--devices", "cpu"]
    (tmp_path / "sitecustomize.py").write_text(ANSWERS_FOR_TORCH)
    host = HostProcess(tmp_path, ["-m", "runner", *words], {"PYTHONPATH": str(tmp_path)}, checkout)
    host.start()
    try:
        wait_for(lambda: "sleepy" in api.call("/api/v1/hosts")[1], "a host that offers the suite", 60)
        status, text = api.call("/api/v1/runs", b'{"suite": "sleepy", "device": "cpu"}')
        assert status == 201, text
        run = Run.objects.get(pk=json.loads(text)["id"])
        wait_for(lambda: Run.objects.get(pk=run.pk).state not in {"queued", "running"}, "its end", 120)
    finally:
        host.close()
    run.refresh_from_db()
    assert run.state == "succeeded", run.reason + host.log
    for record in faster_history(nap).splitlines():  # each upload is a run
        assert api.call("/api/v1/results", record)[0] == 201
    process_pending()
    (row,) = json.loads(api.call("/suites/sleepy.json")[1])["items"]
    assert (row["case"], row["metric"], row["unit"], row["verdict"]) == ("nap", "nap_ms", "ms", "regressed")
    status, page = api.call(f"/experiments/{row['experiment']}/?options=all")
    assert status == 200
    assert "Length of a nap" in page
    assert "duration_ms" in page, "the form offers the parameter"


def test_an_upload_in_the_new_format_is_detected_and_stored(hud: Hud) -> None:
    call_command("bootstrap")
    api = Api(hud.url, "upload", "read")
    status, text = api.call("/api/v1/results?arch=h200", b"case,length (ms)\nnap,1.5\nsiesta,long\n")
    assert (status, json.loads(text)["errors"][0]["line"]) == (422, 3)
    status, text = api.call("/api/v1/results?arch=h200", b"case,length (ms)\nnap,1.5\n")
    assert (status, json.loads(text)["stored"]) == (201, 1)
