"""Files that tasks left, for a person to save."""

from __future__ import annotations

from django.http import FileResponse

from hud.models import Artifact
from hud.runs import logs

_SUFFIXES = {  # what the runner writes as each kind; a host's own kinds have none
    "compile_phases": ".json",
    "generated_code": ".txt",
    "gpu_state": ".json",
    "graph_breaks": ".json",
    "kernels": ".json",
    "memory_snapshot": ".pickle",
    "tlparse": ".tar.gz",
    "trace": ".json.gz",
}


def artifact_response(kept: Artifact) -> FileResponse | None:
    """The file as a download, never shown: a host may have put anything into it. None where it is gone."""
    path = logs.artifact_path(kept)
    if path is None:
        return None
    name = f"run-{kept.task.run_id}-task-{kept.task.position}-{kept.kind}-{kept.pk}"
    name += _SUFFIXES.get(kept.kind, "")
    content_type = "application/octet-stream"
    response = FileResponse(path.open("rb"), as_attachment=True, filename=name, content_type=content_type)
    response["X-Content-Type-Options"] = "nosniff"
    return response
