"""A scratch dashboard of a checkout, and somebody who talks to it by HTTP."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

READY_S = 120
_OURS = re.compile(
    r"HUD_|DJANGO_|RUNNER_|TORCH|PYTORCH|TRITON|DATABASE_URL|REDIS_URL|SECRET_KEY|PYTHONPATH|VIRTUAL"
)
# Limits on how often one may call are lifted; a large upload is one that can be made quickly.
SETTINGS = dict.fromkeys(
    ("HUD_UPLOADS_PER_MINUTE", "HUD_RUNS_PER_MINUTE", "HUD_WRONG_KEYS", "HUD_WRONG_PASSWORDS"), "1000000"
) | {"HUD_MAX_RECORDS": "700"}


@dataclass(frozen=True)
class Reply:
    status: int
    kind: str  # content type without parameters
    body: bytes
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """Somebody with a key, with a session, or with nothing."""

    port: int
    key: str = ""
    cookies: dict[str, str] = field(default_factory=dict)

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        sent = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        if self.key:
            sent["Authorization"] = f"Bearer {self.key}"
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            sent["X-CSRFToken"] = self.cookies.get("csrftoken", "")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, quote(path, safe="/?&=%+,:[]"), body=body, headers=sent)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        for line in response.headers.get_all("Set-Cookie") or []:
            self.cookies |= {name: item.value for name, item in SimpleCookie(line).items()}
        kind = (response.headers["Content-Type"] or "").partition(";")[0]
        return Reply(response.status, kind, content, {**dict(response.headers)})

    def get(self, path: str) -> Reply:
        return self.call("GET", path)

    def post(self, path: str, content: Any) -> Reply:
        return self.call("POST", path, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def start_run(self, **wanted: Any) -> str:
        """Start a run and return its address."""
        answer = self.post("/api/v1/runs", wanted)
        if answer.status != 201:
            raise RuntimeError(f"no run: {answer.text}")
        return f"/api/v1/runs/{answer.json()['id']}"

    def ended(self, run: str) -> bool:
        return self.get(run).json()["state"] not in {"queued", "running"}

    def log_in(self, username: str, password: str) -> None:
        self.cookies.clear()
        self.get("/login/")
        form = {"username": username, "password": password, "csrfmiddlewaretoken": self.cookies["csrftoken"]}
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        if self.call("POST", "/login/", urlencode(form).encode(), kind).status != 302:
            raise RuntimeError("the operator's password was not taken")


class Dashboard:
    """`make up` of a checkout over a data folder of its own; a context manager."""

    def __init__(self, checkout: Path, data: Path, port: int = 0, **settings: str) -> None:
        self.checkout, self.data = checkout, data
        self.port = port or free_port()
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        own = {"HUD_DATA": str(self.data), "PORT": str(self.port), "DEMO": "0"}
        own |= {"RUNNER_LOCKS": str(self.data.parent / "locks")}
        return clean_environment() | SETTINGS | own | self._settings

    def __enter__(self) -> Dashboard:
        self.data.mkdir(parents=True, exist_ok=True)
        log = self.data.parent / f"up-{time.monotonic_ns()}.log"
        # -o: the environment is as it is; nothing is installed for a recording
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                ["make", "-o", ".venv/run.stamp", "up"],
                cwd=self.checkout,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            wait_for(lambda: f"Ready: {self.url}" in self._said(log), "the dashboard", READY_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def _said(self, log: Path) -> str:
        assert self._process
        if self._process.poll() is not None:
            raise RuntimeError(f"the dashboard ended: {log.read_text()[-2000:]}")
        return log.read_text()

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_in(self.checkout, [".venv/bin/python", "manage.py", *words], self.environment)

    def client(self, *, scopes: str = "") -> Client:
        """Somebody with a new key of these scopes; without, somebody unknown."""
        if not scopes:
            return Client(self.port)
        made = self.manage("create_key", f"freeze {scopes}", "--scopes", scopes)
        return Client(self.port, key=made.stdout.split()[-1])

    def operator(self) -> Client:
        known = json.loads((self.data / "operator.json").read_text())
        client = Client(self.port)
        client.log_in(known["username"], known["password"])
        return client

    def judge(self) -> None:
        """Wait until every verdict is written."""
        self.manage("judge", "--once")


def clean_environment() -> dict[str, str]:
    """This process's environment without what would change the behaviour of a checkout."""
    return {name: value for name, value in os.environ.items() if not _OURS.match(name)}


def run_in(
    checkout: Path, command: list[str], environment: Mapping[str, str], timeout_s: float = 900
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=checkout,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], object], what: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {limit_s} s in vain for {what}")
        time.sleep(0.2)  # between two looks at the dashboard
