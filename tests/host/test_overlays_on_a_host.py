"""Overlays through the product, on this machine's CPU and in the sandbox: one that writes slower code is
found, one of a comment is not, and is dismissed where processes differ by little. For an idle machine."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hud.accounts.keys import create_key
from hud.models import Host
from runner.client.hud import Hud as Client
from runner.schema.protocol import OVERLAY_FOLDERS
from tests.launch.test_sandbox import TRIAL
from tests.support.hosts import ANSWERS_FOR_COMPILE, HostProcess, ticking
from tests.support.servers import Hud
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.soak, pytest.mark.alone]
CHANGES = (  # of a file of torch/_inductor: what stands there, and what a commit writes in its place
    ("comment", "ir.py", "from __future__ import annotations", "from __future__ import annotations  # new"),
    ("slow", "config.py", "    simdlen: int | None = None", "    simdlen: int | None = 1"),  # no vectors
)
ASKED = {"suite": "micro", "cases": ["layer_norm"], "knobs": {"D": [64]}, "draws": 12, "class": "ci"}
GIT = ["git", "-c", "user.name=dev", "-c", "user.email=dev@x"]


@pytest.fixture
def commits(tmp_path: Path) -> dict[str, str]:
    """The commits of a mirror made from the Python files of this interpreter's torch."""
    work = tmp_path / "work"
    for folder in OVERLAY_FOLDERS:
        wheel = Path(torch.__file__).parent.parent
        for path in (wheel / folder).rglob("*.py"):
            (work / path.relative_to(wheel)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, work / path.relative_to(wheel))

    def git(*arguments: str) -> str:
        done = subprocess.run([*GIT, *arguments], cwd=work, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(title: str) -> str:
        git("add", "--all")
        git("commit", "--quiet", "--message", title)
        return git("rev-parse", "HEAD")

    git("init", "--quiet")
    made = {"wheel": commit("wheel")}
    for title, name, old, new in CHANGES:
        path = work / "torch" / "_inductor" / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
        made[title] = commit(title)
    return made


@pytest.fixture
def hud(hud_process: Hud, redis_server: object, commits: dict[str, str], tmp_path: Path) -> Hud:
    hud_process.start(HUD_REPO_MIRRORS=f"o/r={tmp_path / 'work' / '.git'}")
    return hud_process


@pytest.fixture
def host(
    hud: Hud, commits: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HostProcess]:
    """A host that allows overlays, whose torch is the first commit."""
    if not shutil.which("bwrap") or subprocess.run(TRIAL, check=False).returncode:
        pytest.skip("bubblewrap is not installed, or this kernel lets nobody use it")
    _key, secret = create_key(name="host", scopes=["host"], who="test", host=Host.objects.create(name="here"))
    words = ["-m", "runner", "attach", "--hud", hud.url, "--key", secret, "--devices", "cpu"]
    words += ["--sandbox", "--allow-overlays", "--data", str(tmp_path / "agent")]
    (tmp_path / "sitecustomize.py").write_text(ANSWERS_FOR_COMPILE)
    monkeypatch.delenv("TORCHINDUCTOR_VEC_ISA_OK")  # of the tests' settings: no vectors
    process = HostProcess(tmp_path, words, {"PYTHONPATH": str(tmp_path)})
    tick = ticking(hud, tmp_path)
    process.start()
    told = Host.objects.filter(name="here", facts__pythons__default__has_key="notes")
    wait_for(told.exists, "all that the host says of its torch", timeout_s=120)
    here = told.get()
    here.facts["pythons"]["default"]["torch_git"] = commits["wheel"]  # the wheel's own commit is in no mirror
    here.save(update_fields=["facts"])
    yield process
    process.stop()
    tick.stop()


@pytest.mark.parametrize(
    ("title", "expected"), [("slow", {"regressed"}), ("comment", {"unchanged", "inconclusive"})]
)
def test_an_overlay_is_judged_against_the_wheel(
    hud: Hud, host: HostProcess, commits: dict[str, str], title: str, expected: set[str]
) -> None:
    client = Client(hud.url, create_key(name="dev", scopes=["read", "run", "code"], who="t")[1])
    run = client.start({**ASKED, "host": "here", "overlay": {"ref": commits[title]}})
    result = client.result(run, time.monotonic() + 3600)
    assert result["state"] == "succeeded", client.page(f"runs/{run}")
    assert result["verdict"] in expected, client.page(f"runs/{run}")["pairs"]
