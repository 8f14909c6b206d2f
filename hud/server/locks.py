"""Advisory locks of PostgreSQL: of several equal processes one works, the others wait to take over.

PostgreSQL frees a lock when the connection of its holder ends.
"""

from __future__ import annotations

from hud.sql import fetch_tuples


def hold_lock(number: int) -> bool:
    """Take the lock, unless another process has it; return whether this one holds it, also since before."""
    ((holds,),) = fetch_tuples("SELECT pg_try_advisory_lock(%s)", [number])
    return bool(holds)


def release_locks() -> None:
    """Free what this process holds, whose connection lives on."""
    fetch_tuples("SELECT pg_advisory_unlock_all()", [])
