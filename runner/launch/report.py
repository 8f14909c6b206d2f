"""Write what a task reports while it runs: results, events, artifacts and its outcome, as files.

The same goes to standard output, which is the task's log.
"""

import dataclasses
import json
import math
import sys
import time
from pathlib import Path

from runner.launch.failures import TaskFailure, printable
from runner.schema.metrics import metric_info
from runner.schema.records import Json, Record
from runner.schema.statistics import value_of
from runner.schema.suite import value_rule

_MAX_ARTIFACT_BYTES = 48 * 2**20


class Report:
    """Write `results.jsonl`, `events.jsonl`, `artifacts/` and `outcome.json`; every line is flushed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.not_finite: TaskFailure | None = None  # the first metric without a number
        self._started = time.monotonic()
        self._done = self._total = 0

    def event(self, phase: str, done: int | None = None, total: int | None = None, label: str = "") -> None:
        """Report that `done` of `total` parts are finished (None: as before) and a phase begins."""
        done = self._done = self._done if done is None else done
        total = self._total = self._total if total is None else total
        event = {"t": time.monotonic(), "phase": phase, "done": done, "total": total, "label": label}
        self._append("events.jsonl", event)
        self._say(" ".join(filter(None, (phase, label, f"({done} of {total} done)" if total else ""))))

    def result(self, record: Record) -> None:
        """Add a result. A metric with NaN or infinite samples has failed, unless it has another status of its
        own; facts that are such numbers are left out, and the record says so."""
        metric = record.metric
        values = metric.benchmark_values or []
        bad = sum(not _is_finite(value) for value in values)
        if bad:
            facts = metric.extra_info or {}
            info = {name: fact for name, fact in facts.items() if name not in ("n", "spread")}
            if info.get("status", "ok") == "ok":
                reason = f"{metric.name}: {bad} of {len(values)} samples are NaN or infinite"
                info |= {"status": "failed", "code": "not_finite", "reason": reason}
            failed = dataclasses.replace(metric, benchmark_values=None, extra_info=info)
            record = dataclasses.replace(record, metric=failed)
            failure = TaskFailure(*(str(info.get(name, "")) for name in ("status", "code", "reason")))
            self.not_finite = self.not_finite or failure
        left_out: list[str] = []
        value = _storable(record.to_json(), "", left_out)
        if left_out:
            info = value["metric"].setdefault("extra_info", {})
            info["not_finite"] = "; ".join(filter(None, (info.get("not_finite"), ", ".join(left_out))))
        self._append("results.jsonl", value)
        self._say(f"  {_line(record)}")

    def artifact(self, kind: str, name: str, content: str | bytes) -> None:
        """Keep a file beside the results; of one that is too large only a note in the log."""
        data = content.encode() if isinstance(content, str) else content
        if len(data) > _MAX_ARTIFACT_BYTES:
            self._say(f"artifact {kind} is left out: {len(data)} bytes, more than {_MAX_ARTIFACT_BYTES}")
            return
        folder = self.folder / "artifacts" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    def outcome(self, status: str, code: str = "", reason: str = "") -> None:
        """Write how the task ended, complete or not at all."""
        fresh = self.folder / "outcome.json.new"
        fresh.write_text(json.dumps({"status": status, "code": printable(code), "reason": printable(reason)}))
        fresh.replace(self.folder / "outcome.json")
        self._say(" ".join(filter(None, (status, code, reason))))

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._started:7.1f} s  {printable(text)}\n")
        sys.stdout.flush()

    def _append(self, name: str, value: dict[str, Json]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(value, allow_nan=False) + "\n")


def _is_finite(value: Json) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _storable(value: Json, path: str, left_out: list[str]) -> Json:
    """Return JSON with `printable` strings and finite numbers only. Add the places of other numbers to
    `left_out`; in a list they become null."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        parts = {
            printable(str(name)): _storable(part, f"{path}.{name}".lstrip("."), left_out)
            for name, part in value.items()
        }
        return {name: part for name, part in parts.items() if part is not None}
    if isinstance(value, (list, tuple)):
        return [_storable(part, path, left_out) for part in value]
    if not _is_finite(value):
        left_out.append(printable(f"{path.removeprefix('metric.extra_info.')} is {value}"))
        return None
    return value


def _line(record: Record) -> str:
    """Return a result as a line such as ``compiled_latency_ms 0.0452 ms, n=300, spread 1.2 %``."""
    metric = record.metric
    info = metric.extra_info or {}
    if not metric.benchmark_values:
        return f"{metric.name}: {info.get('status', '')} {info.get('code', '')}".strip()
    rule = value_rule((record.model.origins or [""])[0], metric.name)
    value = value_of([float(sample) for sample in metric.benchmark_values], rule)
    parts = [f"{metric.name} {value:.5g} {metric_info(metric.name).unit}".strip()]
    parts += [f"n={info['n']}"] if "n" in info else []
    parts += [f"spread {info['spread']:.1%}"] if info.get("spread") else []
    return ", ".join(parts)
