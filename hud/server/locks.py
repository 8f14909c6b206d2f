"""Advisory locks of PostgreSQL: of several equal processes one works, the others wait to take over.

PostgreSQL frees a lock when the connection of its holder ends.
"""

from __future__ import annotations

from django.db import connection


def hold_lock(number: int) -> bool:
    """Take the lock, unless another process has it; return whether this one holds it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) > 0 FROM pg_locks"
            " WHERE locktype = 'advisory' AND objid = %s AND pid = pg_backend_pid() AND granted",
            [number],
        )
        if cursor.fetchone()[0]:
            return True
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [number])
        return bool(cursor.fetchone()[0])


def release_lock(number: int) -> None:
    """Free the lock of a process whose connection lives on."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_unlock(%s)", [number])
