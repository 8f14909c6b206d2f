"""Compare results with lists of expected ones, as PyTorch's CI does after each benchmark.

Source: pytorch, `benchmarks/dynamo/check_accuracy.py` (005a514d) and `check_graph_breaks.py` (021f6776).
One command makes both checks, each where results and lists have its column.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.cli.output import v3_records
from runner.formats.errors import BadUpload, Fault
from runner.formats.format import LocatedRecord, Skipped, is_json
from runner.formats.measurement import suite_name
from runner.formats.metric_values import outcome_of
from runner.formats.scalars import number
from runner.formats.table import table
from runner.formats.torchdynamo.files import accuracy_word
from runner.formats.torchdynamo.lists import EXPECTED_ACCURACY
from runner.formats.torchdynamo.names import file_hints
from runner.schema.records import Json
from runner.schema.suite import BadRequest, knobs_key
from runner.schema.tables import rows

# The counts of a list, and whether fewer are better.
_COUNTS = {"graph_breaks": True, "calls_captured": False, "unique_graphs": False, "fallbacks_to_eager": True}
_CHECKS = ("accuracy", "graph_breaks")
_WORSE = ("FAIL", "MISSING_ACCURACY", "MISSING_EXPECTED")
_BETTER = ("IMPROVED", "MISSING")  # what is new is to be added to the list


@dataclass(frozen=True)
class _Row:
    """A model with its cells, and what else its file says of it."""

    model: str
    cells: MutableMapping[str, str]
    facts: Mapping[str, str]

    def is_about(self, result: _Row) -> bool:
        """Return whether this row of a list can be about the result."""
        facts = all(result.facts.get(name, value) == value for name, value in self.facts.items())
        return self.model == result.model and facts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", type=Path, metavar="RESULTS", help="CSV or JSON of the harness or of `run`"
    )
    parser.add_argument("--expected", type=Path, nargs="+", required=True, metavar="FILE", help="lists of CI")


def main(options: argparse.Namespace) -> int:
    """Print what became of each model; return 1 if one is worse or better than expected, or not listed.

    Raise BadRequest for a file without results, or one that is no list of expected ones.
    """
    results = _read(options.results, _results)
    expected = []
    for path in options.expected:
        # of several lists, suite and mode in the name say for which results each is
        hints = file_hints(str(path)) if len(options.expected) > 1 else {}
        facts = {name: hints[name] for name in ("suite", "mode") if name in hints}
        expected += [replace(row, facts={**facts, **row.facts}) for row in _read(path, _expected)]
    is_rocm = any("rocm" in str(path) for path in options.expected)
    names = [name for name in _CHECKS if _has(name, results) and (not expected or _has(name, expected))]
    if not names:
        raise BadRequest(f"{options.results}: no accuracy and no graph breaks that are expected too")
    status = 0
    for name in names:
        flaky = _flaky_models(name, is_rocm)
        check = _accuracy if name == "accuracy" else _graph_breaks
        print(f"{name}:")
        worse, better = [], []
        for result in results:
            same = [row for row in results if (row.model, row.facts) == (result.model, result.facts)]
            outcomes = check(same, [row for row in expected if row.is_about(result)], result.model in flaky)
            for outcome, detail in outcomes:
                print(f"  {result.model:34}  {outcome:18}  {detail}".rstrip())
            marks = {outcome for outcome, _detail in outcomes}
            if marks.intersection(_WORSE):
                worse.append(result.model)
            elif marks.intersection(_BETTER):
                better.append(result.model)
        for models, meaning in ((worse, "worse than expected"), (better, "better than expected, or new")):
            if models:
                status = 1
                print(f"  {len(models)} {meaning}: {' '.join(models)}")
    return status


def _flaky_models(check: str, is_rocm: bool) -> set[str]:
    """Return the models whose outcome changes from run to run, and further ones where a list is ROCm's."""
    platforms = {"", "rocm"} if is_rocm else {""}
    listed = rows(__file__, "flaky_models.csv")
    return {row["model"] for row in listed if row["check"] == check and row["platform"] in platforms}


def _has(column: str, table: Sequence[_Row]) -> bool:
    return any(column in row.cells for row in table)


def _cell(column: str, table: Sequence[_Row]) -> str | None:
    """Return the cell of the only row, None where there are none or several."""
    return table[0].cells.get(column) if len(table) == 1 else None


def _accuracy(result: Sequence[_Row], listed: Sequence[_Row], is_flaky: bool) -> list[tuple[str, str]]:
    actual, expected = _cell("accuracy", result), _cell("accuracy", listed)
    detail = f"accuracy={actual}, expected={expected}"
    if actual is None or expected is None:
        return [("MISSING_ACCURACY" if actual is None else "MISSING_EXPECTED", detail)]
    if actual and actual == expected:
        return [("PASS" if expected == "pass" else "XFAIL", "")]
    if is_flaky:
        return [("PASS_BUT_FLAKY" if actual == "pass" else "FAIL_BUT_FLAKY", detail)]
    return [("IMPROVED" if actual == "pass" else "FAIL", detail)]


