"""Columns by meaning: our own metrics and those of other systems that tell the same share one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hud.models import Metric, Point
from hud.points.read import main_metrics, metric_place

MOST = 9


@dataclass(frozen=True)
class SuiteColumn:
    """A column of results. `metrics` are its metrics, the best first, each with what its cells are marked
    with: '' for the usual one."""

    key: str
    title: str
    metrics: Mapping[str, str]
    title_more: str = ""  # in the tooltip

    def cell(self, points: Mapping[str, Point]) -> Point | None:
        """Return the best metric that has a number, else the best that has a status."""
        there = [points[name] for name in self.metrics if name in points]
        return next((one for one in there if one.value is not None), there[0] if there else None)


_HARNESS = "by the harness"
COLUMNS = (
    SuiteColumn("speedup", "Speedup", {"device_speedup": "", "speedup": "call time", "50th": "median"}),
    SuiteColumn(
        "latency",
        "Latency",
        {
            "device_latency_ms": "",
            "gpu_busy_ms": "busy",
            "compiled_latency_ms": "call time",
            "abs_latency": _HARNESS,
            "latencies": _HARNESS,
        },
    ),
    SuiteColumn("tokens", "Tokens/s", {"token_per_sec": ""}),
    SuiteColumn(
        "bandwidth", "Bandwidth", {"device_bandwidth_gbps": "", "memory_bandwidth(GB/s)": "gpt-fast's"}
    ),
    SuiteColumn(
        "compile",
        "Cold compile",
        {
            "cold_compile_s": "",
            "compilation_latency": _HARNESS,
            "compilation_time(s)": "gpt-fast's",
            "Cold compile time (s)": "cachebench's",
        },
    ),
    SuiteColumn("warm", "Warm compile", {"warm_compile_s": "", "Warm compile time (s)": "cachebench's"}),
    SuiteColumn("compression", "Memory ratio", {"compression_ratio": ""}, "eager ÷ compiled peak memory"),
    SuiteColumn(
        "memory",
        "Peak memory",
        {
            "compiled_peak_memory_bytes": "",
            "dynamo_peak_mem": _HARNESS,
            "gpu_peak_mem": _HARNESS,
            "cpu_peak_mem": _HARNESS,
            "peak_rss_bytes": "process",
        },
    ),
    SuiteColumn("accuracy", "Accuracy", {"accuracy": "", "verification_code": ""}),
    SuiteColumn("breaks", "Graph breaks", {"graph_breaks": ""}),
)
_PLACES = {
    name: (place, rank) for place, column in enumerate(COLUMNS) for rank, name in enumerate(column.metrics)
}


def place_of(metric: str) -> tuple[int, int]:
    """Return a sort key: the column of a metric and its place in it; others come last."""
    return _PLACES.get(metric, (len(COLUMNS), 0))


def key_of(metric: str) -> str:
    """Return the key of a metric's column; of others their name."""
    return COLUMNS[_PLACES[metric][0]].key if metric in _PLACES else metric


def columns_of(suite: str, metrics: Sequence[Metric]) -> tuple[list[SuiteColumn], int]:
    """Return the columns for these metrics of a suite, and how many metrics get none."""
    names = {metric.name for metric in metrics}
    by_meaning = [column for column in COLUMNS if names & column.metrics.keys()]
    main = main_metrics(suite)
    more = [
        SuiteColumn(metric.name, metric.title, {metric.name: ""})
        for metric in sorted(metrics, key=lambda one: metric_place(suite, one))
        if not by_meaning  # a suite of others: its first metrics
        or (metric.name not in _PLACES and metric.name in main)
    ]
    # the column of the suite's first metric first
    first = next(iter(main), "")
    found = sorted([*by_meaning, *more], key=lambda column: first not in column.metrics)[:MOST]
    shown = {name for column in found for name in column.metrics}
    return found, len(names - shown)


def metric_names(columns: Iterable[SuiteColumn]) -> set[str]:
    return {name for column in columns for name in column.metrics}
