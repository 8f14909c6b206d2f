"""Text tables of what a command measured: results, an overview of each suite, and comparisons."""

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from runner.schema.compilations import kernels_in
from runner.schema.draws import CodeChange, Draw, PairPlace, answer_of, pair_place, round_of
from runner.schema.metrics import metric_info
from runner.schema.records import SUCCESS, Json, runner_facts
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
from runner.schema.tasks import TaskResult

# Metrics that a person reads first, in this order.
MAIN = (
    "20th", "50th", "80th",
    "speedup", "device_speedup", "device_bandwidth_gbps", "share_of_ceiling", "device_latency_ms",
    "gpu_busy_ms", "compiled_latency_ms", "abs_latency", "eager_latency_ms", "call_bandwidth_gbps",
    "matmul_tflops", "token_per_sec", "per_iter_time", "cold_compile_s", "warm_compile_s",
    "compression_ratio", "compiled_peak_memory_bytes", "peak_rss_bytes",
)  # fmt: skip
_IDENTITY = ("suite", "case", "mode", "dtype", "backend", "device")
_CHECK = "verification"  # PyTorch/XLA's, a column of its own
_RATIOS = ("speedup", "device_speedup", "compression_ratio")  # of several cases: their geometric mean
_MEANS = ("cold_compile_s", "warm_compile_s", "compilation_latency")
_UNITS = {"B": "GB"}  # of a table's column
_MOST_WARNINGS = 4


class _Key(NamedTuple):
    """A metric of an experiment, as its record names it."""

    case: str
    metric: str


def results(finished: Sequence[TaskResult]) -> str:
    """Return a table with a row for each case and shape and a column for each main metric that was measured.

    A number that may not decide stands in parentheses. Below follows a line for each case with warnings.
    """
    rows = [row for task in finished for row in _rows(task)]
    heads = {
        name: name for name in _IDENTITY if name in {"case", "dtype"} or len({r[name] for r in rows}) > 1
    }
    heads |= {_CHECK: _CHECK} if any(_CHECK in row for row in rows) else {}
    present = {name for row in rows for name in row}
    headline = dict.fromkeys(name for one in finished for name in suite_of(one.task.suite).headline_metrics)
    for name in [m for m in MAIN if m in present] or [m for m in headline if m in present]:
        unit = _UNITS.get(metric_info(name).unit, metric_info(name).unit)
        title = re.sub("_s$", "", re.sub("_(gbps|ms|tflops|bytes)$", "", name))
        heads[name] = f"{title} {unit}" if unit not in {"", "ratio"} else title
    heads["status"] = "status"
    table = grid([*heads.values()], [[row.get(key, "") for key in heads] for row in rows])
    return "\n".join([table, *_warnings(finished)])


def _rows(finished: TaskResult) -> list[dict[str, str]]:
    task, outcome = finished.task, finished.outcome
    same = {name: str(getattr(task, name)) for name in _IDENTITY}
    rows: dict[str, dict[str, str]] = {}
    ends: defaultdict[str, list[tuple[int, bool, str]]] = defaultdict(list)
    for record in finished.records:
        metric, info = record["metric"], record["benchmark"]["extra_info"]
        knobs = ",".join(f"{name}={value}" for name, value in (info.get("knobs") or {}).items())
        case = f"{record['model']['name']}[{knobs}]" if knobs else task.case
        case = f"{case} {runner_facts(record).get('pair', {}).get('side', '')}".strip()
        case += f" compilation {task.compilation}" if task.compilation else ""
        row = rows.setdefault(case, {**same, "device": info.get("device", task.device), "case": case})
        facts = metric.get("extra_info") or {}
        status, code = facts.get("status", "ok"), facts.get("code") or ""
        if metric["name"] == "verification_code":
            row[_CHECK] = code
            status, code = (status, code) if status in {"wrong", "failed"} else ("ok", "")
        ends[case].append(_end(status, code))
        value = _value(record)
        if value is not None:
            unit, precision = metric_info(metric["name"]).unit, metric_info(metric["name"]).precision
            text = f"{value / 1e9:.3f}" if unit == "B" else f"{value:.{precision}f}"
            row[metric["name"]] = f"({text})" if _quality(record) else text
    end = _end(outcome.status, outcome.code)
    if len(rows) == 1:
        ends[next(iter(rows))].append(end)
    elif end[0] > max((one[0] for many in ends.values() for one in many), default=0):
        rows[""] = same
        ends[""] = [end]
    return [{**row, "status": max(ends[case], key=lambda one: one[:2])[2]} for case, row in rows.items()]


