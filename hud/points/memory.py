"""What a process keeps of what it has read, so that pages need not read it again."""

import math
import time
from collections import OrderedDict
from collections.abc import Hashable
from contextlib import suppress
from typing import Generic, TypeVar

KEPT_S = 600
T = TypeVar("T")


class Memory(Generic[T]):
    """Values by a key that changes with what they were made of: the last used ones, for `KEPT_S` at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, tuple[float, T | None]] = OrderedDict()

    def get(self, key: Hashable) -> T | None:
        since_s, value = self._values.get(key, (-math.inf, None))
        if time.monotonic() - since_s > KEPT_S:
            return None
        with suppress(KeyError):  # another thread has dropped it
            self._values.move_to_end(key)
        return value

    def keep(self, key: Hashable, value: T) -> None:
        self._values[key] = time.monotonic(), value
        while len(self._values) > self._most:
            self._values.popitem(last=False)
