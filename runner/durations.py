"""How long tasks took on this machine, so that the longest can go first where several accelerators work."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

from runner import host

_MOST = 5000  # the latest ones are kept


def known() -> dict[str, float]:
    """Seconds by key (`runner.terminal.Job.key`); empty where nothing is known."""
    try:
        found = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, float)}


def keep(key: str, seconds: float) -> None:
    """Remembers how long a task took; what cannot be written is not remembered."""
    with contextlib.suppress(OSError), _locked(_path()):
        latest = {name: value for name, value in known().items() if name != key}
        latest[key] = round(seconds, 2)
        draft = _path().with_suffix(".new")
        draft.write_text(json.dumps(dict(list(latest.items())[-_MOST:])))
        draft.replace(_path())


def _path() -> Path:
    return host.cache_folder() / "durations.json"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
