"""How tests wait: for the very thing, by asking again, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
PATIENCE_S = 60  # for things that take a moment; generous, because the machine may be busy
_AGAIN_S = 0.05  # between two looks; no other sleep in the tests waits for something


def wait_for(condition: Callable[[], Found | None], what: str, timeout_s: float = PATIENCE_S) -> Found:
    """Waits until `condition()` is true and returns it; fails with `what` was waited for."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
        time.sleep(_AGAIN_S)
    return found
