"""`manage.py judge`: write verdicts until stopped."""

import time

from django.core.management import call_command
from django.utils import timezone

from hud.hosts import heartbeats
from hud.judging import compilations, judge
from hud.judging.backlog import note_round
from hud.judging.regressions.groups import make_causes
from hud.judging.regressions.look_back import look_back
from hud.management.rounds import RoundsCommand
from hud.points.streams import note_nights
from hud.points.summaries import keep_missing
from hud.points.write import note_missing_subjects

_BEAT_S = 1.0
_SUMMARIES_S = 30.0  # between summaries of large runs, while something waits for a verdict


class Command(RoundsCommand):
    help = "Write the verdicts of series with new measurements, until stopped."

    def start(self) -> None:
        if self.once:  # what is pending includes large uploads
            call_command("imports", "--once")
        self.beaten = self.summarized = 0.0
        note_missing_subjects()

    def round(self) -> int:
        began = timezone.now()
        done = compilations.process_pending() + judge.process_pending(on_progress=self.beat)
        note_round(done, began)
        done = done or look_back() or make_causes()
        if done:
            note_missing_subjects()
            note_nights()
        if not done or time.monotonic() >= self.summarized + _SUMMARIES_S:
            done += keep_missing()
            self.summarized = time.monotonic()
        self.beat()
        return done

    def beat(self) -> None:
        """Send a heartbeat, at most one a second. It comes after work, never before: a judge that fails in
        every round stands still."""
        if time.monotonic() - self.beaten >= _BEAT_S:
            heartbeats.beat("judge")
            self.beaten = time.monotonic()
