"""Text tables of what a command measured: results, an overview of each suite, and comparisons."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from runner.schema import statistics
from runner.schema.compilations import Kernels, draw_obstacle, shown_word, timed_kernels
from runner.schema.draws import CodeChange, Draw, PairPlace, answer_of, pair_place, round_of
from runner.schema.metrics import metric_info
from runner.schema.records import SUCCESS, Json, runner_facts
from runner.schema.suite import TaskSpec, suite_of, value_rule
from runner.schema.tasks import TaskResult

# Metrics that a person reads first, in this order.
MAIN = (
    "20th", "50th", "80th",
    "speedup", "device_speedup", "device_bandwidth_gbps", "share_of_ceiling", "device_latency_ms",
    "gpu_busy_ms", "compiled_latency_ms", "abs_latency", "eager_latency_ms", "call_bandwidth_gbps",
    "matmul_tflops", "token_per_sec", "per_iter_time", "cold_compile_s", "warm_compile_s",
    "compression_ratio", "compiled_peak_memory_bytes", "peak_rss_bytes", "largest_batch_size",
)  # fmt: skip
_IDENTITY = ("suite", "case", "mode", "dtype", "backend", "device")
_CHECK = "verification"  # PyTorch/XLA's, a column of its own
_RATIOS = ("speedup", "device_speedup", "compression_ratio")  # of several cases: their geometric mean
_MEANS = ("cold_compile_s", "warm_compile_s", "compilation_latency")
_UNITS = {"B": "GB"}  # of a table's column
_MOST_WARNINGS = 4


_Key = tuple[str, str]  # case and metric


class _Number(NamedTuple):
    """One metric of a record."""

    case: str  # with all that tells experiments apart
    metric: str
    value: float | None
    quality: str  # why the value may not decide
    warnings: list[str]
    place: PairPlace  # in an A/B comparison; of any other record the first one
    is_paired: bool

    @property
    def key(self) -> _Key:
        return self.case, self.metric


def _number(record: Mapping[str, Json]) -> _Number:
    benchmark, model, metric = record["benchmark"], record["model"], record["metric"]
    extra, facts = benchmark.get("extra_info") or {}, metric.get("extra_info") or {}
    knobs = ",".join(f"{name}={value}" for name, value in sorted((extra.get("knobs") or {}).items()))
    origins, values = model.get("origins") or [], metric.get("benchmark_values")
    parts = [*origins, f"{model['name']}[{knobs}]" if knobs else model["name"], benchmark.get("mode")]
    parts += [benchmark.get("dtype"), model.get("backend"), "dynamic" if extra.get("dynamic") else ""]
    rule = value_rule((origins or [""])[0], metric["name"])
    pair = runner_facts(record).get("pair")
    return _Number(
        case=" ".join(filter(None, parts)),
        metric=metric["name"],
        value=statistics.value_of([float(value) for value in values], rule) if values else None,
        quality=str(facts.get("quality") or ""),
        warnings=list(filter(None, str(facts.get("warning") or "").split("; "))),
        place=pair_place(pair) or PairPlace(0, 0),
        is_paired=pair is not None,
    )


def _numbers(finished: Iterable[TaskResult]) -> Iterator[_Number]:
    return (_number(record) for result in finished for record in result.records)


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
        number, known = _number(record), metric_info(metric["name"])
        if number.value is not None:
            in_gb = known.unit == "B"
            text = f"{number.value / 1e9:.3f}" if in_gb else f"{number.value:.{known.precision}f}"
            row[metric["name"]] = f"({text})" if number.quality else text
    end = _end(outcome.status, outcome.code)
    if len(rows) == 1:
        ends[next(iter(rows))].append(end)
    elif end[0] > max((other[0] for many in ends.values() for other in many), default=0):
        rows[""] = same
        ends[""] = [end]
    return [{**row, "status": max(ends[case], key=lambda end: end[:2])[2]} for case, row in rows.items()]


def _end(status: str, code: str) -> tuple[int, bool, str]:
    """Return a status with its rank: the worse first, and of equals the one with a code, which says more."""
    return statistics.severity(status), bool(code), f"{status} {code}".strip()


def _warnings(finished: Sequence[TaskResult]) -> list[str]:
    """Return a line for each case: warnings of its main metrics, once each and at most four."""
    by_case: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for number in _numbers(finished):
        if number.warnings and number.metric in MAIN and number.value is not None:
            by_case[number.case].update(dict.fromkeys(number.warnings))
    return [
        f"{case}: {'; '.join([*warnings][:_MOST_WARNINGS])}{'; …' if len(warnings) > _MOST_WARNINGS else ''}"
        for case, warnings in by_case.items()
    ]


def overview(finished: Sequence[TaskResult], asked: Sequence[TaskSpec]) -> str:
    """Return a table with a row for each suite and configuration: how many of the cases that were asked for
    passed, and means over those that did. Nothing is clipped: a slowdown counts as one. What may not decide
    is in no mean, and counted beside the cases."""
    passed: Counter[tuple[str, ...]] = Counter()
    undecided: Counter[tuple[str, ...]] = Counter()
    values: defaultdict[tuple[tuple[str, ...], str], list[float]] = defaultdict(list)
    for result in finished:
        if result.outcome.status in SUCCESS:
            group, numbers = _group(result.task), list(_numbers([result]))
            passed[group] += 1
            undecided[group] += any(number.quality for number in numbers if number.metric in MAIN)
            for number in numbers:
                if number.value is not None and number.value > 0 and not number.quality:
                    values[group, number.metric].append(number.value)
    rows = []
    for group, total in Counter(map(_group, asked)).items():
        pale = f", {undecided[group]} inconclusive" if undecided[group] else ""
        row = [*group, f"{passed[group] / total:.0%}, {passed[group]}/{total}{pale}"]
        ratios, means = ([values.get((group, name)) for name in names] for names in (_RATIOS, _MEANS))
        row += [f"{statistics.geometric_mean(numbers):.3f}" if numbers else "" for numbers in ratios]
        row += [f"{fmean(numbers):.2f}" if numbers else "" for numbers in means]
        rows.append(row)
    heads = ["suite", "mode", "dtype", "backend", "passed"]
    heads += [f"{name}, geometric mean" for name in _RATIOS] + [f"{name}, mean" for name in _MEANS]
    filled = [index for index in range(len(heads)) if any(row[index] for row in rows)]
    return grid([heads[index] for index in filled], [[row[index] for index in filled] for row in rows])


def _group(task: TaskSpec) -> tuple[str, ...]:
    return task.suite, task.mode, task.dtype, f"{task.backend}, dynamic" if task.dynamic else task.backend


def against(earlier: Iterable[Mapping[str, Json]], finished: Sequence[TaskResult]) -> str:
    """Return a table of each main metric beside that of an earlier output (v3 records), and the change of the
    geometric means over the cases that both have."""
    base = _medians(_number(record) for record in earlier if record.get("metric"))
    new = _medians(_numbers(finished))
    both = [key for key in new if key in base and key[1] in MAIN]
    rows = [
        [*key, f"{base[key]:.4g}", f"{new[key]:.4g}", f"{new[key] / base[key] - 1:+.1%}" if base[key] else ""]
        for key in both
    ]
    lines = [grid(["case", "metric", "before", "now", "change"], rows)] if rows else []
    for metric in dict.fromkeys(metric for _case, metric in both):
        pairs = [(base[key], new[key]) for key in both if key[1] == metric]
        if all(before > 0 and now > 0 for before, now in pairs):
            before, now = (statistics.geometric_mean(side) for side in zip(*pairs, strict=True))
            change = f"{before:.4g} → {now:.4g} ({now / before - 1:+.1%})"
            lines.append(f"{metric}: {change} over {len(pairs)} cases")
    in_both, old, now_too = ({case for case, _metric in keys} for keys in (both, base, new))
    counts = len(in_both), len(old - now_too), len(now_too - old)
    lines.append("{} cases in both, {} only before, {} only now".format(*counts))
    return "\n".join(lines)


def _medians(numbers: Iterable[_Number]) -> dict[_Key, float]:
    values: defaultdict[_Key, list[float]] = defaultdict(list)
    for number in numbers:
        if number.place.draw is None and number.value is not None:
            values[number.key].append(number.value)
    return {key: statistics.median(several) for key, several in values.items()}


def without_pinned(finished: Sequence[TaskResult]) -> list[TaskResult]:
    """Return the tasks without the records of pinned processes, which `draws` compares."""
    return [
        replace(result, records=[record for record in result.records if _number(record).place.draw is None])
        for result in finished
    ]


def pairs(finished: Sequence[TaskResult]) -> str:
    """Return a table of baseline and candidate of process pairs: the change with its 95 % interval."""
    sides: defaultdict[_Key, defaultdict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    undecided: defaultdict[_Key, set[int]] = defaultdict(set)  # pairs with a value of a quality
    at_draws = set()
    for number in _numbers(finished):
        if number.place.draw is not None:
            at_draws.add(number.key)
        elif number.is_paired and number.value is not None and number.metric in MAIN:
            sides[number.key][number.place.repeat][number.place.side] = number.value
            if number.quality:
                undecided[number.key].add(number.place.repeat)
    rows = [
        [*key, *_compared(key[1], values, undecided[key])]
        for key, values in sides.items()
        if key not in at_draws
    ]
    if not rows:
        return ""
    heads = ["case", "metric", "baseline", "candidate", "change", "95 % interval", "p", "pairs", "result"]
    return (
        grid(heads, rows) + "\nAll three are geometric means over the pairs. A change counts from"
        f" {statistics.PAIR_FLOOR:.0%} on; {statistics.LEAST_PAIRS} pairs are the least."
    )


def draws(finished: Sequence[TaskResult]) -> str:
    """Return a table of baseline and candidate at equal choices of the autotuner: the change of the code."""
    values: defaultdict[_Key, list[tuple[int, int, int, float | None, str]]] = defaultdict(list)
    again: set[tuple[int, PairPlace]] = set()
    notes: dict[str, None] = {}
    devices: dict[str, str] = {}  # by case
    free: defaultdict[str, tuple[list[Kernels], list[Kernels]]] = defaultdict(lambda: ([], []))
    records = [(task, record) for task, result in enumerate(finished) for record in result.records]
    for task, record in records:
        number = _number(record)
        place = number.place
        if place.draw is None:
            if kernels := timed_kernels([record]):
                free[number.case][place.side].append(kernels)
        elif number.value is not None and number.metric in MAIN:
            values[number.key].append((place.draw, place.side, place.repeat, number.value, number.quality))
            devices[number.case] = str((record["benchmark"].get("extra_info") or {}).get("device", ""))
            notes |= dict.fromkeys(text for text in number.warnings if text.startswith("not pinned"))
            if round_of(place.repeat)[1]:
                again.add((task, place))
    rows = [[*key, *_code_change(*answer_of(processes))] for key, processes in values.items()]
    if not rows:
        return ""
    obstacles = {case: draw_obstacle(*free[case], device) for case, device in devices.items()}
    for row in rows:
        row[-1] = shown_word(row[-1], obstacles[row[0]])
    heads = ["case", "metric", "baseline", "candidate", "change", "95 % interval", "p", "draws", "result"]
    lines = [
        grid(heads, rows),
        "Both sides had the same choices of the autotuner, those that each side drew.",
        *[f"{len(again)} processes were repeated: too far from others with their choices."] * bool(again),
        *[*notes][:_MOST_WARNINGS],
        *[f"{case}: {text}, so nothing is dismissed" for case, text in obstacles.items() if text],
    ]
    return "\n".join(lines)


def _code_change(at_draws: Sequence[Draw], code: CodeChange) -> list[str]:
    middles = statistics.pair_middles([(draw.base, draw.head) for draw in at_draws]) if at_draws else ()
    texts = [f"{value:.4g}" for value in middles] or ["", ""]
    change = "" if code.ratio is None else _percent(math.log(code.ratio))
    low, high = (None if bound is None else math.log(bound) for bound in (code.low, code.high))
    return [*texts, change, *_precision(low, high, code.p), "{} + {}".format(*code.draws), code.word]


def _precision(low: float | None, high: float | None, p: float | None) -> list[str]:
    """Return a change's interval, whose bounds are logarithms, and its p; '' for what is not known."""
    interval = "" if low is None or high is None else f"{_percent(low)} to {_percent(high)}"
    return [interval, "" if p is None else f"{p:.2g}"]


