"""A generated history of nights as suites of models leave it: 360 experiments with 11 metrics each."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta, timezone

from django.db import connection

from hud.models import (
    NIGHTLY,
    STATUS_CODES,
    Compilation,
    DetailedMeasurement,
    Experiment,
    Metric,
    Run,
    Series,
    State,
    Stream,
    UnjudgedRun,
)
from runner.schema.metrics import metric_info
from tests.support import points
from tests.support.factories import create_environment

CASES = {"huggingface": 26, "timm": 18, "torchbench": 28}
BACKENDS = {
    "inductor_cudagraphs": (1.85, 9.0, 1.46),  # speedup, cold compile in seconds, memory ratio
    "inductor_no_cudagraphs": (1.87, 8.8, 1.49),
    "inductor_max_autotune": (1.95, 40.0, 1.30),
    "inductor_aot_inductor": (1.90, 50.0, 1.45),
    "aot_eager": (0.92, 2.8, 0.99),
}
_METRICS = (
    *("device_speedup", "speedup", "accuracy", "cold_compile_s", "compression_ratio", "warm_compile_s"),
    *(
        "compiled_latency_ms",
        "eager_latency_ms",
        "device_latency_ms",
        "graph_breaks",
        "compiled_peak_memory_bytes",
    ),
)
SERIES = sum(CASES.values()) * len(BACKENDS) * len(_METRICS)
_TIMED_OUT = STATUS_CODES["timed_out"]
_NOISE = {"timing": 0.004, "deterministic": 0.0, "status": 0.0}


def generate(
    *,
    nights: int = 60,
    arch: str = "b200",
    end: datetime | None = None,
    cases: Mapping[str, int] = CASES,
    backends: Collection[str] = tuple(BACKENDS),
    metrics: Collection[str] = _METRICS,
) -> list[Run]:
    """Store nights of so many cases of each suite until `end`, and leave them to the judge; the newest run is
    last. Each is a run with a commit and a torch of its own.

    Two models of huggingface and three of timm regress in the last week, one of torchbench fails tonight, and
    another was not run for a night.
    """
    stream = Stream.objects.get_or_create(name=NIGHTLY)[0]
    described = [_metric(name) for name in metrics]
    experiments = Experiment.objects.bulk_create(
        Experiment(
            suite=suite,
            case=f"model_{number:02}",
            mode="inference",
            dtype="bfloat16",
            backend=backend,
            device="cuda",
            arch=arch,
        )
        for suite, count in cases.items()
        for number in range(count)
        for backend in backends
    )
    everything = Series.objects.bulk_create(
        Series(experiment=experiment, metric=metric, stream=stream)
        for experiment in experiments
        for metric in described
    )
    rows = [
        (
            one,
            one.experiment,
            _level(one.metric.name, one.experiment),
        )
        for one in everything
    ]
    newest = end or datetime.now(tz=timezone.utc).replace(hour=2, minute=0, second=0, microsecond=0)
    runs = [_run(night, newest - timedelta(days=nights - 1 - night), stream) for night in range(nights)]
    environments = [
        create_environment(gpu="NVIDIA B200 (generated)", torch=f"2.13.0.dev{run.order_time:%Y%m%d}").pk
        for run in runs
    ]
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "COPY hud_detailedmeasurement"
            " (run_id, series_id, environment_id, order_time, value, n, status, repeat, side) FROM STDIN"
        ) as copy,
    ):
        for night, run in enumerate(runs):
            chance = random.Random(night)
            ago = nights - 1 - night
            for series, experiment, level in rows:
                noise = _NOISE[series.metric.kind] * (3 if series.metric.name.endswith("compile_s") else 1)
                value = level * chance.gauss(1, noise) * _moved(experiment, series.metric.name, ago)
                failed = _fails(experiment, ago)
                if _number(experiment) == 7 and ago == 9:
                    continue
                shown = None if failed else 1.0 if series.metric.name == "accuracy" else value
                status = _TIMED_OUT if failed else 0
                copy.write_row(
                    (run.pk, series.pk, environments[night], run.order_time, shown, 1, status, 0, 0)
                )
    for run in runs:
        points.make_of_runs([run.pk])
    UnjudgedRun.objects.bulk_create([UnjudgedRun(run=run) for run in runs])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return runs


def repeat(experiment: int, compilations: int) -> None:
    """Store the newest run of an experiment on days before it, until there are so many compilations."""
    found = Compilation.objects.filter(experiment=experiment).order_by("-order_time", "-run_id")
    newest = found[0].run
    times = (compilations - found.count()) // found.filter(run=newest).count()
    runs = [
        Run(
            state=State.SUCCEEDED,
            title=f"{newest.title} (repeated)",
            stream_id=newest.stream_id,
            source="repeated",
            host_name=newest.host_name,
            branch=newest.branch,
            commit=random.Random(day).randbytes(20).hex(),
            order_time=newest.order_time - timedelta(days=day),
            order_time_source="commit",
            started=newest.created,
            finished=newest.created,
        )
        for day in range(1, times + 1)
    ]
    Run.objects.bulk_create(runs)
    of_series = "hud_measurement old JOIN hud_series series ON series.id = old.series_id"
    for model, source, whose, changed in (
        (Compilation, "hud_compilation old", "old", {"busy_us": "old.busy_us * made.factor"}),
        (DetailedMeasurement, of_series, "series", {"value": "old.value * made.factor"}),
    ):
        columns = [str(item.column) for item in model._meta.concrete_fields]
        changed |= {"run_id": "made.id", "order_time": "made.order_time"}
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                INSERT INTO {model._meta.db_table} ({", ".join(columns)})
                SELECT {", ".join(changed.get(name, f"old.{name}") for name in columns)}
                FROM (SELECT id, order_time, 1 + (random() - 0.5) / 50 AS factor FROM hud_run
                    WHERE id = ANY(%(runs)s)) made, {source}
                WHERE old.run_id = %(newest)s AND {whose}.experiment_id = %(experiment)s
                """,
                {"runs": [run.pk for run in runs], "newest": newest.pk, "experiment": experiment},
            )
    points.make_of_runs([run.pk for run in runs])
    UnjudgedRun.objects.bulk_create([UnjudgedRun(run=run) for run in runs])


