"""The RQ worker of one accelerator: `python -m runner.host.worker CONFIG_FILE`, started by the agent.

It waits for wake-ups in Redis (`runner/schema/protocol.py`), and answers each with `work`: the task is
claimed over HTTP and names what the suites declare; nothing in Redis becomes code here. Benchmarks are
processes of their own. Redis may stop, restart or lose everything at any time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import logging
import os
import sys
import threading
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import rq.job
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import Queue, SimpleWorker
from rq.exceptions import NoSuchJobError, StopRequested
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from runner.client.connection import HudError, Unreachable, with_retries
from runner.host.agent import WorkerConfig
from runner.host.client import Hud, Lease, LeaseBroken
from runner.host.overlays import NoOverlay, with_overlay
from runner.host.spool import HANDED_BACK, Folder
from runner.launch.jobs import Job, LaunchRequest
from runner.launch.launch import Event
from runner.launch.pairs import run_task
from runner.schema.compilations import checked_inductor_options, pinned_from_json
from runner.schema.protocol import FUNCTION, Fingerprint, digest_of, overlay_of, sign
from runner.schema.suite import BadRequest, TaskSpec, suite_of
from runner.schema.tasks import TaskOutcome
from runner.system import account, locks, sandbox
from runner.system.interpreters import Fingerprints, Interpreter

_CONNECT_S = 5
_LISTEN_S = 10  # Redis answers a waiting worker at least this often
_RECONNECT_S = 1.0
_LONGEST_S = 24 * 3600  # RQ's pages list a busy worker for so long
_CALL_BYTES = 4096  # at most, compressed
_CACHED_RUNS = 8  # whose caches an accelerator keeps
_REMEMBERED = 1000  # wake-ups that were answered, which are not answered again
_REPORTS_A_BEAT = 4  # a cancelled task learns it with its next report
_PATIENCE_S = 10.0  # the agent delivers what is not delivered by then
_HURRY_S = 3.0  # for a call while this host stops

logger = logging.getLogger(__name__)


class WakeUp(rq.job.Job):
    """An RQ job that is read no further than its call, which RQ's own would import with its callbacks."""

    def refresh(self) -> None:
        """Read the call, of which `_CALL_BYTES` inflate to 4 MiB at most. Raise NoSuchJobError for none."""
        if not 0 < self.connection.hstrlen(self.key, "data") <= _CALL_BYTES:
            raise NoSuchJobError(f"job {self.id!r} is no wake-up")
        data = self.connection.hget(self.key, "data") or b""
        self.restore({b"data": data[:_CALL_BYTES]})

    def is_signed(self, key_digest: str, queue: str) -> bool:
        """Return whether the call is `FUNCTION` with one argument, which the job's id signs."""
        try:
            function, instance, (argument,), named = json.loads(self.data)
        except (ValueError, TypeError, RecursionError):
            return False
        signed = sign(self.id.rpartition("-")[0], str(argument), key_digest=key_digest, queue=queue)
        same = hmac.compare_digest(self.id.encode(), signed.encode())
        return same and function == FUNCTION and instance is None and not named


class AcceleratorWorker(SimpleWorker):
    """Answer the wake-ups of one accelerator, one at a time."""

    max_connection_wait_time = 2.0  # RQ would wait up to a minute before it looks for Redis again

    def __init__(self, config: WorkerConfig, stopping: threading.Event) -> None:
        super().__init__(
            [config.queue],
            name=f"{config.queue}-{uuid.uuid4().hex}",  # its Redis user may touch only names that begin so
            connection=Redis.from_url(
                config.redis_url, socket_connect_timeout=_CONNECT_S, retry=Retry(NoBackoff(), 0)
            ),
            job_class=WakeUp,
            serializer=JSONSerializer,
            worker_ttl=_LISTEN_S + 15,  # RQ listens for 15 s less
            log_job_description=False,
        )
        # in RQ's list of all workers, which hosts share, one could keep the others from registering
        self.redis_workers_keys = WORKERS_BY_QUEUE_KEY % config.queue
        self._config = config
        self._key_digest = digest_of(config.host.key)
        self._answered: deque[str] = deque(maxlen=_REMEMBERED)
        self._stopping = stopping

    def execute_job(self, job: WakeUp, queue: Queue) -> None:
        """Work until there is no task left. Only Redis knew of the job, and forgets it now: to register it as
        RQ's own worker does, each host would need eighteen commands more."""
        self.connection.delete(queue.intermediate_queue_key, job.key)
        if job.id in self._answered or not job.is_signed(self._key_digest, self._config.queue):
            logger.warning("a message in %s is no wake-up of the hud and was thrown away", queue.name)
            return
        self._answered.append(job.id)
        try:
            self.set_state(WorkerStatus.BUSY)
            self.heartbeat(_LONGEST_S)
            work(self._config, self._stopping.is_set)
        finally:
            self.set_state(WorkerStatus.IDLE)

    def request_stop(self, *_signal: Any) -> None:
        """Handle SIGTERM: `work` gives its task back and ends, then RQ leaves its loop."""
        self._stopping.set()
        self._stop_requested = True
        if self.get_state() != WorkerStatus.BUSY:
            raise StopRequested

    # Not used: commands that come through Redis, and clearing up of jobs that RQ does not keep.
    def _nothing(self, *_arguments: Any) -> None:
        pass

    subscribe = check_for_suspension = run_maintenance_tasks = _nothing


