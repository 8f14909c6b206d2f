"""Results as a file: in our shape, PyTorch's v3 shape or the outside system's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runner import upstream
from runner.catalog import BadRequest, TaskSpec
from runner.launch import Outcome
from runner.terminal import Finished

Json = Any

FORMATS = ("ours", "v3", "upstream")


class Output:
    """A file that grows by one task at a time. `ours` is one line a task, `v3` one line a record.

    `upstream` is what the outside system itself writes (`runner/upstream`). Raises BadRequest where the
    file exists already and is not to be resumed, and for a suite that no outside system has.
    """

    def __init__(self, path: Path, form: str, *, suites: Sequence[str], resume: bool) -> None:
        if path.exists() and not resume:
            raise BadRequest(f"{path} exists; give --resume to go on with it, or another name")
        if resume and form != "ours":
            raise BadRequest("--resume reads what is done from --format ours")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._form = form
        self._writer = upstream.writer(path, suites) if form == "upstream" else None

    def done(self) -> set[str]:
        """Names of the tasks that succeeded already; a failed one is tried again."""
        return {one.name for one in self.earlier()}

    def earlier(self) -> list[Finished]:
        """The tasks that succeeded already, as they are in the file."""
        if not self._path.exists():
            return []
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [_finished(line) for line in lines if line["outcome"]["status"] == "ok"]

    def add(self, finished: Finished) -> None:
        if self._writer:
            self._writer.add(finished)
            return
        with self._path.open("a") as file:
            file.write(_lines(finished.records if self._form == "v3" else [_ours(finished)]))


def records_of(text: str) -> str:
    """A file of `--format ours` as v3 JSON lines; any other text as it is."""
    try:
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        return text
    if not all(isinstance(line, dict) and "fingerprint" in line and "records" in line for line in lines):
        return text
    return _lines(record for line in lines for record in line["records"])


def _lines(values: Iterable[Json]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def _finished(line: dict[str, Json]) -> Finished:
    outcome = Outcome(**line["outcome"])
    name = str(line.get("name", line["fingerprint"]))
    return Finished(TaskSpec(**line["task"]), outcome, Path(), line["records"], name)


def _ours(finished: Finished) -> dict[str, Json]:
    outcome = finished.outcome
    return {
        "fingerprint": finished.task.fingerprint(),
        "name": finished.name,
        "task": finished.task.to_json(),
        "outcome": {
            "status": outcome.status,
            "code": outcome.code,
            "reason": outcome.reason,
            "seconds": outcome.seconds,
        },
        "records": finished.records,
    }
