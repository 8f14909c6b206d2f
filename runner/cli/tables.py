"""What a command measured, as text tables: each result, what a suite amounts to, and comparisons."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from runner.launch.task_result import TaskResult
from runner.schema.metrics import metric_info
from runner.schema.records import SUCCESS
from runner.schema.statistics import (
    LEAST_PAIRS,
    PAIR_FLOOR,
    geometric_mean,
    median,
    pair_middles,
    paired_change,
    severity,
    value_of,
)
from runner.schema.suite import TaskSpec, suite_of, value_rule

Json = Any

# Metrics that a person reads first, in this order.
MAIN = (
    "speedup",
    "device_speedup",
    "device_bandwidth_gbps",
    "share_of_ceiling",
    "device_latency_ms",
    "gpu_busy_ms",
    "compiled_latency_ms",
    "abs_latency",
    "eager_latency_ms",
    "call_bandwidth_gbps",
    "matmul_tflops",
    "token_per_sec",
    "per_iter_time",
    "cold_compile_s",
    "warm_compile_s",
    "compression_ratio",
    "compiled_peak_memory_bytes",
    "peak_rss_bytes",
)
_IDENTITY = ("suite", "case", "mode", "dtype", "backend", "device")
_CHECK = "verification"  # PyTorch/XLA's, a column of its own
_RATIOS = ("speedup", "device_speedup", "compression_ratio")  # of several cases: their geometric mean
_MEANS = ("cold_compile_s", "warm_compile_s", "compilation_latency")
_UNITS = {"B": "GB"}  # of a table's column
_MOST_WARNINGS = 4


def results(finished: Sequence[TaskResult]) -> str:
    """One row for each case and shape, one column for each metric that was measured, medians; then a line
    for each that warns of something, or lacks an artifact that was asked for."""
    rows = [row for task in finished for row in _rows(task)]
    headline = dict.fromkeys(name for one in finished for name in suite_of(one.task.suite).headline_metrics)
    present = {name for row in rows for name in row}
    metrics = [name for name in MAIN if name in present] or [name for name in headline if name in present]
    varying = [
        name for name in _IDENTITY if name in {"case", "dtype"} or len({row[name] for row in rows}) > 1
    ]
    checks = [_CHECK] if any(_CHECK in row for row in rows) else []
    heads = {**{name: name for name in [*varying, *checks]}, **{name: _head(name) for name in metrics}}
    table = grid(
        [*heads.values(), "status"], [[row.get(key, "") for key in (*heads, "status")] for row in rows]
    )
    return "\n".join([table, *_warnings(finished)])


def _warnings(finished: Sequence[TaskResult]) -> list[str]:
    """What to know of the main metrics' values, and which artifacts could not be kept, each thing once; of
    many processes the first few's."""
    told: dict[str, dict[str, None]] = {}
    for record in (record for task in finished for record in task.records):
        words = list(((record.get("benchmark") or {}).get("extra_info") or {}).get("not_kept") or [])
        of_value = (record["metric"].get("extra_info") or {}).get("warning") or ""
        if of_value and record["metric"]["name"] in MAIN and _value(record) is not None:
            words += of_value.split("; ")
        if words:
            told.setdefault(_key(record).case, {}).update(dict.fromkeys(words))
    return [
        f"{case}: {'; '.join(list(words)[:_MOST_WARNINGS])}{'; …' if len(words) > _MOST_WARNINGS else ''}"
        for case, words in told.items()
    ]


def names(tasks: Sequence[TaskSpec]) -> dict[str, str]:
    """Of each task by its fingerprint: its case, and whatever else tells it from the others."""
    said = {task.fingerprint(): _settings(task) for task in tasks}
    every = dict.fromkeys(name for settings in said.values() for name in settings)
    telling = [name for name in every if len({settings.get(name) for settings in said.values()}) > 1]
    return {
        key: " ".join(
            [settings["case"], *(settings[one] for one in telling if one != "case" and one in settings)]
        )
        for key, settings in said.items()
    }


def _settings(task: TaskSpec) -> dict[str, str]:
    """What a task says, each as a person reads it."""
    words = {"suite": task.suite, "mode": task.mode, "dtype": task.dtype, "backend": task.backend}
    knobs = {name: f"{name}={value}" for name, value in sorted(task.knobs.items())}
    return {"case": task.case, **words, **({"dynamic": "dynamic"} if task.dynamic else {}), **knobs}


def overview(finished: Sequence[TaskResult], asked: Sequence[TaskSpec]) -> str:
    """One row for each suite and configuration: how many cases passed, out of all that were asked for, and
    what those that did amount to. Nothing is clipped: a slowdown counts as one."""
    groups: dict[tuple[str, ...], list[TaskResult]] = {}
    for one in finished:
        groups.setdefault(_group(one.task), []).append(one)
    totals = Counter(map(_group, asked))
    rows = [[*group, *_amounts(groups.get(group, []), total)] for group, total in totals.items()]
    heads = ["suite", "mode", "dtype", "backend", "passed"]
    heads += [f"{name}, geometric mean" for name in _RATIOS] + [f"{name}, mean" for name in _MEANS]
    filled = [index for index in range(len(heads)) if any(row[index] for row in rows)]
    return grid([heads[index] for index in filled], [[row[index] for index in filled] for row in rows])


