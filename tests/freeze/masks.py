"""Replace what differs between two recordings of the same behaviour."""

from __future__ import annotations

import csv
import io
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\d{4}-\d\d-\d\dT\d\d%3A\d\d%3A\d\d(?:\.\d+)?(?:Z|%2B\d\d%3A\d\d)?"
)
_UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|\b[0-9a-f]{32}\b")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")
_ROW = re.compile(r"/(experiments|runs)/(\d+)")
_KINDS = {
    "experiment": "experiment",
    "experiment_id": "experiment",
    "run": "run",
    "run_id": "run",
    "run_ids": "run",
    "retry_of": "run",
    "upload": "upload",
}
_SIGNS = {"stored": "upload", "knobs": "experiment"}  # what a row has whose `id` is of this kind
_LIVE = {"last_beat", "clock_skew_s", "eta_s", "starts_in_s", "last_used", "prefix", "next", "cursor"}


@dataclass
class Masks:
    """Names that stand for ids, and texts that stand for what belongs to this recording."""

    experiments: dict[int, str] = field(default_factory=dict)
    runs: dict[int, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    since: datetime = field(default_factory=lambda: datetime.now(UTC) - timedelta(hours=2))

    def value(self, value: Any, key: str = "") -> Any:
        """Mask what JSON can hold; `key` is the name under which it was found."""
        if isinstance(value, dict):
            kind = next((kind for sign, kind in _SIGNS.items() if sign in value), "")
            named = {"id": self._row(kind, value["id"])} if kind and isinstance(value.get("id"), int) else {}
            return {self.text(name): self.value(item, name) for name, item in (value | named).items()}
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        if key in _LIVE and value is not None:
            return "#"
        if isinstance(value, str):
            return self.text(value)
        if key in _KINDS and isinstance(value, int):
            return self._row(_KINDS[key], value)
        late = key == "timestamp" and isinstance(value, float) and value >= self.since.timestamp()
        return "<now>" if late else value

    def text(self, text: str) -> str:
        for own, stands_for in self.texts.items():
            text = text.replace(own, stands_for)
        text = re.sub(rf"(?<![\w-]){re.escape(platform.node())}(?![\w-])", "<host>", text)
        text = re.sub(r"hud_[\w-]{43}", "<secret>", text)
        text = _ROW.sub(lambda found: f"/{found[1]}/{self._row(found[1].rstrip('s'), int(found[2]))}", text)
        return _TIME.sub(self._time, _UUID.sub("<uuid>", text))

    def csv(self, text: str) -> str:
        """Mask each cell by the name of its column."""
        rows = list(csv.reader(io.StringIO(text)))
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for row in rows[:1]:
            writer.writerow(row)
        for row in rows[1:]:
            writer.writerow([self._cell(cell, name) for cell, name in zip(row, rows[0], strict=False)])
        return out.getvalue()

    def _cell(self, cell: str, name: str) -> str:
        return str(self.value(int(cell) if name in _KINDS and cell.isdecimal() else cell, name))

    def _row(self, kind: str, number: int) -> str:
        known = {"experiment": self.experiments, "run": self.runs}.get(kind, {})
        return known.get(number, f"<{kind}>")

    def _time(self, found: re.Match[str]) -> str:
        text = found[0].replace("%3A", ":").replace("%2B", "+").replace("Z", "+00:00")
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return "<now>" if self.since < at < self.since + timedelta(days=2) else found[0]


def without_numbers(text: str) -> str:
    """Mask every number that stands alone: what was measured, and how long that took."""
    return _NUMBER.sub("#", text)


def slug(item: Mapping[str, Any]) -> str:
    """A name for an experiment that can stand in a path."""
    knobs = ",".join(f"{name}={value}" for name, value in sorted(item["knobs"].items()))
    parts = [item["suite"], item["case"], knobs, item["mode"], item["dtype"], item["backend"]]
    parts += [item["device"], item["arch"], "dynamic" if item["dynamic"] else ""]
    return re.sub(r"[^\w.=,+~-]+", "_", "~".join(parts))


@dataclass(frozen=True)
class Recording:
    """The folder of one recording."""

    folder: Path

    def write(self, name: str, content: Any) -> None:
        """Write one thing: a text as it is, anything else as JSON. Long names are cut, as files need it."""
        parts = [part if len(part) <= 200 else f"{part[:150]}…{part[-40:]}" for part in name.split("/")]
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content.rstrip()}\n" if isinstance(content, str) else as_json(content))


def as_json(content: Any) -> str:
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
