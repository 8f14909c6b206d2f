"""Lists of expected results: stored, and what they and people say of points: as expected or not, a known
failure or news."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import BooleanField, ExpressionWrapper, Q
from django.utils import timezone

from hud.models import (
    NEVER_RAN,
    STATUS_CODES,
    STATUS_NAMES,
    Expectation,
    Experiment,
    KnownFailure,
    Metric,
    Point,
    PointFields,
    Series,
    Upload,
)
from hud.sql import by_id, fetch_models, int_array
from runner.formats.measurement import ParsedMeasurement
from runner.schema.devices import device_family
from runner.schema.records import SUCCESS

AS_EXPECTED, UNEXPECTED_FAILURE, UNEXPECTED_PASS = "as_expected", "unexpected_failure", "unexpected_pass"
UNEXPECTED = (UNEXPECTED_FAILURE, UNEXPECTED_PASS)
_ACCURACY = "accuracy"
_SAME = ("suite", "case", "mode", "dynamic")
_SUBJECT = ("suite", "mode", "dtype", "backend", "device", "dynamic")  # of a list
FAILING = [code for code, name in STATUS_NAMES.items() if name not in SUCCESS | NEVER_RAN]


def dtype_of(dtype: str, knobs: Mapping[str, Any]) -> str:
    """Return a dtype with the type of mixed precision where that is not the device's: amp_bfloat16."""
    return f"{dtype}_{knobs['amp_dtype']}" if "amp_dtype" in knobs else dtype


def is_about(expectation: Expectation, experiment: Experiment) -> bool:
    """Return whether a list speaks of this experiment. `inductor` is inductor with or without CUDA graphs."""
    backend = experiment.backend
    general = backend.replace("inductor_no_cudagraphs", "inductor").replace("inductor_cudagraphs", "inductor")
    return (
        expectation.backend in (backend, general)
        and expectation.dtype == dtype_of(experiment.dtype, experiment.knobs)
        and expectation.device == device_family(experiment.device, experiment.arch)
        and all(getattr(expectation, name) == getattr(experiment, name) for name in _SAME)
    )


def holding(
    expectations: Sequence[Expectation], experiment: Experiment, time: datetime
) -> Expectation | None:
    """Return the newest expectation of an experiment that is not later than a tested commit. An undated list,
    which has the time of its upload, may be older than it looks: it holds where no other does."""
    about = [
        expectation
        for expectation in expectations
        if (expectation.listed <= time or expectation.is_undated) and is_about(expectation, experiment)  # type: ignore[attr-defined]
    ]
    return max(about, key=lambda row: (row.listed <= time, row.listed, row.pk or 0), default=None)


def outcome(expectation: Expectation, point: PointFields, direction: str) -> str:
    """Return as_expected, unexpected_failure or unexpected_pass; '' where neither can be said."""
    if point.never_ran:
        return ""
    if expectation.value is not None:
        if point.value is None:
            return ""
        more = point.value - expectation.value
        if abs(more) <= expectation.margin * abs(expectation.value):
            return AS_EXPECTED
        return UNEXPECTED_PASS if direction == ("up" if more > 0 else "down") else UNEXPECTED_FAILURE
    expected = STATUS_NAMES[expectation.status]
    if point.status in SUCCESS:
        return AS_EXPECTED if expected in SUCCESS else UNEXPECTED_PASS
    words = (point.code, expectation.code) if point.code and expectation.code else (point.status, expected)
    return AS_EXPECTED if words[0] == words[1] else UNEXPECTED_FAILURE


