"""The disk spool: one folder for each attempt at a task, kept until the hud has all of it.

``<data>/spool/<task>-<attempt>/`` holds ``spec.json``, ``lease.json``, ``results.jsonl``, ``log``,
``artifacts/<kind>/…`` and, once the task has ended, ``outcome.json``. The process that works on a folder
holds a lock on its ``lease.json``; a folder without such a process is a left-over that the agent delivers.
A folder the hud refuses is kept as evidence in ``<data>/refused/``.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.host.client import Hud, KeyRefused, Lease, LeaseBroken, Refused, WrongOffset
from runner.launch import results
from runner.schema.suite import BadRequest, TaskSpec
from runner.suites import suite_of

KEPT_REFUSED = 20
HANDED_BACK = "handed_back"  # code of a task that is given back undone
_RESULTS_BYTES = 4 * 2**20  # in one request
_LOG_BYTES = 2**20
_LOG_BYTES_A_TURN = 4 * 2**20  # so that a flood of output does not hold up results and reports

logger = logging.getLogger(__name__)


@dataclass
class Folder:
    """One attempt's folder, and how much of it the hud has taken (as far as this process knows)."""

    path: Path
    lease: Lease
    accelerator: str
    results_offset: int = 0
    log_offset: int | None = None  # None: not known, the hud is asked
    refusal: str = ""  # why the hud does not take the results
    _lock: int = field(default=-1, repr=False)
    _said: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def create(cls, data: Path, lease: Lease, accelerator: str) -> Folder:
        """A folder for a claimed task, owned by this process. Where an earlier answer to the same claim
        made it already, that one goes on. Raises BlockingIOError where another process has it."""
        path = data / "spool" / f"{lease.task}-{lease.attempt}"
        if path.exists():
            folder = cls._existing(path)
            if folder.lease == lease:
                return folder
            folder.refuse("the same attempt was claimed again")  # after it was given back, unheard
        draft = data / "spool.new" / path.name  # moved when it is whole and owned
        draft.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(draft / "lease.json", {**dataclasses.asdict(lease), "accelerator": accelerator})
        folder = cls(draft, lease, accelerator, log_offset=0)
        folder.own()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        folder.path = draft.rename(path)
        return folder

    @classmethod
    def _existing(cls, path: Path) -> Folder:
        folder = cls.open(path)
        if not folder.own():
            raise BlockingIOError(f"{path} belongs to another process")
        return folder

    @classmethod
    def open(cls, path: Path) -> Folder:
        """A folder that is there already. Raises ValueError where it holds no lease."""
        try:
            value = json.loads((path / "lease.json").read_bytes())
            accelerator = value.pop("accelerator")
            return cls(path, Lease(**value), accelerator)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} holds no lease: {error}") from error

    def own(self) -> bool:
        """Takes the folder for this process; False where another process has it."""
        try:
            descriptor = os.open(self.path / "lease.json", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # its owner has just delivered it
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def outcome(self) -> dict[str, Any] | None:
        """Status, code, reason and seconds, or None while the task has not ended."""
        if self._said:
            return dict(self._said)
        try:
            value = json.loads((self.path / "outcome.json").read_bytes())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) and value.get("status") else None

    def end(self, status: str, code: str = "", reason: str = "", seconds: float = 0.0) -> None:
        """Keeps how the task ended; where the disk is full, in memory only."""
        self._said = {"status": status, "code": code, "reason": reason, "seconds": seconds}
        try:
            write_json(self.path / "outcome.json", self._said)
        except OSError as error:
            logger.warning("the outcome of task %s is not on the disk: %s", self.lease.task, error)

    def send_results(self, hud: Hud) -> None:
        """Delivers the complete lines that the hud has not taken yet. Raises HudError but Refused, which
        is kept in `refusal`: the same lines would be refused again."""
        path = self.path / "results.jsonl"
        while not self.refusal and path.exists():
            lines = _lines(path, self.results_offset, _RESULTS_BYTES)
            if not lines:
                return
            own = self._own(lines)
            try:
                if own:
                    hud.results(self.lease, own)
            except (LeaseBroken, KeyRefused):
                raise
            except Refused as error:
                self.refusal = f"{error} {json.dumps(error.problem.get('errors', []))[:500]}"
                logger.warning("results of task %s are refused: %s", self.lease.task, self.refusal)
                return
            self.results_offset += len(lines)

    def _own(self, lines: bytes) -> bytes:
        """Return the records among the lines; those that are none of this task say so."""
        try:
            task = TaskSpec.from_json(self.lease.spec)
        except BadRequest:
            return lines
        found = results.read(lines, task, suite_of(task.suite).expected(task, os.environ))
        return "".join(json.dumps(record) + "\n" for record in (*found.records, *found.unexpected)).encode()

    def send_log(self, hud: Hud, at_most: int = _LOG_BYTES_A_TURN) -> None:
        """Delivers what the log has gained. Raises HudError but Refused: a log is worth no failure."""
        path = self.path / "log"
        size = path.stat().st_size if path.exists() else 0
        try:
            if self.log_offset is None:
                self.log_offset = self._log_size_there(hud, size)
            end = min(size, self.log_offset + at_most)
            while self.log_offset < end:
                before = self.log_offset
                self.log_offset = self._send_piece(hud, path, before, end)
                if self.log_offset == before:  # neither taken nor contradicted: not an answer we know
                    return
        except (LeaseBroken, KeyRefused):
            raise
        except Refused as error:
            logger.warning("log of task %s is refused: %s", self.lease.task, error)

    def _send_piece(self, hud: Hud, path: Path, offset: int, end: int) -> int:
        """Sends up to 1 MiB; returns where the log ends there now."""
        with path.open("rb") as file:
            file.seek(offset)
            piece = file.read(min(_LOG_BYTES, end - offset))
        try:
            return hud.log(self.lease, offset, piece)
        except WrongOffset as error:
            return error.size_bytes

    def _log_size_there(self, hud: Hud, size: int) -> int:
        """Asks with an empty piece at our end: either that is where the log ends, or the hud says where."""
        try:
            return hud.log(self.lease, size, b"")
        except WrongOffset as error:
            return error.size_bytes

    def send_artifacts(self, hud: Hud) -> None:
        """Delivers every artifact; one the hud does not take is left out. Raises HudError but Refused."""
        for path in sorted((self.path / "artifacts").glob("*/*")):
            self._send_artifact(hud, path)

    def _send_artifact(self, hud: Hud, path: Path) -> None:
        try:
            hud.artifact(self.lease, path.parent.name, path.read_bytes())
        except (LeaseBroken, KeyRefused):
            raise
        except Refused as error:
            logger.warning("artifact %s of task %s is refused: %s", path.name, self.lease.task, error)

    def deliver(self, hud: Hud) -> None:
        """Brings everything home and removes the folder; call it for an owned folder that has an outcome.

        Each step may be repeated, so it does not matter how far an earlier call came. Where the lease is
        broken the folder moves to refused/. Raises Unreachable or KeyRefused, and keeps the folder then.
        """
        outcome = self.outcome
        assert outcome is not None
        try:
            if outcome.get("code") != HANDED_BACK:
                self.send_results(hud)
                self.send_log(hud, at_most=2**40)
                self.send_artifacts(hud)
            if self.refusal and outcome["status"] == "ok":
                outcome.update(status="failed", code="results_refused", reason=self.refusal)
            hud.finish(
                self.lease,
                str(outcome["status"]),
                str(outcome.get("code", ""))[:100],
                str(outcome.get("reason", ""))[:1000],
                float(outcome.get("seconds", 0.0)),
            )
        except KeyRefused:
            raise
        except Refused as error:
            self.refuse(str(error))
        else:
            self.release()
            shutil.rmtree(self.path)

    def refuse(self, why: str) -> None:
        """Moves the folder to refused/, where the newest `KEPT_REFUSED` stay."""
        logger.warning("the hud takes nothing more of task %s: %s", self.lease.task, why)
        refused = self.path.parent.parent / "refused"
        refused.mkdir(mode=0o700, exist_ok=True)
        write_json(self.path / "refused.json", {"reason": why})
        shutil.rmtree(refused / self.path.name, ignore_errors=True)
        self.path.rename(refused / self.path.name)
        self.release()
        oldest_first = sorted(refused.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in oldest_first[:-KEPT_REFUSED]:
            shutil.rmtree(path, ignore_errors=True)


def left_over(data: Path, accelerator: str | None = None) -> list[Folder]:
    """Folders that no process works on, now owned by this one: deliver or `release` them."""
    spool = data / "spool"
    found = []
    for path in sorted(spool.iterdir()) if spool.exists() else []:
        try:
            folder = Folder.open(path)
        except ValueError:  # delivered this moment
            continue
        if accelerator in {None, folder.accelerator} and folder.own():
            found.append(folder)
    return found


def write_json(path: Path, value: Any) -> None:
    """Writes a file that only its owner may read, complete or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(value))
    draft.replace(path)


def _lines(path: Path, offset: int, at_most: int) -> bytes:
    """Complete lines from `offset`, `at_most` bytes of them, but at least one."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(at_most)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == at_most:
            data += file.readline()
            end = data.rfind(b"\n") + 1
    return data[:end]
