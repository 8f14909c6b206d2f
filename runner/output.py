"""Results as a file: in our shape, PyTorch's v3 shape or the outside system's own."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runner import upstream
from runner.catalog import BadRequest, TaskSpec, missing
from runner.records import UNEXPECTED
from runner.task_result import TaskOutcome, TaskResult, artifacts_in

Json = Any

FORMATS = ("ours", "v3", "upstream")
_OURS_BEGINS = '{"fingerprint": '


class Output:
    """A file that grows by one task at a time. `ours` is one line a task, `v3` one line a record.

    `upstream` is what the outside system itself writes (`runner/upstream`). Artifacts of the tasks stand
    beside the file. Raises BadRequest where the file cannot be written or exists already and is not to be
    resumed, and for a suite that no outside system has. Nothing is written before the first task.
    """

    def __init__(
        self, path: Path, form: str, *, suites: Sequence[str], resume: bool, dry_run: bool = False
    ) -> None:
        if path.exists() and not resume and not dry_run:
            further = "--resume to go on with it, or " if form == "ours" else ""
            raise BadRequest(f"{path} exists; give {further}another name")
        if resume and form != "ours":
            raise BadRequest("--resume reads what is done from --format ours")
        _check_writable(path)
        if resume and not dry_run:
            _without_torn_line(path)
        self._path = path
        self._form = form
        self._dry_run = dry_run
        self._system = upstream.system_of(suites) if form == "upstream" else None
        self._writer = self._system.writer(path) if self._system else None
        self._added = 0
        self._left_out: Counter[str] = Counter()  # of tasks that are not in the file, by reason
        self.artifacts: set[Path] = set()  # folders that hold some

    def _no_place(self, tasks: Sequence[TaskSpec]) -> str:
        """What can be told before of those of these tasks that the outside system's file cannot hold, ''
        where it can hold all. Raises BadRequest where it can hold none."""
        if self._system is None:
            return ""
        reasons = Counter(filter(None, map(self._system.no_place, tasks)))
        count = reasons.total()
        if not count:
            return ""
        have = "has" if len(tasks) == 1 else "have"
        share = _share(count, len(tasks))
        text = f"{share} {have} no place in {self._system.name}'s file: {_words(reasons)}"
        if count == len(tasks):
            raise BadRequest(f"--format upstream: {text}")
        return text

    def check(self, tasks: Sequence[TaskSpec]) -> str:
        """To be told of every launch before the first, of a task as often as it is launched. Answers as
        `_no_place` does. Raises BadRequest, too, where launches would have one place in the outside system's
        file, or a file that it writes is there already or cannot be written."""
        if self._system is None:
            return ""
        said = self._no_place(tasks)
        held = [task for task in tasks if not self._system.no_place(task)]
        self._system.check_places(held)
        for path in sorted(self._system.files(self._path, held)):
            if path.exists() and not self._dry_run:
                what_to_do = "give another folder or name for --output"
                raise BadRequest(f"{path} exists, and --format upstream writes it; {what_to_do}")
            _check_place(path, self._path)
        return said

    def left_out(self) -> str:
        """How many of the tasks that ended are not in the file, and why; '' where all are."""
        count = self._left_out.total()
        if not count:
            return ""
        return f"{_share(count, self._added)} left nothing in {self._path}: {_words(self._left_out)}"

    @property
    def empty(self) -> bool:
        """Tasks ended, and none of them is in the file."""
        return 0 < self._added == self._left_out.total()

    def done(self) -> set[str]:
        """Names of the tasks that succeeded already; a failed one is tried again."""
        return {one.name for one in self.earlier()}

    def earlier(self) -> list[TaskResult]:
        """The tasks that succeeded already, as they are in the file."""
        if not self._path.exists():
            return []
        lines = _read_lines(self._path)
        return [_finished(line) for line in lines if line["outcome"]["status"] == "ok"]

    def add(self, finished: TaskResult) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._added += 1
        if not self._write(finished):
            self._left_out[self._why_left_out(finished)] += 1
        self._keep_artifacts(finished)

    def _write(self, finished: TaskResult) -> bool:
        if self._writer:
            held = artifacts_in(finished.folder)
            files = self._writer.add(finished)
            if len(artifacts_in(finished.folder)) < len(held):
                self.artifacts.add(files[0].parent)  # as the system itself names them
            return bool(files)
        kept = [*finished.records, *finished.unexpected]
        lines = _lines(kept if self._form == "v3" else [_ours(finished)])
        if lines:
            with self._path.open("a") as file:
                file.write(lines)
        return bool(lines)

    def _why_left_out(self, finished: TaskResult) -> str:
        known = self._system.no_place(finished.task) if self._system else ""
        outcome = finished.outcome
        words = "" if outcome.status == "ok" else " ".join(filter(None, (outcome.status, outcome.code)))
        return known or words or "nothing was measured that it has a place for"

    def _keep_artifacts(self, finished: TaskResult) -> None:
        """A folder for each task, beside the file."""
        if not artifacts_in(finished.folder):
            _remove_empty(finished.folder)
            return
        beside = _beside(self._path)
        folder = beside / finished.name.replace("/", "-")
        shutil.rmtree(folder, ignore_errors=True)  # of a try that failed
        beside.mkdir(exist_ok=True)
        shutil.move(finished.folder / "artifacts", folder)
        _remove_empty(finished.folder)
        self.artifacts.add(beside)


def _remove_empty(folder: Path) -> None:
    """What is left of a task's folder once its artifacts are elsewhere; one with a log stays."""
    inner = sorted((folder / "artifacts").rglob("*"), reverse=True)
    for path in (*inner, folder / "artifacts", folder):
        with contextlib.suppress(OSError):
            path.rmdir()


