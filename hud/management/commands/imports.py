"""`manage.py imports`: process import jobs, each in a child process, until stopped.

Any number may be started: the holder of an advisory lock works, the others wait to take over.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connection

from hud.hosts import heartbeats
from hud.ingest import import_processes
from hud.server.locks import hold_lock, release_locks

ADVISORY_LOCK = 7_014_002
ROUND_S = 1.0


class Command(BaseCommand):
    help = "Process large imports, each in a process of its own, until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="process what is pending, then end")
        parser.add_argument("--job", type=int, metavar="ID", help="process this one, in this process")

    def handle(self, *args: Any, once: bool, job: int | None, **options: Any) -> None:
        if job is not None:
            sys.exit(import_processes.process_in_this_process(job))
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: stop.set())
        while not stop.is_set():
            done = False
            try:
                if hold_lock(ADVISORY_LOCK):
                    _beat()
                    done = import_processes.process_next(beat=_beat, stopped=stop.is_set)
                if once and not done:
                    release_locks()
            except (DatabaseError, InterfaceError) as error:
                self.stderr.write(f"the database is away: {error}")
                connection.close()
            if once and not done:
                return
            if not done:
                stop.wait(ROUND_S)


def _beat() -> None:
    heartbeats.beat("imports")
