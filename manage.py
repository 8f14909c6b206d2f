#!/usr/bin/env python
"""Django's command line for this project."""

import os
import sys

from django.core.management import execute_from_command_line
from django.db import OperationalError

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "hud.settings")
    try:
        execute_from_command_line(sys.argv)
    except OperationalError as error:
        sys.exit(f"{error}\nThe database does not answer. Is `make up` running on this HUD_DATA?")
