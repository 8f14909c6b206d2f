"""The RQ worker of one accelerator: `python -m runner.host.worker CONFIG_FILE`, started by the agent.

It waits for wake-ups in Redis, and answers each with `work`, whose benchmarks are processes of their own.
Redis may stop, restart or lose everything at any time.
"""

import contextlib
import hmac
import json
import logging
import sys
import threading
import time
import uuid
import warnings
from collections import deque
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from rq import Queue, SimpleWorker
from rq.exceptions import NoSuchJobError, StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from runner.host.agent import WorkerConfig
from runner.host.jobs import work
from runner.schema.protocol import FUNCTION, digest_of, sign

_CONNECT_S = 5
_LISTEN_S = 10  # Redis answers a waiting worker at least this often
_RECONNECT_S = 1.0
_LONGEST_S = 24 * 3600  # RQ's pages list a busy worker for so long
_CALL_BYTES = 4096  # at most, compressed
_REMEMBERED = 1000  # wake-ups that were answered, which are not answered again

logger = logging.getLogger(__name__)


class WakeUp(Job):
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
        self._key_digest = digest_of(config.key)
        self._answered: deque[str] = deque(maxlen=_REMEMBERED)
        self._stopping = stopping

    def execute_job(self, job: WakeUp, queue: Queue) -> None:
        """Work until there is no task left. Only Redis knew of the job, and forgets it now."""
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
