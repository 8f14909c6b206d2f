"""Logs and artifacts of tasks: files below `HUD_DATA`, under names that the server chooses."""

import hashlib
import re
import uuid
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.http import FileResponse

from hud.models import Artifact, Host, Task
from hud.problems import Problem
from hud.runs.tasks import leased_task
from hud.server.embedded import make_folder

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


def log_path(task: Task, attempt: int | None = None) -> Path:
    """Return the log of the latest attempt, unless an earlier one is given."""
    name = f"{task.uid}-{task.attempt if attempt is None else attempt}.log"
    return Path(settings.HUD_DATA) / "tasklogs" / str(task.run_id) / name


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
            path = log_path(task)
            make_folder(path.parent)
            path.touch(mode=0o600)
            with path.open("r+b") as file:
                file.seek(task.log_bytes)  # a crash may have left bytes beyond the committed size
                file.truncate()
                file.write(new)
            Task.objects.filter(pk=task.pk).update(log_bytes=task.log_bytes + len(new))
    return task.log_bytes + len(new)


def read(task: Task, start: int, limit: int, *, attempt: int | None = None) -> bytes:
    """Return at most `limit` bytes of a log from `start`, of the latest attempt unless another is given."""
    path = log_path(task, attempt)
    if not path.exists():
        return b""
    end = task.log_bytes if attempt in {None, task.attempt} else path.stat().st_size
    if start >= end:
        return b""
    with path.open("rb") as file:
        file.seek(start)
        return file.read(min(limit, end - start))


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
        file = Path(settings.HUD_DATA) / path
        make_folder(file.parent)
        file.touch(mode=0o600)
        file.write_bytes(data)
        return Artifact.objects.create(task=task, kind=kind, path=path, size_bytes=len(data), sha256=digest)


def artifact_response(artifact: Artifact) -> FileResponse | None:
    """Return the file as a download, or None if it is gone or not below the artifacts' folder. It is never
    shown: a host may send anything."""
    folder, path = (Path(settings.HUD_DATA, name).resolve() for name in ("artifacts", artifact.path))
    if not path.is_relative_to(folder) or not path.is_file():
        return None
    suffix = _SUFFIXES.get(artifact.kind, "")
    return FileResponse(
        path.open("rb"),
        as_attachment=True,
        filename=f"run-{artifact.task.run_id}-task-{artifact.task.position}-{artifact.kind}-{artifact.pk}{suffix}",
        content_type="application/octet-stream",
    )