def _graph_breaks(result: Sequence[_Row], listed: Sequence[_Row], is_flaky: bool) -> list[tuple[str, str]]:
    if _cell("graph_breaks", listed) is None:
        return [("MISSING", f"graph_breaks={_cell('graph_breaks', result)}, expected=None")]
    is_counted = "unique_graphs" in result[0].cells  # some hand-made tables have the breaks only
    if _cell("graph_breaks", result) is None or (
        is_counted and not number(_cell("unique_graphs", result) or "")
    ):
        return [("EAGER_FAILED", "")]
    suffix, outcomes = "_BUT_FLAKY" if is_flaky else "", []
    for name, fewer_is_better in _COUNTS.items():
        actual, expected = number(_cell(name, result) or ""), number(_cell(name, listed) or "")
        if actual is not None and expected is not None and actual != expected:
            outcome = "FAIL" if (actual > expected) == fewer_is_better else "IMPROVED"
            outcomes.append((outcome + suffix, f"{name}={actual:g}, expected={expected:g}"))
    return outcomes or [("PASS" + suffix, "")]


def _read(path: Path, read: Callable[[bytes, Path], list[_Row]]) -> list[_Row]:
    try:
        return read(path.read_bytes(), path)
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}") from error
    except BadUpload as error:
        raise BadRequest(f"{path}: {error.detail}") from error


def _expected(body: bytes, path: Path) -> list[_Row]:
    """Return the rows of a list, one for each dtype and mode that its columns name."""
    rows: dict[tuple[int | None, str, str], _Row] = {}
    empty: defaultdict[int | None, dict[str, str]] = defaultdict(dict)  # cells of a line
    for item in EXPECTED_ACCURACY.read(body, str(path)):
        if isinstance(item, Fault):
            raise BadUpload(f"line {item.line}: {item.detail}")
        if isinstance(item, Skipped):
            empty[item.line][item.pointer[1:]] = ""
        elif isinstance(item, LocatedRecord) and (metric := item.record.metric):
            benchmark = item.record.benchmark
            mode, dtype = benchmark.mode or "", (benchmark.dtype or "").partition("_")[0]  # amp_bf16 is amp
            facts = {name: value for name, value in (("mode", mode), ("dtype", dtype)) if value}
            row = rows.setdefault((item.line, mode, dtype), _Row(item.record.model.name, {}, facts))
            values = metric.benchmark_values or (metric.extra_info or {})["benchmark_values"]
            row.cells[metric.name] = str(values[0])
    lines = body.splitlines()
    for line in empty.keys() - {line for line, *_ in rows}:  # a model without any cell is listed too
        if line and not empty[line].keys().isdisjoint({"accuracy", *_COUNTS}):
            name, *_cells = next(csv.reader([lines[line - 1].decode()]))  # the first column of such a list
            rows[line, "", ""] = _Row(name.strip(), {}, {})
    for (line, *_), row in rows.items():
        row.cells.update(empty[line])
    return list(rows.values())


def _results(body: bytes, path: Path) -> list[_Row]:
    """Return the rows of results. Raise BadUpload for one that is too long, or counts in no number."""
    if is_json(body):
        return _results_in_json(body)
    columns, lines = table(body, lambda cells: "name" in cells, "table with a column called name")
    facts, rows = file_hints(str(path)), []
    for line in lines:
        if isinstance(line, Fault):
            raise BadUpload(f"line {line.line}: {line.detail}")
        cells = line.by_column(columns)
        wrong = next((name for name in _COUNTS if cells.get(name) and number(cells[name]) is None), "")
        if wrong:
            raise BadUpload(f"line {line.line}: {wrong}: {cells[wrong][:60]!r} is not a number")
        rows.append(_Row(cells.pop("name"), cells, facts))
    return rows


def _results_in_json(body: bytes) -> list[_Row]:
    """Return a row for each experiment. Without msgspec, which only the web application has."""
    table: dict[tuple[str, ...], _Row] = {}
    try:
        records = [record for record in v3_records(body.decode()) if record.get("metric")]
        has_accuracy = any(record["metric"]["name"] == "accuracy" for record in records)
        for record in records:
            benchmark, model, metric = record["benchmark"], record["model"], record["metric"]
            info, extra = benchmark.get("extra_info") or {}, metric.get("extra_info") or {}
            if has_accuracy and info.get("performance"):
                continue  # the harness counts graph breaks there too
            facts = {
                "suite": suite_name((model.get("origins") or [""])[0]),
                "mode": benchmark.get("mode"),
                "dtype": benchmark.get("dtype"),
                "backend": model.get("backend"),
                "knobs": knobs_key({"dynamic": info.get("dynamic"), **(info.get("knobs") or {})}),
            }
            facts = {name: value for name, value in facts.items() if value}
            row = table.setdefault((model["name"], *facts.values()), _Row(model["name"], {}, facts))
            if metric["name"] == "accuracy":
                if word := _accuracy_of(metric):
                    row.cells["accuracy"] = word
                row.cells.update({name: str(count) for name, count in extra.get("counts", {}).items()})
            elif metric["name"] in _COUNTS and metric.get("benchmark_values"):
                row.cells.setdefault(metric["name"], str(metric["benchmark_values"][0]))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise BadUpload("this is no JSON of results") from error
    return list(table.values())


def _accuracy_of(metric: Json) -> str:
    """Return what the harness's CSV has of a record: its code, or the word for its status or number; '' for a
    record without outcome."""
    values, extra = metric.get("benchmark_values") or [], metric.get("extra_info") or {}
    status, code = outcome_of({"benchmark_values": values, **extra}, has_numbers=False)
    if status == "ok":
        return code or "pass"
    if status:
        return accuracy_word({"status": status, "code": code or ""})
    return code or ("" if not values else "pass" if values[0] == 1 else "fail_accuracy")