def _number(experiment: Experiment) -> int:
    return int(experiment.case.removeprefix("model_"))


def _metric(name: str) -> Metric:
    fields = metric_info(name).to_row()
    fields.pop("name")
    return Metric.objects.get_or_create(name=name, defaults=fields)[0]


def _run(night: int, at: datetime, stream: Stream) -> Run:
    times = {"order_time": at, "created": at, "started": at, "finished": at}
    return Run.objects.create(
        state=State.SUCCEEDED,
        title="nightly (generated)",
        stream=stream,
        source="nightly",
        host_name="b200-a",
        branch="main",
        commit=random.Random(night).randbytes(20).hex(),
        order_time_source="commit",
        **times,
    )


def _level(metric: str, experiment: Experiment) -> float:
    speedup, compile_s, memory = BACKENDS[experiment.backend]
    number = _number(experiment)
    scale = 0.7 + 0.6 * random.Random(number).random()
    known = {
        "device_speedup": speedup * scale,
        "speedup": speedup * scale * 0.97,
        "cold_compile_s": compile_s * (0.5 + number / 26),
        "warm_compile_s": compile_s * 0.3,
        "compression_ratio": memory,
        "graph_breaks": 1.0,
        "compiled_peak_memory_bytes": 2e9 * scale,
    }
    return known.get(metric, 5.0 * scale)


def _moved(experiment: Experiment, metric: str, ago: int) -> float:
    number, suite = _number(experiment), experiment.suite
    slower = {"device_speedup", "speedup"}
    if experiment.backend == "inductor_cudagraphs" and metric in slower:
        if suite == "huggingface" and number in {3, 11} and ago < 2:
            return 0.88
        if suite == "timm" and number in {1, 2, 5} and ago < 7:
            return 0.96
    if (
        experiment.backend == "inductor_max_autotune"
        and suite == "huggingface"
        and metric == "cold_compile_s"
    ):
        return 1.22 if ago < 6 else 1.0
    return 1.0


def _fails(experiment: Experiment, ago: int) -> bool:
    if experiment.backend == "inductor_aot_inductor" and _number(experiment) == 4:
        return True
    return experiment.suite == "torchbench" and _number(experiment) == 9 and ago < 2
