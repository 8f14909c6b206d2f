"""HTTP to the hud, and the spool that outlives its absence."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import socket
import urllib.error
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

from runner.client.connection import KeyRefused, Refused, Unreachable, error_of, with_retries
from runner.host import spool
from runner.host.client import Hud, LeaseBroken, WrongOffset
from runner.host.spool import Folder, left_over
from runner.schema.tasks import TaskOutcome
from runner.system import account
from tests.host.fake_hud import KEY, SPEC, TOKEN, FakeHud, FakeTask
from tests.support.records import task_record

LINES = [json.dumps(task_record(SPEC, f"m{number}")) + "\n" for number in range(50)]


@pytest.fixture
def fake() -> Iterator[FakeHud]:
    hud = FakeHud()
    yield hud
    hud.stop()


@pytest.fixture
def hud(fake: FakeHud) -> Hud:
    return Hud(fake.url, KEY, timeout_s=5)


@pytest.fixture
def task(fake: FakeHud) -> FakeTask:
    return fake.add()


@pytest.fixture
def folder(hud: Hud, task: FakeTask, tmp_path: Path) -> Folder:
    """A claimed task's folder, with everything that a finished task leaves."""
    lease = hud.claim(1, "nonce")
    assert lease
    folder = Folder.create(tmp_path, lease)
    (folder.path / "results.jsonl").write_text("".join(LINES))
    (folder.path / "log").write_bytes(b"line\n" * 1000)
    (folder.path / "artifacts" / "trace").mkdir(parents=True)
    (folder.path / "artifacts" / "trace" / "a.json").write_text("{}")
    folder.end(TaskOutcome("ok", seconds=1.5))
    return folder


def assert_home(task: FakeTask) -> None:
    assert task.state == "done"
    assert task.end == {"status": "ok", "code": "", "reason": "", "seconds": 1.5}
    assert len(task.records) == len(LINES)
    assert task.log == b"line\n" * 1000
    assert task.artifacts == {"trace": b"{}"}


def test_a_token_buys_a_key(fake: FakeHud) -> None:
    answer = Hud(fake.url).register(TOKEN, "here")
    assert answer["name"] == "here"
    assert Hud(fake.url, answer["key"]).claim(1, "n") is None
    with pytest.raises(KeyRefused):
        Hud(fake.url).register(TOKEN, "here")


def test_a_claim_repeated_is_the_same_task(hud: Hud, task: FakeTask) -> None:
    first = hud.claim(1, "n")
    assert first == hud.claim(1, "n")
    assert hud.claim(1, "another") is None
    assert task.attempt == 1


def test_errors_have_their_own_exceptions(fake: FakeHud, hud: Hud, task: FakeTask) -> None:
    lease = hud.claim(1, "n")
    assert lease
    assert not hud.progress(lease, {"phase": "x" * 500, "done": -3, "total": float("inf")})
    with pytest.raises(WrongOffset) as offset:
        hud.log(lease, 10, b"x")
    assert offset.value.problem["size"] == 0
    task.refuses_results = True
    with pytest.raises(Refused, match="422: a bad value"):
        hud.results(lease, b"{}\n")
    task.break_lease()
    with pytest.raises(LeaseBroken):
        hud.progress(lease, {})
    with pytest.raises(LeaseBroken):
        hud.finish(lease, TaskOutcome("ok", "", "", 0.0))
    with pytest.raises(KeyRefused):
        Hud(fake.url, "wrong").claim(1, "n")
    fake.away = True
    with pytest.raises(Unreachable, match="the database is away"):
        hud.claim(1, "n")
    fake.stop()
    with pytest.raises(Unreachable):
        hud.claim(1, "n")


def test_a_hud_that_never_answers_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        hud = Hud(f"http://127.0.0.1:{deaf.getsockname()[1]}", KEY, timeout_s=0.2)
        with pytest.raises(Unreachable):
            hud.claim(1, "n")


