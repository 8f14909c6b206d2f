"""The accounts of the agent and of Redis where root runs `make up`: benchmark code is arbitrary code.

Each owns its folder below the data folder and reads the checkout. The agent's may talk to Redis, whose
messages carry no data, and not to PostgreSQL, whose socket is for its owner alone. Secrets are readable for
root only.
"""

import functools
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from shlex import quote

from runner.schema.protocol import without_secrets

GROUP = 61_000  # of all installations, since they share device locks
_GPU_DEVICES = ("dev/kfd", "dev/dri/renderD*")  # AMD's belong to groups; NVIDIA's are open to all


def uid_of(data: Path) -> int:
    """Return the user id of an installation, in the range that systemd leaves unused. It needs no entry in
    /etc/passwd. Installations that shared one could read each other's keys."""
    return GROUP + 1 + zlib.crc32(bytes(data.resolve())) % 180


def redis_uid_of(data: Path) -> int:
    """Return the user id of an installation's Redis, in the same range."""
    return uid_of(data) - 200


@functools.cache
def prefix(data: Path, checkout: Path) -> tuple[str, ...]:
    """Return a command prefix that changes to the agent's account and ends with its parent."""
    groups = {path.stat().st_gid for pattern in _GPU_DEVICES for path in Path("/").glob(pattern)} - {0}
    return _prefix(data, checkout, uid_of(data), {GROUP, *groups})


def _prefix(data: Path, checkout: Path, uid: int, groups: Collection[int]) -> tuple[str, ...]:
    account = (f"--reuid={uid}", f"--regid={GROUP}", "--no-new-privs", "--pdeathsig=TERM")
    all_groups = f"--groups={','.join(map(str, sorted(groups)))}"
    return (*_way_through_closed_folders(data, checkout), "setpriv", *account, all_groups)


def redis_prefix(data: Path, run: Path, checkout: Path, command: str) -> tuple[str, ...]:
    """Give Redis its folders; return a command prefix that changes to its account. Return () where that is
    not possible, with the folders its starter's."""
    uid, folders = redis_uid_of(data), (data / "redis", run / "redis")
    if os.geteuid() == 0 and shutil.which("setpriv"):
        _open_way({data: 0o710, run: 0o2710})
        _give(uid, *folders)
        folders[1].chmod(0o710)
        as_redis = _prefix(data, checkout, uid, {GROUP})
        tried = subprocess.run([*as_redis, command, "--version"], cwd="/", capture_output=True, check=False)
        if not tried.returncode:
            return as_redis
    _give(os.geteuid(), *folders)
    return ()


def _open_way(modes: Mapping[Path, int]) -> None:
    """Let the group enter folders; sockets and locks get the group of theirs."""
    for path, mode in modes.items():
        path.mkdir(mode=mode, parents=True, exist_ok=True)
        os.chown(path, -1, GROUP)
        path.chmod(path.stat().st_mode & 0o7001 | mode)


def _give(uid: int, *folders: Path) -> None:
    for folder in folders:
        if folder.stat().st_uid != uid:
            for path in (*folder.rglob("*"), folder):
                os.chown(path, uid, GROUP, follow_symlinks=False)


def _way_through_closed_folders(data: Path, checkout: Path) -> tuple[str, ...]:
    """Return a command prefix that shows the account what it needs of folders that only root may enter.

    A Python or a checkout often lies below /root. In a mount namespace of its own, the agent has an empty
    folder there, with nothing but the data folder, the checkout and the Python in it.
    """
    needed = [path.resolve() for path in (data, checkout, Path(sys.prefix), Path(sys.base_prefix))]
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


def prepare(data: Path, run: Path, checkout: Path) -> str:
    """Give the account its folder and the way to Redis. Return why it cannot be used, or ''."""
    if os.geteuid() != 0:
        return "only root can change the user"
    if not shutil.which("setpriv"):
        return "there is no setpriv (util-linux)"
    folder = data / "agent"
    _open_way({data: 0o710, run: 0o2710, _locks(): 0o2770})
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "home").mkdir(exist_ok=True)
    _give(uid_of(data), folder)
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).touch(); import runner.host.attach"
    tried = subprocess.run(
        [*prefix(data, checkout), sys.executable, "-c", code, str(folder / "tried")],
        env=environment(data, checkout),
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    return (tried.stderr.strip().splitlines() or ["it cannot run Python"])[-1] if tried.returncode else ""


def environment(data: Path, checkout: Path) -> dict[str, str]:
    """Return the agent's environment, without the secrets of the dashboard."""
    own = {
        "HOME": str(data / "agent" / "home"),
        "USER": "compiler-hud",
        "LOGNAME": "compiler-hud",
        "RUNNER_LOCKS": str(_locks()),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")])),
    }
    dropped = ("XDG_", "TMPDIR")  # root's folders
    kept = without_secrets(os.environ)
    return {name: value for name, value in kept.items() if not name.startswith(dropped)} | own


def _locks() -> Path:
    """Return the folder of root's device locks, so that root's own `runner run` and the agent exclude each
    other."""
    return Path(os.environ.get("RUNNER_LOCKS") or "/tmp/compiler-hud-locks-0")  # noqa: S108 - runner/system/locks.py  # nosec B108
