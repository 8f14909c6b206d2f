"""`manage.py create_key NAME --scopes upload,read`: create an API key; the last word is its secret."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from hud.accounts.keys import create_key
from hud.accounts.roles import SCOPES
from hud.problems import Problem
from hud.runs.streams import of_new_key


class Command(BaseCommand):
    help = "Create an API key and print it, only now, as the last word."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--scopes", required=True, help=f"comma-separated, of: {', '.join(SCOPES)}")
        parser.add_argument("--stream", default="", help="where its uploads go; default: NAME as a slug")

    def handle(self, *args: Any, name: str, scopes: str, stream: str, **options: Any) -> None:
        wanted = [scope.strip() for scope in scopes.split(",")]
        try:
            key, secret = create_key(
                name=name,
                scopes=wanted,
                who="create_key",
                stream=of_new_key(name, stream, scopes=wanted, owner=None, is_operator=True),
            )
        except Problem as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"key {key.name} with {', '.join(key.scopes)}: {secret}")
