"""Pages from a replica: what a request without a key reads comes from the database of `DATABASE_REPLICA_URL`,
everything else from the primary.

A visitor who wrote reads the primary until the replica has what was written. While the primary is away the
replica answers alone, and pages say so.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from threading import Lock, Thread
from typing import Any

from django.conf import settings
from django.core.exceptions import MiddlewareNotUsed
from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponse

REPLICA = "replica"
_COOKIE, _COOKIE_S = "written", 60  # where in the primary's log a visitor's last change is
_POSITION = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}", re.ASCII)
_START = "0/0"
_AWAY_S = 5  # that a database which did not answer is not asked
_WAIT_S = 1.0  # for the replica's answer
_MOST_LAG = timedelta(seconds=10)
_LOGIN = "/login/"  # where requests that only read write too
_AWAY = (DatabaseError, InterfaceError)
# Whether it hears from the primary, and has what was written up to a position; how far it is behind, and the
# time of the newest change that it has
_STATE = """
    SELECT EXISTS (SELECT FROM pg_stat_wal_receiver), coalesce(pg_last_wal_replay_lsn() >= %s::pg_lsn, false),
        CASE WHEN pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn() THEN interval '0'
            ELSE clock_timestamp() - pg_last_xact_replay_timestamp() END,
        pg_last_xact_replay_timestamp()
"""
_reading: ContextVar[str] = ContextVar("reading", default=DEFAULT_DB_ALIAS)


def reading() -> BaseDatabaseWrapper:
    """Return the connection that this request reads by."""
    return connections[_reading.get()]


class Router:
    """Read the replica in the requests that may, and write the primary."""

    def db_for_read(self, _model: Any, **_hints: Any) -> str:
        return _reading.get()

    def db_for_write(self, _model: Any, **_hints: Any) -> str:
        return DEFAULT_DB_ALIAS

    def allow_relation(self, *_rows: Any, **_hints: Any) -> bool:
        return True

    def allow_migrate(self, database: str, _app: str, **_hints: Any) -> bool:
        return database == DEFAULT_DB_ALIAS


class _Look:
    """Ask the replica how it is, and remember the answer. A name that nobody resolves or a server that hangs
    takes long: it is asked in a thread, every 5 s at most, and who wants to know waits a second at most."""

    def __init__(self) -> None:
        self._lock, self._thread, self._asked = Lock(), Thread(), -float(_AWAY_S)
        self._state: tuple[Any, ...] | None = None
        self.silent_since: datetime | None = None

    def state(self) -> tuple[Any, ...] | None:
        """Return what `_STATE` said, None where the replica does not answer."""
        with self._lock:
            if time.monotonic() - self._asked >= _AWAY_S and not self._thread.is_alive():
                self._asked = time.monotonic()
                self._thread = Thread(target=self._ask, daemon=True)
                self._thread.start()
                self._thread.join(_WAIT_S)
                if self._thread.is_alive():
                    self._note(None)
            return self._state

    def _ask(self) -> None:
        try:
            with connections[REPLICA].cursor() as cursor:
                cursor.execute("SELECT 1 FROM hud_metric LIMIT 1")
                cursor.execute(_STATE, [_START])
                self._note(cursor.fetchone())
        except _AWAY:
            self._note(None)
        finally:
            connections[REPLICA].close()

    def _note(self, state: tuple[Any, ...] | None) -> None:
        self._state = state
        self.silent_since = None if state else self.silent_since or datetime.now(UTC)


_look = _Look()


def answers() -> bool:
    """Return whether there is a replica that answers."""
    return REPLICA in settings.DATABASES and _look.state() is not None


def condition() -> tuple[str, str]:
    """Return in a line why pages are not read from the replica, and how far it is behind although they are;
    '' for nothing."""
    if REPLICA not in settings.DATABASES:
        return "", ""
    if state := _look.state():
        hears, _has_position, lag, newest = state
        behind = f"is {lag.total_seconds():.0f} s behind" if lag is not None else "is behind"
        if hears and _is_near(lag):
            return "", f"the replica {behind}" if lag >= timedelta(seconds=1) else ""
        why = behind if hears else f"hears nothing from the primary, and is of {_utc(newest)}"
    else:
        why = f"has not answered since {_utc(_look.silent_since)}"
    return f"the replica {why}; reads go to the primary, while that answers", ""


def _is_near(lag: timedelta | None) -> bool:
    return lag is not None and lag < _MOST_LAG


def _utc(moment: datetime | None) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else "before its start"


class ReplicaMiddleware:
    """Choose the database that a request reads. `request.alone_since` has the time of the replica's newest
    change where the primary is away."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        if REPLICA not in settings.DATABASES:
            raise MiddlewareNotUsed
        self._get_response = get_response
        self._away: dict[str, float] = {}  # by database: when it did not answer

    def __call__(self, request: HttpRequest) -> HttpResponse:
        has_key = "Authorization" in request.headers  # whose use is noted
        if request.method not in {"GET", "HEAD"}:
            response = self._get_response(request)
            if not has_key and response.status_code < HTTPStatus.BAD_REQUEST:
                self._note_position(response)
            return response
        if has_key or request.path.startswith(_LOGIN):
            return self._get_response(request)
        if not answers():
            return self._get_response(request)
        position = request.COOKIES.get(_COOKIE, "")
        rows = self._asked(REPLICA, _STATE, position if _POSITION.fullmatch(position) else _START)
        if not rows:
            return self._get_response(request)
        hears, has_position, lag, newest = rows[0]
        if not (hears and has_position and _is_near(lag)):
            if self._asked(DEFAULT_DB_ALIAS, "SELECT 1"):
                return self._get_response(request)
            request.alone_since = newest  # type: ignore[attr-defined]
        token = _reading.set(REPLICA)
        try:
            return self._get_response(request)
        finally:
            _reading.reset(token)

    def _asked(self, database: str, statement: str, *params: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; none from a database that is away."""
        if time.monotonic() - self._away.get(database, -_AWAY_S) < _AWAY_S:
            return []
        try:
            with connections[database].cursor() as cursor:
                cursor.execute(statement, params)
                return list(cursor.fetchall())
        except _AWAY:
            connections[database].close()
            self._away[database] = time.monotonic()
            return []

    def _note_position(self, response: HttpResponse) -> None:
        with suppress(*_AWAY), connections[DEFAULT_DB_ALIAS].cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
            (position,) = cursor.fetchone()
            secure = settings.SESSION_COOKIE_SECURE
            response.set_cookie(
                _COOKIE, position, max_age=_COOKIE_S, secure=secure, httponly=True, samesite="Lax"
            )
