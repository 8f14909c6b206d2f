#!/usr/bin/env python
"""Django's command line for this project."""

import os
import sys

from django.core.management import execute_from_command_line
from django.db import OperationalError

from hud.server.processes import read_settings

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hud.settings")
    read_settings()
    try:
        execute_from_command_line(sys.argv)
    except KeyboardInterrupt:
        sys.stderr.write("Stopped by Ctrl-C.\n")
        sys.exit(130)
    except OperationalError as error:
        sys.exit(f"{error}\nThe database does not answer. Is `make up` running on this HUD_DATA?")
