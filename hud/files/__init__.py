"""Files of tasks and imports, by Django's storage: below `HUD_DATA`, or in the bucket that `HUD_FILES` names.

Names are the same in both: `artifacts/RUN/…`, `tasklogs/RUN/…`, `imports/…`.
"""

from contextlib import suppress
from typing import cast

from django.core.files.storage import default_storage

from hud.files.folder import Folder

files = cast("Folder", default_storage)  # or a Bucket, which has the same methods


def names_in(folder: str, *, folders: bool = False) -> list[str]:
    """Return the full names of the files in a folder, or of its folders; none without it."""
    with suppress(FileNotFoundError):
        return sorted(f"{folder}/{name}" for name in files.listdir(folder)[0 if folders else 1])
    return []


def delete_folder(folder: str) -> None:
    """Delete a folder and the files in it."""
    for name in names_in(folder):
        files.delete(name)
    files.delete(folder)
