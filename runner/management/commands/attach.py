"""`manage.py attach`: the agent of the machine that `make up` runs on.

The same as `python -m runner attach`, for the host that `manage.py bootstrap` has made. Once detached it
does nothing, but stays: whoever keeps it running would only start it again.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from runner.host.agent import Attachment
from runner.host.attach import CannotAttach, add_device_arguments, only_agent, run


class Command(BaseCommand):
    help = "Attaches this machine to the web application that runs here, and works for it until stopped."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add_device_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        path = settings.HUD_DATA / "host.json"
        try:
            known = json.loads(path.read_text())
        except FileNotFoundError:
            raise CommandError(f"{path} is missing: run manage.py bootstrap, or make up") from None
        data = settings.HUD_DATA / "agent"
        try:
            with only_agent(data):
                attachment = Attachment(known["hud"], known["name"], known["key"])
                run(attachment, data, argparse.Namespace(**options), stays=True)
        except CannotAttach as error:
            raise CommandError(str(error)) from error
