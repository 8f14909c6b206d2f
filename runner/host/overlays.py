"""Overlays on a host: the interpreter's torch by links, with the Python files of a commit in their places.

The HUD's archive is only taken apart here; what its code does, it does in the sandbox, where it may write
nothing of this. It is compiled to bytecode, as a wheel is, so that importing it takes no longer.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import SubprocessError

from runner.client.connection import HudError
from runner.schema.protocol import MOST_OVERLAY_BYTES, OVERLAY_FOLDERS, is_in_overlay, without_secrets
from runner.system import account
from runner.system.interpreters import Interpreter, answer_of

_MOST = 8  # overlays that stay
_LOOK_S, _MAKE_S = 60, 300


class NoOverlay(Exception):
    """The files of a commit cannot be had or put in place."""


def with_overlay(
    python: Interpreter, of_wheel: str, commit: str, folder: Path, fetch: Callable[[], bytes]
) -> Interpreter:
    """Return an interpreter with the files of a commit, which are made below a folder unless they are there
    for the same torch. Raise NoOverlay, or OSError."""
    key = json.dumps([python.path, dict(python.environment), of_wheel])
    place = folder / f"overlay-{commit}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not place.exists():
        folder.mkdir(exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=folder, prefix="unfinished-"))
        try:
            _make(python, unfinished, fetch())
            unfinished.rename(place)
        except (HudError, RuntimeError, SubprocessError, tarfile.TarError, ValueError) as error:
            raise NoOverlay(f"overlay of {commit}: {error}") from error
        finally:
            account.remove(unfinished)
        oldest_last = sorted(folder.glob("overlay-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        account.remove(*oldest_last[_MOST:])
    paths = [str(place), python.environment.get("PYTHONPATH", "")]
    variables = {**python.environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return replace(python, environment=variables)


def _make(python: Interpreter, folder: Path, archive: bytes) -> None:
    packages = answer_of(python, "runner.system.interpreters", limit_s=_LOOK_S)["folders"]
    own = (path for path in (Path(name, "torch") for name in packages) if (path / "__init__.py").exists())
    torch, *_others = own
    _link(torch, folder)
    left_bytes = 2 * MOST_OVERLAY_BYTES
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        for member in tar:
            left_bytes -= member.size
            if left_bytes < 0:
                raise ValueError(f"the overlay has over {2 * MOST_OVERLAY_BYTES} bytes")
            if member.isreg() and is_in_overlay(member.name) and (content := tar.extractfile(member)):
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    compiling = [python.path, "-m", "compileall", "-q", *(str(folder / name) for name in OVERLAY_FOLDERS)]
    for command in (compiling, ["chmod", "-R", "a+rX", str(folder)]):  # what does not compile fails later
        subprocess.run(
            command, env=without_secrets(os.environ), check=False, capture_output=True, timeout=_MAKE_S
        )


def _link(torch: Path, folder: Path) -> None:
    """Make links to all of torch but the Python files of the folders that an overlay brings."""
    (folder / "torch").mkdir()
    for entry in torch.iterdir():
        if f"torch/{entry.name}" not in OVERLAY_FOLDERS:
            (folder / "torch" / entry.name).symlink_to(entry)
    but_python = shutil.ignore_patterns("*.py", "__pycache__")
    for name in OVERLAY_FOLDERS:
        shutil.copytree(torch.parent / name, folder / name, ignore=but_python, copy_function=os.symlink)
