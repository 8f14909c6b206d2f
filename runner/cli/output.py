"""Results as a file: in our shape, PyTorch's v3 shape or the outside system's own."""

import contextlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from runner.formats import writer_of
from runner.schema.records import UNEXPECTED, Json
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import TaskOutcome, TaskResult

FORMATS = ("ours", "v3", "upstream")
_OURS_BEGINS = '{"fingerprint": '


class Output:
    """A file that grows by one task at a time: `ours` has a line for each task, `v3` one for each record, and
    `upstream` is what the outside system itself writes (`runner/formats`). Artifacts stand beside the file.

    Raise BadRequest if the file cannot be written or exists already and is not to be resumed, and for a suite
    that no outside system has. Nothing is written before the first task.
    """

    def __init__(
        self, path: Path, form: str, *, suites: Sequence[str], resume: bool, dry_run: bool = False
    ) -> None:
        if path.exists() and not resume and not dry_run:
            further = "--resume to go on with it, or " if form == "ours" else ""
            raise BadRequest(f"{path} exists; give {further}another name")
        if resume and form != "ours":
            raise BadRequest("--resume reads what is done from --format ours")
        _check_writable(path, path)
        self._path = path
        self._form = form
        self._dry_run = dry_run
        self._system = writer_of(suites)(path) if form == "upstream" else None
        self._added = 0
        self._left_out: Counter[str] = Counter()  # of tasks that are not in the file, by reason
        self.artifacts: set[Path] = set()  # folders that hold some

    def check(self, tasks: Sequence[TaskSpec]) -> str:
        """Return a message that counts the launches that the outside system's file cannot hold, or ''.

        Raise BadRequest if it can hold none of them, if launches would have one place in it, or if a file
        that it writes exists already or cannot be written.
        """
        if self._system is None:
            return ""
        held = [task for task in tasks if not self._system.unsupported_reason(task)]
        reasons = Counter(filter(None, map(self._system.unsupported_reason, tasks)))
        have = "has" if len(tasks) == 1 else "have"
        text = _share(reasons, len(tasks), f"{have} no place in {self._system.name}'s file")
        if not held:
            raise BadRequest(f"--format upstream: {text}")
        self._system.check_places(held)
        for path in sorted(self._system.files(held)):
            if path.exists() and not self._dry_run:
                what_to_do = "give another folder or name for --output"
                raise BadRequest(f"{path} exists, and --format upstream writes it; {what_to_do}")
            _check_writable(path, self._path)
        return text

    def left_out(self) -> str:
        """Return how many of the tasks that ended are not in the file, and why; '' where all are."""
        return _share(self._left_out, self._added, f"left nothing in {self._path}")

    @property
    def empty(self) -> bool:
        """Return whether tasks ended and none of them is in the file."""
        return 0 < self._added == self._left_out.total()

    def earlier(self) -> list[TaskResult]:
        """Return the tasks of the file that succeeded; a failed one is tried again, and so is that of the
        half line that a killed command left at the end, which is cut off.

        Raise BadRequest for a file that is not of `--format ours`.
        """
        if not self._path.exists():
            return []
        other = f"{self._path} is no file of --format ours, which --resume goes on with"
        try:
            text, newline, torn = self._path.read_text().rpartition("\n")
            is_torn = torn.startswith(_OURS_BEGINS)
            lines = [json.loads(line) for line in (text if is_torn else text + newline + torn).splitlines()]
        except ValueError as error:
            raise BadRequest(other) from error
        parts = {"fingerprint", "outcome", "records"}
        if not all(isinstance(line, dict) and parts <= set(line) for line in lines):
            raise BadRequest(other)
        if is_torn and not self._dry_run:
            os.truncate(self._path, len((text + newline).encode()))
        return [_from_json(line) for line in lines if line["outcome"]["status"] == "ok"]

    def add(self, result: TaskResult) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._added += 1
        reason = self._system.unsupported_reason(result.task) if self._system else ""
        if reason or not self._write(result):
            outcome = result.outcome
            end = "" if outcome.status == "ok" else f"{outcome.status} {outcome.code}".strip()
            self._left_out[reason or end or "nothing was measured that it has a place for"] += 1
        if result.artifacts():
            beside = self._path.with_name(f"{self._path.name}.artifacts")  # another file may have the stem
            folder = beside / result.name.replace("/", "-")
            shutil.rmtree(folder, ignore_errors=True)  # of a try that failed
            beside.mkdir(exist_ok=True)
            shutil.move(result.folder / "artifacts", folder)
            self.artifacts.add(beside)
        inner = sorted((result.folder / "artifacts").rglob("*"), reverse=True)
        for path in (*inner, result.folder / "artifacts", result.folder):
            with contextlib.suppress(OSError):  # a folder with a log stays
                path.rmdir()

    def _write(self, result: TaskResult) -> bool:
        """Return whether the file has something of the task."""
        if self._system:
            before = result.artifacts()
            files = self._system.add(result)
            if len(result.artifacts()) < len(before):
                self.artifacts.add(files[0].parent)  # as the system itself names them
            return bool(files)
        lines = records = [*result.records, *result.unexpected]
        if self._form == "ours":
            names = {"fingerprint": result.task.fingerprint(), "name": result.name}
            ended = {"task": result.task.to_json(), "outcome": result.outcome.to_json()}
            lines = [{**names, **ended, "records": records}]
        if lines:
            with self._path.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        return bool(lines)


def _check_writable(path: Path, output: Path) -> None:
    """Raise BadRequest if a file of this --output cannot be written. Leave nothing behind."""
    try:
        if path.exists():
            path.open("a").close()
            return
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        where = "" if path == output else f"{path}: "
        raise BadRequest(f"--output {output} cannot be written: {where}{error.strerror}") from error


def _share(reasons: Counter[str], total: int, verb: str) -> str:
    """Return a sentence with the reasons of some of all tasks, '' without any."""
    if not reasons:
        return ""
    share = "the task" if total == 1 else f"{reasons.total()} of {total} tasks"
    counts = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
    return f"{share} {verb}: {counts}"


def read_records(path: Path, option: str) -> list[dict[str, Json]]:
    """Return the v3 records of an earlier output. Raise BadRequest for a file without any."""
    try:
        return v3_records(path.read_text())
    except (OSError, ValueError) as error:
        raise BadRequest(f"{option} {path}: {error}") from error


def v3_records(text: str) -> list[dict[str, Json]]:
    """Return the records of a JSON list, an object, lines of them, or `--format ours`. Raise ValueError for
    anything else."""
    try:
        values = [json.loads(text)]
    except ValueError:
        values = [json.loads(line) for line in text.splitlines() if line.strip()]
    records: list[Json] = []
    for value in values:
        if isinstance(value, dict) and "fingerprint" in value and isinstance(value.get("records"), list):
            records += value["records"]
        else:
            records += value if isinstance(value, list) else [value]
    if not all(isinstance(record, dict) and {"benchmark", "model"} <= set(record) for record in records):
        raise ValueError("it holds no records")
    return records


def _from_json(line: dict[str, Json]) -> TaskResult:
    records: dict[bool, list[dict[str, Json]]] = {False: [], True: []}
    for record in line["records"]:
        records[UNEXPECTED in ((record.get("metric") or {}).get("extra_info") or {})].append(record)
    task, outcome = TaskSpec(**line["task"]), TaskOutcome(**line["outcome"])
    name = str(line.get("name", line["fingerprint"]))
    return TaskResult(task, outcome, Path(), records[False], name, records[True])
