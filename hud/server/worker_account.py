"""The accounts of the agent, of its benchmarks, and of the servers where root runs `make up`.

Each owns its folder below the data folder and reads the checkout; secrets are readable for root only. The
agent may talk to Redis, whose messages carry no data, and not to PostgreSQL, whose socket is for its owner
alone. It may change the user, to start benchmarks under an account that may do neither
(`runner/system/account.py`).
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from shlex import quote
from typing import Literal, get_args

from runner.schema.accounts import benchmark_uids, first_uid, home_of
from runner.schema.protocol import without_secrets

Account = Literal["agent", "redis", "postgres", "benchmarks"]
_CHECKOUT = Path(__file__).resolve().parents[2]
GROUP = 61_000  # of all installations, since they share device locks; no benchmark is in it
_RIGHTS = "-all,+setuid,+setgid,+kill"  # of the agent


def uid_of(data: Path, account: Account = "agent") -> int:
    """Return the user id of an account of an installation, which needs no entry in /etc/passwd."""
    return first_uid(data) + get_args(Account).index(account)


@functools.cache
def prefix(data: Path) -> tuple[str, ...]:
    """Return a command prefix that changes to the agent's account and ends with its parent."""
    rights = [f"--{kind}={_RIGHTS}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    groups = {GROUP, *_benchmarks(data)}
    return (*_prefix(data, uid_of(data), groups), "--pdeathsig=TERM", *rights)


def _prefix(data: Path, uid: int, groups: Collection[int]) -> tuple[str, ...]:
    account = (f"--reuid={uid}", f"--regid={GROUP}", "--no-new-privs")
    all_groups = f"--groups={','.join(map(str, sorted(groups)))}"
    return (*_way_through_closed_folders(data), "setpriv", *account, all_groups)


def server_prefix(data: Path, run: Path, uid: int, command: str) -> tuple[str, ...]:
    """Open the way to the folders of a server; return a command prefix that changes to its user id, or ()
    where that is not possible."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        return ()
    _open_way({data: 0o711, run: 0o2710})
    as_server = _prefix(data, uid, {GROUP})
    tried = subprocess.run([*as_server, command, "--version"], cwd="/", capture_output=True, check=False)
    return () if tried.returncode else as_server


def _open_way(modes: Mapping[Path, int]) -> None:
    """Let the group enter folders; sockets and locks get the group of theirs."""
    for path, mode in modes.items():
        path.mkdir(mode=mode, parents=True, exist_ok=True)
        os.chown(path, -1, GROUP)
        path.chmod(path.stat().st_mode & 0o7001 | mode)


def _benchmarks(data: Path) -> list[int]:
    """Return the user ids of benchmarks, one for each accelerator of this machine."""
    return benchmark_uids(uid_of(data, "benchmarks"), data / "agent", _accelerators())


def _accelerators() -> int:
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) or 1


def give(uid: int, *paths: Path, group: int = GROUP) -> None:
    """Make a user the owner of files, and of folders with all that is in them, unless he is."""
    for top in paths:
        if top.lstat().st_uid != uid:
            for path in (*top.rglob("*"), top):
                os.chown(path, uid, group, follow_symlinks=False)


def _way_through_closed_folders(data: Path) -> tuple[str, ...]:
    """Return a command prefix that shows the account what it needs of folders that only root may enter.

    A Python or a checkout often lies below /root. In a mount namespace of its own, the agent has an empty
    folder there, with nothing but the data folder, the checkout and the Python in it.
    """
    needed = [path.resolve() for path in (data, _CHECKOUT, Path(sys.prefix), Path(sys.base_prefix))]
    closed: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(needed):
        outermost_first = [each for each in reversed(path.parents) if not each.stat().st_mode & 0o001]
        if outermost_first and not any(other in path.parents for other in needed):
            closed.setdefault(outermost_first[0], []).append(path)
    if not closed:
        return ()
    steps = ["umask 022"]
    for folder, paths in closed.items():
        # opened before it is covered; not canonicalized, since the name then leads to the cover
        steps += [f"exec {number}<{quote(str(path))}" for number, path in enumerate(paths, 3)]
        steps += [f"mount -t tmpfs -o mode=0711,size=1m tmpfs {quote(str(folder))}"]
        for number, path in enumerate(paths, 3):
            target = quote(str(path))
            steps += [f"mkdir -p {target}", f"mount -c --bind /proc/self/fd/{number} {target}"]
            steps += [f"exec {number}<&-"]
    script = "; ".join([*steps, "umask 077", 'exec "$@"'])
    return ("unshare", "--mount", "--propagation=private", "sh", "-ec", script, "sh")


def prepare(data: Path, run: Path) -> str:
    """Give the agent its folder and the way to Redis. Return why its account cannot be used, or ''."""
    if os.geteuid() != 0:
        return "only root can change the user"
    if not shutil.which("setpriv"):
        return "there is no setpriv (util-linux)"
    folder = data / "agent"
    _open_way({data: 0o711, run: 0o2710, _locks(): 0o2770})
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    give(uid_of(data), folder)
    for slot, uid in enumerate(_benchmarks(data)):  # others where the data folder was moved
        home = home_of(folder, slot)
        home.mkdir(exist_ok=True)
        os.chown(home, uid_of(data), uid)
        give(uid, *home.glob("*"), group=uid)
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).touch(); import runner.host.attach"
    tried = subprocess.run(
        [*prefix(data), sys.executable, "-c", code, str(folder / "tried")],
        env=environment(data),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return (tried.stderr.strip().splitlines() or ["it cannot run Python"])[-1] if tried.returncode else ""


def environment(data: Path) -> dict[str, str]:
    """Return the agent's environment, without the secrets of the dashboard."""
    own = {
        "HOME": str(data / "agent" / "home"),
        "USER": "compiler-hud",
        "LOGNAME": "compiler-hud",
        "RUNNER_LOCKS": str(_locks()),
        "RUNNER_BENCHMARK_UID": ",".join(map(str, _benchmarks(data))),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_CHECKOUT), os.environ.get("PYTHONPATH")])),
    }
    dropped = ("XDG_", "TMPDIR")  # root's folders
    kept = without_secrets(os.environ)
    return {name: value for name, value in kept.items() if not name.startswith(dropped)} | own


def _locks() -> Path:
    """Return the folder of root's device locks, so that root's own `runner run` and the agent exclude each
    other."""
    return Path(os.environ.get("RUNNER_LOCKS") or "/tmp/compiler-hud-locks-0")  # noqa: S108 - runner/system/locks.py  # nosec B108
