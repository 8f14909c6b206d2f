"""Start one task in a fresh process, watch it, and leave nothing of it alive.

The child (`python -m runner.launch.child`) works in a folder of its own and answers by files there:
``results.jsonl``, ``events.jsonl``, ``artifacts/`` and, last, ``outcome.json``. It gets a session of its
own; its stdin is a lifeline that closes when we die, and the kernel kills it then too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runner.launch import results
from runner.schema.protocol import without_secrets
from runner.schema.records import STATUSES, UNEXPECTED
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome
from runner.system import account, machine, sandbox
from runner.system.processes import Tree
from runner.system.task_files import CappedLog, open_file, read_object, write_new

GRACE_S = 10.0  # from SIGTERM to SIGKILL, and for a child that has written its outcome but does not exit
_STOP_GRACE_S = 5.0  # the same where somebody waits for the stop
_POLL_S = 0.1

Event = dict[str, Any]


def launch(
    spec: TaskSpec,
    folder: Path,
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] = MappingProxyType({}),
    inherited: Collection[int] = (),
    waited_s: Callable[[], float] = lambda: 0.0,
    on_event: Callable[[Event], None] = lambda _event: None,
    should_stop: Callable[[], str] = lambda: "",
    log: CappedLog | None = None,
    command: Sequence[str] = (),
) -> TaskOutcome:
    """Run one task in `folder` (created if missing; the files of an earlier launch there are removed).

    `python` is the interpreter, `environment` is added to ours, `inherited` are open files that the child has
    too, such as the accelerator's lock (`runner/system/locks.py`), `waited_s` says for how long it waited for
    another one, which does not count towards its time limit. `on_event` gets each object of events.jsonl.
    `should_stop` is asked often: any text but '' ends the task and becomes its status. Neither may block.
    The results of a failed task also name what it did not measure (`runner/schema/tasks.py`).
    `log` takes the output instead of the folder's file. `command` replaces the child, for tests.

    Call it from a thread that outlives the child. When it returns or raises, no process of the task is left
    but those in `TaskOutcome.leftover`; orphans may be while another launch of this process goes on.
    """
    folder = folder.resolve()
    account.share(folder)
    for name in ("outcome.json", "events.jsonl", results.FILE):
        (folder / name).unlink(missing_ok=True)
    account.share(folder / "artifacts")
    write_new(folder / "spec.json", json.dumps(spec.to_json()))
    started, limit_s = time.monotonic(), spec.timeout_s
    with contextlib.ExitStack() as stack:
        output = log or stack.enter_context(contextlib.closing(CappedLog(folder / "log")))
        scratch = stack.enter_context(_scratch(folder))
        variables = _variables(spec, python, environment, scratch)
        caches = {Path(variables[name]).parent for name in machine.compile_caches(scratch)}
        arguments = list(command) or [python, "-m", "runner.launch.child"]
        tree = Tree()

        def is_over() -> bool:
            return time.monotonic() > started + limit_s + min(waited_s(), limit_s)

        try:
            in_sandbox = sandbox.command(arguments, folder, scratch, *caches)
            process = _start(in_sandbox, folder, variables, inherited)
        except OSError as error:
            reason = f"{arguments[0]} does not start: {error.strerror}"
            outcome = TaskOutcome("failed", "no_interpreter", reason)
        else:
            tree.root = process.pid
            with contextlib.closing(_Child(process, tree, folder, output, on_event)) as child:
                why = child.watch(is_over, should_stop)
                leftover = child.end(_STOP_GRACE_S if why not in {"", "timed_out"} else GRACE_S, why)
            account.take_back(folder, scratch)
            outcome = _outcome(folder, why, limit_s, sandbox.exit_status(process.returncode))
            seconds = time.monotonic() - started
            outcome = dataclasses.replace(outcome, seconds=seconds, leftover=leftover)
        outcome, read = results.complete(folder, spec, outcome, python, variables)
        if read.problem:
            output.note(f"{results.FILE}: {read.problem}")
        if read.unexpected:
            reason = read.unexpected[0]["metric"]["extra_info"][UNEXPECTED]
            output.note(f"{results.FILE}: {len(read.unexpected)} records are none of this task: {reason}")
        return dataclasses.replace(outcome, records=read.records, unexpected=read.unexpected)


def _start(
    arguments: Sequence[str], folder: Path, variables: Mapping[str, str], inherited: Collection[int]
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        arguments,
        cwd=folder,
        env=account.environment(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
        pass_fds=tuple(inherited),
        **account.process_options(),
    )


@dataclasses.dataclass
class _Child:
    """A running task: its processes, the pipe of its output, its events."""

    process: subprocess.Popen[bytes]
    tree: Tree
    folder: Path
    log: CappedLog
    on_event: Callable[[Event], None]
    _events_offset: int = 0  # in events.jsonl

    def __post_init__(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._lifeline, self._pipe = self.process.stdin, self.process.stdout
        os.set_blocking(self._pipe.fileno(), False)

    def close(self) -> None:
        """End the processes that are left after an exception, such as Ctrl-C."""
        self.end(_STOP_GRACE_S, "interrupted")
        self._lifeline.close()
        self._pipe.close()

    def watch(self, is_over: Callable[[], bool], should_stop: Callable[[], str]) -> str:
        """Wait for the end of the child. Return '' if it ended by itself, else why it has to end now."""
        answered_at = None
        while self.process.poll() is None:
            select.select([] if self._pipe.closed else [self._pipe], [], [], _POLL_S)
            self._drain()
            self._tell_events()
            now = time.monotonic()
            if answered_at is None and (self.folder / "outcome.json").exists():
                answered_at = now
            if why := should_stop():
                return why
            if answered_at is not None and now > answered_at + GRACE_S:
                self.log.note(f"the outcome is written, but the process did not exit within {GRACE_S:.0f} s")
                return ""
            if answered_at is None and is_over():
                return "timed_out"
        return ""

    def end(self, grace_s: float, why: str) -> tuple[int, ...]:
        """End every process of the task and read the rest of the pipe."""
        alive = self.tree.alive()
        if why and alive:
            self.log.note(f"{why}: ending {len(alive)} processes")
        leftover = tuple(self.tree.end(grace_s, meanwhile=self._drain))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=0 if leftover else None)
        self._drain()
        self._tell_events()
        return leftover

    def _drain(self) -> None:
        """Read the pipe, at most 1 MiB, so that a child that floods it is still watched."""
        for _ in range(0 if self._pipe.closed else 16):
            data = self._pipe.read(65536)
            if data is None:  # nothing yet
                return
            if not data:
                self._pipe.close()
                return
            self.log.feed(data)

    def _tell_events(self) -> None:
        """Pass on the events in the complete lines that the file has now."""
        try:
            with open_file(self.folder / "events.jsonl") as file:
                file.seek(self._events_offset)
                data = file.read(2**20)
        except OSError:
            return
        if len(data) < 2**20 or b"\n" in data:  # else a part of a line that is too long
            data = data[: data.rfind(b"\n") + 1]
        self._events_offset += len(data)
        for line in data.splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict):
                    self.on_event(event)


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Make the folder of a launch's caches and temporary files; remove it after: every launch compiles cold.

    It is in the task's folder, or in the temporary directory if that path is too long for a socket.
    """
    path = folder / "scratch"
    if len(os.fsencode(path)) > 60:
        path = Path(tempfile.mkdtemp(prefix="compiler-hud-"))
    try:
        account.share(path, *(path / name for name in ("inductor", "triton", "tmp")))
        yield path
    finally:
        account.remove(path)