def _beside(path: Path) -> Path:
    """The folder of its tasks' artifacts: not that of another file with the same stem."""
    return path.with_name(f"{path.name}.artifacts")


def _read_lines(path: Path) -> list[dict[str, Json]]:
    """Raises BadRequest for a file that is not of `--format ours`."""
    other = f"{path} is no file of --format ours, which --resume goes on with"
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except ValueError as error:
        raise BadRequest(other) from error
    if not all(
        isinstance(line, dict) and {"fingerprint", "outcome", "records"} <= set(line) for line in lines
    ):
        raise BadRequest(other)
    return lines


def _without_torn_line(path: Path) -> None:
    """Takes away what a killed command left of its last line: that task is measured again. Any other file
    stays as it is."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if data[whole:].startswith(_OURS_BEGINS.encode()):
        with path.open("r+b") as file:
            file.truncate(whole)


def _check_writable(path: Path) -> None:
    """Leaves nothing behind. Raises BadRequest."""
    beside = _beside(path)
    if beside.exists() and not beside.is_dir():
        raise BadRequest(f"--output {path}: {beside} is to be the folder of its artifacts, and is a file")
    _check_place(path, path)


def _check_place(path: Path, output: Path) -> None:
    """Of a file that is written for this --output. Raises BadRequest."""
    try:
        if path.exists():
            path.open("a").close()
            return
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        where = "" if path == output else f"{path}: "
        raise BadRequest(f"--output {output} cannot be written: {where}{error.strerror}") from error


def _share(count: int, total: int) -> str:
    return "the task" if total == 1 else f"{count} of {total} tasks"


def _words(reasons: Counter[str]) -> str:
    return "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common())


def records_of(text: str) -> str:
    """A file of `--format ours` as v3 JSON lines; any other text as it is."""
    try:
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        return text
    if not all(isinstance(line, dict) and "fingerprint" in line and "records" in line for line in lines):
        return text
    return _lines(record for line in lines for record in _whole(line))


def _whole(line: dict[str, Json]) -> list[dict[str, Json]]:
    """Where nobody can say what is missing, what is there."""
    try:
        return missing.whole(line)
    except BadRequest:
        return list(line["records"])


def _lines(values: Iterable[Json]) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def _finished(line: dict[str, Json]) -> TaskResult:
    outcome = TaskOutcome(**line["outcome"])
    name = str(line.get("name", line["fingerprint"]))
    records: list[dict[str, Json]] = []
    unexpected: list[dict[str, Json]] = []
    for record in line["records"]:
        marked = UNEXPECTED in ((record.get("metric") or {}).get("extra_info") or {})
        (unexpected if marked else records).append(record)
    return TaskResult(TaskSpec(**line["task"]), outcome, Path(), records, name, unexpected)


def _ours(finished: TaskResult) -> dict[str, Json]:
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
        "records": [*finished.records, *finished.unexpected],
        missing.COMPLETE: bool(finished.records),  # what was missing, its launch has added
    }
