"""Logs and artifacts of tasks: files under names that the server chooses."""

import hashlib
import posixpath
import re
import uuid

from django.conf import settings
from django.core.files.base import ContentFile
from django.db import transaction
from django.http import FileResponse

from hud.files import files
from hud.models import Artifact, Host, Task
from hud.problems import Problem
from hud.runs.tasks import leased_task

_KIND = re.compile(r"[a-z][a-z0-9_]{0,39}")
_SUFFIXES = {  # by kind, for the kinds that the runner writes
    "compile_phases": ".json",
    "generated_code": ".txt",
    "gpu_state": ".json",
    "graph_breaks": ".json",
    "kernel_code": ".json.gz",
    "kernels": ".json",
    "memory_snapshot": ".pickle",
    "tlparse": ".tar.gz",
    "trace": ".json.gz",
}


def log_name(task: Task, attempt: int | None = None) -> str:
    """Return the log of the latest attempt, unless an earlier one is given."""
    return f"tasklogs/{task.run_id}/{task.uid}-{task.attempt if attempt is None else attempt}.log"


def append(*, uid: uuid.UUID, token: uuid.UUID, host: Host, offset: int, data: bytes) -> int:
    """Write a piece of a log at its offset; return the log's size in bytes. A repeated piece changes nothing.
    Raise Problem, LeaseBroken."""
    with transaction.atomic():
        task = leased_task(uid=uid, token=token, host=host, lock=True)
        if offset > task.log_bytes:
            raise Problem(409, f"the log ends at {task.log_bytes}", code="log_offset", size=task.log_bytes)
        new = data[task.log_bytes - offset :]
        if task.log_bytes + len(new) > settings.HUD_MAX_LOG_BYTES:
            raise Problem(413, f"a log is at most {settings.HUD_MAX_LOG_BYTES} bytes")
        if new:
            files.append(log_name(task), task.log_bytes, new)
            Task.objects.filter(pk=task.pk).update(log_bytes=task.log_bytes + len(new))
    return task.log_bytes + len(new)


def read(task: Task, start: int, limit: int, *, attempt: int | None = None) -> bytes:
    """Return at most `limit` bytes of a log from `start`, of the latest attempt unless another is given."""
    if attempt in {None, task.attempt}:
        limit = min(limit, task.log_bytes - start)
    try:
        return files.read(log_name(task, attempt), start, limit) if limit > 0 else b""
    except FileNotFoundError:
        return b""


def keep_artifact(
    *, uid: uuid.UUID, token: uuid.UUID, host: Host, kind: str, data: bytes, sha256: str
) -> Artifact:
    """Store a file of the task, once. Raise Problem, LeaseBroken."""
    if not _KIND.fullmatch(kind):
        raise Problem(422, "an artifact's kind is a word of at most 40 small letters, digits and underscores")
    if len(data) > settings.HUD_MAX_ARTIFACT_BYTES:
        raise Problem(413, f"an artifact is at most {settings.HUD_MAX_ARTIFACT_BYTES} bytes")
    digest = hashlib.sha256(data).hexdigest()
    if sha256 and sha256 != digest:
        raise Problem(422, "the content does not match its checksum")
    with transaction.atomic():
        task = leased_task(uid=uid, token=token, host=host, lock=True)
        if known := Artifact.objects.filter(task=task, kind=kind, sha256=digest).first():
            return known
        path = f"artifacts/{task.run_id}/{uuid.uuid4()}"
        files.save(path, ContentFile(data))
        return Artifact.objects.create(task=task, kind=kind, path=path, size_bytes=len(data), sha256=digest)


def artifact_response(artifact: Artifact) -> FileResponse | None:
    """Return the file as a download, or None if it is gone or not below the artifacts' folder. It is never
    shown: a host may send anything."""
    if not posixpath.normpath(artifact.path).startswith("artifacts/") or not files.exists(artifact.path):
        return None
    suffix = _SUFFIXES.get(artifact.kind, "")
    return FileResponse(
        files.open(artifact.path),
        as_attachment=True,
        filename=f"run-{artifact.task.run_id}-task-{artifact.task.position}-{artifact.kind}-{artifact.pk}{suffix}",
        content_type="application/octet-stream",
    )