def _compared(
    metric: str, numbers: Mapping[int, Mapping[int, float]], undecided: Container[int]
) -> list[str]:
    complete = [
        (sides[0], sides[1]) for pair, sides in numbers.items() if len(sides) == 2 and pair not in undecided
    ]
    if complete:
        texts = [f"{value:.4g}" for value in statistics.pair_middles(complete)]
    else:
        alone = ([sides[name] for sides in numbers.values() if name in sides] for name in (0, 1))
        texts = [f"{statistics.median(values):.4g}" if values else "" for values in alone]
    paired = statistics.paired_change(complete, is_exact=metric_info(metric).kind == "deterministic")
    change = "" if paired.change is None else f"{paired.change:+.1%}"
    return [*texts, change, *_precision(paired.low, paired.high, paired.p), f"{len(complete)}", paired.word]


def _percent(log_ratio: float) -> str:
    """Return a change in per cent, or as a factor from 5 on."""
    small = abs(log_ratio) < math.log(5)
    return f"{math.expm1(log_ratio):+.1%}" if small else f"×{math.exp(min(log_ratio, 700)):.3g}"


def grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return columns under their heads; columns of numbers are aligned to the right."""
    cells = [list(heads), *map(list, rows)]
    columns = []
    for column in zip(*cells, strict=True):
        width = max(map(len, column))
        right = bool(rows) and all(cell[:1] in "+-0123456789" for cell in column[1:])
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*columns, strict=True))
