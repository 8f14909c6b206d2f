"""Downloads of the files that tasks leave behind."""

from __future__ import annotations

from django.http import FileResponse

from hud.models import Artifact
from hud.runs import logs

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


def artifact_response(kept: Artifact) -> FileResponse | None:
    """Return the file as a download, or None if it is gone. It is never shown: a host may send anything."""
    path = logs.artifact_path(kept)
    if path is None:
        return None
    suffix = _SUFFIXES.get(kept.kind, "")
    response = FileResponse(
        path.open("rb"),
        as_attachment=True,
        filename=f"run-{kept.task.run_id}-task-{kept.task.position}-{kept.kind}-{kept.pk}{suffix}",
        content_type="application/octet-stream",
    )
    response["X-Content-Type-Options"] = "nosniff"
    return response
