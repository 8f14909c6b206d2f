"""gunicorn's settings: a few processes of threads, one listening address, and a sign of life."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from hud.server.processes import die_with_parent

bind = f"{os.environ.get('BIND') or '127.0.0.1'}:{os.environ.get('PORT') or '8000'}"
workers = int(os.environ.get("WEB_CONCURRENCY") or 2)
worker_class = "hud.server.gunicorn_worker.Worker"
threads = 4
timeout = 60
graceful_timeout = 5
control_socket_disable = True  # it would write to the home folder
os.umask(0o077)  # what people sent is for nobody else on this machine
preload_app = True  # one import for all processes, and a fault in it ends the master at once
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112, S108 - heartbeats, no disk

BEAT_S = 10  # tick breaks no lease while the web has not been going round for a while


def post_fork(_server: Any, _worker: Any) -> None:
    """A killed master must not leave workers that hold the port, not even while their clients hold them:
    so no SIGTERM, whose graceful end waits for every thread. What was imported stays, so that the collector
    need not look at it again at every round."""
    die_with_parent(signal.SIGKILL)
    gc.freeze()


def post_worker_init(_worker: Any) -> None:
    # imported here and not in the thread, where a request's own imports could get in the way
    from django.db import close_old_connections  # noqa: PLC0415 - needs settings

    from hud.hosts.heartbeats import beat  # noqa: PLC0415

    def sign_of_life() -> None:
        close_old_connections()
        beat("web")

    threading.Thread(target=_repeat, args=[sign_of_life], name="beacon", daemon=True).start()


def _repeat(work: Callable[[], None]) -> None:
    pause = threading.Event()
    while True:
        try:
            work()
        except Exception:  # whatever it was: without this thread no lease would be broken any more
            logging.getLogger("gunicorn.error").exception("no sign of life")
        pause.wait(BEAT_S)
