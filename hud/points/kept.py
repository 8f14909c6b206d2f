"""Keep in a process what was computed of nights, until one of their points changes."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

KEPT_S = 600
T = TypeVar("T")


class Kept:
    """Values by keys with the versions of runs, of which the `most` newest are kept, for `KEPT_S`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, tuple[float, object]] = OrderedDict()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return the value of a key, from `read` where it is not kept."""
        now = time.monotonic()
        if key in self._values and now - self._values[key][0] < KEPT_S:
            return self._values[key][1]  # type: ignore[return-value]  # what `read` returned before
        value = read()
        self._values[key] = now, value
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return value
