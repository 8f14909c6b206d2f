"""Rows for tests, as plain functions: what is not said gets a value that fits."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.utils import timezone

from hud.accounts.roles import Role, set_role
from hud.ingest.series import class_key
from hud.models import (
    IMPORT,
    STATUS_CODES,
    TERMINAL,
    VERDICT_CODES,
    Accelerator,
    Artifact,
    DetailedMeasurement,
    Environment,
    Experiment,
    Host,
    Measurement,
    Metric,
    Point,
    Regression,
    Run,
    RunRequest,
    Series,
    State,
    Stream,
    Task,
    Upload,
)
from hud.points import write as points
from runner.schema import statistics
from runner.schema.metrics import metric_info
from runner.schema.records import Environment as Facts
from runner.schema.suite import TaskSpec

_numbers = itertools.count(1)
DEFAULT_SPEC = TaskSpec("micro", "layer_norm", "inference", "bfloat16", "inductor", "cuda")
GEMV = TaskSpec("micro", "gemv", "inference", "int8", "inductor", "cuda", knobs={"D": [1024, 4096]})


def create_user(name: str = "olga", role: Role = Role.OPERATOR) -> User:
    user = User.objects.create_user(name, password="open sesame")
    set_role(user=user, role=role, who="test")
    return user


def create_host(name: str = "", *, age_s: float = 1, **fields: Any) -> Host:
    """A host that was last heard `age_s` seconds ago."""
    last_beat = timezone.now() - timedelta(seconds=age_s)
    return Host.objects.create(name=name or f"host-{next(_numbers)}", last_beat=last_beat, **fields)


def create_accelerator(
    host: Host | None = None,
    *,
    arch: str = "h200",
    name: str = "",
    suites: Sequence[str] = ("micro",),
    pythons: Sequence[str] = ("default",),
    **fields: Any,
) -> Accelerator:
    device = "cpu" if arch.startswith("cpu") else "cuda"
    fields.setdefault("device_name", "x86_64" if device == "cpu" else "NVIDIA H200")
    return Accelerator.objects.create(
        host=host or create_host(),
        name=name or ("cpu" if device == "cpu" else "cuda:0"),
        device=device,
        arch=arch,
        catalog={"suites": list(suites), "pythons": list(pythons)},
        **fields,
    )


def create_metric(name: str = "device_bandwidth_gbps") -> Metric:
    """The registry's row of a metric."""
    fields = metric_info(name).to_row()
    fields.pop("name")
    return Metric.objects.get_or_create(name=name, defaults=fields)[0]


def create_experiment(**fields: Any) -> Experiment:
    defaults = {
        "suite": "micro",
        "case": "layer_norm",
        "knobs": {"D": "mean"},
        "mode": "inference",
        "dtype": "bfloat16",
        "backend": "inductor",
        "device": "cuda",
        "arch": "h200",
    }
    return Experiment.objects.get_or_create(**{**defaults, **fields})[0]


def create_environment(**facts: Any) -> Environment:
    defaults = {"torch": "2.11.0+cu130", "cuda": "13.0", "driver": "580.159.04", "gpu": "NVIDIA H200"}
    described = Facts(**{**defaults, **facts})
    return Environment.objects.get_or_create(
        fingerprint=described.fingerprint(),
        defaults={
            "class_key": class_key(described),
            "torch": described.torch,
            "torch_git": described.torch_git,
            "gpu": described.gpu,
            "facts": asdict(described),
        },
    )[0]


def create_upload(filename: str = "results.json", **fields: Any) -> Upload:
    receipt = {"stored": 1, "duplicates": 0, "skipped": []}
    return Upload.objects.create(
        content_key=f"key-{next(_numbers)}", filename=filename, format="v3", receipt=receipt, **fields
    )


def create_run(state: str = State.SUCCEEDED, **fields: Any) -> Run:
    """A run with its request, which takes the fields that it has; an uploaded run has none without them."""
    now = timezone.now()
    if state != State.QUEUED:
        fields.setdefault("started", now - timedelta(minutes=1))
    if state in TERMINAL:
        fields.setdefault("finished", now)
    asked = {field.name: fields.pop(field.name) for field in RunRequest._meta.fields if field.name in fields}
    if "stream" not in fields and "stream_id" not in fields:  # that of `ingest` without a key
        fields["stream"] = Stream.objects.get_or_create(name=IMPORT)[0]
    rerun = bool(asked.get("experiment") or asked.get("retry_of")) or asked.get("caches") == "pinned"
    run = Run.objects.create(
        state=state,
        rerun=rerun,
        **{"source": "runner", "order_time_source": "run", "title": "micro: layer_norm[D=mean]", **fields},
    )
    if asked or not run.upload:
        RunRequest.objects.create(run=run, **{"selection": {"suite": "micro"}, **asked})
    return run