@pytest.mark.parametrize("url", ["", "hud:8000", "ftp://hud", "http://", "file:///etc/passwd"])
def test_an_address_is_http(url: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        Hud(url)


def test_patience(fake: FakeHud, hud: Hud) -> None:
    fake.away = True
    calls = []

    def call() -> str:
        calls.append(1)
        fake.away = len(calls) < 3
        hud.claim(1, "n")
        return "done"

    assert with_retries(call, patience_s=30) == "done"
    assert len(calls) == 3
    fake.away = True
    with pytest.raises(Unreachable):
        with_retries(lambda: hud.claim(1, "n"), patience_s=0)


def test_delivery(hud: Hud, task: FakeTask, folder: Folder, tmp_path: Path) -> None:
    folder.deliver(hud)
    assert_home(task)
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("step", range(6))
def test_delivery_goes_on_after_an_outage_at_any_step(
    fake: FakeHud, hud: Hud, folder: Folder, tmp_path: Path, step: int
) -> None:
    (task,) = fake.tasks
    before = len(fake.calls)
    answer = fake.answer

    def fail_once(*arguments: object) -> object:
        fake.away = len(fake.calls) - before == step + 1
        return answer(*arguments)  # type: ignore[arg-type]

    fake.answer = fail_once  # type: ignore[method-assign, assignment]
    try:
        folder.deliver(hud)
    except Unreachable:
        folder.release()
        (again,) = left_over(tmp_path)  # as another process finds it
        again.deliver(hud)
    assert_home(task)
    assert left_over(tmp_path) == []


def test_delivery_whose_answers_are_lost(
    hud: Hud, task: FakeTask, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything arrived, nothing was acknowledged: the second time stores nothing new."""
    monkeypatch.setattr(account, "remove", lambda *_paths: None)
    folder.deliver(hud)
    folder.release()
    monkeypatch.undo()
    (again,) = left_over(tmp_path)
    again.deliver(hud)
    assert_home(task)


def test_an_outcome_that_is_not_on_the_disk_is_delivered(
    hud: Hud, task: FakeTask, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(spool, "write_json", full)
    folder.end(TaskOutcome("crashed", "exit_1", "no space left on device"))
    folder.deliver(hud)
    assert (task.state, task.end["code"]) == ("done", "exit_1")


def test_a_broken_lease_keeps_the_folder_as_evidence(
    hud: Hud, task: FakeTask, folder: Folder, tmp_path: Path
) -> None:
    task.break_lease()
    folder.deliver(hud)
    assert left_over(tmp_path) == []
    (kept,) = (tmp_path / "refused").iterdir()
    assert "lease" in json.loads((kept / "refused.json").read_text())["reason"]
    assert (kept / "results.jsonl").read_text() == "".join(LINES)
    assert not task.records


def test_refused_keeps_the_newest(hud: Hud, fake: FakeHud, tmp_path: Path) -> None:
    for number in range(spool.KEPT_REFUSED + 5):
        task = fake.add()
        lease = hud.claim(1, str(number))
        assert lease
        folder = Folder.create(tmp_path, lease)
        os.utime(folder.path / "lease.json", (number, number))
        folder.refuse("test")
        os.utime(tmp_path / "refused" / folder.path.name, (number, number))
        task.state = "done"
    numbers = sorted(path.stat().st_mtime for path in (tmp_path / "refused").iterdir())
    assert numbers == list(range(5, spool.KEPT_REFUSED + 5))


def test_refused_results_fail_the_task(hud: Hud, task: FakeTask, folder: Folder) -> None:
    task.refuses_results = True
    folder.deliver(hud)
    assert (task.end["status"], task.end["code"]) == ("failed", "results_refused")
    assert "NaN" in task.end["reason"]
    assert task.log


def test_a_key_that_is_refused_keeps_everything(
    fake: FakeHud, hud: Hud, folder: Folder, tmp_path: Path
) -> None:
    fake.keys.clear()
    with pytest.raises(KeyRefused):
        folder.deliver(hud)
    folder.release()
    assert [left.path for left in left_over(tmp_path)] == [folder.path]


def test_half_a_line_waits(hud: Hud, task: FakeTask, folder: Folder) -> None:
    path = folder.path / "results.jsonl"
    path.write_text(LINES[0] + LINES[1][:5])
    folder.send_results(hud)
    assert len(task.records) == 1
    path.write_text(LINES[0] + LINES[1])
    folder.send_results(hud)
    assert len(task.records) == 2


def test_a_line_that_is_no_record_is_not_delivered_and_one_of_another_task_is_marked(
    hud: Hud, task: FakeTask, folder: Folder
) -> None:
    other = task_record(dataclasses.replace(SPEC, case="gemv"), "other")
    wrong = [json.dumps(line) + "\n" for line in ({"speedup": 9}, other)]
    (folder.path / "results.jsonl").write_text("".join([LINES[0], *wrong]))
    folder.send_results(hud)
    (folder.path / "results.jsonl").write_text("".join([LINES[0], *wrong, LINES[1]]))
    folder.send_results(hud)
    marks = {
        one["metric"]["name"]: (one["metric"].get("extra_info") or {}).get("unexpected")
        for one in task.records.values()
    }
    assert marks == {"m0": None, "m1": None, "other": "its case is 'gemv', not 'layer_norm'"}


def test_many_results_go_in_several_requests(
    fake: FakeHud, hud: Hud, task: FakeTask, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_RESULTS_BYTES", 40)
    long = json.dumps(task_record(SPEC, "long", head_branch="x" * 100)) + "\n"
    (folder.path / "results.jsonl").write_text("".join([*LINES, long]))
    folder.send_results(hud)
    assert len(task.records) == len(LINES) + 1
    assert sum("results" in call for call in fake.calls) > len(LINES) / 2


def test_a_log_goes_on_where_the_hud_says(hud: Hud, task: FakeTask, folder: Folder) -> None:
    folder.log_offset = 900  # beyond what is there
    folder.send_log(hud)
    assert task.log == b"line\n" * 1000


def test_a_folder_has_one_owner(folder: Folder, tmp_path: Path) -> None:
    assert left_over(tmp_path) == []
    assert not Folder.open(folder.path).own()
    folder.release()
    assert len(left_over(tmp_path)) == 1


def test_the_same_claim_goes_on_in_its_folder(hud: Hud, folder: Folder, tmp_path: Path) -> None:
    folder.release()
    again = Folder.create(tmp_path, folder.lease)
    assert again.path == folder.path
    assert (again.path / "results.jsonl").exists()


def test_an_attempt_claimed_again_starts_over(
    hud: Hud, task: FakeTask, folder: Folder, tmp_path: Path
) -> None:
    """Given back without hearing the answer: the hud counts the next claim as the same attempt."""
    hud.finish(folder.lease, TaskOutcome("not_run", "handed_back", "", 0.0))
    folder.release()
    lease = hud.claim(1, "another")
    assert lease
    assert lease.attempt == folder.lease.attempt
    again = Folder.create(tmp_path, lease)
    assert again.path == folder.path
    assert not (again.path / "results.jsonl").exists()
    assert Folder.open(again.path).lease.token == task.token


def test_the_spool_is_private(folder: Folder) -> None:
    assert folder.path.stat().st_mode & 0o077 == 0
    assert (folder.path / "lease.json").stat().st_mode & 0o077 == 0


def test_a_damaged_folder_is_passed_over(tmp_path: Path, folder: Folder) -> None:
    (tmp_path / "spool" / "damaged").mkdir()
    folder.release()
    assert [left.path for left in left_over(tmp_path)] == [folder.path]


def test_a_quota_that_is_used_up_is_not_tried_again() -> None:
    """It lasts until tomorrow: the task must not wait for it with its accelerator."""
    for status, code, kind in ((507, "quota", Refused), (507, "", Unreachable), (429, "quota", Refused)):
        body = io.BytesIO(json.dumps({"detail": "used up", "code": code}).encode())
        error = urllib.error.HTTPError("http://hud", status, "", Message(), body)
        assert type(error_of(error)) is kind


def test_an_internal_error_names_the_request() -> None:
    error = urllib.error.HTTPError("http://hud/api/v1/runs/7", 500, "", Message(), io.BytesIO(b"{}"))
    assert "http://hud/api/v1/runs/7" in str(error_of(error))
