"""The disk spool: one folder for each attempt at a task, kept until the HUD has all of it.

``<data>/spool/<task>-<attempt>/`` holds ``spec.json``, ``lease.json``, ``results.jsonl``, ``log``,
``artifacts/<kind>/…`` and, once the task has ended, ``outcome.json``. The process that works on a folder
holds a lock on its ``lease.json``; a folder without such a process is a leftover that the agent delivers.
A folder that the HUD refuses is kept as evidence in ``<data>/refused/``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from runner.client.connection import KeyRefused, Refused
from runner.formats import reasons
from runner.host.client import Hud, Lease, LeaseBroken, WrongOffset
from runner.launch import results
from runner.schema.suite import TaskSpec
from runner.schema.tasks import TaskOutcome
from runner.suites import suite_of
from runner.system import account, task_files
from runner.system.task_files import MAX_RESULTS_BYTES, open_file, read_object, write_json

KEPT_REFUSED = 20
HANDED_BACK = "handed_back"  # the code of a task that is given back undone
_RESULTS_BYTES = 4 * 2**20  # in one request
_LOG_BYTES = 2**20
_MAX_ARTIFACTS = 1000
_MAX_ARTIFACT_BYTES = 64 * 2**20  # as the HUD takes
_LOG_BYTES_A_TURN = 4 * 2**20  # so that a flood of output does not hold up results and reports

logger = logging.getLogger(__name__)


@dataclass
class Folder:
    """The folder of one attempt, and how much of it the HUD has."""

    path: Path
    lease: Lease
    results_offset: int = 0
    log_offset: int = 0  # a piece may be sent again: the HUD says where its log ends
    refusal: str = ""  # why the HUD does not take the results
    _lock: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)
    _outcome: TaskOutcome | None = field(default=None, repr=False)

    @classmethod
    def create(cls, data: Path, lease: Lease) -> Folder:
        """Create the folder of a claimed task, owned by this process, or go on with the one that an earlier
        answer to the same claim made. Raise BlockingIOError if another process owns it."""
        path = data / "spool" / f"{lease.task}-{lease.attempt}"
        if path.exists():
            folder = cls.open(path)
            if not folder.own():
                raise BlockingIOError(f"{path} belongs to another process")
            if folder.lease == lease:
                return folder
            folder.refuse("the same attempt was claimed again")  # its return did not reach the HUD
        draft = data / "spool.new" / path.name  # moved when it is complete and owned
        draft.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(draft / "lease.json", dataclasses.asdict(lease))
        folder = cls(draft, lease)
        folder.own()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        folder.path = draft.rename(path)
        return folder

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open an existing folder. Raise ValueError if it holds no lease."""
        try:
            value = read_object(path / "lease.json")
            value.pop("accelerator", None)  # of an earlier release
            return cls(path, Lease(**value))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} holds no lease: {error}") from error

    def own(self) -> bool:
        """Lock the folder for this process; return False if another process has it."""
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open_file(self.path / "lease.json"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:  # also where its owner has just delivered it
                return False
            self._lock = stack.pop_all()
        return True

    def release(self) -> None:
        self._lock.close()

    @property
    def outcome(self) -> TaskOutcome | None:
        """Return how the task ended, or None while it has not."""
        if self._outcome:
            return self._outcome
        try:
            end = TaskOutcome.from_json(read_object(self.path / "outcome.json"))
        except (OSError, ValueError, TypeError):
            return None
        return end if end.status else None

    def end(self, outcome: TaskOutcome) -> None:
        """Store how the task ended; if the disk is full, in memory only."""
        self._outcome = outcome
        try:
            write_json(self.path / "outcome.json", outcome.to_json())
        except OSError as error:
            logger.warning("the outcome of task %s is not on the disk: %s", self.lease.task, error)

    def send_results(self, hud: Hud) -> None:
        """Deliver the complete lines that the HUD has not taken yet. Raise HudError except Refused, which is
        kept in `refusal`: the same lines would be refused again."""
        while lines := self._next_lines():
            records = self._marked(lines)
            try:
                receipt = hud.results(self.lease, records) if records else {}
            except (LeaseBroken, KeyRefused):
                raise
            except Refused as error:
                self._note_refusal(f"{error} {json.dumps(error.problem.get('errors', []))[:500]}")
            else:
                skipped = [str(item.get("reason")) for item in receipt.get("skipped", [])]
                refused = [reason for reason in skipped if reason.startswith(reasons.OTHER_TASK)]
                if refused:
                    self._note_refusal(f"{len(refused)} results: {refused[0]}")
            self.results_offset += len(lines)

    def _next_lines(self) -> bytes:
        """Return the next complete lines, b"" for none yet: up to 4 MiB, but at least one line, or a part of
        one that is too long to be a record."""
        left = max(0, MAX_RESULTS_BYTES - self.results_offset)
        try:
            with open_file(self.path / "results.jsonl") as file:
                file.seek(self.results_offset)
                data = file.read(min(_RESULTS_BYTES, left))
                if b"\n" not in data:
                    data += file.readline(min(results.MAX_LINE_BYTES, left - len(data)))
        except FileNotFoundError:
            return b""
        except OSError as error:
            self._note_refusal(f"results.jsonl cannot be read: {error.strerror}")
            return b""
        end = data.rfind(b"\n") + 1
        return data[:end] if end or len(data) < results.MAX_LINE_BYTES else data

    def _note_refusal(self, why: str) -> None:
        if not self.refusal:
            logger.warning("results of task %s are refused: %s", self.lease.task, why)
            self.refusal = why

    def _marked(self, lines: bytes) -> bytes:
        """Return the records among the lines; those that do not belong to this task are marked."""
        task = TaskSpec.from_json(self.lease.spec)
        found = results.read(lines, task, suite_of(task.suite).expected(task, os.environ))
        return "".join(json.dumps(record) + "\n" for record in (*found.records, *found.unexpected)).encode()

    def send_log(self, hud: Hud, at_most: int = _LOG_BYTES_A_TURN) -> None:
        """Deliver the new part of the log. Raise HudError except Refused: a log is worth no failure."""
        path = self.path / "log"
        try:
            end = min(path.lstat().st_size if path.exists() else 0, self.log_offset + at_most)
            before = -1
            while self.log_offset < end and self.log_offset != before:  # else it is neither taken nor refused
                before = self.log_offset
                with open_file(path) as file:
                    file.seek(before)
                    piece = file.read(min(_LOG_BYTES, end - before))
                try:
                    self.log_offset = hud.log(self.lease, before, piece)
                except WrongOffset as error:
                    self.log_offset = int(error.problem.get("size", 0))
        except (LeaseBroken, KeyRefused):
            raise
        except (Refused, OSError) as error:
            logger.warning("log of task %s is refused: %s", self.lease.task, error)

    def send_artifacts(self, hud: Hud) -> None:
        """Deliver every artifact; one that the HUD refuses, or that is no regular file of the folder, is left
        out. Raise HudError except Refused."""
        for path in task_files.artifacts_in(self.path)[:_MAX_ARTIFACTS]:
            try:
                content = task_files.read_file(path, _MAX_ARTIFACT_BYTES)
                hud.artifact(self.lease, path.parent.name, content)
            except (LeaseBroken, KeyRefused):  # noqa: PERF203 - few artifacts, and each may be refused
                raise
            except (Refused, OSError) as error:
                logger.warning("artifact %s of task %s is refused: %s", path.name, self.lease.task, error)

    def deliver(self, hud: Hud) -> None:
        """Deliver everything and remove the folder; call it for an owned folder that has an outcome.

        Each step may be repeated, so it does not matter how far an earlier call came. If the lease is broken
        the folder moves to refused/. Raise Unreachable or KeyRefused, and keep the folder then.
        """
        outcome = self.outcome
        assert outcome is not None
        try:
            if outcome.code != HANDED_BACK:
                self.send_results(hud)
                self.send_log(hud, at_most=2**40)
                self.send_artifacts(hud)
            if self.refusal and outcome.status == "ok":
                refused = ("failed", "results_refused", self.refusal)
                outcome = TaskOutcome(*refused, outcome.seconds)
            hud.finish(self.lease, outcome)
        except KeyRefused:
            raise
        except Refused as error:
            self.refuse(str(error))
        else:
            self.release()
            account.remove(self.path)

    def refuse(self, why: str) -> None:
        """Move the folder to refused/, where the newest `KEPT_REFUSED` stay."""
        logger.warning("the hud takes nothing more of task %s: %s", self.lease.task, why)
        refused = self.path.parent.parent / "refused"
        refused.mkdir(mode=0o700, exist_ok=True)
        write_json(self.path / "refused.json", {"reason": why})
        account.remove(refused / self.path.name)
        self.path.rename(refused / self.path.name)
        self.release()
        oldest_first = sorted(refused.iterdir(), key=lambda path: path.stat().st_mtime)
        account.remove(*oldest_first[:-KEPT_REFUSED])


def left_over(data: Path) -> list[Folder]:
    """Return the folders that no process works on, now owned by this one: deliver or `release` them."""
    spool = data / "spool"
    found = []
    for path in sorted(spool.iterdir()) if spool.exists() else []:
        try:
            folder = Folder.open(path)
        except ValueError:  # just delivered
            continue
        if folder.own():
            if path.stat().st_mode & 0o070:  # its worker was killed
                account.take_back(path)
            found.append(folder)
    return found
