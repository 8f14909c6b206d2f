"""Heartbeats of the background processes, on the database's clock.

`tick` breaks leases only while a host's silence cannot be ours: a gap in the heartbeats of tick or web starts
a grace period.

All nodes must share the bodies of imports, logs and artifacts: each heartbeat is also one of the folder or
bucket that has them (`hud.files`).
"""

import socket
from contextlib import suppress
from datetime import datetime, timedelta

from django.conf import settings
from django.core.management.base import CommandError
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F
from django.db.models.functions import Now

from hud.files import files
from hud.models import Heartbeat
from hud.server.backup import MIGRATIONS
from hud.sql import fetch_tuples

GAP_S = 15  # a longer gap between heartbeats counts as an outage of the HUD
_FOLDER = "data-"  # begins the name of a heartbeat of a folder or bucket
_NODE = "node-"  # begins that of a node, then the end of its host name
_NODE_LETTERS = 15
_RUNNING_S = 2 * GAP_S
_START_LOCK = 7_014_003  # of nodes that start


class CannotStart(CommandError, RuntimeError):
    """Files cannot be used, or another node that runs uses others, or the database is older than this
    release. Of these two kinds of error manage.py and gunicorn print the words, and end."""


def join() -> None:
    """Join the nodes that run. Raise CannotStart unless they share these files. Without a database each
    heartbeat joins, and `/readyz` says the same."""
    try:
        with transaction.atomic():
            fetch_tuples("SELECT pg_advisory_xact_lock(%s)", [_START_LOCK])
            if problem := _schema_problem() or files_problem():
                raise CannotStart(problem)
            _beat(_FOLDER + files.identity)
    except (OperationalError, InterfaceError):
        pass


def _schema_problem() -> str:
    """Return what the database lacks. One that is newer serves both releases while nodes are upgraded."""
    applied = fetch_tuples("SELECT name FROM django_migrations WHERE app = 'hud'", {})
    missing = [name for name in MIGRATIONS if (name,) not in applied]
    return f"the database lacks migration {missing[0]}: run manage.py upgrade first" if missing else ""


def files_problem() -> str:
    """Return why this node may not work, since another one that runs has its files elsewhere, or ''."""
    used = f"HUD_FILES={settings.HUD_FILES}" if settings.HUD_FILES else f"HUD_DATA={settings.HUD_DATA}"
    try:
        own, noted = _FOLDER + files.identity, files.last_heartbeat()
    except OSError as error:
        return f"{used} cannot be used: {error}"
    running = fetch_tuples(
        """
        SELECT name, extract(epoch FROM last) FROM hud_heartbeat WHERE starts_with(name, %(prefix)s)
            AND abs(extract(epoch FROM clock_timestamp() - last)) < %(running)s
        """,
        {"prefix": _FOLDER, "running": _RUNNING_S},
    )
    if all(name == own and last <= noted for name, last in running):
        return ""
    return (
        f"{used} is not what another node that runs on this database uses, or is a copy of it: uploads,"
        " logs and artifacts would be lost between them. Share one folder or bucket, or stop the other node"
        f" and wait {_RUNNING_S} s"
    )


def beat(name: str) -> None:
    """Store a heartbeat of process `name`, of its files and of its node. A start, a gap of over `GAP_S`
    or a clock that went back moves `trusted_from`."""
    node = socket.gethostname().partition(".")[0]
    _beat(name, _FOLDER + files.identity, _NODE + node[-_NODE_LETTERS:])


def nodes() -> dict[str, datetime]:
    """Return the nodes that have worked within a day, each with its last heartbeat."""
    recent = Heartbeat.objects.filter(name__startswith=_NODE, last__gt=Now() - timedelta(days=1))
    return {beat.name.removeprefix(_NODE): beat.last for beat in recent.order_by("name")}


@transaction.atomic
def _beat(*names: str) -> None:
    beaten = fetch_tuples(
        """
        INSERT INTO hud_heartbeat (name, started, last, trusted_from)
        SELECT name, clock_timestamp(), clock_timestamp(), clock_timestamp() + %(grace)s * interval '1 s'
        FROM unnest(%(names)s::text[]) name
        ON CONFLICT (name) DO UPDATE SET
            last = clock_timestamp(),
            trusted_from = CASE
                WHEN clock_timestamp() NOT BETWEEN hud_heartbeat.last
                    AND hud_heartbeat.last + %(gap)s * interval '1 s'
                THEN clock_timestamp() + %(grace)s * interval '1 s'
                ELSE hud_heartbeat.trusted_from END
        RETURNING extract(epoch FROM last)
        """,
        {"names": list(names), "grace": settings.HUD_GRACE_S, "gap": min(GAP_S, settings.HUD_GRACE_S)},
    )
    with suppress(OSError):  # the heartbeat counts more
        files.note_heartbeat(float(beaten[-1][0]))


def gap(name: str) -> timedelta:
    """Return how long the last heartbeat of a process is ago; 0 for none."""
    silent = Heartbeat.objects.filter(name=name).annotate(gap=Now() - F("last"))
    return silent.values_list("gap", flat=True).first() or timedelta()


def trusted() -> bool:
    """Return whether tick and web have sent heartbeats without a gap for the grace period."""
    recent = Heartbeat.objects.filter(name__in=("tick", "web"), last__gt=Now() - timedelta(seconds=2 * GAP_S))
    return recent.filter(trusted_from__lte=Now()).count() == 2