def _end(status: str, code: str) -> tuple[int, bool, str]:
    """Return a status with its rank: the worse first, and of equals the one with a code, which says more."""
    return severity(status), bool(code), f"{status} {code}".strip()


def _warnings(finished: Sequence[TaskResult]) -> list[str]:
    """Return a line for each case: warnings of its main metrics, once each and at most four."""
    by_case: dict[str, dict[str, None]] = {}
    for record in (record for task in finished for record in task.records):
        warning = (record["metric"].get("extra_info") or {}).get("warning") or ""
        if warning and record["metric"]["name"] in MAIN and _value(record) is not None:
            by_case.setdefault(_key(record).case, {}).update(dict.fromkeys(warning.split("; ")))
    return [
        f"{case}: {'; '.join([*warnings][:_MOST_WARNINGS])}{'; …' if len(warnings) > _MOST_WARNINGS else ''}"
        for case, warnings in by_case.items()
    ]


def names(tasks: Sequence[TaskSpec]) -> dict[str, str]:
    """Return, by fingerprint, each task's case and the settings in which it differs from the others."""
    settings = {
        task.fingerprint(): {
            **{name: getattr(task, name) for name in ("case", "suite", "mode", "dtype", "backend")},
            **({"dynamic": "dynamic"} if task.dynamic else {}),
            **{name: f"{name}={value}" for name, value in sorted(task.knobs.items())},
        }
        for task in tasks
    }
    every = dict.fromkeys(name for one in settings.values() for name in one if name != "case")
    differing = [name for name in every if len({one.get(name) for one in settings.values()}) > 1]
    return {
        key: " ".join(one[name] for name in ("case", *differing) if name in one)
        for key, one in settings.items()
    }


