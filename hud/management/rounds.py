"""Commands that work in rounds until they are stopped."""

import signal
import threading
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connection

from hud.hosts import heartbeats
from hud.sql import fetch_tuples


class RoundsCommand(BaseCommand):
    """Work in rounds until a signal comes, or with `--once` until a round finds nothing. With a `lock` any
    number may be started: its holder works, the others wait to take over."""

    lock: ClassVar[int | None] = None
    pause_s = 1.0  # between rounds that find nothing
    is_fresh = True  # until a round clears it: the command has begun, or has lost its connection

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="process what is pending, then end")

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        self.once, self.stop = once, threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.stop.set())
        heartbeats.join()
        self.start()
        while not self.stop.is_set():
            done = 0
            try:
                # an advisory lock, which PostgreSQL frees when the connection of its holder ends
                lock = "SELECT pg_try_advisory_lock(%s)"
                if self.lock is None or fetch_tuples(lock, [self.lock]) == [(True,)]:
                    done = self.round()
                    if once and not done and self.lock:  # the connection may live on, and with it the lock
                        fetch_tuples("SELECT pg_advisory_unlock_all()")
            except (DatabaseError, InterfaceError) as error:
                self.stderr.write(f"the database is away: {error}")
                connection.close()
                self.is_fresh = True
            if once and not done:
                return
            if not done:
                self.stop.wait(self.pause_s)

    def start(self) -> None:
        """Begin, before the first round."""

    def round(self) -> int:
        """Do one round; return how much was done, 0 where nothing is left."""
        raise NotImplementedError
