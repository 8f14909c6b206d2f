"""The oracle: what must be true after any fault, asked of the database and the disks, not of the code.

I1 what was acknowledged is stored and readable     I5 nothing is shown running after its host died
I2 nothing is stored twice                          I6 logs have no holes
I3 everything ends in exactly one state             I7 every rerun and cancel is in the audit
I4 an accelerator is never shared                   I8 no key is anywhere but where it belongs
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import serializers
from django.db import connection
from redis import Redis

from hud.models import ApiKey, Artifact, Audit, Run, Task
from hud.runs import logs
from tests.faults.installation.standin import SAMPLES
from tests.support.hosts import Control

# Each statement lists what breaks the invariant.
_STATEMENTS = {
    "I1 a task that ended ok has no measurement": """
        SELECT t.id FROM hud_task t WHERE t.state = 'done' AND t.status = 'ok' AND NOT EXISTS (
            SELECT 1 FROM hud_measurement m WHERE m.run_id = t.run_id AND m.repeat = t.repeat)""",
    "I1 a measurement lost samples": f"""
        SELECT run_id, series_id FROM hud_measurement WHERE value IS NOT NULL AND n = {SAMPLES}
          AND (samples IS NULL OR cardinality(samples) <> {SAMPLES})""",
    "I2 a measurement is stored twice": """
        SELECT run_id, series_id, repeat, side FROM hud_measurement
        GROUP BY run_id, series_id, repeat, side HAVING count(*) > 1""",
    "I2 an experiment is stored twice": """
        SELECT min(id) FROM hud_experiment
        GROUP BY suite, "case", knobs, mode, dtype, backend, device, arch, dynamic HAVING count(*) > 1""",
    "I3 a run has not ended": "SELECT id FROM hud_run WHERE state IN ('queued', 'running')",
    "I3 a task has not ended": "SELECT id FROM hud_task WHERE state IN ('queued', 'running')",
    "I3 a run ended before its tasks": """
        SELECT r.id FROM hud_run r JOIN hud_task t ON t.run_id = r.id
        WHERE r.finished IS NOT NULL AND t.finished > r.finished + interval '1 s'""",
    "I3 a run succeeded with a task that did not": """
        SELECT r.id FROM hud_run r JOIN hud_task t ON t.run_id = r.id
        WHERE r.state = 'succeeded' AND (t.state <> 'done' OR t.status NOT IN ('ok', 'cannot_tell'))""",
    "I3 a failure has no reason": """
        SELECT id FROM hud_run WHERE state IN ('failed', 'lost', 'timed_out', 'cancelled') AND reason = ''""",
    "I3 a task was tried more often than allowed": "SELECT id FROM hud_task WHERE attempt > 2",
    "I3 an ended task still has a lease": """
        SELECT id FROM hud_task WHERE state NOT IN ('queued', 'running') AND lease_until IS NOT NULL""",
    "I4 an accelerator has two running tasks": """
        SELECT accelerator_id FROM hud_task WHERE state = 'running'
        GROUP BY accelerator_id HAVING count(*) > 1""",
    "I5 a task runs although its lease ended long ago": """
        SELECT id FROM hud_task WHERE state = 'running' AND lease_until < now() - interval '60 s'""",
}


def violations(*, controls: Iterable[Control], keys: Iterable[str], folders: Iterable[Path]) -> list[str]:
    """What is not as it must be, in words; empty where all is well.

    `controls` are the hosts' stand-ins, `keys` the secrets that were in use, `folders` hold logs.
    """
    return [
        *_by_sql(),
        *("I4 two benchmarks lived at the same time" for control in controls if control.shared),
        *_holes_in_logs(),
        *_missing_files(),
        *_missing_in_audit(),
        *_secrets(list(keys), list(folders)),
    ]


def _by_sql() -> Iterator[str]:
    with connection.cursor() as cursor:
        for what, statement in _STATEMENTS.items():
            cursor.execute(statement)
            rows = cursor.fetchall()
            if rows:
                yield f"{what}: {rows[:5]}"


def _holes_in_logs() -> Iterator[str]:
    for task in Task.objects.filter(log_bytes__gt=0):
        content = logs.read(task, 0, task.log_bytes)
        if len(content) < task.log_bytes:
            yield f"I6 the log of task {task.pk} has {len(content)} of {task.log_bytes} bytes"
        if b"\0" in content:
            yield f"I6 the log of task {task.pk} has a hole"


def _missing_files() -> Iterator[str]:
    for artifact in Artifact.objects.all():
        path = Path(settings.HUD_DATA) / artifact.path
        if not path.exists() or path.stat().st_size != artifact.size_bytes:
            yield f"I1 artifact {artifact.pk} is not on the disk"


def _missing_in_audit() -> Iterator[str]:
    for run in Run.objects.filter(request__isnull=False):
        actions = set(Audit.objects.filter(subject=f"run {run.pk}").values_list("action", flat=True))
        if "run.request" not in actions:
            yield f"I7 nobody asked for run {run.pk}"
        if run.cancel_asked and "run.cancel" not in actions:
            yield f"I7 nobody cancelled run {run.pk}"


def _secrets(keys: list[str], folders: list[Path]) -> Iterator[str]:
    places: dict[str, str] = {"the database": _database_text(), "Redis": _redis_text()}
    for folder in (*folders, Path(settings.HUD_DATA) / "tasklogs"):
        for path in _logs_below(folder):
            with contextlib.suppress(FileNotFoundError):
                places[str(path)] = path.read_text(errors="replace")
    for place, text in places.items():
        if any(key in text for key in keys):
            yield f"I8 a host's key stands in {place}"


def _logs_below(folder: Path) -> Iterator[Path]:
    """Files that end as a log does; a host that still lives may remove what it delivered meanwhile."""
    for place, _folders, names in os.walk(folder):
        yield from (Path(place) / name for name in names if name.endswith("log"))


def _database_text() -> str:
    rows: list[Any] = [row for model in apps.get_app_config("hud").get_models() for row in _rows(model)]
    return "\n".join(rows)


def _rows(model: Any) -> list[str]:
    if model is ApiKey or not model._meta.auto_field:
        return [json.dumps(values, default=str) for values in model.objects.values()]
    return [serializers.serialize("json", model.objects.all())]


def _redis_text() -> str:
    with Redis.from_url(settings.REDIS_URL) as redis:
        values: list[Mapping[bytes, bytes] | bytes] = []
        for name in redis.scan_iter():
            kind = redis.type(name)
            values.append(redis.hgetall(name) if kind == b"hash" else name)
        return repr(values)
