"""`make up` as a process of the tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.support.hosts import STANDIN
from tests.support.servers import ROOT, end_process, free_port, start_process
from tests.support.waiting import wait_for

CREATE_KEY = (
    "import sys; from django.core.management import execute_from_command_line as run; "
    "import os; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'hud.settings'); "
    "run(['manage.py', 'create_key', 'k', '--skip-checks', '--scopes', '{scopes}'])"
)
START_S = 180  # the busy machine's; the product gives up on its own after 60


class Up:
    """One `python -m hud.server.up` over a folder, without samples."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def environment(self, **changes: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not re.match("HUD_|DJANGO_", name)}
        locks = {"RUNNER_LOCKS": str(self.folder / "locks")}
        return {**kept, **locks, "HUD_DATA": str(self.data), "PORT": str(self.port), "DEMO": "0", **changes}

    def start(self, **changes: str) -> str:
        """Starts it and waits for Ready; returns what it printed."""
        log = self.folder / f"up-{time.monotonic_ns()}.log"
        self.process = start_process(
            [sys.executable, "-m", "hud.server.up"], log, self.environment(**changes)
        )
        process = self.process
        wait_for(lambda: "Ready: " in log.read_text() or process.poll() is not None, "Ready", START_S)
        assert f"Ready: http://127.0.0.1:{self.port}\n" in log.read_text(), log.read_text()
        return log.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process
        process, self.process = self.process, None
        return end_process(process, number)

    def again(self, *, code: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
        """Another one, or this Python code, that is expected to end by itself."""
        return subprocess.run(
            [sys.executable, *(["-c", code] if code else ["-m", "hud.server.up"])],
            cwd=ROOT,
            env=self.environment(**changes),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=10) as response:
                return int(response.status) == 200
        except OSError:
            return False

    def processes(self) -> dict[int, str]:
        """Command lines of the living processes of this data folder, by number; zombies have none."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            ours = f"HUD_DATA={self.data}".encode() in environment or str(self.data) in command
            if ours and command and int(folder.name) != os.getpid():
                found[int(folder.name)] = command
        return found

    def find(self, word: str) -> int:
        """The oldest process whose command has this word, which is the one that is supervised; 0 for none."""
        return min((number for number, command in self.processes().items() if word in command), default=0)

    def create_key(self, scopes: str, **changes: str) -> str:
        """Return the secret of a new key, made by the command."""
        code = CREATE_KEY.format(scopes=scopes)
        return self.again(code=code, **changes).stdout.split()[-1]


def with_stand_in(folder: Path, *, waits: bool = False) -> dict[str, str]:
    """Return variables by which tasks of `micro` are the stand-in's, which needs no torch. Those with an odd
    number wait for the file `control/go` where `waits`."""
    folder.chmod(0o711)
    code, control = folder / "code", folder / "control"
    for path, mode in ((code, 0o755), (control, 0o777)):
        path.mkdir()
        path.chmod(mode)
    (code / "sitecustomize.py").write_text(
        f"""
import importlib.util, os, select, sys, time
if "FAKETIME_TIMESTAMP_FILE" in os.environ:  # libfaketime 0.9.10 refuses the call that sleep() makes
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None
if "runner.launch.child" in sys.orig_argv:
    os.environ["STANDIN"] = {str(control)!r}
    spec = importlib.util.spec_from_file_location("runner.suites.micro.run", {str(code / "standin.py")!r})
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
"""
    )
    (code / "standin.py").write_text(STANDIN.read_text())
    (control / "torch").mkdir(mode=0o755)
    (control / "torch" / "version.py").touch(0o644)  # its records name no torch, which would be another one
    for path in code.iterdir():
        path.chmod(0o644)
    if waits:
        plans = {str(number): {"wait_for": "go"} for number in range(1, 20, 2)}
        (control / "plan.json").write_text(json.dumps(plans))
        (control / "plan.json").chmod(0o644)
    return {"PYTHONPATH": str(code)}
