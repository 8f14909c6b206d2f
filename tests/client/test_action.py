"""GitHub's action and GitLab's template, against stand-ins of GitHub's API and a real HUD."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from hud.accounts.keys import create_key
from hud.models import Run
from tests.support import servers
from tests.support.records import as_list, v3_record

ACTION = servers.ROOT / ".github" / "actions" / "gate"
BASE, HEAD = "a" * 40, "b" * 40


class GitHub:
    """Comments of pull requests, as GitHub's API has them: a page holds two."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = [{"id": n, "body": f"comment {n}"} for n in range(3)]
        self.calls: list[str] = []
        github = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"null")
                github.calls.append(f"{self.command} {self.path.partition('?')[0]}")
                answer = github.answer(self.command, self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = answer  # noqa: N815 - the server's names

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, method: str, path: str, body: Any) -> Any:
        if method == "GET":
            page = int(re.findall(r"[?&]page=(\d+)", path)[0])
            return self.comments[2 * page - 2 : 2 * page]
        if method == "POST":
            self.comments.append({"id": len(self.comments), **body})
        else:
            self.comments[int(path.rpartition("/")[2])].update(body)
        return self.comments[-1]


@pytest.fixture
def github() -> Iterator[GitHub]:
    opened = GitHub()
    yield opened
    opened.server.shutdown()
    opened.server.server_close()


class Job:
    """A step of a job that uses the action, as GitHub's runner starts it."""

    def __init__(self, url: str, github: GitHub, folder: Path) -> None:
        self.folder = folder
        action = yaml.safe_load((ACTION / "action.yml").read_text())
        (self._step,) = action["runs"]["steps"]
        self._inputs = {name: given.get("default", "") for name, given in action["inputs"].items()}
        self._inputs |= {"hud": url, "base": BASE, "head": HEAD, "token": "t", "files": "results/*.json"}
        self._inputs["key"] = create_key(name="ci", scopes=["read", "upload", "run"], who="t")[1]
        self._given = {
            "PATH": os.environ["PATH"],
            "GITHUB_ACTION_PATH": str(ACTION),
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary"),
            "GITHUB_API_URL": f"http://127.0.0.1:{github.server.server_port}",
            "GITHUB_REPOSITORY": "owner/name",
        }

    def run(self, sha: str, *, pull_request: str = "7", **inputs: str) -> int:
        values = {f"inputs.{name}": value for name, value in {**self._inputs, **inputs}.items()}
        values["github.event.pull_request.number"] = pull_request
        wanted = {name: re.fullmatch(r"\$\{\{ (.*) \}\}", text) for name, text in self._step["env"].items()}
        said = {name: values[match[1]] for name, match in wanted.items() if match}
        environment = {**self._given, **said, "GITHUB_SHA": sha, "GITHUB_RUN_ID": sha[:3]}
        command = ["bash", "-e", "-c", self._step["run"]]
        return subprocess.run(command, cwd=self.folder, env=environment, check=False).returncode

    def measured(self, value: float | None) -> None:
        (self.folder / "results").mkdir(exist_ok=True)
        record = v3_record("device_bandwidth_gbps", [value] if value else [])
        if value is None:
            record["metric"]["extra_info"] = {"status": "crashed"}
        (self.folder / "results" / "r.json").write_bytes(as_list(record))


def test_the_action_uploads_gates_and_keeps_one_comment(
    live_hud: servers.Hud, github: GitHub, tmp_path: Path
) -> None:
    job = Job(live_hud.url, github, tmp_path)
    job.measured(1000.0)
    assert job.run(BASE, head=BASE, base=BASE) == 0  # equal sides pass
    assert job.run(HEAD) == 0
    assert {run.commit for run in Run.objects.all()} == {BASE, HEAD}
    (own,) = github.comments[3:]
    assert "Pass" in own["body"]
    failing = "c" * 40
    job.measured(None)  # a failing case is a result, and here a regression
    assert job.run(failing, head=failing) == 1
    (own,) = github.comments[3:]
    assert "Regressed" in own["body"]
    assert [comment["body"] for comment in github.comments[:3]] == [f"comment {n}" for n in range(3)]
    assert (tmp_path / "output").read_text().splitlines() == ["status=0", "status=0", "status=1"]
    assert "Regressed" in (tmp_path / "summary").read_text()
    assert job.run(HEAD, head="d" * 40, files="", pull_request="") == 0  # it cannot tell, and says so
    assert (tmp_path / "output").read_text().splitlines()[-1] == "status=3"
    assert job.run(HEAD, head="host:", files="") == 2


def test_gitlab_s_template_does_the_same(live_hud: servers.Hud, tmp_path: Path) -> None:
    job = yaml.safe_load((servers.ROOT / "deploy" / "gitlab-gate.yml").read_text())[".compiler-hud-gate"]
    (tmp_path / "r.json").write_bytes(as_list(v3_record()))
    environment = {
        "PATH": os.environ["PATH"],
        "HUD_URL": live_hud.url,
        "HUD_KEY": create_key(name="ci", scopes=["read", "upload"], who="t")[1],
        **{name: value for name, value in job["variables"].items() if not value.startswith("$")},
        "HUD_FILES": "r.json",
        "HUD_BASE": BASE,
        "CI_COMMIT_SHA": BASE,
        "CI_PIPELINE_ID": "5",
    }
    clone, *script = job["script"]
    assert clone.startswith("git clone")
    script = [line.replace("/tmp/hud", str(servers.ROOT)) for line in script]
    command = ["bash", "-e", "-c", "\n".join(script)]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, check=False)
    assert ended.returncode == 0
    assert Run.objects.get().commit == BASE
    assert "Pass" in (tmp_path / "gate.md").read_text()
