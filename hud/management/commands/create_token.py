"""`manage.py create_token`: create a token that attaches one host; it is the last word."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from hud.hosts import registration
from hud.models import Host


class Command(BaseCommand):
    help = "Create a registration token for one host and print it, only now, as the last word."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--replace", metavar="NAME", help="an attached host whose name it may take over")

    def handle(self, *args: Any, replace: str | None, **options: Any) -> None:
        replaces = Host.objects.filter(name=replace).first()
        if replace and replaces is None:
            raise CommandError(f"no host is called {replace}")
        token = registration.create_token(who="create_token", replaces=replaces)
        minutes = round(registration.TOKEN_LIFE.total_seconds() / 60)
        self.stdout.write(
            f"for python -m runner attach --hud URL --token TOKEN, once, within {minutes} minutes: {token}"
        )
