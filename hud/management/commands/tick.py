"""`manage.py tick`: look after leases, schedules, wake-ups and Redis users every few seconds.

Any number may be started: the holder of an advisory lock works, the others wait to take over.
"""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connection

from hud.hosts import heartbeats, redis_users
from hud.runs import schedules, tasks, wakeup

logger = logging.getLogger(__name__)
ADVISORY_LOCK = 7_014_001


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
        while not stop.is_set():
            try:
                if _holds_lock():
                    if not started and not once:
                        heartbeats.restart("tick")
                        started = True
                    tick()
                if once:  # the connection may live on, and with it the lock
                    with connection.cursor() as cursor:
                        cursor.execute("SELECT pg_advisory_unlock(%s)", [ADVISORY_LOCK])
            except (DatabaseError, InterfaceError) as error:
                self.stderr.write(f"the database is away: {error}")
                connection.close()
                started = False  # hosts may have been silent because of us: a new grace period
            if once:
                return
            stop.wait(settings.HUD_TICK_S)


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
    redis_users.sync()
    wakeup.ring_idle(again_s=0 if given_up else None)


def _holds_lock() -> bool:
    """Take the advisory lock, unless another process has it. PostgreSQL frees it when its process dies."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) > 0 FROM pg_locks"
            " WHERE locktype = 'advisory' AND objid = %s AND pid = pg_backend_pid() AND granted",
            [ADVISORY_LOCK],
        )
        if cursor.fetchone()[0]:
            return True
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [ADVISORY_LOCK])
        return bool(cursor.fetchone()[0])
