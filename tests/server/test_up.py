"""`make up` as a person meets it: Ready, programs that come back, a clean end, a second start."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from hud.server import embedded, worker_account
from tests.server.up import START_S, Up
from tests.support.hosts import ANSWERS_FOR_TORCH
from tests.support.servers import free_port
from tests.support.waiting import wait_for

SECRET = "secret-of-the-dashboard-" + 40 * "x"


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    folder = Path(tempfile.mkdtemp(prefix="hud-", dir="/tmp"))
    up = Up(folder)
    yield up
    if up.process:
        up.stop()
    shutil.rmtree(folder)


def test_up_from_nothing_to_the_second_start(up: Up) -> None:
    """One story, because each start takes seconds."""
    production = _production(up)
    said = up.start(PYTHONPATH=production["PYTHONPATH"])
    password = _first_start_prints_the_password_once(up, said)
    _another_up_on_the_same_data_is_refused(up)
    for word in ("gunicorn", "postgres -D"):  # `make soak` kills each of them
        _comes_back(up, word)
    _keep_a_row(up)
    assert up.process
    up.process.kill()  # only this one: its servers and its web end by themselves, a little later
    up.process.wait()

    said = up.start(**production)
    assert password not in said
    assert "operator.json" in said
    assert _kept_rows(up) == [("kept",)]
    _its_own_programs_need_no_https(up)
    _a_task_reads_no_secret(up)
    assert up.stop(signal.SIGHUP) == 0
    wait_for(lambda: not up.processes(), f"the end of {up.processes()}", 5)


def _production(up: Up) -> dict[str, str]:
    """Variables of a production site on one machine, whose tasks do what a hostile benchmark would do."""
    code = up.folder / "code"
    code.mkdir(mode=0o755)
    up.folder.chmod(0o711)
    found = up.folder / "found"
    found.mkdir()
    found.chmod(0o777)
    (code / "sitecustomize.py").write_text(
        f"""{ANSWERS_FOR_TORCH}
import glob
if "runner.launch.child" in sys.orig_argv:
    import psycopg, signal, socket
    def attempt(action, *arguments):
        try:
            return repr(action(*arguments))
        except Exception as error:
            return "no: " + type(error).__name__
    data, run = {str(up.data)!r}, {str(embedded.run_folder(up.data))!r}
    names = ("secret_key", "operator.json", "host.json")
    found = {{name: attempt(lambda: open(data + "/" + name).read()) for name in names}}
    found["postgres"] = attempt(lambda: psycopg.connect(host=run, user="hud", dbname="hud", port=5432))
    found["environments"] = [
        attempt(lambda path=path: open(path, "rb").read()) for path in glob.glob("/proc/[0-9]*/environ")
    ]
    found["uid"] = os.getuid()
    rights = ("CapPrm", "CapEff", "CapAmb")
    found["rights"] = [line for line in open("/proc/self/status") if line.startswith(rights)]
    for name in ("registration.json", "workers/cpu.json"):
        found[name] = attempt(lambda: open(data + "/agent/" + name).read())
    found["redis"] = attempt(socket.socket(socket.AF_UNIX).connect, run + "/redis/redis.sock")
    found["worker"] = attempt(os.kill, os.getppid(), 0)
    found["root"] = attempt(os.setuid, 0)
    found["home"] = attempt(lambda: open(os.path.expanduser("~/tried"), "w").write("yes"))
    with open({str(found / "draft")!r}, "w") as file:
        json.dump(found, file)
    os.rename({str(found / "draft")!r}, {str(found / "report.json")!r})
    os._exit(3)