def overview(finished: Sequence[TaskResult], asked: Sequence[TaskSpec]) -> str:
    """Return a table with a row for each suite and configuration: how many of the cases that were asked for
    passed, and means over those that did. Nothing is clipped: a slowdown counts as one. What may not decide
    is in no mean, and counted beside the cases."""
    passed: dict[tuple[str, ...], int] = Counter()
    undecided: dict[tuple[str, ...], int] = Counter()
    values: defaultdict[tuple[str, ...], defaultdict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one in finished:
        if one.outcome.status in SUCCESS:
            passed[_group(one.task)] += 1
            undecided[_group(one.task)] += any(
                _quality(record) for record in one.records if record["metric"]["name"] in MAIN
            )
            for record in one.records:
                value = _value(record)
                if value is not None and value > 0 and not _quality(record):
                    values[_group(one.task)][record["metric"]["name"]].append(value)
    rows = []
    for group, total in Counter(map(_group, asked)).items():
        found = values[group]
        pale = f", {undecided[group]} undecided" if undecided[group] else ""
        row = [*group, f"{passed[group] / total:.0%}, {passed[group]}/{total}{pale}"]
        row += [f"{geometric_mean(found[name]):.3f}" if name in found else "" for name in _RATIOS]
        row += [f"{statistics.fmean(found[name]):.2f}" if name in found else "" for name in _MEANS]
        rows.append(row)
    heads = ["suite", "mode", "dtype", "backend", "passed"]
    heads += [f"{name}, geometric mean" for name in _RATIOS] + [f"{name}, mean" for name in _MEANS]
    filled = [index for index in range(len(heads)) if any(row[index] for row in rows)]
    return grid([heads[index] for index in filled], [[row[index] for index in filled] for row in rows])


def _quality(record: Mapping[str, Json]) -> str:
    return str((record["metric"].get("extra_info") or {}).get("quality") or "")


def _group(task: TaskSpec) -> tuple[str, ...]:
    return task.suite, task.mode, task.dtype, f"{task.backend}, dynamic" if task.dynamic else task.backend


def against(earlier: Iterable[Mapping[str, Json]], finished: Sequence[TaskResult]) -> str:
    """Return a table of each main metric beside that of an earlier output (v3 records), and the change of the
    geometric means over the cases that both have."""
    base = _medians(earlier)
    new = _medians(record for one in finished for record in one.records)
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
            change = f"{before:.4g} → {now:.4g} ({now / before - 1:+.1%})"
            lines.append(f"{metric}: {change} over {len(pairs)} cases")
    old_cases, new_cases = {key.case for key in base}, {key.case for key in new}
    counts = len({key.case for key in both}), len(old_cases - new_cases), len(new_cases - old_cases)
    lines.append("{} cases in both, {} only before, {} only now".format(*counts))
    return "\n".join(lines)


def without_pinned(finished: Sequence[TaskResult]) -> list[TaskResult]:
    """Return the tasks without the records of pinned processes, which `draws` compares."""
    return [
        replace(one, records=[record for record in one.records if _place(record).draw is None])
        for one in finished
    ]


def pairs(finished: Sequence[TaskResult]) -> str:
    """Return a table of baseline and candidate of process pairs: the change with its 95 % interval."""
    sides: dict[_Key, dict[int, dict[int, float]]] = {}
    undecided: dict[_Key, set[int]] = defaultdict(set)  # pairs with a value that may not decide
    at_draws = set()
    for record in (record for one in finished for record in one.records):
        place, value = _place(record), _value(record)
        if place.draw is not None:
            at_draws.add(_key(record))
        elif "pair" in runner_facts(record) and value is not None and record["metric"]["name"] in MAIN:
            sides.setdefault(_key(record), {}).setdefault(place.repeat, {})[place.side] = value
            if _quality(record):
                undecided[_key(record)].add(place.repeat)
    rows = [
        [*key, *_compared(key.metric, numbers, undecided[key])]
        for key, numbers in sides.items()
        if key not in at_draws
    ]
    if not rows:
        return ""
    heads = ["case", "metric", "base", "new", "change", "95 % interval", "p", "pairs", "so"]
    return (
        grid(heads, rows) + f"\nBase, new and change are geometric means over the pairs. A change counts from"
        f" {PAIR_FLOOR:.0%} on; {LEAST_PAIRS} pairs are the least."
    )


def draws(finished: Sequence[TaskResult]) -> str:
    """Return a table of baseline and candidate at equal choices of the autotuner: the change of the code."""
    values: dict[_Key, list[tuple[int, int, int, float | None, str]]] = {}
    again: set[tuple[int, PairPlace]] = set()
    notes: dict[str, None] = {}
    drawn: defaultdict[str, list[_Drawn]] = defaultdict(lambda: [_Drawn(), _Drawn()])
    for number, one in enumerate(finished):
        for record in one.records:
            place, value = _place(record), _value(record)
            if place.draw is None:
                drawn[_key(record).case][place.side].add(record)
            if place.draw is None or value is None or record["metric"]["name"] not in MAIN:
                continue
            measured = (place.draw, place.side, place.repeat, value, _quality(record))
            values.setdefault(_key(record), []).append(measured)
            warning = str((record["metric"].get("extra_info") or {}).get("warning") or "")
            notes |= dict.fromkeys(part for part in warning.split("; ") if part.startswith("not pinned"))
            if round_of(place.repeat)[1]:
                again.add((number, place))
    rows = [[*key, *_code_change(*answer_of(processes))] for key, processes in values.items()]
    if not rows:
        return ""
    obstacles = {case: _obstacle(*sides) for case, sides in drawn.items()}
    for row in rows:
        if row[-1] == "dismissed" and obstacles.get(row[0]):
            row[-1] = "same code"
    heads = ["case", "metric", "base", "new", "change", "95 % interval", "p", "draws", "so"]
    lines = [
        grid(heads, rows),
        "Both sides had the same choices of the autotuner, those that each side drew.",
        *[f"{len(again)} processes were repeated: too far from others with their choices."] * bool(again),
        *[*notes][:_MOST_WARNINGS],
        *[f"{case}: {text}, so nothing is dismissed" for case, text in obstacles.items() if text],
    ]
    return "\n".join(lines)


@dataclass
class _Drawn:
    """Candidates and choices of the autotuner in the free processes of a side, as (slot, configuration)."""

    offered: set[tuple[str, str]] = field(default_factory=set)
    chosen: set[tuple[str, str]] = field(default_factory=set)

    def add(self, record: Mapping[str, Json]) -> None:
        for kernel in kernels_in([record]):
            slot = str(kernel.get("slot", ""))
            self.offered |= {(slot, config) for config in kernel.get("offered") or ()}
            self.chosen.add((slot, str(kernel.get("config", ""))))


def _obstacle(base: _Drawn, new: _Drawn) -> str:
    """Return why the draw may hide a change though the code has none; '' if it cannot."""
    if {slot for slot, _config in base.chosen} != {slot for slot, _config in new.chosen}:
        return "some kernels are on one side only"
    if base.offered != new.offered:
        return "the autotuner was offered other candidates"
    return "" if new.chosen <= base.chosen else "the new side drew choices that the baseline did not"


def _code_change(at_draws: Sequence[Draw], found: CodeChange) -> list[str]:
    middles = pair_middles([(one.base, one.head) for one in at_draws]) if at_draws else ()
    texts = [f"{value:.4g}" for value in middles] or ["", ""]
    change = "" if found.ratio is None else _percent(math.log(found.ratio))
    low, high = (None if bound is None else math.log(bound) for bound in (found.low, found.high))
    return [*texts, change, *_precision(low, high, found.p), "{} + {}".format(*found.draws), found.word]


def _precision(low: float | None, high: float | None, p: float | None) -> list[str]:
    """Return a change's interval, whose bounds are logarithms, and its p; '' for what is not known."""
    interval = "" if low is None or high is None else f"{_percent(low)} to {_percent(high)}"
    return [interval, "" if p is None else f"{p:.2g}"]


def _place(record: Mapping[str, Json]) -> PairPlace:
    """Return the place of a record in an A/B comparison; of any other the first one."""
    return pair_place(runner_facts(record).get("pair")) or PairPlace(0, 0)


def _compared(
    metric: str, numbers: Mapping[int, Mapping[int, float]], undecided: Container[int]
) -> list[str]:
    complete = [
        (sides[0], sides[1]) for pair, sides in numbers.items() if len(sides) == 2 and pair not in undecided
    ]
    if complete:
        texts = [f"{value:.4g}" for value in pair_middles(complete)]
    else:
        alone = ([sides[name] for sides in numbers.values() if name in sides] for name in (0, 1))
        texts = [f"{median(values):.4g}" if values else "" for values in alone]
    try:
        found = paired_change(complete, is_exact=metric_info(metric).kind == "deterministic")
    except ValueError:
        return [*texts, "", "", "", f"{len(complete)}", "inconclusive"]
    change = "" if found.change is None else f"{found.change:+.1%}"
    return [*texts, change, *_precision(found.low, found.high, found.p), f"{len(complete)}", found.word]


def _percent(log_ratio: float) -> str:
    """Return a change in per cent, or as a factor from 5 on."""
    small = abs(log_ratio) < math.log(5)
    return f"{math.expm1(log_ratio):+.1%}" if small else f"×{math.exp(min(log_ratio, 700)):.3g}"


def _key(record: Mapping[str, Json]) -> _Key:
    benchmark, model = record["benchmark"], record["model"]
    extra = benchmark.get("extra_info") or {}
    knobs = ",".join(f"{name}={value}" for name, value in sorted((extra.get("knobs") or {}).items()))
    case = f"{model['name']}[{knobs}]" if knobs else model["name"]
    parts = [*(model.get("origins") or []), case, benchmark.get("mode"), benchmark.get("dtype")]
    parts += [model.get("backend"), "dynamic" if extra.get("dynamic") else ""]
    return _Key(" ".join(filter(None, parts)), record["metric"]["name"])


def _value(record: Mapping[str, Json]) -> float | None:
    values = record["metric"].get("benchmark_values")
    if not values:
        return None
    suite = (record["model"].get("origins") or [""])[0]
    return value_of([float(value) for value in values], value_rule(suite, record["metric"]["name"]))


def _medians(records: Iterable[Mapping[str, Json]]) -> dict[_Key, float]:
    found: defaultdict[_Key, list[float]] = defaultdict(list)
    for record in records:
        free = record.get("metric") and _place(record).draw is None
        value = _value(record) if free else None
        if value is not None:
            found[_key(record)].append(value)
    return {key: median(values) for key, values in found.items()}


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns under their heads; columns of numbers are aligned to the right."""
    cells = [list(heads), *map(list, rows)]
    columns = []
    for column in zip(*cells, strict=True):
        width = max(map(len, column))
        right = bool(rows) and all(cell[:1] in "+-0123456789" for cell in column[1:])
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))
