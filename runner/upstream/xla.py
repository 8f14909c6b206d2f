"""PyTorch/XLA's `results.jsonl`, and the folders of its dumps, for the suite xla.

What its lines have no words for stands under `runner`: our status with its reason, and whether a check was
asked for. Its own readers pass that by.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from runner.catalog import TaskSpec
from runner.catalog.suites.xla import SUITE, Cell, cell
from runner.task_result import TaskResult, asks_for_artifacts

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
# What its names of dumps say of an experiment, in their order.
_AXES = ("accelerator", "dynamo", "enable_functionalization", "test", "torch_xla2", "xla", "xla_flags")
_DTYPE = "float32"  # which they mean where they say none


def places(task: TaskSpec) -> list[str]:
    """Its lines are told apart by what its own resume looks at, and what we add to it."""
    return [_dump_name(task)]


def files(path: Path, tasks: Sequence[TaskSpec]) -> set[Path]:
    """The lines, and a folder of dumps for each model of which some are asked for."""
    lines = _lines_path(path)
    return {lines, *(lines.parent / task.case for task in tasks if asks_for_artifacts(task))}


def _lines_path(path: Path) -> Path:
    return path if path.suffix == ".jsonl" else path / "results.jsonl"


class XlaFiles:
    """`results.jsonl` in the folder PATH, or PATH itself where it ends in .jsonl; a line for each cell."""

    def __init__(self, path: Path) -> None:
        self._path = _lines_path(path)

    def add(self, finished: TaskResult) -> list[Path]:
        if not finished.records:
            return []
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(_line(finished)) + "\n")
        return [self._path, *self._take_dumps(finished)]

    def _take_dumps(self, finished: TaskResult) -> Iterator[Path]:
        """Moves artifacts to `MODEL/[REPEAT/]KIND-CONFIGURATION…`, as there."""
        configuration = _dump_name(finished.task)
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


def _cell(task: TaskSpec) -> Cell:
    asked = {name: cast("str", task.knobs.get(name, "")) for name in ("accelerator", "xla")}
    return cell(task.backend, task.mode, task.device, asked["accelerator"], asked["xla"])


def _line(finished: TaskResult) -> dict[str, Json]:
    first, place = finished.records[0], _cell(finished.task)
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


def _outcome(finished: TaskResult) -> dict[str, Json]:
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


def _metrics(finished: TaskResult) -> dict[str, Json]:
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


def _dump_name(task: TaskSpec) -> str:
    """Its name for a cell: the values of the axes in the order of their names, then the model. What it leaves
    out, and would write over in a command that has several, follows: another type, and knobs."""
    place = _cell(task)
    said = {
        "accelerator": place.accelerator,
        "dynamo": place.dynamo or None,
        "enable_functionalization": bool(task.setting("enable_functionalization")),
        "test": place.test,
        "xla": place.xla or None,
    }
    knobs = sorted((name, value) for name, value in task.identity().items() if name not in {*said, "origin"})
    return "-".join(
        [
            *(str(said.get(axis)) for axis in _AXES),
            task.case,
            *([] if task.dtype == _DTYPE else [task.dtype]),
            *(name if value is True else f"{name}={value}" for name, value in knobs),
        ]
    )
