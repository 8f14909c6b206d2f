"""Overlays: the Python files of torch at a commit of a mirror, in front of an interpreter's own.

An overlay is a name, `overlay_of` of `runner.schema.protocol`. Mirrors are only read.
"""

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from django.conf import settings

from hud.models import Accelerator
from runner.schema.protocol import MOST_OVERLAY_BYTES, OVERLAY_FOLDERS, is_in_overlay, overlay_of
from runner.schema.suite import BadRequest

_GIT_S = 10
_MOST_SHOWN = 5  # files
_LONGEST_NAME = 19  # of an interpreter, with a commit after it


def git(path: str, *arguments: str) -> bytes:
    """Return what a git command writes about a mirror. Raise OSError, or SubprocessError."""
    variables = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": os.devnull}
    variables |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    command = ["git", f"--git-dir={path}", "-c", "core.quotePath=false", *arguments]
    done = subprocess.run(  # commands of ours, and refs that are no options  # nosec B603
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_GIT_S,
        check=True,
    )
    return done.stdout


def checked(interpreters: Iterable[str], able: Iterable[Accelerator], *, is_permitted: bool) -> list[str]:
    """Return the commits of the overlays among names. Raise BadRequest where they are not permitted, or other
    files differ from the torch of one of these accelerators' hosts, too."""
    commits = []
    for name, commit in filter(lambda pair: pair[1], map(overlay_of, interpreters)):
        if not is_permitted:
            raise BadRequest("an overlay needs the scope code, and a baseline")
        if len(name) > _LONGEST_NAME:
            raise BadRequest(f"an interpreter of an overlay has a name of at most {_LONGEST_NAME} characters")
        for own in {item.host.facts.get("pythons", {}).get(name, {}).get("torch_git") for item in able}:
            words = (
                "diff",
                "--name-only",
                "--no-renames",
                "--end-of-options",
                own or "unknown",
                commit,
                "--",
            )
            if others := _others(_first(f"the commits {own} and {commit}", *words)):
                raise BadRequest(f"cannot tell: {others}")
        commits.append(commit)
    return commits


def commit_of(ref: str) -> str:
    """Return the commit that a ref is in a mirror. Raise BadRequest if none has it."""
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    return _first(f"the ref {ref!r}", *asked).decode().strip()


def commits_between(base: str, head: str) -> tuple[list[str], str]:
    """Return the commits of the main line after `base` and before `head`, the oldest first, and which files
    no overlay brings that they touch, '' if none. Raise BadRequest for what no mirror has."""
    words = (
        "log",
        "--first-parent",
        "-m",
        "--name-only",
        "--no-renames",
        "--format=%x01%H",
        f"{base}..{head}",
        "--",
    )
    parts = _first(f"{base[:12]}..{head[:12]}", *words).decode("utf-8", "replace").split("\x01")[1:]
    commits = [part.partition("\n")[0] for part in parts]
    return commits[:0:-1], _others("\n".join(part.partition("\n")[2] for part in parts).encode())


def archive(commit: str) -> bytes:
    """Return the Python files of the folders at a commit, as a tar. Raise BadRequest."""
    what = f"the commit {commit}"
    folders = _first(what, "ls-tree", "--name-only", commit, "--", *OVERLAY_FOLDERS).decode().split()
    data = _first(
        what, "archive", "--format=tar.gz", commit, "--", *(f":(glob){name}/**/*.py" for name in folders)
    )
    if len(data) > MOST_OVERLAY_BYTES:
        raise BadRequest(f"{what} has over {MOST_OVERLAY_BYTES} bytes of Python files")
    return data


def _first(what: str, *arguments: str) -> bytes:
    for path in settings.HUD_REPO_MIRRORS.values():
        with suppress(OSError, subprocess.SubprocessError):
            return git(path, *arguments)
    raise BadRequest(f"no mirror of HUD_REPO_MIRRORS has {what}")


def _others(names: bytes) -> str:
    others = [name for name in dict.fromkeys(names.decode("utf-8", "replace").splitlines()) if name]
    others = [name for name in others if not is_in_overlay(name)]
    more = f" and {len(others) - _MOST_SHOWN} more files" if len(others) > _MOST_SHOWN else ""
    return f"{', '.join(others[:_MOST_SHOWN])}{more} changed too" if others else ""
