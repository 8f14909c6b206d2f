"""What a task says while it runs: results, events, artifacts and its outcome, as files in its folder.

A person who watches reads the same on standard output, which is the task's log.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from runner.catalog.metrics import metric_info, value_rule
from runner.records import Json, Record
from runner.summary import value_of

_MAX_ARTIFACT_BYTES = 48 * 2**20


class Report:
    """Writes `results.jsonl`, `events.jsonl`, `artifacts/` and `outcome.json`; every line is flushed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started = time.monotonic()
        self._done = self._total = 0

    def event(self, phase: str, done: int | None = None, total: int | None = None, label: str = "") -> None:
        """Progress: `done` of `total` parts are finished (None: as before), and `phase` of `label` begins."""
        done = self._done = self._done if done is None else done
        total = self._total = self._total if total is None else total
        self._append(
            "events.jsonl",
            {"t": time.monotonic(), "phase": phase, "done": done, "total": total, "label": label},
        )
        self._say(" ".join(filter(None, (phase, label, f"({done} of {total} done)" if total else ""))))

    def result(self, record: Record) -> None:
        """One more result. Raises ValueError for NaN or an infinity: those are never results."""
        self._append("results.jsonl", record.to_json())
        self._say(f"  {_told(record)}")

    def artifact(self, kind: str, name: str, content: str | bytes) -> bool:
        """A file to keep beside the results. One that is too large is left out, which is said."""
        data = content.encode() if isinstance(content, str) else content
        if len(data) > _MAX_ARTIFACT_BYTES:
            self._say(f"artifact {kind} is left out: {len(data)} bytes, more than {_MAX_ARTIFACT_BYTES}")
            return False
        folder = self.folder / "artifacts" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        return True

    def outcome(self, status: str, code: str = "", reason: str = "") -> None:
        """How the task ended; appears whole or not at all."""
        fresh = self.folder / "outcome.json.new"
        fresh.write_text(json.dumps({"status": status, "code": code, "reason": reason}))
        fresh.replace(self.folder / "outcome.json")
        self._say(" ".join(filter(None, (status, code, reason))))

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._started:7.1f} s  {text}\n")
        sys.stdout.flush()

    def _append(self, name: str, value: dict[str, Json]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(value, allow_nan=False) + "\n")


def _told(record: Record) -> str:
    """A result in a line: ``compiled_latency_ms 0.0452 ms, n=300, spread 1.2 %``."""
    metric = record.metric
    assert metric is not None
    info = metric.extra_info or {}
    if not metric.benchmark_values:
        return f"{metric.name}: {info.get('status', '')} {info.get('code', '')}".strip()
    rule = value_rule((record.model.origins or [""])[0], metric.name)
    value = value_of([float(sample) for sample in metric.benchmark_values], rule)
    parts = [f"{metric.name} {value:.5g} {metric_info(metric.name).unit}".strip()]
    parts += [f"n={info['n']}"] if "n" in info else []
    parts += [f"spread {info['spread']:.1%}"] if info.get("spread") else []
    return ", ".join(parts)
