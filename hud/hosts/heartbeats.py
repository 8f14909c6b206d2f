"""Heartbeats of the background processes, on the database's clock.

`tick` breaks leases only while a host's silence cannot be ours: a gap in the heartbeats of tick or web starts
a grace period.
"""

from datetime import timedelta

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now

from hud.models import Heartbeat
from hud.sql import execute

GAP_S = 15  # a longer gap between heartbeats counts as an outage of the HUD


def beat(name: str) -> None:
    """Store a heartbeat of process `name`. A start, a gap of over `GAP_S` or a clock that went back moves
    `trusted_from`."""
    execute(
        """
        INSERT INTO hud_heartbeat (name, started, last, trusted_from)
        VALUES (%(name)s, clock_timestamp(), clock_timestamp(),
            clock_timestamp() + %(grace)s * interval '1 s')
        ON CONFLICT (name) DO UPDATE SET
            last = clock_timestamp(),
            trusted_from = CASE
                WHEN clock_timestamp() NOT BETWEEN hud_heartbeat.last
                    AND hud_heartbeat.last + %(gap)s * interval '1 s'
                THEN clock_timestamp() + %(grace)s * interval '1 s'
                ELSE hud_heartbeat.trusted_from END
        """,
        {"name": name, "grace": settings.HUD_GRACE_S, "gap": min(GAP_S, settings.HUD_GRACE_S)},
    )


def gap(name: str) -> timedelta:
    """Return how long the last heartbeat of a process is ago; 0 for none."""
    silent = Heartbeat.objects.filter(name=name).annotate(gap=Now() - F("last"))
    return silent.values_list("gap", flat=True).first() or timedelta()


def trusted() -> bool:
    """Return whether tick and web have sent heartbeats without a gap for the grace period."""
    recent = Heartbeat.objects.filter(name__in=("tick", "web"), last__gt=Now() - timedelta(seconds=2 * GAP_S))
    return recent.filter(trusted_from__lte=Now()).count() == 2
