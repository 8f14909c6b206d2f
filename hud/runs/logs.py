"""Logs and artifacts of tasks: files below `HUD_DATA`, under names the server makes."""

from __future__ import annotations

import hashlib
import re
import uuid
from pathlib import Path

from django.conf import settings
from django.db import transaction

from hud.models import Artifact, Host, Task
from hud.runs.tasks import leased_task
from hud.server.embedded import make_folder

_KIND = re.compile(r"[a-z][a-z0-9_]{0,39}")


class WrongOffset(ValueError):
    """The log does not end where this piece begins; `size_bytes` says where it ends."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"the log ends at {size_bytes}")
        self.size_bytes = size_bytes


class TooLarge(ValueError):
    """Over the limit for logs or artifacts."""


class BadArtifact(ValueError):
    """A kind that is no plain word, or content that is not what its checksum says."""


def log_path(task: Task, attempt: int | None = None) -> Path:
    """Of its latest attempt, unless an earlier one is named."""
    name = f"{task.uid}-{task.attempt if attempt is None else attempt}.log"
    return Path(settings.HUD_DATA) / "tasklogs" / str(task.run_id) / name


def append(*, uid: uuid.UUID, token: uuid.UUID, host: Host, offset: int, data: bytes) -> int:
    """Adds a piece at its offset; returns the log's size in bytes. A piece that is there already is
    taken as said again. Raises WrongOffset, TooLarge, LeaseBroken, UnknownTask."""
    with transaction.atomic():
        task = leased_task(uid=uid, token=token, host=host, lock=True)
        if offset > task.log_bytes:
            raise WrongOffset(task.log_bytes)
        new = data[task.log_bytes - offset :]
        if task.log_bytes + len(new) > settings.HUD_MAX_LOG_BYTES:
            raise TooLarge(f"a log is at most {settings.HUD_MAX_LOG_BYTES} bytes")
        if new:
            path = log_path(task)
            make_folder(path.parent)
            path.touch(mode=0o600)
            with path.open("r+b") as file:
                file.seek(task.log_bytes)  # over what a crash may have left behind the committed size
                file.truncate()
                file.write(new)
            Task.objects.filter(pk=task.pk).update(log_bytes=task.log_bytes + len(new))
    return task.log_bytes + len(new)


def read(task: Task, start: int, limit: int, *, attempt: int | None = None) -> bytes:
    """At most `limit` bytes of a task's log from `start`: of its latest attempt, or of one that was lost."""
    path = log_path(task, attempt)
    if not path.exists():
        return b""
    end = task.log_bytes if attempt in {None, task.attempt} else path.stat().st_size
    if start >= end:
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(min(limit, end - start))


def artifact_path(artifact: Artifact) -> Path | None:
    """Where its row says it lies, as long as that is below the artifacts; None where its file is gone."""
    folder = (Path(settings.HUD_DATA) / "artifacts").resolve()
    path = (Path(settings.HUD_DATA) / artifact.path).resolve()
    return path if path.is_relative_to(folder) and path.is_file() else None


def keep_artifact(
    *, uid: uuid.UUID, token: uuid.UUID, host: Host, kind: str, data: bytes, sha256: str
) -> Artifact:
    """Stores a file of the task, once. Raises BadArtifact, TooLarge, LeaseBroken, UnknownTask."""
    if not _KIND.fullmatch(kind):
        raise BadArtifact("an artifact's kind is a word of at most 40 small letters, digits and underscores")
    if len(data) > settings.HUD_MAX_ARTIFACT_BYTES:
        raise TooLarge(f"an artifact is at most {settings.HUD_MAX_ARTIFACT_BYTES} bytes")
    digest = hashlib.sha256(data).hexdigest()
    if sha256 and sha256 != digest:
        raise BadArtifact("the content does not match its checksum")
    with transaction.atomic():
        task = leased_task(uid=uid, token=token, host=host, lock=True)
        known = Artifact.objects.filter(task=task, kind=kind, sha256=digest).first()
        if known:
            return known
        path = Path("artifacts") / str(task.run_id) / f"{uuid.uuid4()}"
        whole = Path(settings.HUD_DATA) / path
        make_folder(whole.parent)
        whole.touch(mode=0o600)
        whole.write_bytes(data)
        return Artifact.objects.create(
            task=task, kind=kind, path=str(path), size_bytes=len(data), sha256=digest
        )
