"""The accounts of benchmarks, where the agent may change the user: they read no key, and so reach no Redis.

A benchmark is arbitrary code. Under the agent's account it can read the host's key, and with it learn the
address of Redis. So `attach` chooses user ids for benchmarks, if each interpreter starts under the first: one
for each accelerator, so that two tasks that run at once reach nothing of each other's. The group of that
number, in which the agent is too, shares the folders that both use, and says whose they are.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.schema.accounts import END_UID, FIRST_UID, benchmark_uids, first_uid, home_of
from runner.system import machine
from runner.system.processes import dying_with_me

# Of a worker, or of an agent, which may have several, with commas. An operator's 0 changes nothing.
UID = "RUNNER_BENCHMARK_UID"
_HOME = "RUNNER_BENCHMARK_HOME"
_ALONE = "RUNNER_BENCHMARK_ALONE"  # 1: no other worker has the account
_TRIAL = 'cd "$0" && exec "$@"'  # a process may start in a folder that its user cannot enter
_TRIAL_S = 60
TRIAL = ("-c", "import runner.launch.child")  # of an interpreter
_REMOVED = ("-exec", "rm", "-rf", "{}", "+")
_OPEN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - they are cleared  # nosec B108


def prepare(data: Path, pythons: Iterable[str], accelerators: int = 1) -> str:
    """Choose the accounts for the workers of this agent, and make their homes below the data folder. Return
    why benchmarks run under the agent's own account instead, or ''."""
    if os.geteuid() and not _uid():
        return "only root can change the user"
    if os.environ.get(UID) == "0":
        return f"{UID} is 0"
    uids = _uids() or benchmark_uids(first_uid(data) + 3, data, accelerators)
    os.environ[UID] = ",".join(map(str, uids if len(uids) >= accelerators else uids[:1]))
    home = home_of(data, 0)
    try:
        let_pass(data, data / "spool", data / "caches")
        os.environ[_HOME] = str(home)
        for slot, uid in enumerate(_uids()):
            share(home_of(data, slot), uid=uid)
        shell = ["/bin/sh", "-c", _TRIAL, str(home)]
        tried = ((python, problem_of([*shell, python, *TRIAL])) for python in pythons)
        problem = next((f"{python}: {why}" for python, why in tried if why), "")
    except OSError as error:
        problem = str(error)
    if problem:
        chosen = os.environ.pop(UID)
        problem = f"user {chosen} cannot work in {data}, or start an interpreter: {problem}"
    return problem


def problem_of(command: Sequence[str]) -> str:
    """Return why a command does not start as benchmarks do, or ''."""
    variables = environment({**os.environ, "PYTHONPATH": str(machine.REPOSITORY)})
    options: dict[str, Any] = {"env": variables, "timeout": _TRIAL_S, **process_options()}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    last_line = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
    return last_line if done.returncode else ""


def of_slot(slot: int, data: Path, accelerators: int) -> dict[str, str]:
    """Return the variables of the worker of an agent's first, second, … accelerator."""
    uids = _uids()
    if len(uids) < accelerators:  # an operator chose one for all, or there is none
        return {}
    return {UID: str(uids[slot]), _HOME: str(home_of(data, slot)), _ALONE: "1"}


def process_options(uid: int | None = None) -> dict[str, Any]:
    """Return the arguments of `subprocess.Popen` for a benchmark, or for another user id. Call Popen in a
    thread that outlives it."""
    uid = _uid() if uid is None else uid
    options = {"user": uid, "group": uid, "extra_groups": [], "umask": 0o007} if uid else {}
    return {**options, "preexec_fn": dying_with_me(powerless=bool(uid))}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a benchmark's environment, with the home of its account."""
    if not _uid():
        return dict(variables)
    others = {name: value for name, value in variables.items() if not name.startswith("XDG_")}
    home = os.environ[_HOME]
    own = {"HOME": home, "USER": Path(home).name, "LOGNAME": Path(home).name}
    return {**others, **own, "PYTHONNOUSERSITE": "1"}  # nor code that an earlier benchmark left at home


def private_home(data: Path) -> Path:
    """Return the folder, created if missing, that benchmarks of a host may always write."""
    home = Path(os.environ.setdefault(_HOME, str(data / "benchmarks")))
    share(home)
    return home


def ceilings(data: Path, slot: int = 0) -> Path:
    """Return the file of readings, which benchmarks write and the agent reads; that of another slot than its
    own where it has several accounts."""
    home = home_of(data, slot) if slot and slot < len(_uids()) else os.environ.get(_HOME, data)
    return Path(home) / "ceilings.json"


def let_pass(*folders: Path) -> None:
    """Create folders of the agent that benchmarks may pass through, but not list."""
    for folder in folders:
        folder.mkdir(mode=0o700, exist_ok=True)
        if _uid():
            folder.chmod(0o711)


def pass_alone(folder: Path) -> None:
    """Let benchmarks of this account alone pass through a folder of the agent."""
    if _uid():
        os.chown(folder, -1, _uid())
        folder.chmod(0o710)


def share(*folders: Path, uid: int = 0) -> None:
    """Create folders in which the agent and benchmarks may write; one of another account anew."""
    uid = uid or _uid()
    for folder in folders:
        if uid and folder.is_symlink():  # a benchmark made it
            folder.unlink()
        elif uid and folder.exists() and folder.stat().st_gid != uid and _is_ours(folder.stat().st_gid):
            remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if uid:
            os.chown(folder, -1, uid)
            folder.chmod(0o2770)


def clean() -> None:
    """Call `end_leftovers` for a worker that has its account alone, before a task."""
    if os.environ.get(_ALONE):
        end_leftovers()


def end_leftovers() -> None:
    """Kill all processes of the benchmarks' accounts, also those that fork faster than they are found, and
    remove their files in folders that all may write, with the caches of a killed worker. Call it while no
    benchmark runs. An account that an operator chose may be used by others too, and is left alone."""
    for uid in filter(_is_ours, _uids()):
        search = ["find", *_OPEN_FOLDERS, "-maxdepth", "1", "-group", str(uid)]
        as_benchmark = shlex.join([*search, "-exec", "chmod", "-R", "u+rwX", "{}", "+", *_REMOVED])
        killed = ["/bin/sh", "-c", f"kill -9 -1; {as_benchmark}"]  # all but this shell
        subprocess.run(killed, stderr=subprocess.DEVNULL, check=False, cwd="/", **process_options(uid))
        subprocess.run([*search, *_REMOVED], stderr=subprocess.DEVNULL, check=False)


def take_back(*folders: Path) -> None:
    """Let the agent read and remove what benchmarks made in folders, whatever modes they gave it, and no
    benchmark enter these again until they are shared."""
    for folder in folders if _uid() else ():
        with suppress(OSError):  # it is gone, or a link, or the benchmark's own
            group = folder.lstat().st_gid
            options = process_options(group if _is_ours(group) else None)
            command = ["chmod", "-R", "ug+rwX", str(folder)]
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False, **options)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            os.fchmod(descriptor, 0o700)
            os.close(descriptor)


def remove(*folders: Path) -> None:
    """Remove folders and what benchmarks left in them, however deep it is: Python's own way is recursive."""
    take_back(*folders)
    command = ["rm", "-rf", "--", *map(str, folders)]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=False)


def _uid() -> int:
    return next(iter(_uids()), 0)


def _uids() -> list[int]:
    return [int(uid) for uid in os.environ.get(UID, "").split(",") if int(uid or 0)]


def _is_ours(uid: int) -> bool:
    return FIRST_UID <= uid < END_UID and uid != os.getegid()  # the agent's of `make up`