def _variables(spec: TaskSpec, python: str, environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    variables = without_secrets(os.environ)
    if python != sys.executable:
        variables.pop("PYTHONPATH", None)  # made for this interpreter, not for that one
        variables.pop("PYTHONHOME", None)
    if spec.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    variables |= {**machine.compile_caches(scratch), "TMPDIR": str(scratch / "tmp"), **environment}
    paths = [str(machine.REPOSITORY), variables.get("PYTHONPATH", "")]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return variables


def _outcome(folder: Path, why: str, limit_s: float, returncode: int | None) -> TaskOutcome:
    """Return the outcome: why we ended the task, else what the child wrote, else its exit status."""
    if why not in {"", "timed_out"}:
        return TaskOutcome(why)
    with contextlib.suppress(OSError, ValueError, TypeError):
        written = TaskOutcome.from_json(read_object(folder / "outcome.json"))
        if written.status in STATUSES:
            return dataclasses.replace(written, code=written.code[:100], reason=written.reason[:1000])
    if why:
        return TaskOutcome("timed_out", "timeout", f"the time limit of {limit_s:g} s was reached")
    if returncode is not None and returncode < 0:
        names = {number.value: number.name for number in signal.Signals}  # others are real-time signals
        name = names.get(-returncode, f"SIG{-returncode}")
        return TaskOutcome("crashed", name, f"the process was ended by {name}")
    reason = f"the process ended with exit code {returncode} and left no outcome"
    return TaskOutcome("crashed", f"exit_{returncode}", reason)
