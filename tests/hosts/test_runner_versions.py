"""Hosts with another runner than the HUD's: the protocol before this one, the wheel, what the page says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
import rq
from django.test import Client

from hud.hosts import registration
from hud.models import Host
from runner.schema.protocol import PROTOCOL, version
from tests.support.claims import request
from tests.support.pages import page_of
from tests.support.servers import Hud, end_process, start_process
from tests.support.waiting import wait_for

pytestmark = pytest.mark.django_db
WHEEL = f"/runner/compiler_hud_runner-{version()}-py3-none-any.whl"
NEEDED = ("rq", "redis", "numpy", "numpy.libs", "click", "croniter", "dateutil", "six.py", "pytz")


def headers_of(client: Client) -> dict[str, str]:
    given = {"token": registration.create_token(who="op"), "name": "gpu-1"}
    answer = client.post("/api/v1/hosts/register", given, content_type="application/json")
    return {"authorization": f"Bearer {answer.json()['key']}"}


def beat(client: Client, headers: dict[str, str], protocol: int, **facts: Any) -> Any:
    device = {"name": "cpu", "device": "cpu", "arch": "cpu-x86_64"}
    device |= {"suites": ["micro"], "pythons": ["default"]}  # type: ignore[dict-item]
    body = {"protocol": protocol, "sent_at": 1.0, "facts": facts, "devices": [device]}
    return client.post("/api/v1/hosts/beat", json.dumps(body), "application/json", headers=headers)


def test_a_host_of_the_protocol_before_works_on_and_is_asked_to_update(client: Client) -> None:
    headers = headers_of(client)
    accelerator = beat(client, headers, PROTOCOL - 1, cpu="x").json()["accelerators"]["cpu"]
    run = request()
    claim = {"protocol": PROTOCOL - 1, "accelerator": accelerator, "nonce": "n"}
    task = client.post("/api/v1/tasks/claim", claim, "application/json", headers=headers).json()
    assert task["run"] == run.pk
    assert WHEEL in page_of(client, "/hosts/")


def test_a_host_that_is_too_old_is_refused_and_its_page_says_why(client: Client) -> None:
    headers = headers_of(client)
    assert beat(client, headers, PROTOCOL, runner=version(), cpu="x").status_code == 200
    assert WHEEL not in page_of(client, "/hosts/")
    assert client.get("/hosts.json").json()["items"][0]["runner"] == version()
    heard = Host.objects.get().last_beat
    assert beat(client, headers, PROTOCOL - 2).status_code == 409
    host = Host.objects.get()
    assert (host.last_beat, host.facts["protocol"], host.facts["cpu"]) == (heard, PROTOCOL - 2, "x")
    text = page_of(client, "/hosts/")
    assert WHEEL in text
    assert "too old" in text
    assert beat(client, headers, PROTOCOL, runner="0.0.1+gffffffff").status_code == 200
    text = page_of(client, "/hosts/")
    assert "too old" not in text
    assert "0.0.1+gffffffff" in text


def test_a_host_attaches_from_the_wheel_alone(live_hud: Hud, tmp_path: Path) -> None:
    """In an environment without this checkout, with the packages alone that the wheel asks for."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = ["install", "--quiet", "--no-index", "--no-deps", "--find-links", f"{live_hud.url}/runner/"]
    pip = [sys.executable, "-m", "pip", "--python", str(python), *install, "compiler-hud-runner"]
    subprocess.run(pip, check=True, cwd=tmp_path)
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    metadata = (next(packages.glob("*.dist-info")) / "METADATA").read_text().splitlines()
    needed = {line.removeprefix("Requires-Dist: ") for line in metadata if line.startswith("Requires-Dist")}
    assert needed == {f"rq=={rq.VERSION}", f"redis=={redis.__version__}", "numpy"}
    here = Path(rq.__file__).parent.parent
    for name in NEEDED:
        if (here / name).exists():
            (packages / name).symlink_to(here / name)
    environment = {"PATH": os.environ["PATH"], "RUNNER_LOCKS": str(tmp_path / "locks"), "HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), *arguments]
        return subprocess.run(
            command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    assert "micro" in run("-m", "runner", "list").stdout
    assert "No module named 'django'" in run("-c", "import runner, django").stderr
    command = [str(python), "-m", "runner", "attach", "--hud", live_hud.url, "--name", "from-wheel"]
    command += ["--token", registration.create_token(who="op"), "--devices", "cpu"]
    agent = start_process(command, tmp_path / "agent.log", environment, tmp_path)
    try:
        wait_for(lambda: Host.objects.filter(last_beat__isnull=False), "a heartbeat")
    finally:
        end_process(agent, signal.SIGTERM)
    host = Host.objects.get()
    assert (host.name, host.facts["runner"]) == ("from-wheel", version())
