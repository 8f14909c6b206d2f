"""`manage.py judge`: write verdicts until stopped, and read ahead what pages compute of new nights."""

import logging
import time
from datetime import timedelta

from django.core.management import call_command
from django.db import DatabaseError, InterfaceError
from django.utils import timezone

from hud.hosts import heartbeats
from hud.judging import compilations, judge
from hud.judging.backlog import note_round
from hud.judging.regressions.groups import make_causes
from hud.judging.regressions.look_back import look_back
from hud.management.rounds import RoundsCommand
from hud.models import Run, Stream
from hud.pages.backends import BackendComparison, BackendFilters
from hud.pages.overview import view as overview
from hud.points.streams import note_nights
from hud.points.summaries import keep_missing

logger = logging.getLogger(__name__)
_BEAT_S = 1.0
_REST_S = 20.0  # without work, until a night counts as whole
_SUMMARIES_S = 30.0  # between summaries of large runs, while something waits for a verdict


class Command(RoundsCommand):
    help = "Write the verdicts of series with new measurements, until stopped."

    def start(self) -> None:
        if self.once:  # what is pending includes large uploads
            call_command("imports", "--once")
        self.beaten = self.summarized = 0.0
        self.ahead_at: float | None = time.monotonic()  # when to read ahead; None: it is done

    def round(self) -> int:
        began = timezone.now()
        done = compilations.process_pending() + judge.process_pending(on_progress=self.beat)
        note_round(done, began)
        done = done or look_back() or make_causes()
        if done:
            note_nights()
        if not done or time.monotonic() >= self.summarized + _SUMMARIES_S:
            done += keep_missing()
            self.summarized = time.monotonic()
        if done:
            self.ahead_at = time.monotonic() + _REST_S
        elif self.ahead_at is not None and time.monotonic() >= self.ahead_at and not self.once:
            self.ahead_at = None
            try:
                read_ahead()
            except (DatabaseError, InterfaceError):
                raise
            except Exception:  # a page that is broken must not stop the judge
                logger.exception("nights are not read ahead")
        self.beat()
        return done

    def beat(self) -> None:
        """Send a heartbeat, at most one a second. It comes after work, never before: a judge that fails in
        every round stands still."""
        if time.monotonic() - self.beaten >= _BEAT_S:
            heartbeats.beat("judge")
            self.beaten = time.monotonic()


def read_ahead() -> None:
    """Read the overview of each arch of the streams that have new runs. It stores what it computes of a
    night, for which the first visitor of a morning would wait."""
    runs = Run.objects.filter(created__gt=timezone.now() - timedelta(days=1))
    for stream in Stream.objects.filter(pk__in=runs.values("stream")):
        shown = _read(BackendFilters(), stream)
        for arch in {*shown.choices["arch"]} - {shown.filters.arch}:
            _read(BackendFilters(arch=arch), stream)


def _read(filters: BackendFilters, stream: Stream) -> BackendComparison:
    shown = overview.read(filters, stream).comparison
    if not shown.table or not shown.table.suites:
        _ = shown.suites_of_stream  # as the page reads it by itself
    return shown