class Expectations:
    """What lists and people say of these experiments of a stream: 2 statements."""

    def __init__(self, stream_id: int | None, experiments: Iterable[Experiment]) -> None:
        by_id = {experiment.pk: experiment for experiment in experiments}
        marked = KnownFailure.objects.filter(stream=stream_id, experiment__in=by_id)
        self._marked = dict(marked.values_list("experiment", "reason"))
        undated = ~Q(upload__parameters__has_any_keys=["commit_date", "run_time"])
        self._listed: dict[tuple[str, str, str], list[Expectation]] = defaultdict(list)
        for expectation in Expectation.objects.filter(
            stream=stream_id,
            suite__in={experiment.suite for experiment in by_id.values()},
            case__in={experiment.case for experiment in by_id.values()},
        ).annotate(is_undated=ExpressionWrapper(undated, BooleanField())):
            self._listed[expectation.suite, expectation.case, expectation.metric].append(expectation)

    def of(self, experiment: Experiment, metric: str, time: datetime) -> Expectation | None:
        """Return what a list says of a metric at a time."""
        return holding(self._listed.get((experiment.suite, experiment.case, metric), ()), experiment, time)

    def known_failure(self, experiment: Experiment, time: datetime) -> str:
        """Return why a failure of an experiment is no news: what a person or the list says; '' for news."""
        if reason := self._marked.get(experiment.pk):
            return reason
        expectation = self.of(experiment, _ACCURACY, time)
        if expectation is None or STATUS_NAMES[expectation.status] in SUCCESS:
            return ""
        return f"expected: {expectation.code or STATUS_NAMES[expectation.status]}"


def add(stream_id: int | None, points: Iterable[PointFields]) -> None:
    """Say of points with experiment and metric what is expected of them, and which failures are known: 3
    statements, 1 where nothing is known in the stream."""
    if not knows_any(stream_id):
        return
    shown = list(points)
    expectations = Expectations(stream_id, [point.experiment for point in shown])
    for point in shown:
        if expectation := expectations.of(point.experiment, point.metric.name, point.order_time):
            point.expectation = outcome(expectation, point, point.metric.direction)
        if point.status_code in FAILING:
            point.known_failure = expectations.known_failure(point.experiment, point.order_time)


def knows_any(stream_id: int | None) -> bool:
    """Return whether a stream has lists or failures that somebody marked: 1 statement."""
    marked = KnownFailure.objects.filter(stream=stream_id).values("pk")
    return marked.union(Expectation.objects.filter(stream=stream_id).values("pk"), all=True).exists()


def of_runs(stream_id: int | None, runs: Iterable[int]) -> list[Point]:
    """Return the points of these runs that failed or whose cases are in lists, with what lists and people say
    of them: 6 statements; none, by 1, where nothing is said in the stream."""
    if not knows_any(stream_id):
        return []
    points = fetch_models(
        Point,
        """
        JOIN hud_series series ON series.id = own.series_id
        JOIN hud_experiment e ON e.id = series.experiment_id JOIN hud_metric k ON k.id = series.metric_id
        WHERE own.run_id = ANY(%(runs)s::int[]) AND (own.status = ANY(%(failing)s) OR EXISTS (
            SELECT FROM hud_expectation x WHERE x.stream_id = %(stream)s AND x.suite = e.suite
                AND x."case" = e."case" AND x.metric = k.name))
        """,
        {"runs": int_array(runs), "stream": stream_id, "failing": FAILING},
        series=Series,
    )
    experiments = by_id(Experiment, [point.series.experiment_id for point in points])
    metrics = by_id(Metric, [point.series.metric_id for point in points])
    for point in points:
        point.experiment = experiments[point.series.experiment_id]
        point.metric = metrics[point.series.metric_id]
    add(stream_id, points)
    return points


def store_expectations(
    expected: Sequence[tuple[ParsedMeasurement, float]], upload: Upload
) -> list[dict[str, Any]]:
    """Store what is expected; return for what, with a count and what was not said."""
    now = timezone.now()
    rows = [
        Expectation(
            upload=upload,
            stream=upload.stream,
            **{name: getattr(item, name) for name in (*_SAME, "backend", "metric")},
            dtype=dtype_of(item.dtype, item.knobs),
            device=device_family(item.device, item.arch),
            value=item.samples[0] if item.samples else item.target,
            margin=margin,
            status=STATUS_CODES[item.status],
            code=item.code or "",
            commit=item.run.commit,
            listed=item.run.order_time or now,
        )
        for item, margin in expected
    ]
    Expectation.objects.bulk_create(rows, batch_size=5000)
    counts = Counter(tuple(getattr(row, name) for name in _SUBJECT) for row in rows)
    return [
        {
            **dict(zip(_SUBJECT, subject, strict=True)),
            "count": count,
            "unsaid": [name for name, value in zip(_SUBJECT, subject, strict=True) if value == ""],
        }
        for subject, count in counts.items()
    ]
