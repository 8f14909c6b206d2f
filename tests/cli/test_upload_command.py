"""`python -m runner upload`: a receipt, a reason or another try."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from runner.__main__ import main
from runner.cli.output import Output
from runner.cli.upload import PARAMETERS, upload
from runner.client.hud import Hud
from runner.formats.parameters import Parameters
from tests.support.finished import finished

pytestmark = pytest.mark.usefixtures("own_folders")


class Door:
    """An upload door that answers what a test lays out, one answer a request, and keeps what it got."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.got: list[tuple[str, str, bytes]] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                door.got.append((self.path, self.headers["Authorization"], body))
                status, answer = door.answers.pop(0)
                said = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door()
    yield opened
    opened.close()


RECEIPT = {"stored": 3, "duplicates": 1, "skipped": [], "warnings": ["odd"]}


def test_an_upload_prints_its_receipt(door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r 1.json"
    Output(path, "ours", suites=["micro"], resume=False).add(finished())
    door.answers = [(201, RECEIPT)]
    assert main(["upload", str(path), "--hud", door.url + "/", "--key", "k"]) == 0
    said = capsys.readouterr().out
    assert "stored 3, duplicate 1, skipped 0" in said
    assert "warning: odd" in said
    ((place, key, body),) = door.got
    assert (place, key) == ("/api/v1/results?filename=r%201.json", "Bearer k")
    assert body == path.read_bytes()


def test_a_named_stream_is_sent_and_the_receipt_leads_there(
    door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    door.answers = [
        (201, {**RECEIPT, "links": {"runs": "/runs/3/", "stream": "/?stream=ci-main"}}),
        (403, {"detail": "the stream nightly belongs to somebody else"}),
    ]
    words = ["upload", str(path), "--hud", door.url, "--key", "k", "--stream"]
    assert main([*words, "ci-main"]) == 0
    assert f"{door.url}/?stream=ci-main" in capsys.readouterr().out
    assert main([*words, "nightly"]) == 1
    assert "403: the stream nightly" in capsys.readouterr().out
    asked = [parse_qs(urlsplit(address).query)["stream"] for address, _key, _body in door.got]
    assert asked == [["ci-main"], ["nightly"]]


@pytest.mark.parametrize("switch", ["--replace", "--dry-run", "--dry_run", "--partial", "--dynamic"])
def test_a_switch_needs_no_value_and_takes_one(switch: str, door: Door, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    orders = [[str(path), switch], [switch, str(path)], [str(path), switch, "1"], [f"{switch}=1", str(path)]]
    door.answers = [(201, RECEIPT)] * (len(orders) + 1)
    for words in [*orders, [switch, "0", str(path)]]:
        assert main(["upload", "--hud", door.url, "--key", "k", *words]) == 0
    name = switch[2:].replace("-", "_")
    values = [parse_qs(urlsplit(address).query)[name] for address, _key, _body in door.got]
    assert values == [["1"]] * len(orders) + [["0"]]


@pytest.mark.parametrize("spelling", ["--run-id=a_b", "--run_id=a_b"])
def test_an_option_may_have_underscores_as_the_parameter_has(
    spelling: str, door: Door, tmp_path: Path
) -> None:
    path = tmp_path / "r_1.json"
    path.write_text("{}")
    door.answers = [(201, RECEIPT)]
    assert main(["upload", str(path), "--hud", door.url, "--key", "k", spelling, "--commit_date", "x_y"]) == 0
    ((address, _key, _body),) = door.got
    asked = parse_qs(urlsplit(address).query)
    assert asked == {"filename": ["r_1.json"], "run_id": ["a_b"], "commit_date": ["x_y"]}


def test_skipped_and_refused_records_are_told_with_their_place(
    door: Door, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    skipped = [{"pointer": "", "line": 4, "reason": "no metric"}]
    fault = {"pointer": "/metric", "line": 7, "detail": "not a number"}
    door.answers = [
        (201, {"stored": 0, "duplicates": 0, "skipped": skipped}),
        (422, {"detail": "1 bad value", "errors": [fault]}),
    ]
    words = ["upload", str(path), str(path), "--hud", door.url, "--key", "k"]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "skipped line 4: no metric" in said
    assert "refused, 422: 1 bad value" in said
    assert "line 7 /metric: not a number" in said


def test_a_hud_that_is_away_is_asked_again(door: Door) -> None:
    door.answers = [(503, {}), (503, {}), (201, RECEIPT)]
    answer = upload("r.json", b"{}", Hud(door.url, "k"), {})
    assert answer.accepted
    assert len(door.got) == 3


def test_a_hud_that_stays_away_is_given_up(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.client.hud.PATIENCE_S", 0.0)
    door.answers = [(503, {})]
    answer = upload("r.json", b"{}", Hud(door.url, "k"), {})
    assert not answer.accepted
    assert not answer.delivered
    assert "not delivered: 503" in answer.lines[0]


def test_an_upload_to_nobody_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("runner.client.hud.PATIENCE_S", 0.0)
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    words = ["upload", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--key", "k"]
    assert main([*words, "--hud", f"http://127.0.0.1:{port}"]) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert "a.json: not delivered" in first
    assert second.endswith("b.json: not tried")


def test_a_file_that_is_too_large_is_not_sent(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_text("{}")
    large.write_text("x" * 11)
    monkeypatch.setenv("HUD_MAX_BODY_BYTES", "10")
    assert main(["upload", str(small), str(large), "--hud", door.url, "--key", "k"]) == 2
    assert "has 11 bytes; a hud takes 10" in capsys.readouterr().err
    assert door.got == []


def test_a_large_file_of_records_goes_in_pieces_of_one_run(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.jsonl"
    path.write_text('{"a": "xxxxxxxx"}\n' * 4)
    monkeypatch.setenv("HUD_MAX_BODY_BYTES", "40")
    door.answers = [(201, RECEIPT), (201, RECEIPT)]
    assert main(["upload", str(path), "--hud", door.url, "--key", "k", "--suite", "micro"]) == 0
    assert "piece 2: stored 3" in capsys.readouterr().out
    assert {parse_qs(urlsplit(place).query)["suite"][0] for place, _key, _body in door.got} == {"micro"}
    assert len({parse_qs(urlsplit(place).query)["run_id"][0] for place, _key, _body in door.got}) == 1
    assert b"".join(body for _place, _key, body in door.got).count(b"xxxxxxxx") == 4


def test_the_parameters_are_those_of_the_door() -> None:
    names = {field.name for field in dataclasses.fields(Parameters)}
    assert set(PARAMETERS) == names - {"filename"}


GITHUB = {
    "GITHUB_SHA": "a" * 40,
    "GITHUB_REF_NAME": "main",
    "GITHUB_HEAD_REF": "",
    "GITHUB_RUN_ID": "17",
    "GITHUB_RUN_ATTEMPT": "2",
    "GITHUB_REPOSITORY": "owner/name",
}
GITLAB = {
    "CI_COMMIT_SHA": "b" * 40,
    "CI_COMMIT_REF_NAME": "topic",
    "CI_PIPELINE_ID": "3",
    "CI_JOB_ID": "4",
    "CI_PROJECT_PATH": "group/name",
}


@pytest.mark.parametrize(
    ("variables", "options", "sent"),
    [
        (GITHUB, [], {"commit": "a" * 40, "branch": "main", "run_id": "17-2", "repo": "owner/name"}),
        (GITHUB | {"GITHUB_REF_NAME": "5/merge", "GITHUB_HEAD_REF": "topic"}, [], {"branch": "topic"}),
        (
            GITHUB,
            ["--commit", "c", "--run-id", "night"],
            {"commit": "c", "run_id": "night", "branch": "main"},
        ),
        (GITLAB, [], {"commit": "b" * 40, "branch": "topic", "run_id": "3-4", "repo": "group/name"}),
        ({"CI_PIPELINE_ID": "3"}, [], {"run_id": "3"}),
    ],
)
def test_a_ci_job_s_variables_say_what_no_option_does(
    door: Door,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    variables: dict[str, str],
    options: list[str],
    sent: dict[str, str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "r.json"
    path.write_text("{}")
    door.answers = [(201, RECEIPT)]
    assert main(["upload", str(path), "--hud", door.url, "--key", "k", *options]) == 0
    ((place, _key, _body),) = door.got
    query = {name: values[0] for name, values in parse_qs(urlsplit(place).query).items()}
    assert query.items() >= sent.items()
    line, *_others = capsys.readouterr().out.splitlines()
    by_ci = set(query) - {"filename"} - {option[2:].replace("-", "_") for option in options[::2]}
    assert {name for name in ("commit", "branch", "run_id", "repo") if f"{name} " in line} == by_ci


def test_without_a_ci_job_nothing_is_added(door: Door, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("{}")
    door.answers = [(201, RECEIPT)]
    assert main(["upload", str(path), "--hud", door.url, "--key", "k"]) == 0
    assert door.got[0][0] == "/api/v1/results?filename=r.json"


@pytest.mark.parametrize("limit", ["abc", "-1", "0.5"])
def test_a_wrong_limit_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, limit: str
) -> None:
    monkeypatch.setenv("HUD_MAX_BODY_BYTES", limit)
    (tmp_path / "a.json").write_text("[]")
    assert main(["upload", str(tmp_path / "a.json"), "--hud", "http://127.0.0.1:1", "--key", "k"]) == 2
    assert "HUD_MAX_BODY_BYTES" in capsys.readouterr().err
