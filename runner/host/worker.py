"""The RQ worker of one accelerator: `python -m runner.host.worker CONFIG_FILE`, started by the agent.

RQ waits for wake-ups in Redis and starts a fresh process ("horse") for each. Everything else that RQ would do
on behalf of Redis is switched off: commands to workers, callbacks, retries, results, registries. Redis may
stop, restart or lose everything at any time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import Worker
from rq.exceptions import StopRequested
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from runner.host.agent import WorkerConfig
from runner.host.client import Hud, HudError, with_retries
from runner.host.jobs import work
from runner.host.spool import Folder, left_over
from runner.host.wake_up import WakeUp
from runner.launch import results
from runner.schema.outcome_records import TaskOutcome
from runner.schema.suite import BadRequest, TaskSpec
from runner.schema.wake_up import digest_of
from runner.system.processes import Tree, die_with

_CONNECT_S = 5
_LISTEN_S = 10  # Redis answers a waiting worker at least this often
_DEAF_S = _LISTEN_S + 10  # without an answer for so long a new connection is made
_RECONNECT_S = 1.0
_BEAT_S = 10  # heartbeats of a busy worker, for RQ's own pages
_GRACE_S = 2.0  # for processes that a killed horse left behind
_PATIENCE_S = 5.0
_POLL_S = 0.2
_REMEMBERED = 1000  # wake-ups that were answered, which are not answered again
_STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}

logger = logging.getLogger(__name__)


def _nothing(*_arguments: object) -> None:
    pass


def _may_fail(method: Callable[..., None]) -> Callable[..., None]:
    def called(*arguments: Any, **named: Any) -> None:
        with contextlib.suppress(RedisError):
            method(*arguments, **named)

    return called


class AcceleratorWorker(Worker):
    """Answer the wake-ups of one accelerator, one at a time."""

    max_connection_wait_time = 2.0  # RQ would wait up to a minute before it looks for Redis again

    def __init__(self, config: WorkerConfig, connection: Redis) -> None:
        super().__init__(
            [config.queue],
            name=f"{config.queue}-{uuid.uuid4().hex}",  # its Redis user may touch only names that begin so
            connection=connection,
            job_class=WakeUp,
            serializer=JSONSerializer,
            worker_ttl=_LISTEN_S + 15,  # RQ listens for 15 s less
            job_monitoring_interval=_BEAT_S,
            log_job_description=False,
        )
        self._config = config
        self._tree = Tree()
        self._key_digest = digest_of(config.key)
        self._answered: deque[str] = deque(maxlen=_REMEMBERED)
        self.stop_asked = False

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Fork a process ("horse") that works until there is no task left; end all that it leaves alive."""
        with contextlib.suppress(RedisError):
            self.connection.lrem(queue.intermediate_queue_key, 1, job.id)
            self.connection.delete(job.key)
        if job.id in self._answered or not job.is_signed(self._key_digest, self._config.queue):
            logger.warning("a message in %s is no wake-up of the hud and was thrown away", queue.name)
            return
        self._answered.append(job.id)
        self.set_state(WorkerStatus.BUSY)
        self._fork()
        status = self._wait_for_end()
        self._horse_pid = 0
        if status:
            logger.error("the horse ended with status %s", status)
            self._tree.end(_GRACE_S)
            self._report_death(status)
        self.set_state(WorkerStatus.IDLE)

    def _fork(self) -> None:
        """Start the horse. SIGTERM waits meanwhile, so that it reaches either nobody or the horse too."""
        worker = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        self._horse_pid = os.fork()
        if not self._horse_pid:
            try:
                die_with(worker)
                os.setpgrp()
                stop = threading.Event()
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                signal.signal(signal.SIGTERM, lambda *_: stop.set())
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
                work(self._config, stop.is_set)
            except BaseException:  # a horse never returns into the worker's loop
                logger.exception("the horse failed")
                os._exit(1)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
        if self.stop_asked:
            self.handle_warm_shutdown_request()

    def _wait_for_end(self) -> int:
        """Wait for the horse; return its exit status as os.waitpid() gives it."""
        last_beat = time.monotonic()
        while True:
            pid, status = os.waitpid(self._horse_pid, os.WNOHANG)
            if pid:
                return status
            if time.monotonic() > last_beat + _BEAT_S:
                self.heartbeat()
                last_beat = time.monotonic()
            time.sleep(_POLL_S)

    def _report_death(self, status: int) -> None:
        """End the task during which the horse died; it is not tried again."""
        code, how = "runner_error", f"ended with exit code {os.waitstatus_to_exitcode(status)}"
        if os.WIFSIGNALED(status):
            code = signal.Signals(os.WTERMSIG(status)).name
            how = f"was ended by {code}"
        hud = Hud(self._config.hud, self._config.key)
        for folder in left_over(Path(self._config.data), self._config.name):
            if folder.outcome is None:
                folder.end(TaskOutcome("crashed", code, f"the work process of the host {how}"))
            self._complete(folder)
            with contextlib.suppress(HudError, OSError):  # the agent delivers what stays in the spool
                with_retries(partial(folder.deliver, hud), patience_s=_PATIENCE_S)
            folder.release()

    def _complete(self, folder: Folder) -> None:
        """Complete the results as `launch` would; not those of a pair: which side ran is not known."""
        lease = folder.lease
        interpreter = self._config.pythons.get(lease.python)
        if lease.base_python or interpreter is None or (end := folder.outcome) is None:
            return
        variables = {**os.environ, "RUNNER_HOST": self._config.host, **interpreter.environment}
        try:
            results.complete(folder.path, TaskSpec.from_json(lease.spec), end, interpreter.path, variables)
        except BadRequest as error:
            logger.warning("results of task %s are not completed: %s", lease.task, error)

    def handle_warm_shutdown_request(self) -> None:
        """Handle SIGTERM: the horse gives its task back and ends; RQ then leaves its loop."""
        self.stop_asked = True
        if self._horse_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._horse_pid, signal.SIGTERM)

    # RQ writes these for its own pages only: they may fail.
    set_state = _may_fail(Worker.set_state)
    heartbeat = _may_fail(Worker.heartbeat)
    set_shutdown_requested_date = _may_fail(Worker.set_shutdown_requested_date)
    register_death = _may_fail(Worker.register_death)

    def _set_ip_address(self, _connection: Redis) -> None:
        self.ip_address = "unknown"  # a host's own Redis user may not list connections

    # Not used: commands that come through Redis, and clearing up of jobs that RQ does not keep.
    subscribe = check_for_suspension = run_maintenance_tasks = _nothing
    request_force_stop = _nothing  # a second SIGTERM: the agent kills what takes too long


