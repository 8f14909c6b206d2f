"""`manage.py create_token`: create a token that attaches one host; it is the last word."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from hud.hosts import registration


class Command(BaseCommand):
    help = "Create a registration token for one host and print it, only now, as the last word."

    def handle(self, *args: Any, **options: Any) -> None:
        token = registration.create_token(who="create_token")
        minutes = round(registration.TOKEN_LIFE.total_seconds() / 60)
        self.stdout.write(
            f"for python -m runner attach --hud URL --token TOKEN, once, within {minutes} minutes: {token}"
        )
