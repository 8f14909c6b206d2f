"""google-benchmark's and pytest-benchmark's JSON, and the history that github-action-benchmark keeps of such
results: `data.js`, or the same as JSON.

Sources: google-benchmark `src/json_reporter.cc`, pytest-benchmark `session.py` and `stats.py`,
github-action-benchmark `src/write.ts` and `src/extract.ts`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runner.formats import reasons
from runner.formats.format import is_json
from runner.formats.layout import VALUE, Layout, Located, Outcome
from runner.formats.metric_values import status_of_error
from runner.formats.scalars import finite, text
from runner.formats.table import pointer

_NO_COUNTERS = {
    "family_index", "per_family_instance_index", "repetitions", "repetition_index", "threads", "iterations",
}  # fmt: skip
_TIMES = {"real_time", "cpu_time"}
_UNITS = {"bytes_per_second": "B/s", "items_per_second": "item/s"}  # of counters; others have none
_STATISTICS = {"median": "down", "mean": "down", "min": "down", "max": "none", "stddev": "none"}
_MORE_IS_BETTER = {"benchmarkjs", "pytest", "customBiggerIsBetter"}  # tools
_DATA_JS = b"window.BENCHMARK_DATA"


def _of_google(value: dict[str, Any]) -> Iterator[Located]:
    """Yield each time and counter of a benchmark; its repetitions are samples. Of one with aggregates alone
    it is the median."""
    benchmarks: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for index, run in enumerate(value["benchmarks"]):
        benchmarks.setdefault(run.get("run_name", run["name"]), []).append((f"/benchmarks/{index}", run))
    for name, runs in benchmarks.items():
        taken = [run for run in runs if run[1].get("run_type") != "aggregate"]
        taken = taken or [run for run in runs if run[1].get("aggregate_name") == "median"]
        yield from ((run[0], reasons.AGGREGATE) for run in runs if run not in taken)
        for at, cells in taken[:1]:
            entry = {"case": name, "context": value["context"], "knobs": {"threads": cells.get("threads")}}
            if error := cells.get("error_message", cells.get("skip_message")):
                status, code = status_of_error(error) if cells.get("error_occurred") else ("not_run", error)
                yield at, {**entry, "metric": "real_time", VALUE: Outcome(status=status, code=code)}
                continue
            for key in (key for key, cell in cells.items() if finite(cell) is not None):
                if key not in _NO_COUNTERS:
                    unit = cells["time_unit"] if key in _TIMES else _UNITS.get(key, "")
                    direction = "down" if key in _TIMES else "up" if unit else ""
                    own = {"metric": key, "unit": unit, "direction": direction}
                    samples = [run.get(key) for _place, run in taken]
                    yield at + pointer(key), {**entry, **own, VALUE: samples}


def _of_pytest(value: dict[str, Any]) -> Iterator[Located]:
    """Yield the statistics of each test in seconds. Where the rounds were saved, they are the samples."""
    for index, test in enumerate(value["benchmarks"]):
        stats = test["stats"]
        cells = {**stats, "median": stats.get("data") or stats["median"]}
        for name, direction in _STATISTICS.items():
            own = {"case": test["fullname"], "metric": f"time_{name}_s", "unit": "s", "direction": direction}
            yield f"/benchmarks/{index}/stats/{name}", {**value, **own, VALUE: cells.get(name)}


def _of_history(value: dict[str, Any]) -> Iterator[Located]:
    """Yield each value of each commit. Metrics are called by unit and direction, of which tools have many."""
    repo = text(value.get("repoUrl")).removeprefix("https://github.com/")
    for chart, runs in value["entries"].items():
        for number, run in enumerate(runs):
            direction = "up" if run["tool"] in _MORE_IS_BETTER else "down"
            for index, bench in enumerate(run["benches"]):
                unit = text(bench.get("unit"))
                metric = f"{unit or 'value'}, {'more' if direction == 'up' else 'less'} is better"
                own = {"case": bench["name"], "metric": metric, "unit": unit, "direction": direction}
                at = f"/entries{pointer(chart)}/{number}/benches/{index}/value"
                yield at, {**run, **own, "repo": repo, "knobs": {"chart": chart}, VALUE: bench["value"]}


GOOGLE_BENCHMARK = Layout("google-benchmark", time="/context/date", host="/context/host_name").of_json(
    "google-benchmark", {"context": dict, "benchmarks": list}, _of_google
)
PYTEST_BENCHMARK = Layout(
    "pytest-benchmark",
    time="datetime",
    commit="/commit_info/id",
    branch="/commit_info/branch",
    host="/machine_info/node",
).of_json("pytest-benchmark", {"machine_info": dict, "benchmarks": list}, _of_pytest)
_HISTORY = Layout("github-action-benchmark", time="date", commit="/commit/id").of_json(
    "github-action-benchmark", {"lastUpdate": int, "entries": dict}, _of_history
)
GITHUB_ACTION_BENCHMARK = replace(
    _HISTORY,
    matches=lambda preview: preview.start.startswith(_DATA_JS) or _HISTORY.matches(preview),
    read=lambda body, filename: _HISTORY.read(
        body if is_json(body) else body.partition(b"=")[2].strip().removesuffix(b";"), filename
    ),
)
FORMATS = (GOOGLE_BENCHMARK, PYTEST_BENCHMARK, GITHUB_ACTION_BENCHMARK)
