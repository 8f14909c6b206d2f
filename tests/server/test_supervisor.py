"""Logs of limited size, and what is left of a process's family."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest

from hud.server import supervisor
from tests.support.hosts import alive
from tests.support.waiting import wait_for


def test_a_log_keeps_its_size_and_one_predecessor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MAX_LOG_BYTES", 100)
    log = supervisor.LogFile(tmp_path / "web.log")
    for number in range(100):
        log({"data": b"line %03d of the log\n" % number})
    kept = (tmp_path / "web.log.1").read_text() + (tmp_path / "web.log").read_text()
    assert len(kept) < 300
    assert kept.endswith("line 099 of the log\n")
    assert {path.name for path in tmp_path.iterdir()} == {"web.log", "web.log.1"}


def test_a_program_that_was_reaped_leaves_no_pipe_behind(tmp_path: Path) -> None:
    """Its numbers may be the next program's at once: circus would refuse to listen on them twice."""
    code = "import signal; print('hi', flush=True); signal.pause()"
    sleeper = supervisor.Program("sleeper", [sys.executable, "-c", code])

    async def play() -> None:
        kept = supervisor.Supervisor([[sleeper]], run=tmp_path, logs=tmp_path)
        await kept.start(0)
        (watcher,) = kept._stages[0]
        (pid,) = watcher.processes
        assert watcher.stream_redirector.pipes
        log = tmp_path / "sleeper.log"
        await asyncio.to_thread(wait_for, log.read_text, "its output")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not alive(pid), "its end")
        kept._arbiter.reap_processes()  # before the loop has seen the end of the pipes
        assert not watcher.stream_redirector.pipes
        await kept.stop()
        assert log.read_text().startswith("hi")

    # in a process of its own: signals need a main thread, in which another test's browser may keep a loop
    player = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(play()))
    player.start()
    player.join()
    assert player.exitcode == 0
