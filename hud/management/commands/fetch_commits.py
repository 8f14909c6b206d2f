"""`manage.py fetch_commits`: store the commits of the ranges in which regressions moved."""

from typing import Any

from django.core.management.base import BaseCommand

from hud.judging.regressions import mirrors


class Command(BaseCommand):
    help = "Read the commits between which regressions moved from the mirrors of HUD_REPO_MIRRORS."

    def handle(self, *_args: Any, **_options: Any) -> None:
        self.stdout.write(f"{mirrors.fetch()} commits stored")
