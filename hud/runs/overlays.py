"""Overlays: the Python files of torch at a commit of a mirror, in front of an interpreter's own. One is a
name, `overlay_of` of `runner.schema.protocol`. Mirrors are only read."""

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress

from django.conf import settings

from hud.models import Accelerator
from runner.schema.protocol import (
    MOST_OVERLAY_BYTES,
    OVERLAY_FOLDERS,
    OVERLAYS_ALLOWED,
    is_in_overlay,
    overlay_of,
)
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
        command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S, check=True
    )
    return done.stdout


def checked(interpreters: Iterable[str], able: Iterable[Accelerator], *, is_permitted: bool) -> list[str]:
    """Return the commits of the overlays among names. Raise BadRequest where they are not permitted, or bring
    not all that differs from the torch of one of these accelerators' hosts."""
    commits = []
    for name, commit in filter(lambda pair: pair[1], map(overlay_of, interpreters)):
        if not is_permitted:
            raise BadRequest("an overlay needs the scope code, and a baseline")
        if len(name) > _LONGEST_NAME:
            raise BadRequest(f"an interpreter of an overlay has a name of at most {_LONGEST_NAME} characters")
        for own in {item.host.facts.get("pythons", {}).get(name, {}).get("torch_git") for item in able}:
            _check_files(str(own), commit)
        commits.append(commit)
    return commits


def labels_for(interpreters: Iterable[str]) -> dict[str, str]:
    """Return the labels that an accelerator needs for names."""
    return OVERLAYS_ALLOWED if any(overlay_of(name)[1] for name in interpreters) else {}


def commit_of(ref: str) -> str:
    """Return the commit that a ref is in a mirror. Raise BadRequest if none has it."""
    return _first("rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}").decode().strip()


def commits_between(base: str, head: str) -> list[str]:
    """Return the commits of the main line after `base` and before `head`, the oldest first. Raise BadRequest
    where no mirror has them, or other files differ than an overlay brings."""
    _check_files(base, head)
    return _first("rev-list", "--reverse", "--first-parent", f"{base}..{head}", "--").decode().split()[:-1]


def archive(commit: str) -> bytes:
    """Return the Python files of the folders at a commit, as a tar. Raise BadRequest."""
    folders = _first("ls-tree", "--name-only", commit, "--", *OVERLAY_FOLDERS).decode().split()
    data = _first("archive", "--format=tar.gz", commit, "--", *(f":(glob){name}/**/*.py" for name in folders))
    if len(data) > MOST_OVERLAY_BYTES:
        raise BadRequest(f"the commit {commit} has over {MOST_OVERLAY_BYTES} bytes of Python files")
    return data


def _check_files(base: str, head: str) -> None:
    names = _first("diff", "--name-only", "--no-renames", "--end-of-options", base, head, "--")
    others = [name for name in names.decode("utf-8", "replace").splitlines() if not is_in_overlay(name)]
    more = f" and {len(others) - _MOST_SHOWN} more files" if len(others) > _MOST_SHOWN else ""
    if others:
        raise BadRequest(f"cannot tell the commit: {', '.join(others[:_MOST_SHOWN])}{more} changed too")


def _first(*arguments: str) -> bytes:
    for path in settings.HUD_REPO_MIRRORS.values():
        with suppress(OSError, subprocess.SubprocessError):
            return git(path, *arguments)
    raise BadRequest(f"no mirror of HUD_REPO_MIRRORS answers git {' '.join(arguments)[:200]}")
