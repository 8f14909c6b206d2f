"""The sandbox of a host's tasks, by bubblewrap, where its operator asked for it (`attach --sandbox`).

A task sees the machine read-only, with a `/tmp` of its own. It reaches no network, and of the agent's data
folder only its own folders, so that it reads no key. It may write in these, and in the cache of compilers.
Devices and `/proc` are the machine's: CUDA needs them, and a benchmark looks there who else uses the card.
"""

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from runner.system import account, machine

DATA = "RUNNER_SANDBOX"  # the agent's data folder; of the agent and its workers
OVERLAYS = "RUNNER_OVERLAYS"  # 1: tasks may bring Python files of torch
_PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - empty folders of the task's own  # nosec B108


def prepare(data: Path, pythons: Iterable[str]) -> str:
    """Let the workers of this agent start tasks in a sandbox. Return why they cannot, or ''. Call it after
    `account.prepare`."""
    problem = problem_of(data, pythons)
    if not problem:
        os.environ[DATA] = str(data)
    return problem


def problem_of(data: Path, pythons: Iterable[str]) -> str:
    """Return why an interpreter does not start in a sandbox, or ''."""
    if not shutil.which("bwrap"):
        return "bubblewrap is missing: apt-get install bubblewrap"
    home = account.private_home(data)
    for python in pythons:
        if problem := account.problem_of(_command(data, [python, *account.TRIAL], home)):
            return f"{python} does not start in a sandbox: {problem}"
    return ""


def command(arguments: Sequence[str], *writable: Path) -> list[str]:
    """Return a command that runs in a sandbox, in the first of the folders, if this host has one."""
    data = os.environ.get(DATA)
    return _command(Path(data), arguments, *writable) if data else list(arguments)


def _command(data: Path, arguments: Sequence[str], *writable: Path) -> list[str]:
    cache = Path(account.environment(os.environ).get("HOME", "/")) / ".cache" / machine.cache_folder().name
    options = ["--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--bind", "/proc", "/proc"]
    for folder in (*_PRIVATE, str(data)):
        options += ["--tmpfs", folder]
    options += ["--ro-bind-try", f"{data}/interpreters", f"{data}/interpreters"]
    for path in map(str, (cache, account.private_home(data), *writable)):
        options += ["--bind-try", path, path]
    options += ["--unshare-net", "--die-with-parent", "--chdir", str(writable[0])]
    return ["bwrap", *options, "--", *arguments]


def may_overlay() -> bool:
    """Return whether tasks of this agent may bring Python files of torch: only in a sandbox."""
    return os.environ.get(OVERLAYS) == "1" and bool(os.environ.get(DATA))


def exit_status(status: int | None) -> int | None:
    """Return the exit status of a process as Popen would say it: bubblewrap adds 128 to a signal's number."""
    return 128 - status if status is not None and status > 128 and os.environ.get(DATA) else status
