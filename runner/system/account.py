"""The account of benchmarks, where the agent may change the user: it reads no key, and so reaches no Redis.

A benchmark is arbitrary code. Under the agent's account it can read the host's key, and with it learn the
address of Redis. So `attach` chooses a user id for benchmarks, if each interpreter starts under it. The group
of that number, in which the agent is too, shares the folders that both use.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.schema.accounts import END_UID, FIRST_UID, first_uid
from runner.system.processes import dying_with_me

UID = "RUNNER_BENCHMARK_UID"  # of workers, and of the agent of `make up`; an operator's 0 changes nothing
_HOME = "RUNNER_BENCHMARK_HOME"
_TRIAL = 'cd "$0" && exec "$@"'  # a process may start in a folder that its user cannot enter
_TRIAL_S = 60
_REMOVED = ("-exec", "rm", "-rf", "{}", "+")
_OPEN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - they are cleared  # nosec B108
_REPOSITORY = Path(__file__).resolve().parent.parent.parent


def prepare(data: Path, pythons: Iterable[str]) -> str:
    """Choose the account for this agent and its workers, and make its home below the data folder. Return why
    benchmarks run under the agent's own account instead, or ''."""
    if os.geteuid() and not _uid():
        return "only root can change the user"
    if os.environ.get(UID) == "0":
        return f"{UID} is 0"
    os.environ[UID] = str(_uid() or first_uid(data) + 3)
    home = data / "benchmarks"
    try:
        let_pass(data, data / "spool", data / "caches")
        share(home)
        os.environ[_HOME] = str(home)
        if (data / "ceilings.json").exists():  # of an earlier release
            shutil.move(data / "ceilings.json", home)
        for python in pythons:
            subprocess.run(
                ["/bin/sh", "-c", _TRIAL, str(home), python, "-c", "import runner.launch.child"],
                env=environment({**os.environ, "PYTHONPATH": str(_REPOSITORY)}),
                capture_output=True,
                check=True,
                timeout=_TRIAL_S,
                **process_options(),
            )
    except (OSError, subprocess.SubprocessError) as error:
        uid = os.environ.pop(UID)
        return f"user {uid} cannot work in {data}, or start an interpreter: {error}"
    return ""


def process_options() -> dict[str, Any]:
    """Return the arguments of `subprocess.Popen` for a benchmark. Call Popen in a thread that outlives it."""
    uid = _uid()
    options = {"user": uid, "group": uid, "extra_groups": [], "umask": 0o007} if uid else {}
    return {**options, "preexec_fn": dying_with_me(powerless=bool(uid))}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return a benchmark's environment, with the home of its account."""
    if not _uid():
        return dict(variables)
    others = {name: value for name, value in variables.items() if not name.startswith("XDG_")}
    own = {"HOME": os.environ[_HOME], "USER": "benchmarks", "LOGNAME": "benchmarks"}
    return {**others, **own, "PYTHONNOUSERSITE": "1"}  # nor code that an earlier benchmark left at home


def private_home(data: Path) -> Path:
    """Return the folder, created if missing, that benchmarks of a host may always write."""
    home = Path(os.environ.setdefault(_HOME, str(data / "benchmarks")))
    share(home)
    return home


def ceilings(data: Path) -> Path:
    """Return the file of readings, which benchmarks write and the agent reads."""
    return Path(os.environ.get(_HOME, data)) / "ceilings.json"


def let_pass(*folders: Path) -> None:
    """Create folders of the agent that benchmarks may pass through, but not list."""
    for folder in folders:
        folder.mkdir(mode=0o700, exist_ok=True)
        if _uid():
            folder.chmod(0o711)


def share(*folders: Path) -> None:
    """Create folders in which the agent and benchmarks may write."""
    for folder in folders:
        if _uid() and folder.is_symlink():  # a benchmark made it
            folder.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        if _uid():
            os.chown(folder, -1, _uid())
            folder.chmod(0o2770)


def end_leftovers() -> None:
    """Kill all processes of the benchmarks' account, also those that fork faster than they are found, and
    remove its files in folders that all may write, with the caches
    of a killed worker. Call it while no benchmark runs. An account that an
    operator chose may be used by others too, and is left alone."""
    if FIRST_UID <= _uid() < END_UID:
        search = ["find", *_OPEN_FOLDERS, "-maxdepth", "1", "-group", str(_uid())]
        as_benchmark = shlex.join([*search, "-exec", "chmod", "-R", "u+rwX", "{}", "+", *_REMOVED])
        killed = ["/bin/sh", "-c", f"kill -9 -1; {as_benchmark}"]  # all but this shell
        subprocess.run(killed, stderr=subprocess.DEVNULL, check=False, cwd="/", **process_options())
        subprocess.run([*search, *_REMOVED], stderr=subprocess.DEVNULL, check=False)


def take_back(*folders: Path) -> None:
    """Let the agent read and remove what benchmarks made in folders, whatever modes they gave it, and no
    benchmark enter these again until they are shared."""
    if not _uid():
        return
    command = ["chmod", "-R", "ug+rwX", *map(str, folders)]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=False, **process_options())
    for folder in folders:
        with suppress(OSError):  # it is gone, or a link, or the benchmark's own
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            os.fchmod(descriptor, 0o700)
            os.close(descriptor)


def remove(*folders: Path) -> None:
    """Remove folders and what benchmarks left in them, however deep it is: Python's own way is recursive."""
    take_back(*folders)
    command = ["rm", "-rf", "--", *map(str, folders)]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=False)


def _uid() -> int:
    return int(os.environ.get(UID) or 0)
