"""Settings of gunicorn: processes, threads, the listening address, and the heartbeat of the web."""

import gc
import logging
import os
import resource
import shutil
import tempfile
import threading
import time
from typing import Any

from hud.server.processes import die_with_parent, use_one_heap
from runner.schema.variables import env_integer

bind = f"{os.environ.get('BIND') or '127.0.0.1'}:{os.environ.get('PORT') or '8000'}"
workers = env_integer("WEB_CONCURRENCY", 2)
worker_class = "hud.server.gunicorn_worker.Worker"
threads = 4
timeout = 60
graceful_timeout = 5
control_socket_disable = True  # it would write to the home folder
os.umask(0o077)  # uploads are private to this user
preload_app = True  # one import for all processes; an error in it ends the master at once
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112, S108 - heartbeats, no disk  # nosec B108

# the figures of all workers, before anything imports prometheus_client
os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="compiler-hud-metrics-")

OBJECTS_UNTIL_COLLECTION = 20_000  # by default 700, which an upload makes every 100 records
BEAT_S = 10  # without these heartbeats tick breaks no lease


def on_starting(server: Any) -> None:
    """Refuse to start beside a node that does not share this HUD_DATA: gunicorn prints a RuntimeError."""
    from django.db import connections  # noqa: PLC0415 - needs settings

    from hud import replica  # noqa: PLC0415
    from hud.hosts import heartbeats  # noqa: PLC0415

    heartbeats.join()
    if condition := "".join(replica.condition()):
        server.log.warning(condition)
    connections.close_all()  # its workers have their own


def on_exit(_server: Any) -> None:
    shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)


def post_fork(_server: Any, _worker: Any) -> None:
    """Kill the worker with its master, so that it does not hold the port: SIGTERM would wait for its threads.
    Freeze what was imported, so that the garbage collector skips it."""
    die_with_parent()
    use_one_heap()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # a connection may need three
    gc.freeze()
    gc.set_threshold(OBJECTS_UNTIL_COLLECTION)


def post_worker_init(_worker: Any) -> None:
    # imported here, since imports in the thread could deadlock with those of a request
    from django.db import close_old_connections  # noqa: PLC0415 - needs settings

    from hud.hosts.heartbeats import beat  # noqa: PLC0415

    def heartbeats() -> None:
        while True:
            try:
                close_old_connections()
                beat("web")
            except Exception:  # without this thread no lease would ever be broken
                logging.getLogger("gunicorn.error").exception("no heartbeat")
            time.sleep(BEAT_S)

    threading.Thread(target=heartbeats, name="heartbeat", daemon=True).start()
