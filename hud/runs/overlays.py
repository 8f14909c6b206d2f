"""Overlays: the Python files of torch at a commit of a mirror, in front of an interpreter's own. One is a
name, `overlay_of` of `runner.schema.protocol`. Mirrors are only read: the commit of a patch is made anew in a
store of its own, always the same one, and only the patch is kept."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

from django.conf import settings
from django.core.files.base import ContentFile
from django.db import transaction

from hud.files import files
from hud.models import Accelerator, Run
from runner.schema.protocol import MOST_OVERLAY_BYTES, OVERLAY_FOLDERS, is_in_overlay, overlay_of
from runner.schema.suite import BadRequest

_GIT_S = 10
_MOST_SHOWN = 5  # files
_LONGEST_NAME = 19  # of an interpreter, with a commit after it
_NEVER_DECIDE = ("test/", "tests/", "docs/")  # files below these are in no wheel's compiler
MOST_PATCH_CHARS = 256 * 1024
_NO_PATCH = re.compile(  # links, modes, names that change, and bytes: only the text of Python files does
    r"^(rename|copy|(dis)?similarity|old mode|new mode|GIT binary|Binary files|new file mode (?!100644$))",
    re.MULTILINE,
)
_NOBODY = {f"GIT_{who}_{what}": "hud" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_NOBODY |= {f"GIT_{who}_DATE": "@0 +0000" for who in ("AUTHOR", "COMMITTER")}  # the same commit every time
# a folder of objects that stand beside those of mirrors, and what they were made of: base and patch
_store: ContextVar[tuple[str, str, str] | None] = ContextVar("store", default=None)


def git(path: str, *arguments: str, text: str = "", own: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """Return what a git command, which reads a text, writes about a mirror. Raise OSError, or
    SubprocessError."""
    variables = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8", "HOME": os.devnull}
    variables |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
    if made := _store.get():
        variables["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = made[0]
    command = ["git", f"--git-dir={path}", "-c", "core.quotePath=false", *arguments]
    done = subprocess.run(  # commands of ours, and refs that are no options  # nosec B603
        command,
        env={**variables, **own},
        input=text.encode("utf-8", "surrogateescape"),
        capture_output=True,
        timeout=_GIT_S,
        check=True,
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


def torch_of(name: str, able: Iterable[Accelerator]) -> str:
    """Return the commit of the torch that an interpreter has on these accelerators' hosts. Raise BadRequest
    where they have several or none."""
    own = {item.host.facts.get("pythons", {}).get(name, {}).get("torch_git") for item in able} - {None, ""}
    if len(own) != 1:
        raise BadRequest(f"{name} has {len(own)} versions of torch: say the commit that the patch is of")
    return str(own.pop())


def commit_of(ref: str) -> str:
    """Return the commit that a ref is in a mirror. Raise BadRequest if none has it."""
    return _first("rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}").decode().strip()


@contextmanager
def patched(base: str, patch: str) -> Iterator[str]:
    """Give the commit of a patch on a commit, which functions of this module know meanwhile. Raise
    BadRequest for a patch of more than the text of Python files, or that does not apply."""
    if len(patch) > MOST_PATCH_CHARS or _NO_PATCH.search(patch):
        raise BadRequest(f"a patch is a unified diff of texts, at most {MOST_PATCH_CHARS} characters")
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "objects")
        store.mkdir()
        token = _store.set((str(store), base, patch))
        try:
            yield _applied(base, patch, store)
        finally:
            _store.reset(token)


def _applied(base: str, patch: str, store: Path) -> str:
    for path in settings.HUD_REPO_MIRRORS.values():
        own = {**_NOBODY, "GIT_OBJECT_DIRECTORY": str(store), "GIT_INDEX_FILE": str(store.parent / "index")}
        own["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = str(Path(path, "objects").absolute())
        with suppress(OSError, subprocess.SubprocessError):
            git(path, "read-tree", base, own=own)
            git(path, "apply", "--cached", "-p1", "--whitespace=nowarn", "-", text=patch, own=own)
            tree = git(path, "write-tree", own=own).decode().strip()
            return git(path, "commit-tree", tree, "-p", base, own=own).decode().strip()
    raise BadRequest(f"the patch does not apply to {base}")


def keep_patch(run: Run) -> None:
    """Keep the patch that a run is made for, with its artifacts, once its transaction ends."""
    if made := _store.get():
        content = ContentFile(json.dumps(made[1:]).encode())
        transaction.on_commit(lambda: files.save(_patch_of(run), content))


def archive_of(run: Run, commit: str) -> bytes:
    """Return the files of an overlay of a run, as `archive`. Raise BadRequest."""
    if not files.exists(_patch_of(run)):
        return archive(commit)
    with patched(*json.loads(files.read(_patch_of(run)))):
        return archive(commit)


def _patch_of(run: Run) -> str:
    return f"artifacts/{run.pk}/overlay.json"


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
    changed = names.decode("utf-8", "replace").splitlines()
    others = [name for name in changed if not (is_in_overlay(name) or name.startswith(_NEVER_DECIDE))]
    more = f" and {len(others) - _MOST_SHOWN} more files" if len(others) > _MOST_SHOWN else ""
    if others:
        raise BadRequest(f"cannot tell the commit: {', '.join(others[:_MOST_SHOWN])}{more} changed too")


def _first(*arguments: str) -> bytes:
    for path in settings.HUD_REPO_MIRRORS.values():
        with suppress(OSError, subprocess.SubprocessError):
            return git(path, *arguments)
    raise BadRequest(f"no mirror of HUD_REPO_MIRRORS answers git {' '.join(arguments)[:200]}")
