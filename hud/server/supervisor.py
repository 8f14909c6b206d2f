"""Keep programs running: start them in order, restart dead ones, stop them in the opposite order."""

import asyncio
import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

import psutil

from hud.server.embedded import make_folder
from hud.server.processes import Program, adopt_orphans

MAX_LOG_BYTES = 8 * 2**20  # twice that with the predecessor
CHECK_S = 0.5  # between looks at logs and orphans
YOUNG_S = 10  # a program that dies younger than this has probably failed to start
MAX_WAIT_S = 8  # before a program that keeps dying young is started again

logger = logging.getLogger(__name__)


class Supervisor:
    """Run stages of programs in an asyncio task, which signals cancel: `start` each stage, finally `stop`
    all."""

    def __init__(self, logs: Path) -> None:
        handler = RotatingFileHandler(
            make_folder(logs) / "supervisor.log", maxBytes=MAX_LOG_BYTES, backupCount=1
        )
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False
        adopt_orphans()
        self._logs = logs
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._stages: list[list[asyncio.Task[None]]] = []
        self._tidying = asyncio.create_task(self._tidy())
        task = asyncio.current_task()
        assert task
        self._handle_signals(task.cancel)

    def start(self, programs: Sequence[Program]) -> None:
        """Start the programs of a stage, and restart them when they die."""
        self._stages.append([asyncio.create_task(self._keep_running(program)) for program in programs])

    def _handle_signals(self, handler: Callable[[], object]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            asyncio.get_running_loop().add_signal_handler(number, handler)

    async def stop(self) -> None:
        """Stop the stages, last one first, then the processes that their programs left behind."""
        self._handle_signals(lambda: None)  # a second one changes nothing
        for tasks in reversed(self._stages):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._tidying.cancel()
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    async def _keep_running(self, program: Program) -> None:
        """Run a program until this is cancelled. Restart it at once, but wait longer each time while it keeps
        dying young: else one that cannot start would take a whole core from the benchmarks."""
        early_deaths = 0
        while True:
            began = time.monotonic()
            try:
                process = await self._spawn(program)
            except OSError as error:  # no process or file can be opened
                status: object = error
            else:
                try:
                    status = await process.wait()
                except asyncio.CancelledError:
                    await _end(process, program)
                    raise
            early_deaths = early_deaths + 1 if time.monotonic() - began < YOUNG_S else 0
            wait_s = min(0.5 * 2**early_deaths, MAX_WAIT_S) if early_deaths > 1 else 0
            logger.warning("%s ended with status %s; next start in %s s", program.name, status, wait_s)
            await asyncio.sleep(wait_s)

    async def _spawn(self, program: Program) -> asyncio.subprocess.Process:
        with (self._logs / f"{program.name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *program.command,
                env=dict(program.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[program.name] = process
        logger.info("%s is process %s", program.name, process.pid)
        return process

    async def _tidy(self) -> None:
        """Limit logs, and let go of orphans that have ended."""
        while True:
            await asyncio.sleep(CHECK_S)
            for name in self._processes:
                limit_log(self._logs / f"{name}.log")
            own = {process.pid for process in self._processes.values()}
            for orphan in psutil.Process().children():
                with suppress(psutil.NoSuchProcess, ChildProcessError):
                    if orphan.pid not in own and orphan.status() == psutil.STATUS_ZOMBIE:
                        os.waitpid(orphan.pid, os.WNOHANG)


async def _end(process: asyncio.subprocess.Process, program: Program) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(program.stop_signal)
    try:
        await asyncio.wait_for(process.wait(), program.stop_s)
    except TimeoutError:
        process.kill()
        await process.wait()


def limit_log(log: Path) -> None:
    """Move what a log has to its predecessor once it is too long. Its program appends, and so goes on."""
    with suppress(OSError):  # a full disk must not stop the programs
        if log.stat().st_size > MAX_LOG_BYTES:
            shutil.copyfile(log, log.with_suffix(".log.1"))
            os.truncate(log, 0)
