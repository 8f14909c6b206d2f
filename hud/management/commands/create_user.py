"""`manage.py create_user NAME --role ROLE`: create a login; the last word is its password."""

from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from hud.accounts.roles import Role, create_user


class Command(BaseCommand):
    help = "Create a login and print its password, only now, as the last word."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--role", required=True, choices=[role.value for role in Role])

    def handle(self, *args: Any, name: str, role: str, **options: Any) -> None:
        try:
            user, password = create_user(name=name, role=Role(role), who="create_user")
        except ValidationError as error:
            raise CommandError("; ".join(error.messages)) from error
        self.stdout.write(f"login {user.get_username()} with the role {role}: {password}")