def _connect(url: str) -> Redis:
    """Return a connection; wait until Redis answers."""
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    while True:
        connection = Redis.from_url(
            url,
            socket_connect_timeout=_CONNECT_S,
            socket_timeout=_DEAF_S,  # redis-py's own 5 s would cut off RQ's blocking reads
            retry=Retry(NoBackoff(), 0),
            **keepalive,
        )
        try:
            connection.ping()
        except RedisError as error:
            logger.warning("Redis does not answer: %s", error)
            time.sleep(_RECONNECT_S)
        else:
            return connection


def main(config_file: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("rq.worker").setLevel(logging.WARNING)
    config = WorkerConfig.load(Path(config_file))
    with contextlib.suppress(StopRequested):  # SIGTERM between two connections
        while not _serve(config):
            time.sleep(_RECONNECT_S)


def _serve(config: WorkerConfig) -> bool:
    """Work until SIGTERM (return True), or until Redis or a message makes RQ give up (False)."""
    worker = None
    try:
        worker = AcceleratorWorker(config, _connect(config.redis_url))
        worker.work(logging_level="WARNING")
    except RedisError as error:
        logger.warning("Redis went away: %s", error)
    return worker is not None and worker.stop_asked


if __name__ == "__main__":
    main(sys.argv[1])
