"""Hosts under test: agents and workers as real processes, with a stand-in as their interpreter."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from runner.schema.protocol import FUNCTION, digest_of, sign
from runner.system.processes import read_process
from tests.host.fake_hud import KEY
from tests.support.servers import ROOT, Hud, end_process, start_process
from tests.support.waiting import wait_for

STANDIN = ROOT / "tests" / "faults" / "installation" / "standin.py"

# Of a `sitecustomize.py`: it answers at once where an agent asks an interpreter for its torch, or for the
# compile that shows what works. The answers proper take seconds each, and have tests of their own.
_ANSWERS = """
import json, os, sys
if {modules} & {{*sys.orig_argv}}:
    print(json.dumps({{"torch": "0.0"}}), flush=True)
    os._exit(0)
"""
_SMALL_COMPILE = "runner.measure.compiler.compiled"
ANSWERS_FOR_COMPILE = _ANSWERS.format(modules={_SMALL_COMPILE})
ANSWERS_FOR_TORCH = _ANSWERS.format(modules={_SMALL_COMPILE, "runner.measure.state.device"})


def alive(pid: int) -> bool:
    """False for a zombie too: the tests may have been made the parent of orphans, and reap none."""
    process = read_process(pid)
    return process is not None and not process.dead


class Control:
    """What the stand-in does, and what it did. `plan({"1": {"spin": True}})`: see standin.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.python = folder / "python"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} {STANDIN} "$@"\n')
        self.python.chmod(0o755)

    def plan(self, plans: Mapping[str, Mapping[str, Any]]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(plans))

    def forget(self) -> str:
        """Forget the plan, all starts and the torch that was installed, whose version is returned."""
        torch = self.folder / "torch" / "version.py"
        version = torch.read_text() if torch.exists() else ""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path != self.python:
                path.unlink()
        return version

    def install_torch(self, version: str) -> None:
        """Put another torch in place of the interpreter's."""
        path = self.folder / "torch" / "version.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(version)

    def go(self, name: str = "go") -> None:
        (self.folder / name).touch()

    def card(self, uuid: str) -> Control:
        """What was done on one GPU; the plan is the same for all."""
        return Control(self.folder / uuid)

    @property
    def pids(self) -> list[int]:
        """Of the benchmarks that were started, in order."""
        return [int((self.folder / f"pid-{number + 1}").read_text()) for number in range(self.starts)]

    @property
    def starts(self) -> int:
        return len(list(self.folder.glob("pid-[0-9]*")))

    def wait_for_start(self, number: int = 1) -> int:
        """Pid of the n-th benchmark, once it runs."""
        wait_for(lambda: self.starts >= number, f"start {number} of the stand-in")
        return self.pids[number - 1]

    @property
    def shared(self) -> bool:
        """Whether two benchmarks ever lived at the same time."""
        return (self.folder / "shared").exists()

    @property
    def stray(self) -> int:
        path = self.folder / "stray"
        wait_for(lambda: path.exists() and path.read_text(), "the stray's pid")
        return int(path.read_text())


class HostProcess:
    """A process of the runner: an agent, or a worker alone."""

    def __init__(
        self, folder: Path, arguments: list[str], environment: Mapping[str, str], checkout: Path = ROOT
    ) -> None:
        self.log_path = folder / "host.log"
        self._checkout = checkout
        self._arguments = arguments
        self._environment = {**os.environ, **environment, "RUNNER_LOCKS": str(folder / "locks")}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        command = [sys.executable, *self._arguments]
        self.process = start_process(command, self.log_path, self._environment, self._checkout)

    def stop(self, timeout_s: float = 30) -> int:
        assert self.process
        code = end_process(self.process, signal.SIGTERM, timeout_s)
        self.process = None
        return code

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()
        self.process = None

    def close(self) -> None:
        """However the test went: nothing stays."""
        with contextlib.suppress(ProcessLookupError):
            if self.process:
                self.process.send_signal(signal.SIGCONT)
                self.kill()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


def ticking(hud: Hud, folder: Path) -> HostProcess:
    """Start the HUD's own tick, which among other things ends comparisons once their answer is clear."""
    variables = {"DATABASE_URL": hud.database_url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    tick = HostProcess(folder, ["manage.py", "tick", "--skip-checks"], variables)
    tick.start()
    return tick


def ring(
    redis_url: str, queue: str, *arguments: Any, function: str = FUNCTION, key: str = KEY, **options: Any
) -> None:
    """A message in an accelerator's queue, as the hud (or somebody else) puts it there, signed with `key`."""
    job_id = sign(
        options.pop("job_id", str(uuid.uuid4())),
        str(arguments[-1]) if arguments else "",
        key_digest=digest_of(key),
        queue=queue,
    )
    options.setdefault("job_timeout", -1)
    with Redis.from_url(redis_url) as connection:
        Queue(queue, connection=connection, serializer=JSONSerializer).enqueue(
            function, *arguments, job_id=job_id, **options
        )
