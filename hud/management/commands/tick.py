"""`manage.py tick`: look after leases, schedules, wake-ups and Redis users every few seconds, deliver
messages beside it; prune daily, and archive closed months."""

import logging
import subprocess
import sys
import time
from datetime import timedelta
from threading import Thread

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from hud import retention
from hud.archive import months
from hud.hosts import heartbeats, redis_users
from hud.judging.bisect import work as bisects
from hud.judging.regressions import mirrors
from hud.judging.regressions.confirm import confirm
from hud.management.rounds import RoundsCommand
from hud.models import Heartbeat
from hud.notifications.follows import deliver, deliver_until
from hud.runs import matching, schedules, tasks

logger = logging.getLogger(__name__)
_PRUNE_EVERY_S, _PRUNE_S = 24 * 3600, 1
_COMMITS_EVERY_S = 300
_ARCHIVE_AFTER_S = 60
_LONG_GAP = timedelta(days=7)


class Command(RoundsCommand):
    help = (
        "Break ended leases, fire schedules and wake idle accelerators, every HUD_TICK_S seconds,"
        " until stopped."
    )
    lock = 7_014_001

    def start(self) -> None:
        self.pause_s = settings.HUD_TICK_S
        self.batches, self.prune_at, self.commits_at = retention.batches(), 0.0, 0.0
        self.archive_at = time.monotonic() + _ARCHIVE_AFTER_S
        if not self.once:
            Thread(target=deliver_until, args=[self.stop], name="deliver", daemon=True).start()

    def round(self) -> int:
        self.put_off_pruning_after_a_gap()
        if self.is_fresh and not self.once:
            Heartbeat.objects.filter(
                name="tick"
            ).delete()  # hosts may have been silent because of us: a new grace period
            self.is_fresh = False
        tick()
        if self.once:
            deliver()
        else:
            self.prune()
            self.archive()
        if time.monotonic() >= self.commits_at:
            self.commits_at = time.monotonic() + _COMMITS_EVERY_S
            mirrors.fetch()
        return 0

    def put_off_pruning_after_a_gap(self) -> None:
        """Prune nothing for a day where the last heartbeat is a week old: the clock may have jumped, and a
        person should be able to put it right before logs and artifacts count as old."""
        if heartbeats.gap("tick") > _LONG_GAP:
            logger.warning("the last heartbeat is over %s old: nothing is pruned for a day", _LONG_GAP)
            self.prune_at = time.monotonic() + _PRUNE_EVERY_S

    def prune(self) -> None:
        """Remove what is too old for a second, one batch at least. Begin anew a day after the last one."""
        if time.monotonic() < self.prune_at:
            return
        until = time.monotonic() + _PRUNE_S
        try:
            while next(self.batches, None):
                if time.monotonic() >= until:
                    return
        except (DatabaseError, InterfaceError):
            self.batches = retention.batches()
            raise
        except Exception:  # a file that cannot be removed must not stop the care of leases
            logger.exception("pruning ends for today")
        self.batches, self.prune_at = retention.batches(), time.monotonic() + _PRUNE_EVERY_S

    def archive(self) -> None:
        """Start a process that writes the months that are due. Only one at a time writes."""
        if time.monotonic() >= self.archive_at:
            self.archive_at = time.monotonic() + months.WRITTEN_EVERY_H * 3600
            if any(months.due()):
                command = ["nice", sys.executable, str(settings.BASE_DIR / "manage.py"), "archive"]
                self.archiving = subprocess.Popen(command, stdout=subprocess.DEVNULL)


def tick() -> None:
    heartbeats.beat("tick")
    given_up = tasks.break_leases() if heartbeats.trusted() else []
    for step, failure in (  # one that is broken must not stop the care of leases
        (schedules.fire_due, "schedules were not fired"),
        (confirm, "regressions were not confirmed"),
        (bisects.advance, "bisects did not go on"),
    ):
        try:
            step()
        except (DatabaseError, InterfaceError):  # noqa: PERF203 — the others are done
            raise
        except Exception:
            logger.exception(failure)
    redis_users.sync()
    matching.ring_idle(again_s=0 if given_up else None)
