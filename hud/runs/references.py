"""The lock that keeps rows which measurements refer to while an upload is stored."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError, transaction
from psycopg.errors import DeadlockDetected, LockNotAvailable

from hud.problems import Problem
from hud.sql import execute

_REFERENCES = 4_170_226_001  # number of the advisory lock, of no meaning
_WAIT = "10s"


def keep_references() -> None:
    """Keep runs, series and uploads from being removed or merged until the transaction ends. The database
    does not check the references of measurements."""
    execute("SELECT pg_advisory_xact_lock_shared(%s)", [_REFERENCES])


@contextmanager
def changing_references() -> Iterator[None]:
    """Open a transaction that may remove or merge what measurements refer to. Raise Problem 503 if it has to
    wait for longer than 10 s, since uploads wait behind it."""
    try:
        with transaction.atomic():
            execute(f"SET LOCAL lock_timeout = '{_WAIT}'")
            execute("SELECT pg_advisory_xact_lock(%s)", [_REFERENCES])
            yield
    except OperationalError as error:
        if isinstance(error.__cause__, LockNotAvailable | DeadlockDetected):
            detail = "an upload is being stored; try again when it has ended"
            raise Problem(503, detail, retry_after_s=30) from error
        raise
