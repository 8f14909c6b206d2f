"""When each background process last went round, on the database's clock.

`tick` breaks leases only while it may trust that silence is the host's and not our own: a gap in its
own rounds, or in the web's, starts a grace period.
"""

from __future__ import annotations

from django.conf import settings
from django.db import connection

GAP_S = 15  # rounds further apart than this were an outage of ours


def beat(name: str) -> None:
    """Note a round of process `name`; a start or a gap of over `GAP_S` moves `trusted_from`."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO hud_beacon (name, started, last, trusted_from)
            VALUES (%(name)s, clock_timestamp(), clock_timestamp(),
                clock_timestamp() + %(grace)s * interval '1 s')
            ON CONFLICT (name) DO UPDATE SET
                last = clock_timestamp(),
                trusted_from = CASE
                    WHEN clock_timestamp() - hud_beacon.last > %(gap)s * interval '1 s'
                    THEN clock_timestamp() + %(grace)s * interval '1 s'
                    ELSE hud_beacon.trusted_from END
            """,
            {"name": name, "grace": settings.HUD_GRACE_S, "gap": min(GAP_S, settings.HUD_GRACE_S)},
        )


def restart(name: str) -> None:
    """Note that process `name` has just started: what was silent may have been silent because of us."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM hud_beacon WHERE name = %s", [name])
    beat(name)


def trusted() -> bool:
    """Return whether tick and web have both been going round without a gap for the grace period."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT count(*) = 2 FROM hud_beacon
            WHERE name IN ('tick', 'web') AND trusted_from <= clock_timestamp()
              AND last > clock_timestamp() - %s * interval '1 s'
            """,
            [GAP_S * 2],
        )
        row = cursor.fetchone()
    return bool(row and row[0])
