"""`manage.py create_key NAME --scopes upload,read`: create an API key; the last word is its secret."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from hud.accounts.keys import UnknownScope, create_key
from hud.accounts.roles import SCOPES


class Command(BaseCommand):
    help = "Create an API key and print it, only now, as the last word."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--scopes", required=True, help=f"comma-separated, of: {', '.join(SCOPES)}")

    def handle(self, *args: Any, name: str, scopes: str, **options: Any) -> None:
        try:
            key, secret = create_key(
                name=name, scopes=[scope.strip() for scope in scopes.split(",")], who="create_key"
            )
        except UnknownScope as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"key {key.name} with {', '.join(key.scopes)}: {secret}")
