"""A task in a fresh process: how it ends, what stays of it, and that nothing of it stays alive."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runner.launch import launch as launching
from runner.launch.launch import launch
from runner.schema.records import Environment
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome
from runner.system import interpreters, locks, task_files
from runner.system.task_files import CappedLog
from tests.support.finished import expected
from tests.support.hosts import alive
from tests.support.records import task_record
from tests.support.servers import ROOT
from tests.support.waiting import wait_for

SPEC = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cpu", timeout_s=60)
OK = "import json; open('outcome.json', 'w').write(json.dumps({'status': 'ok'}))\n"
# A benchmark that hangs, which the launcher must end; after ten minutes by itself, should a test fail to.
HANG = "import time\nprint('hanging', flush=True)\ntime.sleep(600)\n"
# A process in a session of its own whose parent is gone, as compile workers are.
STRAY = """
import os, time
there, born = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    open('stray', 'w').write(str(os.getpid()))
    os.write(born, b'!')
    time.sleep(600)  # a process that does not end by itself: whoever kills the tree must find it
os.read(there, 1)
"""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
PID = "import os; open('pid', 'w').write(str(os.getpid()))\n"


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "GRACE_S", 0.5)
    monkeypatch.setattr(launching, "_STOP_GRACE_S", 0.5)


@pytest.fixture(autouse=True)
def _known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter is asked for the environment of a task that left nothing."""
    monkeypatch.setattr(interpreters, "environment_of", lambda *_asked: Environment(torch="2.0", cpu="a CPU"))


def run(folder: Path, code: str, **arguments: object) -> TaskOutcome:
    timeout_s = arguments.pop("timeout_s", 60)
    spec = TaskSpec(**{**SPEC.to_json(), "timeout_s": timeout_s})
    return launch(spec, folder, command=[sys.executable, "-c", code], **arguments)  # type: ignore[arg-type]


def record(**over: Any) -> dict[str, Any]:
    """One of the task."""
    return task_record(SPEC, **over)


def writing(*lines: object) -> str:
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    return f"open('results.jsonl', 'w').write({text!r})\n"


def rows(folder: Path) -> dict[tuple[int | str, str], dict[str, Any]]:
    """Size and metric → what is said of the metric."""
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return {
        (one["benchmark"]["extra_info"]["knobs"]["D"], one["metric"]["name"]): one["metric"] for one in found
    }


def pid_in(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text(), f"a pid in {path.name}")
    return int(path.read_text())


def test_ok(tmp_path: Path) -> None:
    events: list[dict[str, object]] = []
    outcome = run(
        tmp_path / "task",
        'open(\'events.jsonl\', \'w\').write(\'{"phase": "eager"}\\nrubbish\\n{"phase": "measure"}\\n\')\n'
        "print(open('spec.json').read())\n" + OK,
        on_event=events.append,
    )
    assert outcome.status == "ok"
    assert [event["phase"] for event in events] == ["eager", "measure"]
    assert json.loads((tmp_path / "task" / "log").read_text()) == SPEC.to_json()
    assert not (tmp_path / "task" / "scratch").exists()


def test_the_child_says_how_it_failed(tmp_path: Path) -> None:
    said = {"status": "oom", "code": "OutOfMemoryError", "reason": "tried 200 GiB"}
    outcome = run(tmp_path, f"open('outcome.json', 'w').write({json.dumps(said)!r}); raise SystemExit(1)")
    assert (outcome.status, outcome.code, outcome.reason) == ("oom", "OutOfMemoryError", "tried 200 GiB")


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_a_signal_is_a_crash_with_its_name(tmp_path: Path, name: str) -> None:
    outcome = run(tmp_path, f"import os, signal; os.kill(os.getpid(), signal.{name})")
    assert (outcome.status, outcome.code) == ("crashed", name)


@pytest.mark.parametrize("outcome_file", ["", "{", '{"status": "splendid"}', "[]"])
def test_an_exit_without_usable_outcome_is_a_crash(tmp_path: Path, outcome_file: str) -> None:
    outcome = run(tmp_path, f"open('outcome.json', 'w').write({outcome_file!r}); raise SystemExit(3)")
    assert (outcome.status, outcome.code) == ("crashed", "exit_3")


def test_a_hang_times_out(tmp_path: Path) -> None:
    farewell = "import signal; signal.signal(signal.SIGTERM, lambda *_signal: exit(print('asked to end')))\n"
    outcome = run(tmp_path, farewell + HANG, timeout_s=1)
    assert outcome.status == "timed_out"
    assert "1 s" in outcome.reason
    assert (tmp_path / "log").read_text() == "hanging\n[runner] timed_out: ending 1 processes\nasked to end\n"