def create_task(
    run: Run, *, spec: TaskSpec = DEFAULT_SPEC, state: str = Task.State.QUEUED, **fields: Any
) -> Task:
    position = fields.pop("position", run.tasks.count())
    if state == Task.State.DONE:
        fields.setdefault("status", "ok")
    if state not in (Task.State.QUEUED, Task.State.RUNNING):
        fields.setdefault("started", timezone.now() - timedelta(seconds=20))
        fields.setdefault("finished", timezone.now())
    if state == Task.State.RUNNING:
        fields.setdefault("started", timezone.now() - timedelta(seconds=5))
        fields.setdefault("lease_until", timezone.now() + timedelta(seconds=45))
        fields.setdefault("token", run.uid)
    return Task.objects.create(run=run, spec=spec.to_json(), state=state, position=position, **fields)


def create_measurement(
    experiment: Experiment | None = None,
    *,
    metric: str = "device_bandwidth_gbps",
    value: float | None = 2542.4,
    samples: Sequence[float] = (),
    run: Run | None = None,
    environment: Environment | None = None,
    at: datetime | None = None,
    status: str = "ok",
    judged: bool = True,
    **fields: Any,
) -> Measurement:
    """One value; of `samples`, where given, their median. Its series counts as judged up to here."""
    owner = run or create_run(order_time=at or timezone.now())
    series, is_new = Series.objects.get_or_create(
        experiment=experiment or create_experiment(), metric=create_metric(metric), stream=owner.stream
    )
    if not judged:
        Series.objects.filter(pk=series.pk).update(touched_at=owner.order_time)
    points.unfold([(owner.pk, series.pk)])
    stored = DetailedMeasurement.objects.create(
        run=owner,
        series=series,
        environment=environment or create_environment(),
        order_time=owner.order_time,
        value=statistics.median(samples) if samples else value,
        samples=list(samples) if len(samples) > 1 else None,
        status=STATUS_CODES[status],
        **{
            "spread": statistics.spread(samples) if len(samples) > 1 else None,
            "n": len(samples) or (value is not None),
            "upload": owner.upload,
            **fields,
        },
    )
    points.make([(owner.pk, series.pk)])
    measurement = Measurement.objects.get(pk=stored.pk)
    if judged and measurement.value is not None:
        create_verdict(measurement, "new" if is_new else "unchanged")
    return measurement


def point_of(measurement: Measurement) -> Point:
    """The point that this measurement is part of."""
    return Point.objects.get(
        series=measurement.series,
        run=measurement.run,
        environment=measurement.environment,
        order_time=measurement.order_time,
    )


def create_verdict(measurement: Measurement, verdict: str, **fields: Any) -> None:
    """Say of a measurement's point what the judge would."""
    Point.objects.filter(
        series=measurement.series,
        run=measurement.run,
        environment=measurement.environment,
        order_time=measurement.order_time,
    ).update(verdict_code=VERDICT_CODES[verdict], **fields)
    points.count_points([measurement.run_id])


def create_regression(measurement: Measurement, **fields: Any) -> Regression:
    """An open regression that this measurement shows."""
    return Regression.objects.create(
        series=measurement.series,
        class_key=measurement.environment.class_key,
        **{
            "state": "open",
            "first_run": measurement.run,
            "latest_run": measurement.run,
            "since": measurement.order_time,
            "after": measurement.value,
            "factor": 10.0,
            **fields,
        },
    )


def create_ceiling(copy_gbps: float = 4258.0, *, arch: str = "h200") -> Measurement:
    """A reading of an arch's copy bandwidth."""
    experiment = create_experiment(suite="ceilings", case="copy", knobs={}, backend="eager", arch=arch)
    return create_measurement(experiment, value=copy_gbps)


def create_artifact(task: Task, kind: str, content: bytes, path: str = "") -> Artifact:
    """A file of a task, in its place on the disk or at `path` below HUD_DATA."""
    where = path or f"artifacts/{task.run_id}/{kind}"
    whole = Path(settings.HUD_DATA) / where
    whole.parent.mkdir(parents=True, exist_ok=True)
    whole.write_bytes(content)
    return Artifact.objects.create(task=task, kind=kind, path=where, size_bytes=len(content), sha256="a" * 64)