def against(earlier: Iterable[Mapping[str, Json]], finished: Sequence[TaskResult]) -> str:
    """Each main metric beside the one of an earlier output (v3 records), and how the geometric means
    compare over the cases that both have."""
    base = _values(earlier)
    new = _values(record for one in finished for record in one.records)
    both = [key for key in new if key in base and key.metric in MAIN]
    rows = [
        [*key, f"{base[key]:.4g}", f"{new[key]:.4g}", f"{new[key] / base[key] - 1:+.1%}" if base[key] else ""]
        for key in both
    ]
    lines = [grid(["case", "metric", "before", "now", "change"], rows)] if rows else []
    for metric in dict.fromkeys(key.metric for key in both):
        pairs = [(base[key], new[key]) for key in both if key.metric == metric]
        if all(before > 0 and now > 0 for before, now in pairs):
            before, now = (geometric_mean(side) for side in zip(*pairs, strict=True))
            lines.append(
                f"{metric}: {before:.4g} → {now:.4g} ({now / before - 1:+.1%}) over {len(pairs)} cases"
            )
    gone = {key.case for key in base} - {key.case for key in new}
    fresh = {key.case for key in new} - {key.case for key in base}
    lines.append(
        f"{len({key.case for key in both})} cases in both, {len(gone)} only before, {len(fresh)} only now"
    )
    return "\n".join(lines)


def pairs(finished: Sequence[TaskResult]) -> str:
    """Base and new of process pairs, the change with its 95 % interval, and what follows."""
    sides: dict[_Key, dict[int, dict[str, float]]] = {}
    for one in finished:
        for record in one.records:
            pair = (record.get("runners") or [{}])[0].get("extra_info", {}).get("pair")
            value = _value(record)
            if pair and value is not None and record["metric"]["name"] in MAIN:
                sides.setdefault(_key(record), {}).setdefault(pair["number"], {})[pair["side"]] = value
    rows = [[*key, *_compared(key.metric, numbers)] for key, numbers in sides.items()]
    if not rows:
        return ""
    heads = ["case", "metric", "base", "new", "change", "95 % interval", "p", "pairs", "so"]
    return (
        grid(heads, rows) + f"\nBase, new and change are geometric means over the pairs. A change counts from"
        f" {PAIR_FLOOR:.0%} on; {LEAST_PAIRS} pairs are the least."
    )


def _compared(metric: str, numbers: Mapping[int, Mapping[str, float]]) -> list[str]:
    whole = [(sides["base"], sides["new"]) for sides in numbers.values() if len(sides) == 2]
    bases = [sides["base"] for sides in numbers.values() if "base" in sides]
    news = [sides["new"] for sides in numbers.values() if "new" in sides]
    if whole:
        texts = [f"{value:.4g}" for value in pair_middles(whole)]
    else:
        texts = [f"{median(values):.4g}" if values else "" for values in (bases, news)]
    try:
        change = paired_change(
            whole, floor=0.0 if metric_info(metric).kind == "deterministic" else PAIR_FLOOR
        )
    except ValueError:
        return [*texts, "", "", "", f"{len(whole)}", "inconclusive"]
    interval = (
        ""
        if change.low is None or change.high is None
        else f"{_percent(change.low)} to {_percent(change.high)}"
    )
    said = [
        "" if change.change is None else f"{change.change:+.1%}",
        interval,
        "" if change.p is None else f"{change.p:.2g}",
        f"{len(whole)}",
        change.word,
    ]
    return [*texts, *said]


class _Key(NamedTuple):
    """A metric of an experiment, as its record says it."""

    case: str
    metric: str


def _key(record: Mapping[str, Json]) -> _Key:
    benchmark, model = record["benchmark"], record["model"]
    extra = benchmark.get("extra_info") or {}
    knobs = ",".join(f"{name}={value}" for name, value in sorted((extra.get("knobs") or {}).items()))
    case = f"{model['name']}[{knobs}]" if knobs else model["name"]
    words = [
        *(model.get("origins") or []),
        case,
        benchmark.get("mode"),
        benchmark.get("dtype"),
        model.get("backend"),
    ]
    words.append("dynamic" if extra.get("dynamic") else "")
    return _Key(" ".join(filter(None, words)), record["metric"]["name"])


def _value(record: Mapping[str, Json]) -> float | None:
    values = record["metric"].get("benchmark_values")
    if not values:
        return None
    suite = (record["model"].get("origins") or [""])[0]
    return value_of([float(value) for value in values], value_rule(suite, record["metric"]["name"]))


