"""Logs of limited size, and what is left of a process's family."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from hud.server import supervisor
from hud.server.processes import Program
from tests.support.hosts import alive
from tests.support.waiting import wait_for


def test_a_log_keeps_its_size_and_one_predecessor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MAX_LOG_BYTES", 100)
    with (tmp_path / "web.log").open("ab", buffering=0) as log:
        for number in range(100):
            log.write(b"line %03d of the log\n" % number)
            supervisor.limit_log(tmp_path / "web.log")
    kept = (tmp_path / "web.log.1").read_text() + (tmp_path / "web.log").read_text()
    assert len(kept) < 300
    assert kept.endswith("line 099 of the log\n")
    assert {path.name for path in tmp_path.iterdir()} == {"web.log", "web.log.1"}


def test_a_program_that_cannot_start_waits_longer_each_time(tmp_path: Path) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.to_thread(time.sleep, 0)

    async def play() -> None:
        with pytest.MonkeyPatch.context() as patch:
            kept = supervisor.Supervisor(tmp_path)
            kept._tidying.cancel()
            patch.setattr(asyncio, "sleep", sleep)
            for stage, command in enumerate(("/no/such/program", "false")):
                waits.clear()
                kept.start([Program("dies", [command])])
                await asyncio.to_thread(wait_for, lambda: len(waits) > 6, "restarts")
                for task in kept._stages[stage]:
                    task.cancel()
                assert waits[0] == 0
                assert waits[1:6] == [2, 4, 8, 8, 8]

    player = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(play()))
    player.start()
    player.join()
    assert player.exitcode == 0


def test_a_program_that_dies_is_started_again_and_keeps_its_log(tmp_path: Path) -> None:
    code = "import os, signal; print('process', os.getpid(), flush=True); signal.pause()"
    sleeper = Program("sleeper", [sys.executable, "-c", code])
    log = tmp_path / "sleeper.log"

    async def play() -> None:
        kept = supervisor.Supervisor(tmp_path)
        kept.start([sleeper])
        await asyncio.to_thread(
            wait_for, lambda: log.exists() and log.read_text().endswith("\n"), "its output"
        )
        pid = int(log.read_text().split()[-1])
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(wait_for, lambda: log.read_text().count("process") == 2, "its successor")
        await kept.stop()
        assert not alive(int(log.read_text().split()[-1]))

    # in a process of its own: signals need a main thread, in which another test's browser may keep a loop
    player = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(play()))
    player.start()
    player.join()
    assert player.exitcode == 0
