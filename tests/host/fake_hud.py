"""The hud's half of the talk with a host, in memory: what the runner's tests speak to."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from runner.schema.protocol import PROTOCOL
from runner.schema.suite import TaskSpec

KEY = "hud_fake"
TOKEN = "one-time"
SPEC = TaskSpec(
    "micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu", knobs={"D": [256, 512]}, timeout_s=60
)


@dataclass
class FakeTask:
    spec: Mapping[str, Any] = field(default_factory=SPEC.to_json)
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    state: str = "queued"
    token: str = ""
    nonce: str = ""
    attempt: int = 0
    cancel: bool = False
    reports: list[dict[str, Any]] = field(default_factory=list)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)  # by content
    log: bytes = b""
    artifacts: dict[str, bytes] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    refuses_results: bool = False
    python: str = ""
    base_python: str = ""
    process: int = 0

    def break_lease(self) -> None:
        """Given up: queued again under another token."""
        self.state, self.token, self.log = "queued", "", b""


class Answer(Exception):
    def __init__(self, status: int, value: Mapping[str, Any] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.value = value


def problem(status: int, detail: str, **extra: Any) -> Answer:
    return Answer(status, {"status": status, "detail": detail, **extra})


class FakeHud:
    """Answers at `url`. `away` makes every call a 503; `stop()` and `start()` take the port away."""

    def __init__(self, redis_url: str = "unix:///nowhere/redis.sock") -> None:
        self.redis_url = redis_url
        self.tasks: list[FakeTask] = []
        self.beats: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.state = "online"
        self.beat_s = 0.4
        self.away = False
        self.keys = {KEY}
        self.tokens = {TOKEN}
        self.lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"hud": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def add(self, **spec: Any) -> FakeTask:
        task = FakeTask({**SPEC.to_json(), **spec})
        self.tasks.append(task)
        return task

    def answer(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        if self.away:
            raise problem(503, "the database is away; try again")
        parts = urlsplit(path)
        name = parts.path.removeprefix("/api/v1/")
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if name == "hosts/register":
            return self._register(json.loads(body))
        if headers.get("Authorization", "").removeprefix("Bearer ") not in self.keys:
            raise problem(401, "this key is unknown or revoked")
        if name in {"hosts/beat", "tasks/claim"}:
            call = self._beat if name == "hosts/beat" else self._claim
            return call(json.loads(body))
        _tasks, uid, *call_name = name.split("/")
        task = next((task for task in self.tasks if task.uid == uid), None)
        if task is None:
            raise problem(404, "no such task for this host")
        return self._of_task(task, call_name, query, body, headers)

    def _of_task(
        self,
        task: FakeTask,
        call: list[str],
        query: Mapping[str, str],
        body: bytes,
        headers: Mapping[str, str],
        /,
    ) -> Mapping[str, Any] | None:
        token = headers.get("X-Task-Token", "")
        if call == ["finish"]:
            return self._finish(task, token, json.loads(body))
        if task.token != token or task.state != "running":
            raise problem(409, "the lease of this task has ended", code="lease_broken")
        if call == ["progress"]:
            task.reports.append(json.loads(body))
            return {"cancel": task.cancel}
        if call == ["results"]:
            return self._results(task, body)
        if call == ["log"]:
            return self._log(task, int(query["offset"]), body)
        assert call[0] == "artifacts"
        assert headers["X-Sha256"] == hashlib.sha256(body).hexdigest()
        task.artifacts[call[1]] = body
        raise Answer(201, {"id": 1})

    def _register(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if given["token"] not in self.tokens:
            raise problem(403, "this token is unknown, used or expired")
        self.tokens.remove(given["token"])
        key = f"hud_{uuid.uuid4().hex}"
        self.keys.add(key)
        raise Answer(201, {"host": 1, "name": given["name"], "key": key, "redis_url": self.redis_url})

    def _beat(self, given: dict[str, Any]) -> Mapping[str, Any]:
        if given["protocol"] != PROTOCOL:
            raise problem(409, "other protocol", code="other_protocol")
        self.beats.append(given)
        names = [device["name"] for device in given["devices"]]
        return {
            "host": 1,
            "state": self.state,
            "note": "",
            "accelerators": {name: place + 1 for place, name in enumerate(names)},
            "queues": {name: f"accelerator-{place + 1}" for place, name in enumerate(names)},
            "redis_url": self.redis_url,
            "beat_s": self.beat_s,
        }

    def _claim(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        running = [task for task in self.tasks if task.state == "running"]
        task = running[0] if running else self._next()
        if running and running[0].nonce != given["nonce"]:
            task = None
        if task is None or self.state != "online":
            raise Answer(204)
        if task.state == "queued":
            task.state, task.nonce, task.token = "running", given["nonce"], str(uuid.uuid4())
            task.attempt += 1
            task.log = b""
        answer = {"task": task.uid, "token": task.token, "spec": task.spec, "attempt": task.attempt, "run": 1}
        answer |= {"python": task.python, "base_python": task.base_python, "process": task.process}
        return {**answer, "lease_s": 4 * self.beat_s, "beat_s": self.beat_s}

    def _next(self) -> FakeTask | None:
        return next((task for task in self.tasks if task.state == "queued"), None)

    def _results(self, task: FakeTask, body: bytes) -> Mapping[str, Any]:
        if task.refuses_results:
            raise problem(422, "a bad value", errors=[{"pointer": "/0", "detail": "NaN"}])
        lines = body.splitlines()
        stored = [line for line in lines if hashlib.sha256(line).hexdigest() not in task.records]
        task.records.update({hashlib.sha256(line).hexdigest(): json.loads(line) for line in stored})
        return {"id": 1, "stored": len(stored), "duplicates": len(lines) - len(stored), "skipped": []}

    def _log(self, task: FakeTask, offset: int, body: bytes) -> Mapping[str, Any]:
        if offset > len(task.log):
            raise problem(409, "the log ends elsewhere", code="log_offset", size=len(task.log))
        task.log += body[len(task.log) - offset :]
        return {"size": len(task.log)}

    def _finish(self, task: FakeTask, token: str, given: dict[str, Any]) -> Mapping[str, Any]:
        if task.token == token and task.state == "done":
            return {"state": "done"}
        if task.token != token or task.state != "running":
            raise problem(409, "the lease of this task has ended", code="lease_broken")
        task.end = given
        if given["code"] == "handed_back":
            task.attempt -= 1
            task.break_lease()
        else:
            task.state = "cancelled" if given["status"] == "cancelled" else "done"
        return {"state": task.state}


class _Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    hud: ClassVar[FakeHud]

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.hud.lock:
            self.hud.calls.append(f"{self.command} {self.path.removeprefix('/api/v1/')}")
            try:
                value = self.hud.answer(self.command, self.path, body, dict(self.headers))
                status = 200
            except Answer as answer:
                status, value = answer.status, answer.value
        content = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = _answer  # noqa: N815 - http.server's names

    def log_message(self, *_arguments: Any) -> None:
        pass
