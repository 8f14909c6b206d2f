"""How often callers may do something: wrong passwords and keys, and the calls and bytes of a key."""

import math
from collections.abc import Callable
from typing import Any

from django.conf import settings

from hud.problems import Problem
from hud.sql import fetch_tuples

_DAY_S = 24 * 3600


class RateLimit:
    """Permit a caller, such as an address or a key, `most()` at once, and so much again in `window_s`."""

    def __init__(
        self, name: str, most: Callable[[], int], window_s: int, status: int = 429, **problem: Any
    ) -> None:
        """`status` and `problem` are of the answer to a caller that did too much."""
        self._name, self._most, self._window_s = name, most, window_s
        self._status, self._problem = status, problem

    def take(self, caller: object, amount: int = 1) -> int:
        """Count what a caller does; return 0, or after too much the seconds to wait, and count nothing. A
        negative amount goes out of the count. A clock that went back neither permits nor refuses anything.
        One statement, so that concurrent calls cannot exceed the limit."""
        per_s = self._most() / self._window_s
        ((used,),) = fetch_tuples(
            """
            INSERT INTO hud_limituse AS old (name, caller, used, at)
            VALUES (%(name)s, %(caller)s, %(amount)s, clock_timestamp())
            ON CONFLICT (name, caller) DO UPDATE SET at = excluded.at, used = excluded.used + greatest(0,
                old.used - %(per_s)s * greatest(0, extract(epoch FROM excluded.at - old.at)))
            RETURNING used
            """,
            {"name": self._name, "caller": str(caller), "amount": amount, "per_s": per_s},
        )
        if amount < 0 or used <= self._most():
            return 0
        self.take(caller, -amount)
        return max(1, math.ceil(float(used - self._most()) / per_s))

    def check(self, caller: object, amount: int = 1) -> None:
        """Count what a caller does. Raise Problem with the seconds to wait after too much."""
        if wait_s := self.take(caller, amount):
            detail = f"too many {self._name}: the limit is {self._most()} in {self._window_s} s"
            raise Problem(self._status, detail, retry_after_s=wait_s, **self._problem)


PASSWORDS = RateLimit("passwords", lambda: settings.HUD_WRONG_PASSWORDS, 300)
ADDRESS_PASSWORDS = RateLimit("address", lambda: 10 * settings.HUD_WRONG_PASSWORDS, 300)
ALL_PASSWORDS = RateLimit("all", lambda: 100 * settings.HUD_WRONG_PASSWORDS, 300)
KEYS = RateLimit("wrong keys", lambda: settings.HUD_WRONG_KEYS, 60)
CI_KEYS = RateLimit("keys of CI jobs", lambda: settings.HUD_RUNS_PER_MINUTE, 60)
UPLOADS = RateLimit("uploads", lambda: settings.HUD_UPLOADS_PER_MINUTE, 60)
RUNS = RateLimit("runs", lambda: settings.HUD_RUNS_PER_MINUTE, 60)
UPLOAD_BYTES = RateLimit("upload bytes", lambda: settings.HUD_UPLOAD_BYTES_PER_DAY, _DAY_S, code="quota")
HOST_BYTES = RateLimit("host bytes", lambda: settings.HUD_HOST_BYTES_PER_DAY, _DAY_S, 507, code="quota")