def test_a_wait_for_another_task_does_not_count_but_has_an_end(tmp_path: Path) -> None:
    outcome = run(tmp_path, HANG, timeout_s=1, waited_s=lambda: 0.5)
    assert (outcome.status, outcome.seconds >= 1.5) == ("timed_out", True)
    outcome = run(tmp_path, HANG, timeout_s=1, waited_s=lambda: 3600.0)
    assert (outcome.status, outcome.seconds >= 2) == ("timed_out", True)


def test_a_hang_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    outcome = run(tmp_path, PID + DEAF + HANG, timeout_s=1)
    assert outcome.status == "timed_out"
    assert not alive(pid_in(tmp_path / "pid"))


def test_a_spin_in_c_is_ended(tmp_path: Path) -> None:
    outcome = run(tmp_path, "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)", timeout_s=1)
    assert outcome.status == "timed_out"


def test_an_outcome_counts_although_the_process_does_not_exit(tmp_path: Path) -> None:
    outcome = run(tmp_path, PID + DEAF + OK + HANG)
    assert outcome.status == "ok"
    assert not alive(pid_in(tmp_path / "pid"))


def test_stop_ends_it_with_that_word(tmp_path: Path) -> None:
    word = iter(["", "", "cancelled"])
    outcome = run(tmp_path, STRAY + HANG, should_stop=lambda: next(word, "cancelled"))
    assert outcome.status == "cancelled"
    assert not outcome.leftover


@pytest.mark.parametrize("end", [OK, HANG, "raise SystemExit(1)", DEAF + HANG])
def test_no_grandchild_stays(tmp_path: Path, end: str) -> None:
    run(tmp_path, STRAY + end, timeout_s=2)
    assert not alive(pid_in(tmp_path / "stray"))