def _values(records: Iterable[Mapping[str, Json]]) -> dict[_Key, float]:
    """Medians over what one experiment has several of."""
    found: dict[_Key, list[float]] = {}
    for record in records:
        value = _value(record) if record.get("metric") else None
        if value is not None:
            found.setdefault(_key(record), []).append(value)
    return {key: median(values) for key, values in found.items()}


def read_records(text: str) -> list[dict[str, Json]]:
    """Records of an earlier output, one a line. Raises ValueError for anything else."""
    found = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not all(isinstance(one, dict) and {"benchmark", "model"} <= set(one) for one in found):
        raise ValueError("it holds no records")
    return found


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their heads; numbers to the right."""
    cells = [list(heads), *map(list, rows)]
    widths = [max(len(row[index]) for row in cells) for index in range(len(heads))]
    right = [
        bool(rows) and all(row[index][:1] in "+-0123456789" for row in rows) for index in range(len(heads))
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )


def _head(metric: str) -> str:
    unit = _UNITS.get(metric_info(metric).unit, metric_info(metric).unit)
    name = metric.removesuffix("_bytes")
    name = name.removesuffix("_gbps").removesuffix("_ms").removesuffix("_tflops").removesuffix("_s")
    return f"{name} {unit}" if unit not in {"", "ratio"} else name


def _rows(finished: TaskResult) -> list[dict[str, str]]:
    task, outcome = finished.task, finished.outcome
    same = {"suite": task.suite, "mode": task.mode, "dtype": task.dtype, "backend": task.backend}
    rows: dict[str, dict[str, str]] = {}
    ends: dict[str, list[_Status]] = {}
    for record in finished.records:
        knobs = record["benchmark"]["extra_info"].get("knobs") or {}
        text = ",".join(f"{name}={value}" for name, value in knobs.items())
        side = ((record.get("runners") or [{}])[0].get("extra_info") or {}).get("pair", {}).get("side", "")
        case = " ".join(filter(None, (f"{record['model']['name']}[{text}]" if text else task.case, side)))
        metric = record["metric"]
        said = metric.get("extra_info") or {}
        device = record["benchmark"]["extra_info"].get("device", task.device)
        row = rows.setdefault(case, {**same, "device": device, "case": case})
        end = _Status(said.get("status", "ok"), said.get("code") or "")
        if metric["name"] == "verification_code":
            row[_CHECK] = end.code
            end = end if end.status in {"wrong", "failed"} else _Status("ok", "")
        ends.setdefault(case, []).append(end)
        value = _value(record)
        if value is not None:
            row[metric["name"]] = _shown(value, metric["name"])
    whole = _Status(outcome.status, outcome.code)
    if len(rows) == 1:
        next(iter(ends.values())).append(whole)
    elif whole.rank[0] > max((end.rank[0] for many in ends.values() for end in many), default=0):
        rows[""] = {**same, "device": task.device, "case": task.case}
        ends[""] = [whole]
    for case, row in rows.items():
        worst = max(ends[case], key=lambda end: end.rank)
        row["status"] = f"{worst.status} {worst.code}".strip()
    return list(rows.values())


class _Status(NamedTuple):
    """How a part of a task ended, or all of it."""

    status: str
    code: str

    @property
    def rank(self) -> tuple[int, bool]:
        """Larger for a worse one; of two that are as bad, one with a code says more."""
        return severity(self.status), bool(self.code)


def _group(task: TaskSpec) -> tuple[str, ...]:
    words = [task.backend, "dynamic" if task.dynamic else "", suite_of(task.suite).runtime(task)]
    return task.suite, task.mode, task.dtype, ", ".join(filter(None, words))


def _amounts(members: Sequence[TaskResult], total: int) -> list[str]:
    passed = [one for one in members if one.outcome.status in SUCCESS]
    values: dict[str, list[float]] = {}
    for one in passed:
        for record in one.records:
            value = _value(record)
            if value is not None and value > 0:
                values.setdefault(record["metric"]["name"], []).append(value)
    share = f"{len(passed) / total:.0%}, {len(passed)}/{total}"
    ratios = [f"{geometric_mean(values[name]):.3f}" if name in values else "" for name in _RATIOS]
    means = [f"{statistics.fmean(values[name]):.2f}" if name in values else "" for name in _MEANS]
    return [share, *ratios, *means]


def _shown(value: float, metric: str) -> str:
    info = metric_info(metric)
    return f"{value / 1e9:.3f}" if info.unit == "B" else f"{value:.{info.precision}f}"


def _percent(log_ratio: float) -> str:
    """A change; of what is no small one the factor."""
    return (
        f"{math.expm1(log_ratio):+.1%}"
        if abs(log_ratio) < math.log(5)
        else f"×{math.exp(min(log_ratio, 700)):.3g}"
    )
