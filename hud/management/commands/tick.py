"""`manage.py tick`: look after leases, schedules, wake-ups and Redis users every few seconds, deliver
messages beside it; prune daily.

Any number may be started: the holder of an advisory lock works, the others wait to take over.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connection

from hud import retention
from hud.hosts import heartbeats, redis_users
from hud.judging.bisect import work as bisects
from hud.judging.regressions.confirm import confirm
from hud.notifications.deliver import Deliverer, deliver
from hud.runs import schedules, tasks, wakeup
from hud.server.locks import hold_lock, release_locks

logger = logging.getLogger(__name__)
ADVISORY_LOCK = 7_014_001
_PRUNE_EVERY_S = 24 * 3600
_LONG_GAP = timedelta(days=7)


class Command(BaseCommand):
    help = (
        "Break ended leases, fire schedules and wake idle accelerators, every HUD_TICK_S seconds,"
        " until stopped."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="do this once, then end")

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: stop.set())
        started = False
        self.start_pruning()
        if not once:
            Deliverer(stop).start()
        while not stop.is_set():
            try:
                if hold_lock(ADVISORY_LOCK):
                    self.put_off_pruning_after_a_gap()
                    if not started and not once:
                        heartbeats.restart("tick")
                        started = True
                    tick()
                    if not once:
                        self.prune()
                if once:  # the connection may live on, and with it the lock
                    deliver()
                    release_locks()
            except (DatabaseError, InterfaceError) as error:
                self.stderr.write(f"the database is away: {error}")
                connection.close()
                started = False  # hosts may have been silent because of us: a new grace period
            if once:
                return
            stop.wait(settings.HUD_TICK_S)

    def start_pruning(self) -> None:
        self.is_pruning, self._batches = True, retention.batches()
        self._prune_at = time.monotonic()

    def put_off_pruning_after_a_gap(self) -> None:
        """Prune nothing for a day where the last heartbeat is a week old: the clock may have jumped, and a
        person should be able to put it right before logs and artifacts count as old."""
        if heartbeats.gap("tick") > _LONG_GAP:
            logger.warning("the last heartbeat is over %s old: nothing is pruned for a day", _LONG_GAP)
            self.is_pruning, self._prune_at = False, time.monotonic() + _PRUNE_EVERY_S

    def prune(self) -> None:
        """Remove one batch of what is too old. Begin anew a day after the last one."""
        if not self.is_pruning:
            if time.monotonic() < self._prune_at:
                return
            self.start_pruning()
        try:
            self.is_pruning = next(self._batches, None) is not None
        except (DatabaseError, InterfaceError):
            self.start_pruning()
            raise
        except Exception:  # a file that cannot be removed must not stop the care of leases
            logger.exception("pruning ends for today")
            self.is_pruning = False
        self._prune_at = time.monotonic() + _PRUNE_EVERY_S


def tick() -> None:
    """Do one round of background work."""
    heartbeats.beat("tick")
    given_up = tasks.break_leases() if heartbeats.trusted() else []
    try:
        schedules.fire_due()
    except (DatabaseError, InterfaceError):
        raise
    except Exception:  # a broken schedule must not stop the care of leases
        logger.exception("schedules were not fired")
    try:
        confirm()
    except (DatabaseError, InterfaceError):
        raise
    except Exception:
        logger.exception("regressions were not confirmed")
    try:
        bisects.advance()
    except (DatabaseError, InterfaceError):
        raise
    except Exception:
        logger.exception("bisects did not go on")
    redis_users.sync()
    wakeup.ring_idle(again_s=0 if given_up else None)
