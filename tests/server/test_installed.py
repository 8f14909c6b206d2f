"""Install the dashboard in a fresh Debian by docs/deploying.md, and run it by the lines of its units."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from hud.server import embedded
from tests.soak import Figures
from tests.support.nginx import status_of
from tests.support.servers import ROOT, end_process, free_port, quick_postgres
from tests.support.waiting import wait_for

pytestmark = pytest.mark.soak
MIRROR = "http://deb.debian.org/debian"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CODE = Path("opt/compiler-hud")
UNITS = ("upgrade", "web", "tick", "imports", "judge")
# As the units have it: all is read-only but the state folder, with a `/tmp` and devices of its own.
PROTECTED = """
mount --bind "$0" "$0"; cd "$0"; mount -o remount,bind,ro .
mount --bind var/lib/compiler-hud var/lib/compiler-hud
mount -t tmpfs tmpfs tmp; mount -t tmpfs tmpfs dev; mkdir dev/shm; chmod 1777 tmp dev/shm
for device in null zero urandom random; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mount -t proc proc proc
"""
OPEN = 'cd "$0"; mount -t proc proc proc; mount --bind /dev dev\n'


@pytest.fixture(scope="module")
def system() -> Iterator[Path]:
    """A fresh Debian with Python, and the checkout's files in /opt."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        pytest.skip("only root can make a fresh system, by debootstrap (apt-get install debootstrap)")
    path = Path(tempfile.mkdtemp(prefix="hud-system-", dir="/var/tmp"))
    path.chmod(0o755)
    packages = "--include=python3-venv,systemd"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", packages, "bookworm", path, MIRROR],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        if made.returncode:
            pytest.skip(f"no packages of Debian: {made.stdout.strip().splitlines()[-1]}")
        (path / CODE).mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", path / CODE], input=archive, check=True)
        yield path
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", path], check=True)


def command(system: Path, script: str, *, user: str = "root", mounts: str = OPEN) -> list[str]:
    """Return a command that runs a script in the system, in namespaces that end with it."""
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    inside = f'{mounts}\nexec chroot --userspec="$1" "$0" /bin/sh -ec "$2"'
    clean = ["env", "-i", f"PATH={PATH}"]  # else with the settings of the tests
    return [*clean, *namespaces, "sh", "-ec", inside, str(system), user, script]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def install(system: Path) -> None:
    """Do what the guide says, but start nothing."""
    guide = (ROOT / "docs" / "deploying.md").read_text()
    block = re.search(r"```\n(git clone .*?)```", guide, re.DOTALL)
    assert block
    lines = [line for line in block[1].splitlines() if not line.startswith(("git clone", "systemctl"))]
    for path in ("etc/resolv.conf", "etc/hosts", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt"):
        if Path("/", path).exists():  # how this machine reaches the packages
            (system / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path("/", path), system / path)
    run(command(system, "\n".join(lines)))


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the settings of a PostgreSQL and a Redis that answer on ports of this machine."""
    with ExitStack() as stack:
        folder.chmod(0o711)
        port, redis_port = free_port(), free_port()
        postgres = quick_postgres(folder / "postgres")
        with (folder / "postgres" / "pg" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 127.0.0.1/32 trust\n")
        redis = [
            embedded.redis_binary()[0],
            "--port",
            str(redis_port),
            "--requirepass",
            "secret",
            "--save",
            "",
        ]
        for line in ([*postgres.command, "-h", "127.0.0.1", "-p", str(port)], redis):
            process = subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(end_process, process, signal.SIGINT)
        url = f"postgresql://hud@127.0.0.1:{port}/hud"
        wait_for(lambda: answers(url), "PostgreSQL")
        yield {"DATABASE_URL": url, "REDIS_URL": f"redis://:secret@127.0.0.1:{redis_port}/0"}


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def test_the_guide_installs_units_that_run(system: Path, tmp_path: Path, figures: Figures) -> None:
    install(system)
    units = sorted((system / "etc" / "systemd" / "system").glob("compiler-hud*"))
    paths = [f"/{unit.relative_to(system)}" for unit in units]
    verified = subprocess.run(
        ["systemd-analyze", "verify", f"--root={system}", *paths], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    port = free_port()
    settings = system / "etc" / "compiler-hud" / "hud.env"
    assert settings.stat().st_mode & 0o777 == 0o600
    with servers(tmp_path) as urls, ExitStack() as stack:
        chosen = {**urls, "SECRET_KEY": "s" * 60, "PORT": str(port), "ALLOWED_HOSTS": "hud.example.org"}
        text = settings.read_text()
        for name, value in chosen.items():
            text, count = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
            assert count == 1, name
        settings.write_text(text)
        variables = dict(re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE))
        run(command(system, "install -d -m 700 -o compiler-hud -g compiler-hud /var/lib/compiler-hud"))
        for unit in UNITS:
            lines = (system / "etc/systemd/system" / f"compiler-hud-{unit}.service").read_text()
            values = dict(re.findall(r"^(User|WorkingDirectory|UMask)=(.*)$", lines, re.MULTILINE))
            exports = "".join(f"export {name}='{value}'\n" for name, value in variables.items())
            start = f"{exports}umask {values['UMask']}; cd {values['WorkingDirectory']}\n"
            for line in re.findall(r"^ExecStart=(.*)$", lines, re.MULTILINE):
                as_unit = command(system, f"{start}exec {line}", user=values["User"], mounts=PROTECTED)
                if unit == "upgrade":
                    run(as_unit)
                    continue
                log = stack.enter_context((tmp_path / f"{unit}.log").open("wb"))
                process = subprocess.Popen(as_unit, stdout=log, stderr=log)
                stack.callback(end_process, process, signal.SIGKILL)  # and with it its namespace
        site = f"http://127.0.0.1:{port}"
        wait_for(lambda: status_of(f"{site}/readyz") == 200, f"ready: {logs(tmp_path)}", 60)
        wait_for(lambda: status_of(f"{site}/statusz") == 200, f"the parts: {logs(tmp_path)}", 60)
        assert (system / "var/lib/compiler-hud/operator.json").exists()
    megabytes = sum(path.lstat().st_size for path in (system / CODE).rglob("*")) / 2**20
    figures.note("checkout with its packages", megabytes, "MiB")


def logs(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-500:] for path in folder.glob("*.log"))