def work(config: WorkerConfig, stopping: Callable[[], bool]) -> None:
    """Claim and run one task after the other, until there is none or this host stops.

    The lock of the accelerator is taken before the first claim: a host that cannot run claims nothing.
    """
    name, lock = config.accelerator.name, config.accelerator.lock
    try:
        lock_fd = locks.acquire(locks.default_folder(), lock, what=f"agent of {config.host.name}")
    except (locks.Busy, OSError) as error:  # the agent reports a busy one; or the disk is full
        logger.warning("%s cannot be locked, so nothing is claimed: %s", name, error)
        return
    hud = config.host.connect()
    interpreters = Fingerprints(Path(config.data) / "fingerprints.json", config.pythons)  # the agent's file
    try:
        go_on = True
        while go_on and not stopping():
            turn = _Turn(config, hud, lock_fd, stopping, interpreters, begun=interpreters.look())
            lease = turn.claim()
            go_on = lease is not None and turn.run(lease)
    except HudError as error:
        logger.warning("%s: no task could be claimed: %s", name, error)
    finally:
        os.close(lock_fd)


@dataclasses.dataclass(frozen=True)
class _Turn:
    """A claim on an accelerator whose lock is held, and the task that it gets."""

    config: WorkerConfig
    hud: Hud
    lock_fd: int
    stopping: Callable[[], bool]
    interpreters: Fingerprints
    begun: Mapping[str, Fingerprint]  # as the interpreters were at the claim

    def claim(self) -> Lease | None:
        """Claim a task. Keep the nonce on disk until the answer arrives, so that a claim whose answer was
        lost is repeated as the same claim. Claim none on a full disk: its results could not be kept."""
        number = self.config.number
        path = Path(self.config.data) / "claims" / str(number)
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
            lambda: self.hud.claim(number, nonce, self.begun), patience_s=_PATIENCE_S, stop=self.stopping
        )
        path.unlink(missing_ok=True)
        return lease

    def run(self, lease: Lease) -> bool:
        """Run a claimed task and deliver its results; return False if nothing more shall be claimed."""
        logger.info("task %s of run %s, attempt %s", lease.task, lease.run, lease.attempt)
        account.clean()  # of the task before
        try:
            folder = Folder.create(Path(self.config.data), lease)
        except (OSError, ValueError) as error:
            logger.warning("no folder for task %s: %s", lease.task, error)
            with contextlib.suppress(HudError):
                reason = f"{self.config.host.name} cannot keep results: {error}"
                self.hud.finish(lease, TaskOutcome("failed", "host_error", reason))
            return False
        try:
            reporter = ProgressReporter(self.hud, folder)
            outcome = self._launch(folder, reporter)
            if outcome.status == ProgressReporter.LOST:
                folder.refuse("its lease was broken while it ran")
                return True
            if outcome.status == HANDED_BACK:
                folder.end(TaskOutcome("not_run", HANDED_BACK, "its host stops", outcome.seconds))
                self.hud.timeout_s = _HURRY_S
            else:
                folder.end(outcome)
            try:
                patience_s = 0.0 if self.stopping() else _PATIENCE_S
                with_retries(lambda: folder.deliver(self.hud), patience_s=patience_s, stop=self.stopping)
            except HudError as error:  # the agent delivers it later
                logger.warning("task %s stays in the spool: %s", lease.task, error)
            return not outcome.leftover
        finally:
            folder.release()

    def _launch(self, folder: Folder, reporter: ProgressReporter) -> TaskOutcome:
        lease, config, host = folder.lease, self.config, self.config.host.name
        try:
            task = TaskSpec.from_json(lease.spec)
            suite_of(task.suite).check_listed(task.case)
            job = Job(
                task,
                lease.process,
                lease.python,
                lease.base_python,
                checked_inductor_options(lease.new_options, None),  # the child knows its torch
                caches=lease.caches,
                pinned=pinned_from_json(lease.pinned),
                rounds=lease.rounds,
            )
        except BadRequest as error:
            reason = f"the runner of {host} does not know it: {error}"
            return TaskOutcome("unsupported", "unknown_task", reason)
        asked = [overlay_of(name) for name in (lease.python, lease.base_python) if name]
        names = [name for name, _commit in asked]
        for name in names:
            if name not in config.pythons:
                reason = f"{host} has no interpreter called {name!r}"
                return TaskOutcome("unsupported", "unknown_python", reason)
        with reporter:
            try:
                return run_task(
                    LaunchRequest(
                        job,
                        folder.path,
                        pythons={**config.pythons, **self._overlaid(lease, asked)},
                        environment={
                            "CUDA_VISIBLE_DEVICES": config.accelerator.visible,
                            "RUNNER_HOST": host,
                            "RUNNER_CEILINGS": str(account.ceilings(Path(config.data))),
                        },
                        lock_fd=self.lock_fd,
                        on_event=reporter.note,
                        should_stop=lambda: HANDED_BACK if self.stopping() else reporter.stop_reason,
                        run_folder=_run_folder(config, lease.run),
                        check=partial(self.interpreters.checked, names=names, begun=self.begun, place=host),
                    )
                )
            except NoOverlay as error:
                return TaskOutcome("failed", "no_overlay", f"{host}: {error}")
            except OSError as error:  # the disk is full, or the machine has no process left
                return TaskOutcome("failed", "host_error", f"{host}: {error}")
            except Exception as error:  # a mistake of the runner, which another attempt would meet too
                logger.exception("task %s", lease.task)
                return TaskOutcome("crashed", "runner_error", f"the runner of {host} failed: {error!r}")

    def _overlaid(self, lease: Lease, asked: Iterable[tuple[str, str]]) -> dict[str, Interpreter]:
        """Return the interpreters of a task that have an overlay, made here where they are new."""
        overlaid, folder = {}, Path(self.config.data) / "interpreters"
        for name, commit in (pair for pair in asked if pair[1]):
            if not sandbox.may_overlay():
                raise NoOverlay("none is allowed here: attach --sandbox --allow-overlays")
            of_wheel, fetch = str(self.begun.get(name)), partial(self.hud.overlay, lease, commit)
            overlaid[f"{name}@{commit}"] = with_overlay(
                self.config.pythons[name], of_wheel, commit, folder, fetch
            )
        return overlaid


def _run_folder(config: WorkerConfig, run: int) -> Path:
    """Return the folder of the caches of a run on this accelerator; remove those of other runs but the
    newest, whose tasks may come in turn with its own."""
    own = Path(config.data) / "caches" / f"{config.number}" / f"run-{run}"
    others = {path for path in own.parent.iterdir() if path != own} if own.parent.exists() else set()
    newest_first = sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
    account.remove(*newest_first[_CACHED_RUNS - 1 :])
    account.let_pass(own.parent.parent, own.parent)
    account.share(own)
    with contextlib.suppress(OSError):
        os.utime(own)
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
        self._period_s = folder.lease.beat_s / _REPORTS_A_BEAT
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


def main(config_file: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("rq.worker").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="rq")  # that a host's Redis user may not list connections
    config = WorkerConfig.load(Path(config_file))
    stopping = threading.Event()
    with contextlib.suppress(StopRequested):  # SIGTERM between two connections
        while True:
            try:
                AcceleratorWorker(config, stopping).work(logging_level="WARNING")
            except RedisError as error:
                logger.warning("Redis went away: %s", error)
            if stopping.is_set():
                return
            time.sleep(_RECONNECT_S)


if __name__ == "__main__":
    main(sys.argv[1])
