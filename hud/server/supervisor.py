"""Keep programs running: start them in order, restart dead ones, stop them in the opposite order.

circus supervises. This file adds stages (circus stops all programs at once), signals (circus reloads on
SIGHUP), limited logs, and an end to the processes that a program leaves behind.
"""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import os
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from circus import logger as circus_logger
from circus.arbiter import Arbiter
from circus.exc import ConflictError
from circus.process import DEAD_OR_ZOMBIE, UNEXISTING
from circus.watcher import Watcher
from tornado.ioloop import IOLoop

from hud.server.processes import Program, adopt_orphans

MAX_LOG_BYTES = 8 * 2**20  # twice that with the predecessor
CHECK_S = 0.5  # between checks for dead programs
YOUNG_S = 10  # a program that dies younger than this has probably failed to start
MAX_WAIT_S = 8  # below YOUNG_S, so that a wait does not count as life


class Supervisor:
    """Run stages of programs in an asyncio loop: `start` each stage, finally `stop` all."""

    def __init__(self, stages: Sequence[Sequence[Program]], *, run: Path, logs: Path) -> None:
        """Prepare the stages. `run` is the private folder of circus's sockets, `logs` that of the logs."""
        handler = logging.handlers.RotatingFileHandler(
            logs / "supervisor.log", maxBytes=MAX_LOG_BYTES, backupCount=1
        )
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        circus_logger.handlers[:] = [handler]
        circus_logger.setLevel(logging.INFO)
        circus_logger.propagate = False
        adopt_orphans()
        self._stages = [[_watcher(program, logs) for program in stage] for stage in stages]
        self._arbiter = Arbiter(
            [watcher for stage in self._stages for watcher in stage],
            f"ipc://{run}/circus.sock",
            f"ipc://{run}/circus-events.sock",
            check_delay=CHECK_S,
            loop=IOLoop.current(),
        )
        self.stop_asked = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop_asked.set)

    # circus's public start and stop refuse to run during its check for dead programs, and stop one at a time.
    # So this calls _start and _stop, as circus's own arbiter does.

    async def start(self, stage: int) -> None:
        """Start a stage, and restart its programs when they die."""
        if not self._arbiter.running:
            await self._arbiter.start()
        for watcher in self._stages[stage]:
            await watcher._start()

    async def stop(self) -> None:
        """Stop the stages, last one first, then the processes that their programs left behind."""
        for stage in reversed(self._stages):
            await asyncio.gather(*(watcher._stop() for watcher in stage))
        while self._arbiter.running:
            with suppress(ConflictError):
                await self._arbiter.stop()
            await asyncio.sleep(0.05)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()


class PatientWatcher(Watcher):  # type: ignore[misc]
    """Restart a dead program at once, but wait longer each time for one that keeps dying young.

    Otherwise a program that cannot start would take a whole core from the benchmarks.
    """

    log: Path
    processes: dict[int, Any]
    _early_deaths = 0
    _spawned_at = 0.0

    def manage_processes(self) -> Any:
        limit_log(self.log)
        for number, process in list(self.processes.items()):
            if process.status in {DEAD_OR_ZOMBIE, UNEXISTING}:
                del self.processes[number]
        wait_s = min(0.5 * 2**self._early_deaths, MAX_WAIT_S) if self._early_deaths > 1 else 0
        if self.is_active() and not self.processes and time.monotonic() < self._spawned_at + wait_s:
            return asyncio.sleep(0)
        return super().manage_processes()

    def spawn_process(self, recovery_wid: int | None = None) -> Any:
        age_s = time.monotonic() - self._spawned_at
        self._early_deaths = self._early_deaths + 1 if age_s < YOUNG_S else 0
        self._spawned_at = time.monotonic()
        return super().spawn_process(recovery_wid)


def limit_log(log: Path) -> None:
    """Move what a log has to its predecessor once it is too long. Its program appends, and so goes on."""
    with suppress(OSError):  # a full disk must not stop the programs
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)


def _watcher(program: Program, logs: Path) -> Watcher:
    log = logs / f"{program.name}.log"
    watcher = PatientWatcher(
        program.name,
        "sh",
        # a file of its own: with pipes circus would read, and sometimes lose, each program's output
        args=["-c", 'exec "$@" >>"$0" 2>&1', str(log), *program.command],
        env=dict(program.environment),
        stop_signal=program.stop_signal,
        graceful_timeout=program.stop_s,
        autostart=False,
        singleton=True,
    )
    watcher.log = log
    return watcher
