"""Notes from torch's internals, which change without notice, and why some of them cannot be taken here."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from runner.launch.failures import failure_of

NoteName = Literal["choices", "kernels", "phases", "graph breaks"]
_MOST_CHARACTERS = 300
blind: dict[str, str] = {}  # kinds of notes that failed in this process so far, each with its first exception


@contextmanager
def note(name: NoteName) -> Iterator[None]:
    """Take a note of this kind. Where that raises, the measurement goes on, and the note is blind."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the numbers stand; the record names the note that is missing
        if name not in blind:
            traceback.print_exc()
            blind[name] = failure_of(error).reason[:_MOST_CHARACTERS]
