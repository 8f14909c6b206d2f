"""`/hud bench CASES` on GitHub, and the key of a job's identity, against stand-ins of both APIs."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.servers import ROOT

ACTION = ROOT / ".github" / "actions" / "bench"
HEAD, SEEN, BASE = "a" * 40, "b" * 40, "c" * 40
REPO = "/repos/owner/name"


class Servers:
    """GitHub and a HUD at one address: answers by path, and the bodies that were sent."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.answers: dict[str, Any] = {
            f"{REPO}/collaborators/eva/permission": {"permission": "write"},
            f"{REPO}/pulls/7": {
                "head": {"sha": HEAD, "repo": {"pushed_at": "2026-11-01T10:00:00Z"}},
                "base": {"sha": BASE},
            },
            f"{REPO}/compare/{BASE}...{HEAD}": "diff of the head",
            f"{REPO}/compare/{BASE}...{SEEN}": "diff of what was seen",
            f"{REPO}/issues/7/comments": {},
            "/api/v1/runs": {"id": 5},
            "/api/v1/runs/5/result": {"state": "succeeded", "verdict": "regressed", "pairs": 6},
            "/api/v1/keys/github": {"key": "hud_of_the_job"},
            "/token": {"value": "identity"},
        }
        servers = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                path, size = self.path.partition("?")[0], int(self.headers["Content-Length"] or 0)
                if size:
                    servers.sent[path] = json.loads(self.rfile.read(size))
                servers.headers[path] = f"{self.headers['Authorization']} {self.path.partition('?')[2]}"
                answer = servers.answers.get(path)
                data = answer if isinstance(answer, str) else json.dumps(answer)
                self.send_response(200 if answer is not None else 404)
                self.send_header("Content-Length", str(len(data.encode())))
                self.end_headers()
                self.wfile.write(data.encode())

            do_GET = do_POST = answer  # noqa: N815 - the server's names

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def servers() -> Iterator[Servers]:
    opened = Servers()
    yield opened
    opened.server.shutdown()
    opened.server.server_close()


def run(servers: Servers, folder: Path, event: dict[str, Any], **variables: str) -> int:
    """Start the action's step as GitHub's runner does."""
    (folder / "event.json").write_text(json.dumps(event))
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    (step,) = action["runs"]["steps"]
    environment = {
        "PATH": os.environ["PATH"],
        "GITHUB_ACTION_PATH": str(ACTION),
        "GITHUB_API_URL": servers.url,
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_EVENT_PATH": str(folder / "event.json"),
        **{name.upper(): given.get("default", "") for name, given in action["inputs"].items()},
        "HUD_URL": servers.url,
        "HUD_KEY": "stored",
        "GITHUB_TOKEN": "t",
        **variables,
    }
    return subprocess.run(["bash", "-e", "-c", step["run"]], env=environment, check=False).returncode


def comment(body: str = "/hud bench layer_norm gemv", **other: Any) -> dict[str, Any]:
    own = {"body": body, "user": {"login": "eva"}, "created_at": "2026-11-01T10:00:01Z", **other}
    return {"action": "created", "issue": {"number": 7, "pull_request": {}}, "comment": own}


def test_who_may_write_has_the_commit_measured_that_was_commented_on(
    servers: Servers, tmp_path: Path
) -> None:
    assert run(servers, tmp_path, comment()) == 0
    started = servers.sent["/api/v1/runs"]
    assert started["overlay"] == {"patch": "diff of the head"}
    assert (started["cases"], started["commit"]) == (["layer_norm", "gemv"], HEAD)
    assert (started["pull_request"], started["suite"]) == (7, "micro")
    assert servers.headers["/api/v1/runs"].startswith("Bearer stored")
    answer = servers.sent[f"{REPO}/issues/7/comments"]["body"]
    assert "regressed" in answer
    assert HEAD[:12] in answer
    review = {"body": "/hud bench gemv", "user": {"login": "eva"}, "commit_id": SEEN}
    event = {"action": "submitted", "pull_request": {"number": 7}, "review": review}
    servers.answers[f"{REPO}/pulls/7"]["head"]["repo"] = None  # its repository is gone, the review is not
    assert run(servers, tmp_path, event) == 0
    assert servers.sent["/api/v1/runs"]["overlay"] == {"patch": "diff of what was seen"}


@pytest.mark.parametrize("permission", ["read", "none", "triage", ""])
def test_others_are_told_that_they_may_not(servers: Servers, tmp_path: Path, permission: str) -> None:
    servers.answers[f"{REPO}/collaborators/eva/permission"] = {"permission": permission}
    assert run(servers, tmp_path, comment()) == 0
    assert "/api/v1/runs" not in servers.sent
    assert "Not measured" in servers.sent[f"{REPO}/issues/7/comments"]["body"]


@pytest.mark.parametrize("repo", [{"pushed_at": "2026-11-01T10:00:01Z"}, {"pushed_at": None}, {}, None])
def test_a_push_after_the_comment_is_not_measured(
    servers: Servers, tmp_path: Path, repo: dict[str, str | None] | None
) -> None:
    servers.answers[f"{REPO}/pulls/7"]["head"]["repo"] = repo
    assert run(servers, tmp_path, comment()) == 0
    assert "/api/v1/runs" not in servers.sent
    assert "Not measured" in servers.sent[f"{REPO}/issues/7/comments"]["body"]


@pytest.mark.parametrize(
    "event",
    [
        comment("thanks"),
        comment("/hud bench"),
        comment("/hud bench $(id)"),
        comment("/hud bench ../x"),
        comment("/hud bench a\n/hud bench b"),
        comment(f"/hud bench {'a ' * 11}"),
        {**comment(), "action": "edited"},
        {**comment(), "issue": {"number": 7}},  # of no pull request
        {"action": "created"},
    ],
)
def test_nothing_else_is_heard(servers: Servers, tmp_path: Path, event: dict[str, Any]) -> None:
    assert run(servers, tmp_path, event) == 0
    assert not servers.headers


def test_a_job_without_a_stored_key_exchanges_its_identity(servers: Servers, tmp_path: Path) -> None:
    identity = {
        "ACTIONS_ID_TOKEN_REQUEST_URL": f"{servers.url}/token?api=1",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-job",
    }
    assert run(servers, tmp_path, comment(), HUD_KEY="", **identity) == 0
    audience = servers.url.replace(":", "%3A").replace("/", "%2F")
    assert servers.headers["/token"] == f"Bearer of-the-job api=1&audience={audience}"
    assert servers.sent["/api/v1/keys/github"] == {"token": "identity"}
    assert servers.headers["/api/v1/runs"].startswith("Bearer hud_of_the_job")
    del servers.answers["/api/v1/keys/github"]
    assert run(servers, tmp_path, comment(), HUD_KEY="", **identity) != 0
