"""`manage.py imports`: process import jobs, each in a child process, until stopped; and where none waits,
corrections in parts."""

from functools import partial

from hud.corrections import background
from hud.hosts import heartbeats
from hud.ingest import import_jobs
from hud.management.rounds import RoundsCommand


class Command(RoundsCommand):
    help = "Process large imports, each in a process of its own, until stopped."
    lock = 7_014_002

    def round(self) -> int:
        beat = partial(heartbeats.beat, "imports")
        beat()
        return import_jobs.process_next(beat=beat, stopped=self.stop.is_set) or background.run_part()