"""
    )
    (code / "sitecustomize.py").chmod(0o644)
    return {"HUD_ENV": "production", "SECRET_KEY": SECRET, "PYTHONPATH": str(code)}


def _its_own_programs_need_no_https(up: Up) -> None:
    for path, host, expected in (
        ("/healthz", "10.1.2.3", 200),
        ("/readyz", "10.1.2.3", 200),
        ("/login/", "localhost", 200),
        ("/login/", "other.example", 400),
    ):
        client = http.client.HTTPConnection("127.0.0.1", up.port, timeout=30)
        client.request("GET", path, headers={"Host": host})
        assert client.getresponse().status == expected, (path, host)
        client.close()


def _a_task_reads_no_secret(up: Up) -> None:
    key = up.create_key("run,read", HUD_ENV="production", SECRET_KEY=SECRET)
    request = urllib.request.Request(
        f"http://127.0.0.1:{up.port}/api/v1/runs",
        json.dumps({"suite": "micro", "cases": ["layer_norm"], "device": "cpu"}).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    report = up.folder / "found" / "report.json"
    urllib.request.urlopen(request, timeout=30).close()
    wait_for(report.exists, "the task", START_S)
    found = json.loads(report.read_text())
    if os.geteuid() != 0:  # then benchmark code has the rights of whoever runs `make up`
        assert found["uid"] == os.geteuid()
        return
    assert found["uid"] == worker_account.uid_of(up.data, "benchmarks")
    secrets = ("secret_key", "operator.json", "host.json", "registration.json", "workers/cpu.json")
    assert {found[name] for name in (*secrets, "redis", "worker", "root")} == {"no: PermissionError"}
    assert found["postgres"] == "no: OperationalError"
    assert SECRET not in str(found["environments"])
    assert "HUD_KEY" not in str(found["environments"])
    assert {line.split()[1] for line in found["rights"]} == {"0000000000000000"}
    assert found["home"] == "3"


def _first_start_prints_the_password_once(up: Up, said: str) -> str:
    found = re.search(r"password (\S+)", said)
    assert found
    kept = (up.data / "operator.json").read_text()
    assert found[1] in kept
    for name in ("operator.json", "host.json", "secret_key"):
        assert stat.S_IMODE((up.data / name).stat().st_mode) == 0o600, name
    logs = "".join(path.read_text(errors="replace") for path in (up.data / "logs").iterdir())
    assert found[1] not in logs
    return found[1]


def _another_up_on_the_same_data_is_refused(up: Up) -> None:
    refused = up.again(PORT=str(free_port()))
    assert refused.returncode == 1
    assert "already running" in refused.stderr
    assert f"http://127.0.0.1:{up.port}" in refused.stderr
    assert up.answers()


def _comes_back(up: Up, word: str) -> None:
    killed = up.find(word)
    assert killed, f"{word} is not among {up.processes()}"
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: killed not in up.processes() and up.find(word), f"{word} to come back")
    wait_for(up.answers, f"the overview after {word} was killed")


def _connect(up: Up) -> psycopg.Connection[tuple[str]]:
    run = embedded.run_folder(up.data)
    return psycopg.connect(host=str(run), port=embedded.PORT, user="hud", dbname="hud")


def _keep_a_row(up: Up) -> None:
    with _connect(up) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('kept')")


def _kept_rows(up: Up) -> list[tuple[str]]:
    with _connect(up) as connection:
        return connection.execute("SELECT word FROM kept").fetchall()


def test_a_busy_port_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = Up(tmp_path).again(PORT=str(taken.getsockname()[1]))
    assert refused.returncode == 1
    assert "choose another one: make up PORT=" in refused.stderr


@pytest.mark.parametrize("changes", [{"PORT": "http"}, {"PORT": "70000"}, {"DEMO": "yes"}])
def test_wrong_settings_are_refused_by_name(tmp_path: Path, changes: dict[str, str]) -> None:
    refused = Up(tmp_path).again(**changes)
    assert refused.returncode == 1
    assert f"make up: {next(iter(changes))} is " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_web_that_cannot_start_ends_make_up_with_its_log(up: Up) -> None:
    known = {"hud": "http://127.0.0.1:9", "name": "here", "key": "k"}
    prepare = f"lambda options: (options.data / 'host.json').write_text({json.dumps(known)!r})"
    prepared = f"up.READY_S, up.prepare = 3, {prepare}"
    impatient = f"import sys; from hud.server import up; {prepared}; sys.exit(up.main())"
    refused = up.again(code=impatient, WEB_CONCURRENCY="many")
    assert refused.returncode == 1
    assert "the overview did not answer within 3 s" in refused.stderr
    assert "invalid literal for int() with base 10: 'many'" in refused.stderr
    assert not up.processes()
