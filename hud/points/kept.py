"""Keep what was computed of nights, until one of their points changes: in a process, and what can be stored
for the other processes and the next start too."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
from django.db import DatabaseError
from django.utils import timezone

from hud.models import KeptValue
from runner.schema.protocol import RELEASE

KEPT_S = 600  # in a process
STORED = timedelta(days=7)


class Kept:
    """Values by keys with the versions of runs, of which the `most` newest are kept, for `KEPT_S`. Those of a
    type that msgpack can hold are stored for a week."""

    def __init__(self, most: int, kind: Any = None) -> None:
        self._most, self._kind = most, kind
        self._values: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    def known(self, keys: Collection[Hashable]) -> dict[Hashable, Any]:
        """Return the values of keys that are kept: 1 statement where some are not in this process, and may be
        stored."""
        now = time.monotonic()
        fresh = (key for key in keys if key in self._values and now - self._values[key][0] < KEPT_S)
        known = {key: self._values[key][1] for key in fresh}
        missing = {self._digest(key): key for key in keys if key not in known} if self._kind else {}
        if missing:
            rows = KeptValue.objects.filter(digest__in=missing, at__gt=timezone.now() - STORED)
            stored = {}
            for digest, value in rows.values_list("digest", "value"):
                with suppress(msgspec.MsgspecError):  # other code stored it
                    stored[missing[digest]] = msgspec.msgpack.decode(value, type=self._kind)
            known |= self._remember(stored)
        return known

    def keep(self, values: Mapping[Hashable, Any]) -> None:
        """Keep values: 1 statement for those that can be stored."""
        self._remember(values)
        if not values or not self._kind:
            return
        rows = [
            KeptValue(digest=self._digest(key), value=msgspec.msgpack.encode(value))
            for key, value in values.items()
        ]
        with suppress(DatabaseError):  # a replica stores nothing
            KeptValue.objects.bulk_create(
                rows, update_conflicts=True, unique_fields=["digest"], update_fields=["at"]
            )

    def get(self, key: Hashable, read: Callable[[], Any]) -> Any:
        """Return the value of a key, from `read` where it is not kept."""
        known = self.known([key])
        if key not in known:
            known = {key: read()}
            self.keep(known)
        return known[key]

    def _remember(self, values: Mapping[Hashable, Any]) -> Mapping[Hashable, Any]:
        now = time.monotonic()
        self._values.update({key: (now, value) for key, value in values.items()})
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return values

    def _digest(self, key: Hashable) -> str:
        return hashlib.sha256(repr((RELEASE, self._kind, key)).encode()).hexdigest()
