"""PyTorch/XLA's `results.jsonl`, and the folders of its dumps, for the suite xla.

What its lines have no words for stands under `runner`: our status with its reason, and whether a check was
asked for. Its own readers pass that by.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from runner.catalog.suites.xla import SUITE, Cell, cell
from runner.terminal import Finished

Json = Any

# Its axes and what else its lines name by itself; other knobs stand beside the axes.
_NAMED = {"xla", "batch_size", "iterations_per_run", "origin", "enable_functionalization"}
_MAPS = ("dynamo_counters", "xla_unlowered_ops", "inductor_ops")
# Kinds of our artifacts → names of its dumps.
_DUMPS = {
    "hlo": "hlo",
    "ir": "dump",
    "dynamo_counters": "dynamo-counters",
    "profile": "pytorch-profile",
    "trace": "trace",
    "xla_metrics": "pytorch-xla-metrics",
    "output": "output",
}
_ONE_FOLDER = ("hlo", "ir")  # of all repeats


class XlaFiles:
    """`results.jsonl` in the folder PATH, or PATH itself where it ends in .jsonl; a line for each cell."""

    def __init__(self, path: Path) -> None:
        self._path = path if path.suffix == ".jsonl" else path / "results.jsonl"

    def add(self, finished: Finished) -> list[Path]:
        if not finished.records:
            return []
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = _line(finished)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return [self._path, *self._take_dumps(finished, line)]

    def _take_dumps(self, finished: Finished, line: dict[str, Json]) -> Iterator[Path]:
        """Moves artifacts to `MODEL/[REPEAT/]KIND-CONFIGURATION…`, as there."""
        configuration = _configuration(finished, line)
        for path in sorted((finished.folder / "artifacts").glob("*/*")):
            kind = path.parent.name
            if kind not in _DUMPS:
                continue
            folder = self._path.parent / finished.task.case
            name = f"{_DUMPS[kind]}-{configuration}"
            if kind == "hlo":
                target = folder / name / path.name
            elif kind in _ONE_FOLDER:
                target = folder / f"{name}{path.suffix}"
            else:
                target = folder / path.stem / f"{name}{path.suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
            yield target


def _cell(finished: Finished) -> Cell:
    task = finished.task
    asked = {name: cast("str", task.knobs.get(name, "")) for name in ("accelerator", "xla")}
    return cell(task.backend, task.mode, task.device, asked["accelerator"], asked["xla"])


def _line(finished: Finished) -> dict[str, Json]:
    first, place = finished.records[0], _cell(finished)
    info = first["benchmark"]["extra_info"]
    knobs = info["knobs"]
    others = {name: value for name, value in knobs.items() if name not in _NAMED}
    defaults = {knob.name: knob.default for knob in SUITE.knobs}
    line = {
        "model": {"suite_name": knobs["origin"], "model_name": finished.task.case},
        "experiment": {
            "accelerator": place.accelerator,
            "accelerator_model": info["arch"],
            "xla": place.xla or None,
            "xla_flags": None,
            "dynamo": place.dynamo or None,
            "torch_xla2": None,
            "test": place.test,
            "batch_size": knobs["batch_size"],
            "enable_functionalization": bool(knobs.get("enable_functionalization")),
            "dtype": first["benchmark"]["dtype"],
            **others,
        },
        "repeat": finished.task.knobs.get("repeat", defaults["repeat"]),
        "iterations_per_run": knobs.get("iterations_per_run", defaults["iterations_per_run"]),
        "metrics": _metrics(finished),
        "timestamp": first["timestamp"],
    }
    return {**line, **_outcome(finished)}


def _outcome(finished: Finished) -> dict[str, Json]:
    """Its code, and in our words what it leaves open."""
    metrics = [record["metric"] for record in finished.records]
    checked = next(metric["extra_info"] for metric in metrics if metric["name"] == "verification_code")
    facts = ("status", "check_requested", "check_status", "reason")
    ours: dict[str, Json] = {"check": {name: checked[name] for name in facts if name in checked}}
    missing = [metric for metric in metrics if "benchmark_values" not in metric and metric is not None]
    missing = [metric for metric in missing if metric["name"] != "verification_code"]
    if missing:
        said = missing[0]["extra_info"]
        ours |= {name: said[name] for name in ("status", "code", "reason")}
        ours["without"] = [metric["name"] for metric in missing]
    return {"verification_code": checked["code"], "runner": ours}


def _metrics(finished: Finished) -> dict[str, Json]:
    """A list for each metric, one value a repeat; maps of counters and operators as it nests them."""
    found: dict[str, Json] = {}
    for metric in (record["metric"] for record in finished.records):
        if "benchmark_values" not in metric:
            continue
        values = metric["benchmark_values"]
        kind, _, rest = metric["name"].partition(".")
        if kind in _MAPS and rest:
            group, _, name = rest.partition(".") if kind == _MAPS[0] else rest.rpartition(".")
            repeats = found.setdefault(kind, [])
            repeats += [{} for _ in range(len(values) - len(repeats))]
            for repeat, value in zip(repeats, values, strict=False):
                repeat.setdefault(group, {})[name] = value
        else:
            found[metric["name"]] = values
    if finished.outcome.status != "ok" and "total_time" not in found:
        skipped = finished.outcome.status == "unsupported"
        found["error"] = "SKIP" if skipped else finished.outcome.reason
    return found


def _configuration(finished: Finished, line: dict[str, Json]) -> str:
    """Its name for a cell: the values of the axes in the order of their names, then the model."""
    return "-".join(_segments(line["experiment"], finished.task.case))


def _segments(experiment: dict[str, Json], model: str) -> Iterator[str]:
    for name in sorted(set(experiment) - {"batch_size", "accelerator_model"}):
        yield str(experiment[name]).replace(" ", "")
    yield model