def test_a_process_that_was_there_before_stays(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        run(tmp_path, OK)
        assert other.poll() is None
        other.kill()


def test_nothing_stays_when_a_callback_raises(tmp_path: Path) -> None:
    def fail() -> str:
        if (tmp_path / "stray").exists():
            raise RuntimeError("callback")
        return ""

    with pytest.raises(RuntimeError, match="callback"):
        run(tmp_path, STRAY + HANG, should_stop=fail)
    assert not alive(pid_in(tmp_path / "stray"))


@pytest.mark.parametrize("end", [HANG, DEAF + HANG, "import sys; sys.stdin.close()\n" + HANG])
def test_the_child_dies_with_a_killed_parent(tmp_path: Path, end: str) -> None:
    child = PID + end
    code = f"""
import sys
from pathlib import Path
from typing import Any
from runner.schema.suite import TaskSpec
from runner.launch.launch import launch
spec = TaskSpec(**{SPEC.to_json()!r})
launch(spec, Path({str(tmp_path)!r}), command=[sys.executable, "-c", {child!r}])
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as parent:
        pid = pid_in(tmp_path / "pid")
        parent.kill()
    wait_for(lambda: not alive(pid), "the child's end", 5)


def test_a_second_launch_in_a_folder_starts_over(tmp_path: Path) -> None:
    run(tmp_path, writing(record()) + OK)
    assert list(rows(tmp_path)) == [(256, "speedup")]
    outcome = run(tmp_path, "raise SystemExit(5)")
    assert outcome.code == "exit_5"
    assert all(row["extra_info"]["code"] == "exit_5" for row in rows(tmp_path).values())


KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (KILLED, "crashed", "SIGKILL"),
        (HANG, "timed_out", "timeout"),
        ("raise SystemExit(3)", "crashed", "exit_3"),
        ("import os; os.mkdir('stop')\n" + HANG, "not_run", "cancelled"),
    ],
)
def test_what_a_dead_task_has_not_measured_is_a_row(tmp_path: Path, end: str, status: str, code: str) -> None:
    """What it has measured stays, half a line goes, and the others say of the host what that one says."""
    stop = tmp_path / "stop"
    run(
        tmp_path,
        writing(record(), '{"benchmark": ') + end,
        timeout_s=2,
        should_stop=lambda: "cancelled" if stop.exists() else "",
    )
    found = rows(tmp_path)
    assert found.pop((256, "speedup"))["benchmark_values"] == [1.5]
    every = {(one.knobs["D"], metric) for one in expected(SPEC) for metric in one.metrics}
    assert {("mean", "speedup"), (512, "speedup"), (256, "compiled_latency_ms")} <= every
    assert set(found) == every - {(256, "speedup")}
    said = {(row["extra_info"]["status"], row["extra_info"]["code"]) for row in found.values()}
    assert said == {(status, code)}
    last = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[-1])
    assert last["runners"] == record()["runners"]


@pytest.mark.parametrize("word", ["lost", "handed_back"])
def test_a_task_that_goes_elsewhere_leaves_no_rows(tmp_path: Path, word: str) -> None:
    run(tmp_path, HANG, should_stop=lambda: word)
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rubbish\n", "it is no JSON"),
        ("[1]\n", "it is no object"),
        ('{"speedup": 9}\n', "it lacks benchmark, model or metric"),
        (record(benchmark={"name": "x"}), "benchmark/extra_info is not what it has to be"),
        (record(metric={"name": "speedup", "benchmark_values": [math.nan]}), "it is no JSON"),
        (record(metric={"name": "speedup", "benchmark_values": ["fast"]}), "benchmark_values is not"),
        (
            record(metric={"name": "speedup", "extra_info": {"status": "splendid"}}),
            "metric/extra_info is not",
        ),
        (record(runners=["here"]), "runners is not what it has to be"),
    ],
)
def test_a_line_that_is_no_record_fails_its_task_and_costs_no_other_line(
    tmp_path: Path, line: object, words: str
) -> None:
    outcome = run(tmp_path, writing(record(), line) + OK)
    assert (outcome.status, outcome.code) == ("failed", "foreign_results")
    assert outcome.reason.startswith("line 2 is no record: ")
    assert words in outcome.reason
    assert words in (tmp_path / "log").read_text()
    good, *added = outcome.records
    assert good == record()
    assert len(added) + 1 == sum(len(one.metrics) for one in expected(SPEC))
    said = {(one["metric"]["extra_info"]["status"], one["metric"]["extra_info"]["code"]) for one in added}
    assert said == {("failed", "foreign_results")}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"model": {"name": "layer_norm", "backend": "inductor", "origins": ["timm"]}}, "its suite is"),
        ({"model": {"name": "gemv", "backend": "inductor", "origins": ["micro"]}}, "its case is 'gemv'"),
        ({"model": {"name": "layer_norm", "backend": "x", "origins": ["micro"]}}, "its backend is 'x'"),
    ],
)
def test_a_record_of_another_task_is_kept_and_marked(
    tmp_path: Path, other: dict[str, Any], reason: str
) -> None:
    outcome = run(tmp_path, writing(record(), record(**other)) + OK)
    assert (outcome.status, list(outcome.records)) == ("ok", [record()])
    (marked,) = outcome.unexpected
    assert marked["metric"]["extra_info"]["unexpected"].startswith(reason)
    assert marked["model"] == other["model"]
    assert reason in (tmp_path / "log").read_text()
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_a_missing_interpreter_is_a_failure(tmp_path: Path) -> None:
    outcome = launch(SPEC, tmp_path, python="/nowhere/python")
    assert (outcome.status, outcome.code) == ("failed", "no_interpreter")
    assert "/nowhere/python" in outcome.reason


def test_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HUD_KEY", "SECRET_KEY", "DATABASE_URL", "REDIS_URL", "PGPASSWORD", "HF_TOKEN"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    code = "import json, os; print(json.dumps(dict(os.environ)))\n" + OK
    run(tmp_path, code, environment={"RUNNER_HOST": "here", "PYTHONPATH": "/also"})
    variables = json.loads((tmp_path / "log").read_text())
    assert "canary" not in variables.values()
    assert variables["TORCHINDUCTOR_MAX_AUTOTUNE"] == "1"
    assert variables["RUNNER_HOST"] == "here"
    assert variables["PYTHONPATH"] == f"{ROOT}:/also"
    assert variables["CUDA_VISIBLE_DEVICES"] == ""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR"):
        assert not Path(variables[name]).exists()
        assert len(variables[name]) < 80


def test_the_lock_outlives_its_holder_in_the_child(tmp_path: Path) -> None:
    """An orphan keeps the accelerator, and frees it by its death."""
    folder = tmp_path / "locks"
    lock_fd = locks.acquire(folder, "cpu")
    process = subprocess.Popen(["sleep", "600"], pass_fds=(lock_fd,), start_new_session=True)
    os.close(lock_fd)
    with pytest.raises(locks.Busy):
        locks.acquire(folder, "cpu", wait_s=0)
    assert process.pid in locks.processes_with(folder, "cpu")
    process.kill()
    process.wait()
    os.close(locks.acquire(folder, "cpu"))


def test_the_child_inherits_the_lock(tmp_path: Path) -> None:
    lock_fd = locks.acquire(tmp_path / "locks", "cpu")
    run(tmp_path / "task", f"import os; os.fstat({lock_fd})\n" + OK, inherited=[lock_fd])
    assert json.loads((tmp_path / "task" / "outcome.json").read_text())["status"] == "ok"
    os.close(lock_fd)


def test_two_at_once_end_their_own_processes_and_the_last_one_the_orphans(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    # the child polls for the test's word, up to its time limit
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    with ThreadPoolExecutor() as threads:
        other = threads.submit(run, second, PID + STRAY + wait + OK)
        strays = [pid_in(second / "stray")]
        own = pid_in(second / "pid")
        assert run(first, STRAY + OK).status == "ok"
        strays.append(int((first / "stray").read_text()))
        assert alive(own)
        assert all(map(alive, strays))
        (second / "go").touch()
        assert other.result().status == "ok"
    assert not any(map(alive, strays))


def test_a_lock_names_its_holder(tmp_path: Path) -> None:
    assert locks.holder(tmp_path, "GPU-1") is None
    lock_fd = locks.acquire(tmp_path, "GPU-1", what="a test")
    held_by = locks.holder(tmp_path, "GPU-1")
    assert held_by is not None
    assert (held_by.pid, held_by.what) == (os.getpid(), "a test")
    assert locks.holder(tmp_path, "GPU-2") is None
    os.close(lock_fd)
    assert locks.holder(tmp_path, "GPU-1") is None


def test_a_flood_is_watched_and_kept(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write('x' * 10_000_000 + '\\nend\\n')\n" + OK
    assert run(tmp_path, code).status == "ok"
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == ["x" * 10_000_000, "end"]


def test_an_endless_flood_still_times_out(tmp_path: Path) -> None:
    outcome = run(tmp_path, "while True: print('y' * 1000)", timeout_s=1)
    assert outcome.status == "timed_out"
    assert (tmp_path / "log").stat().st_size < 64 * 2**20


def test_a_full_disk_costs_the_log_and_no_process_stays(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    outcome = run(tmp_path, STRAY + HANG, timeout_s=1)
    assert outcome.status == "timed_out"
    assert not alive(pid_in(tmp_path / "stray"))


def test_a_full_log_keeps_its_head_and_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "MAX_LOG_BYTES", 1000)
    monkeypatch.setattr(task_files, "LOG_TAIL_BYTES", 100)
    path = tmp_path / "log"
    with closing(CappedLog(path)) as log:
        log.feed(b"first\n")
        for number in range(1000):
            log.feed(b"line %d\n" % number)
        size = path.stat().st_size
        log.feed(b"last\n")
        assert path.stat().st_size == size  # the end comes when it is the end
    text = path.read_text()
    assert text.startswith("first\nline 0\n")
    assert text.endswith("line 999\nlast\n")
    assert "bytes left out here]" in text
    assert len(text) < 1200


@pytest.mark.parametrize("pieces", [[b"ab\r", b"\ncd"], [b"a", b"b\r\nc", b"d"], [b"ab\r\ncd"]])
def test_pieces_make_no_difference(tmp_path: Path, pieces: list[bytes]) -> None:
    with closing(CappedLog(tmp_path / "log")) as log:
        for piece in pieces:
            log.feed(piece)
        log.note("that was all")
    assert (tmp_path / "log").read_bytes() == b"ab\r\ncd\n[runner] that was all\n"


def test_a_reparented_process_is_found_within_a_moment(tmp_path: Path) -> None:
    """The tree is complete: also what forked and left its parents while it was being ended."""
    started = time.monotonic()
    restless = """
import os, time
for _ in range(200):
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.02)  # between two forks, so that it still forks while it is being killed
time.sleep(600)  # the last one does not end by itself either
"""
    outcome = run(tmp_path, restless, timeout_s=1)
    assert not outcome.leftover
    assert time.monotonic() - started < 30


def test_a_signal_without_a_name_has_its_number(tmp_path: Path) -> None:
    number = int(signal.SIGRTMIN) + 3
    outcome = run(tmp_path, f"import os; os.kill(os.getpid(), {number})")
    assert (outcome.status, outcome.code) == ("crashed", f"SIG{number}")
