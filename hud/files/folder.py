"""Files below `HUD_DATA`."""

import os
import secrets
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files.storage import FileSystemStorage

from hud.server.embedded import make_folder, written_once

_FILE_TIME_S = 2  # to which a file system may round


class Folder(FileSystemStorage):
    """Files in a folder, which all nodes must share: it is known by the random id in its file `data_id`. The
    file's time is that of the last heartbeat: in a copy of the folder it falls behind."""

    def __init__(self) -> None:
        super().__init__(file_permissions_mode=0o600)

    @property
    def location(self) -> str:
        return str(settings.HUD_DATA)

    @property
    def identity(self) -> str:
        return written_once(Path(self.path("data_id")), secrets.token_hex(6))

    def note_heartbeat(self, moment: float) -> None:
        os.utime(self.path("data_id"), (moment, moment))

    def last_heartbeat(self) -> float:
        """Return the latest time at which the noted one may have been."""
        with self.open("data_id") as file:  # opened, so that a network's file system asks for it
            return os.fstat(file.fileno()).st_mtime + _FILE_TIME_S

    def _save(self, name: str, content: Any) -> str:
        make_folder(Path(self.path(name)).parent)
        return str(super()._save(name, content))  # type: ignore[misc]

    def append(self, name: str, start: int, data: bytes) -> None:
        """Write data at `start`, where a file ends; a crash may have left bytes beyond."""
        path = Path(self.path(name))
        make_folder(path.parent)
        path.touch(mode=0o600)
        with path.open("r+b") as file:
            file.seek(start)
            file.truncate()
            file.write(data)

    def read(self, name: str, start: int = 0, size: int = -1) -> bytes:
        """Return a file's bytes from `start`, at most `size`. Raise FileNotFoundError."""
        with self.open(name) as file:
            file.seek(start)
            return bytes(file.read(size))
