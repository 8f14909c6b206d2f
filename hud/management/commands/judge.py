"""`manage.py judge`: write verdicts until stopped."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from hud.hosts import heartbeats
from hud.judging import compilations, judge
from hud.judging.backlog import note_round
from hud.judging.regressions.groups import make_causes
from hud.judging.regressions.look_back import look_back

ROUND_S = 1.0


class Command(BaseCommand):
    help = "Write the verdicts of series with new measurements, until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="process what is pending, then end")

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        if once:  # what is pending includes large uploads
            call_command("imports", "--once")
        self.beaten = 0.0
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: stop.set())
        while not stop.is_set():
            try:
                began = timezone.now()
                done = compilations.process_pending() + judge.process_pending(on_progress=self.beat)
                note_round(done, began)
                done = done or look_back() or make_causes()
                self.beat()
            except (DatabaseError, InterfaceError) as error:
                self.stderr.write(f"the database is away: {error}")
                connection.close()
                done = 0
            if once and not done:
                return
            if not done:
                stop.wait(ROUND_S)

    def beat(self) -> None:
        """Send a heartbeat, at most one a second. It comes after work, never before: a judge that fails in
        every round stands still."""
        if time.monotonic() - self.beaten >= ROUND_S:
            heartbeats.beat("judge")
            self.beaten = time.monotonic()
