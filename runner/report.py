"""What a task says while it runs: results, events, artifacts and its outcome, as files in its folder."""

from __future__ import annotations

import json
import time
from pathlib import Path

from runner.records import Json, Record


class Report:
    """Writes `results.jsonl`, `events.jsonl`, `artifacts/` and `outcome.json`; every line is flushed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def event(self, phase: str, done: int = 0, total: int = 0, label: str = "") -> None:
        """Progress: `done` of `total` shapes are finished, and now `phase` of `label` begins."""
        self._append(
            "events.jsonl",
            {"t": time.monotonic(), "phase": phase, "done": done, "total": total, "label": label},
        )

    def result(self, record: Record) -> None:
        """One more result. Raises ValueError for NaN or an infinity: those are never results."""
        self._append("results.jsonl", record.to_json())

    def artifact(self, kind: str, name: str, text: str) -> None:
        """A file to keep beside the results."""
        folder = self.folder / "artifacts" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    def outcome(self, status: str, code: str = "", reason: str = "") -> None:
        """How the task ended; appears whole or not at all."""
        fresh = self.folder / "outcome.json.new"
        fresh.write_text(json.dumps({"status": status, "code": code, "reason": reason}))
        fresh.replace(self.folder / "outcome.json")

    def _append(self, name: str, value: dict[str, Json]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(value, allow_nan=False) + "\n")
