"""The work that a host does when a wake-up comes (`runner/schema/protocol.py`).

The task is claimed over HTTP and names what the suites declare; nothing in Redis becomes code here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.host.agent import WorkerConfig, fingerprints_of
from runner.host.client import Hud, HudError, Lease, LeaseBroken, Unreachable, with_retries
from runner.host.spool import HANDED_BACK, Folder
from runner.launch.launch import Event
from runner.launch.pairs import Job, LaunchRequest, run_task
from runner.schema.compilations import checked_inductor_options, pinned_from_json
from runner.schema.protocol import Fingerprint
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.tasks import TaskOutcome
from runner.system import locks

_REPORTS_A_BEAT = 4  # a cancelled task learns it with its next report
_LONGEST_REPORT_S = 2.5
_PATIENCE_S = 10.0  # the agent delivers what is not delivered by then
_HURRY_S = 3.0  # for a call while this host stops

logger = logging.getLogger(__name__)


def work(config: WorkerConfig, stopping: Callable[[], bool]) -> None:
    """Claim and run one task after the other, until there is none or this host stops.

    The lock of the accelerator is taken before the first claim: a host that cannot run claims nothing.
    """
    hud = Hud(config.hud, config.key)
    try:
        lock_fd = locks.acquire(locks.default_folder(), config.lock, what=f"agent of {config.host}")
    except locks.Busy as error:
        logger.warning("%s", error)  # the agent reports it
        return
    except OSError as error:  # a full disk
        logger.warning("%s cannot be locked, so nothing is claimed: %s", config.name, error)
        return
    try:
        go_on = True
        while go_on and not stopping():
            fingerprints = fingerprints_of(config).look()
            lease = _claim(hud, config, fingerprints, stopping)
            go_on = lease is not None and _run(
                hud, config, lease, fingerprints, lock_fd=lock_fd, stopping=stopping
            )
    except HudError as error:
        logger.warning("%s: no task could be claimed: %s", config.name, error)
    finally:
        os.close(lock_fd)


def _claim(
    hud: Hud, config: WorkerConfig, fingerprints: Mapping[str, Fingerprint], stopping: Callable[[], bool]
) -> Lease | None:
    """Claim a task. Keep the nonce on disk until the answer arrives, so that a claim whose answer was lost is
    repeated as the same claim. Claim none where the disk is full: its results could not be kept."""
    path = Path(config.data) / "claims" / str(config.accelerator)
    nonce = uuid.uuid4().hex
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError), path.open("x") as file:
            file.write(nonce)
        nonce = path.read_text() or nonce
    except OSError as error:
        logger.warning("nothing is claimed, since the claim cannot be kept on the disk: %s", error)
        path.unlink(missing_ok=True)  # what was written of it
        return None
    lease = with_retries(
        lambda: hud.claim(config.accelerator, nonce, fingerprints), patience_s=_PATIENCE_S, stop=stopping
    )
    path.unlink(missing_ok=True)
    return lease


def _run(
    hud: Hud,
    config: WorkerConfig,
    lease: Lease,
    fingerprints: Mapping[str, Fingerprint],
    *,
    lock_fd: int,
    stopping: Callable[[], bool],
) -> bool:
    """Run a claimed task and deliver its results; return False if nothing more shall be claimed."""
    logger.info("task %s of run %s, attempt %s", lease.task, lease.run, lease.attempt)
    try:
        folder = Folder.create(Path(config.data), lease)
    except (OSError, ValueError) as error:
        logger.warning("no folder for task %s: %s", lease.task, error)
        with contextlib.suppress(HudError):
            reason = f"{config.host} cannot keep results: {error}"
            hud.finish(lease, TaskOutcome("failed", "host_error", reason))
        return False
    try:
        reporter = ProgressReporter(hud, folder)
        outcome = _launch(config, folder, lock_fd, reporter, stopping)
        if outcome.status == ProgressReporter.LOST:
            folder.refuse("its lease was broken while it ran")
            return True
        if outcome.status == HANDED_BACK:
            folder.end(TaskOutcome("not_run", HANDED_BACK, "its host stops", outcome.seconds))
            hud = Hud(config.hud, config.key, timeout_s=_HURRY_S)
        else:
            names = filter(None, (lease.python, lease.base_python))
            folder.end(fingerprints_of(config).checked(outcome, names, fingerprints, config.host))
        try:
            patience_s = 0.0 if stopping() else _PATIENCE_S
            with_retries(lambda: folder.deliver(hud), patience_s=patience_s, stop=stopping)
        except HudError as error:  # the agent delivers it later
            logger.warning("task %s stays in the spool: %s", lease.task, error)
        return not outcome.leftover
    finally:
        folder.release()


def _launch(
    config: WorkerConfig,
    folder: Folder,
    lock_fd: int,
    reporter: ProgressReporter,
    stopping: Callable[[], bool],
) -> TaskOutcome:
    lease = folder.lease
    try:
        spec = TaskSpec.from_json(lease.spec)
        options = checked_inductor_options(lease.new_options, None)  # the child knows its torch
        pinned = pinned_from_json(lease.pinned)
    except BadRequest as error:
        return TaskOutcome(
            "unsupported", "unknown_task", f"the runner of {config.host} does not know it: {error}"
        )
    unknown = sorted({lease.python, lease.base_python or lease.python} - set(config.pythons))
    if unknown:
        reason = f"{config.host} has no interpreter called {unknown[0]!r}"
        return TaskOutcome("unsupported", "unknown_python", reason)
    with reporter:
        try:
            return run_task(
                LaunchRequest(
                    Job(
                        spec,
                        lease.process,
                        lease.python,
                        lease.base_python,
                        options,
                        caches=lease.caches,
                        pinned=pinned,
                        rounds=lease.rounds,
                    ),
                    folder.path,
                    pythons=config.pythons,
                    environment={
                        "CUDA_VISIBLE_DEVICES": config.visible,
                        "RUNNER_HOST": config.host,
                        "RUNNER_CEILINGS": str(Path(config.data) / "ceilings.json"),
                    },
                    lock_fd=lock_fd,
                    on_event=reporter.note,
                    should_stop=lambda: HANDED_BACK if stopping() else reporter.stop_reason,
                    run_folder=_run_folder(config, lease.run),
                )
            )
        except OSError as error:  # the disk is full, or the machine has no process left
            return TaskOutcome("failed", "host_error", f"{config.host}: {error}")
        except Exception as error:  # a mistake of the runner, which another attempt would meet too
            logger.exception("task %s", lease.task)
            return TaskOutcome("crashed", "runner_error", f"the runner of {config.host} failed: {error!r}")


def _run_folder(config: WorkerConfig, run: int) -> Path:
    """Return the folder of the caches of a run on this accelerator; remove those of other runs."""
    own = Path(config.data) / "caches" / f"{config.accelerator}" / f"run-{run}"
    for other in own.parent.iterdir() if own.parent.exists() else ():
        if other != own:
            shutil.rmtree(other, ignore_errors=True)
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    return own


class ProgressReporter:
    """Send progress, results and the log to the HUD while a task runs.

    It has its own thread, so that a slow HUD never delays the end of a task. `stop_reason` is set if the task
    has to stop. While the HUD is unreachable the task goes on.
    """

    CANCELLED = "cancelled"
    LOST = "lost"

    def __init__(self, hud: Hud, folder: Folder) -> None:
        self._hud = hud
        self._shared = folder
        self._folder = dataclasses.replace(folder)  # this thread's own: it may outlast the task
        self._period_s = min(folder.lease.beat_s / _REPORTS_A_BEAT, _LONGEST_REPORT_S)
        self._event: Event = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._report, name="reporter", daemon=True)
        self.stop_reason = ""

    def __enter__(self) -> ProgressReporter:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop reporting; the delivery sends again what is still in flight."""
        self._done.set()
        self._thread.join(_HURRY_S)
        if not self._thread.is_alive():
            self._shared.results_offset = self._folder.results_offset
            self._shared.log_offset = self._folder.log_offset
            self._shared.refusal = self._folder.refusal

    def note(self, event: Event) -> None:
        self._event = event

    def _report(self) -> None:
        while not self._done.wait(self._period_s) and self.stop_reason != self.LOST:
            try:
                if self._hud.progress(self._folder.lease, self._event):
                    self.stop_reason = self.CANCELLED
                self._folder.send_results(self._hud)
                self._folder.send_log(self._hud)
            except LeaseBroken:  # noqa: PERF203 - the task goes on whatever a report meets
                self.stop_reason = self.LOST
            except Unreachable as error:
                logger.info("task %s goes on without the hud: %s", self._folder.lease.task, error)
            except (HudError, OSError) as error:
                logger.warning("task %s: %s", self._folder.lease.task, error)
